# SPDX-License-Identifier: Apache-2.0
"""A relay that makes loopback a network: answers take time, and no more than so many bytes come a second."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from queue import Queue

from tests.integration.relay import Relay
from weir.lab.cluster import Cluster

_CHUNK = 64 * 1024
_CHUNKS_ON_THE_WAY = 10_000  # of any size: a bound that is never reached here


class SlowNetwork(Relay):
    """Carries bytes each way `delay` seconds late, and at most `rate` bytes/s come back."""

    def __init__(self, upstream: tuple[str, int], *, rate: float = float("inf"), delay: float = 0.0) -> None:
        self._rate = rate
        self._delay = delay
        super().__init__(upstream)

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        self._relay(client, server, float("inf"))
        self._relay(server, client, self._rate)

    def _relay(self, source: socket.socket, target: socket.socket, rate: float) -> None:
        chunks: Queue[tuple[float, bytes]] = Queue(_CHUNKS_ON_THE_WAY)
        threading.Thread(target=_take, args=(source, chunks, rate, self._delay), daemon=True).start()
        threading.Thread(target=_give, args=(target, chunks), daemon=True).start()


@contextmanager
def slow_network(
    cluster: Cluster, follower: int, leader: int, *, rate: float = float("inf"), delay: float = 0.0
) -> Iterator[None]:
    """Have all that `follower` fetches from `leader` pass a slow network while the block runs.

    The follower's sidecar is started again, before and after.
    """
    sidecar = cluster.sidecars[follower]
    text = sidecar.config.read_text()
    direct = cluster.places[leader].advertised_address
    assert f'"upstream" = "{direct}"' in text

    def restart_with(config: str) -> None:
        cluster.kill_sidecar(follower)
        sidecar.config.write_text(config)
        cluster.start_sidecar(follower)

    host, port = direct.split(":")
    with closing(SlowNetwork((host, int(port)), rate=rate, delay=delay)) as network:
        slow = "{}:{}".format(*network.address)
        restart_with(text.replace(f'"upstream" = "{direct}"', f'"upstream" = "{slow}"'))
        try:
            yield
        finally:
            restart_with(text)


def _take(source: socket.socket, chunks: Queue[tuple[float, bytes]], rate: float, delay: float) -> None:
    free = 0.0  # when all that was taken has passed
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            free = max(free, time.monotonic()) + len(data) / rate
            chunks.put((free + delay, data))
            time.sleep(max(0.0, free - time.monotonic()))
    chunks.put((0.0, b""))


def _give(target: socket.socket, chunks: Queue[tuple[float, bytes]]) -> None:
    with suppress(OSError):
        while (chunk := chunks.get())[1]:
            due, data = chunk
            time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

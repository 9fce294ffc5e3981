# SPDX-License-Identifier: Apache-2.0
"""A worker: `python -m weir.proxy.tls_workers.worker CHANNEL COUNTS`, both descriptors, as `pool` starts it.

It ends with its sidecar, and takes no signals: a supervisor that stops the sidecar tells all of its processes, and
connections are to be drained first.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import ssl
import sys
from typing import Final

from weir.protocol.response_scanner import Buffer
from weir.proxy.event_loop import LoopLoad, new_event_loop
from weir.proxy.log import os_error_reason
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE, BufferPool
from weir.proxy.relay.handshakes import shaken
from weir.proxy.relay.pump import STOPPED, Pump
from weir.proxy.relay.tls_transport import TlsTransport
from weir.proxy.relay.transport import TcpTransport, Transport
from weir.proxy.relay.turn_budget import PAUSE_SECONDS, TurnBudget
from weir.proxy.slices import wait_at_most
from weir.proxy.tls.keys import KeysError, load_client_keys, load_server_keys
from weir.proxy.tls.results import HandshakeFailed, failed_by
from weir.proxy.tls_workers.channel import ProcessChannel
from weir.proxy.tls_workers.messages import (
    Broken,
    Closed,
    KeysRefused,
    LoadKeys,
    Open,
    Ready,
    Shaken,
    SharedCounts,
    ToWorker,
)

LINGER_SECONDS: Final = 10.0
"""How long a peer has to take what its sidecar sent before it let go of the connection."""

_LOOK_SECONDS: Final = 1.0


class Worker:
    """Takes connections from one sidecar, until it is gone."""

    def __init__(self, connection: socket.socket, counts: SharedCounts) -> None:
        self.channel: ProcessChannel[ToWorker] = ProcessChannel(connection, ToWorker, self._told, self._sidecar_ended)
        self.counts = counts
        self.pool = BufferPool()
        self.turns = TurnBudget(pause=PAUSE_SECONDS)
        self.links: dict[int, WorkerLink] = {}
        self.ended = asyncio.Event()
        self._contexts: dict[int, ssl.SSLContext] = {}
        self._shaking: dict[asyncio.Task[ssl.SSLSocket], tuple[Open, socket.socket]] = {}
        self._load = LoopLoad()

    async def run(self) -> None:
        """Work until the sidecar is gone, and what it has sent is delivered."""
        self._load.start()
        self.channel.send(Ready())
        while not self.ended.is_set():
            await wait_at_most(self.ended, _LOOK_SECONDS)
            self.counts.note_load(self._load.busy, self._load.lost)
            for link in list(self.links.values()):
                link.check()
        end = asyncio.get_running_loop().time() + LINGER_SECONDS
        while self.links and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
            for link in list(self.links.values()):
                link.check()

    def _sidecar_ended(self) -> None:
        self.ended.set()
        for task in self._shaking:
            task.cancel()

    def _told(self, message: ToWorker, descriptors: list[int]) -> None:
        if isinstance(message, LoadKeys):
            self._load_keys(message)
            return
        context = self._contexts.get(message.keys)
        if context is None or len(descriptors) < 2:  # no keys; or no room for descriptors, which the kernel then drops
            for descriptor in descriptors:
                os.close(descriptor)
            self.channel.send(Shaken(message.link, None))
            self.channel.send(Closed(message.link))
            return
        connection, plain = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for end in (connection, plain):
            end.setblocking(False)  # else Python takes them for blocking ones, whatever the kernel has
        shaking = shaken(connection, context, message.server_name, message.allowed_names)
        task = asyncio.get_running_loop().create_task(shaking)
        self._shaking[task] = message, plain
        asyncio.get_running_loop().add_reader(plain, task.cancel)  # nothing is sent before: the sidecar has let go
        task.add_done_callback(self._shaken)

    def _load_keys(self, message: LoadKeys) -> None:
        try:
            if message.client_auth is not None:
                keys = load_server_keys(message.files, message.client_auth)
            else:
                keys = load_client_keys(message.files, checks_name=message.checks_name)
        except KeysError as error:
            self.channel.send(KeysRefused(message.keys, str(error)))
        else:
            self._contexts[message.keys] = keys.context

    def _shaken(self, task: asyncio.Task[ssl.SSLSocket]) -> None:
        message, plain = self._shaking.pop(task)
        asyncio.get_running_loop().remove_reader(plain)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            plain.close()
            if isinstance(error, OSError):
                failed = error if isinstance(error, HandshakeFailed) else failed_by(error)
                self.channel.send(Shaken(message.link, failed.result, failed.reason))
            self.channel.send(Closed(message.link))
            return
        self.links[message.link] = link = WorkerLink(self, message.link, task.result(), plain)
        self.channel.send(Shaken(message.link, "ok"))  # after the count of its bytes is 0
        link.start()


class CountingTls(TlsTransport):
    """TLS that tells how much of the plaintext it has taken."""

    __slots__ = ("_counts", "_link", "_taken")

    def __init__(self, connection: ssl.SSLSocket, counts: SharedCounts, link: int) -> None:
        super().__init__(connection)
        self._counts = counts
        self._link = link
        self._taken = 0
        counts.take(link, 0)

    def send(self, data: Buffer, /) -> int:
        """Send, and tell the sidecar how many bytes TLS has taken so far."""
        sent = super().send(data)
        self._taken += sent
        self._counts.take(self._link, self._taken)
        return sent


class WorkerLink:
    """One connection with TLS, and the plaintext of it."""

    def __init__(self, worker: Worker, number: int, secure: ssl.SSLSocket, plain: socket.socket) -> None:
        self._worker = worker
        self._number = number
        self._plain = plain
        self._ends = tls, clear = CountingTls(secure, worker.counts, number), TcpTransport(plain)
        self._ways = Way(self, tls, clear, worker), Way(self, clear, tls, worker)
        self._gone_for = 0.0
        self._is_open = True

    def start(self) -> None:
        """Pump both ways from now on."""
        for way in self._ways:
            way.resume(STOPPED)

    def check(self) -> None:
        """Close where the sidecar has let go: soon where all is delivered, and after a while in any case."""
        if self._sidecar_is_gone():
            self._gone_for += _LOOK_SECONDS
            if self._ways[1].has_ended or self._gone_for > LINGER_SECONDS:
                self.close()

    def way_ended(self) -> None:
        """Close where nothing can follow."""
        if all(way.has_ended for way in self._ways) or (self._ways[1].has_ended and self._sidecar_is_gone()):
            self.close()

    def failed(self, error: Exception) -> None:
        """Close, and say why where TLS is why."""
        if self._is_open and isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            self._worker.channel.send(Broken(self._number, os_error_reason(error)))
        self.close()

    def close(self) -> None:
        """Close both ends, and tell the sidecar that the link's number is free."""
        if not self._is_open:
            return
        self._is_open = False
        for way in self._ways:
            way.close()
        for end in self._ends:
            end.close()
        del self._worker.links[self._number]
        self._worker.channel.send(Closed(self._number))
        asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        del self._ways, self._ends

    def _sidecar_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._plain, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))


class Way(Pump):
    """One direction of a worker's link: a pump that sends bytes as they came."""

    __slots__ = ("_link", "has_ended")

    def __init__(self, link: WorkerLink, source: Transport, target: Transport, worker: Worker) -> None:
        super().__init__(asyncio.get_running_loop(), worker.pool, source, target, worker.turns, [])
        self._link = link
        self.has_ended = False

    def received(self, view: memoryview) -> None:
        """Send what was read to the other end."""
        self.large_reads = len(view) >= SMALL_BUFFER_SIZE
        self.unsent.append(view)

    def ended(self) -> None:
        """One end has sent its last byte."""
        self.has_ended = True
        self._link.way_ended()

    def failed(self, error: Exception) -> None:
        """Close the link, as one of its ends is broken."""
        self._link.failed(error)


async def _serve(channel: int, counts: int) -> None:
    await Worker(socket.socket(fileno=channel), SharedCounts(counts)).run()


def main() -> None:
    """Work until the sidecar is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    channel, counts = map(int, sys.argv[1:3])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(channel, counts))


if __name__ == "__main__":
    main()

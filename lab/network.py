# SPDX-License-Identifier: Apache-2.0
"""Ports and addresses of a lab. Everything stays within 127.0.0.0/8, all of which is there on Linux.

How a broker's fetchers are led through its own sidecar: every broker advertises `localhost` and a port of its own.
Clients and brokers without an egress sidecar resolve it to 127.0.0.1 as usual; a broker with one has a hosts file
(`-Djdk.net.hosts.file`) that says 127.0.1.<broker id>, where its sidecar listens on each peer's port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from types import TracebackType

from weir.lab.errors import LabError

LOOPBACK = "127.0.0.1"
_LOWEST = 20000
_TRIES = 500


def egress_address(broker_id: int) -> str:
    """Return the loopback address on which broker `broker_id`'s sidecar listens for its own broker."""
    return f"127.0.1.{broker_id}"


def ephemeral_range(path: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> tuple[int, int]:
    """Return the ports (lowest, highest) that the kernel hands to outgoing connections."""
    try:
        low, high = path.read_text().split()
    except (OSError, ValueError):
        return 32768, 60999  # Linux's default
    return int(low), int(high)


class Ports:
    """Hands out free ports, each once, and keeps other labs on this machine off them until it is closed.

    A port from `bind(0)` lies where the kernel picks outgoing connections' own ports: between a broker's death and its
    restart one of those (even a follower's, connecting to itself) may sit on it. So ports below that range are tried
    with `bind`, and each is also claimed by an abstract unix socket, which ends with this process however it ends.
    """

    def __init__(self, addresses: tuple[str, ...] = (LOOPBACK,)) -> None:
        self._addresses = addresses
        self._claims: list[socket.socket] = []
        self._random = random.Random()  # noqa: S311 - spreads labs apart, keeps nothing secret

    def take(self) -> int:
        """Return a port that is free on every address of this lab. Raises LabError when none was found."""
        low, _ = ephemeral_range()
        for _ in range(_TRIES):
            port = self._random.randrange(_LOWEST, low) if low - _LOWEST > 2000 else _kernels_choice()
            if (claim := _claim(port)) is None:
                continue
            if all(_is_free(address, port) for address in self._addresses):
                self._claims.append(claim)
                return port
            claim.close()
        raise LabError(
            f"No free port was found on {', '.join(self._addresses)} in {_TRIES} tries: end other brokers first."
        )

    def close(self) -> None:
        """Give the ports back."""
        while self._claims:
            self._claims.pop().close()

    def __enter__(self) -> Ports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kernels_choice() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0weir-lab-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: connections of an earlier one in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True

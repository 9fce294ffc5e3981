# SPDX-License-Identifier: Apache-2.0
"""What this machine's links to other brokers have carried: everybody's bytes, also of those who pass no sidecar."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from weir.proxy.config.address import IPAddress, numeric_address
from weir.proxy.config.tables import Config
from weir.proxy.relay.replica_sources import Addresses

_MOST_PEERS: Final = 100
_LOOPBACK: Final = "lo"
_PROC: Final = Path("/proc/net")
_SYS: Final = Path("/sys/class/net")


class Interfaces:
    """The interfaces by which the other brokers are reached, as the kernel's table of routes says."""

    def __init__(self, config: Config, proc: Path = _PROC, sys: Path = _SYS) -> None:
        self._own = config.broker_id
        self._upstreams = [numeric_address(route.upstream.host) for route in config.egress]
        self._peers: frozenset[IPAddress] = frozenset(one for one in self._upstreams if one is not None)
        self._proc = proc
        self._sys = sys

    def learn(self, brokers: Addresses) -> None:
        """Take the addresses of the cluster's brokers by id."""
        told = {address for broker, addresses in brokers.items() if broker != self._own for address in addresses}
        self._peers = frozenset({*told, *(one for one in self._upstreams if one is not None)})

    def status(self) -> dict[str, Any] | None:
        """Return the interfaces and their bytes since the machine's start; None where nobody tells.

        Brokers of one machine reach each other by loopback, which is no link.
        """
        peers = islice(sorted(self._peers, key=str), _MOST_PEERS)
        try:
            names = {name for peer in peers if (name := self._interface(peer)) not in (None, _LOOPBACK)}
            counted = [[self._bytes(name, which) for which in ("rx", "tx")] for name in names if name is not None]
        except (OSError, ValueError, IndexError):
            return None
        if not counted:
            return None
        received, sent = (sum(column) for column in zip(*counted, strict=True))
        return {"interfaces": sorted(map(str, names)), "received_bytes": received, "sent_bytes": sent}

    def _bytes(self, name: str, which: str) -> int:
        return int((self._sys / name / "statistics" / f"{which}_bytes").read_text())

    def _interface(self, peer: IPAddress) -> str | None:
        """Return the interface of the route to a peer: of the longest prefix, and the lowest metric among these."""
        rows = self._routes4() if peer.version == 4 else self._routes6()
        bits = 8 * len(peer.packed)
        fitting = [
            (length, -metric, name)
            for network, length, metric, name in rows
            if (int.from_bytes(peer.packed) ^ network) >> (bits - length) == 0
        ]
        return max(fitting)[2] if fitting else None

    def _routes4(self) -> Iterator[tuple[int, int, int, str]]:
        for line in (self._proc / "route").read_text().splitlines()[1:]:
            name, network, _, _, _, _, metric, mask, *_ = line.split()
            yield _of_machine(network), _of_machine(mask).bit_count(), int(metric), name

    def _routes6(self) -> Iterator[tuple[int, int, int, str]]:
        for line in (self._proc / "ipv6_route").read_text().splitlines():
            network, length, *_, metric, _, _, _, name = line.split()
            yield int(network, 16), int(length, 16), int(metric, 16), name


def _of_machine(text: str) -> int:
    """Read a number that the kernel prints of four bytes in the network's order as if they were in its own."""
    return socket.ntohl(int(text, 16))

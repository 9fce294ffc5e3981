"""Resolves names as a broker on this machine does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weir.proxy.config.address import Address, IPAddress, numeric_address
from weir.proxy.config.route_checks import addresses_of, is_local

Resolve = Callable[[str], set[IPAddress]]


def resolver(hosts_file: Path | None) -> Resolve:
    """Return how the broker resolves names: as this machine does, or by the file of `jdk.net.hosts.file` alone.

    Raises OSError where the file cannot be read.
    """
    if hosts_file is None:
        return addresses_of
    known: dict[str, set[IPAddress]] = {}
    for line in hosts_file.read_text().splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        numeric = numeric_address(address)
        if numeric is not None:
            for name in names:
                known.setdefault(name.casefold(), set()).add(numeric)

    def resolve(host: str) -> set[IPAddress]:
        numeric = numeric_address(host)
        return {numeric} if numeric is not None else known.get(host.casefold(), set())

    return resolve


def leads_to(addresses: set[IPAddress], listen: Address) -> bool:
    """Whether connections to one of `addresses` arrive at a listener; ports are not compared."""
    own = numeric_address(listen.host)
    if own is not None and own.is_unspecified:
        return any(is_local(address) for address in addresses)
    return not addresses.isdisjoint(addresses_of(listen.host))

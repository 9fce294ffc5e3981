"""Resolves the host names of the cluster's brokers without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final

from weir.proxy.cluster.view import Broker
from weir.proxy.config.address import IPAddress, numeric_address
from weir.proxy.relay.replica_sources import Addresses

_RESOLVE_SECONDS: Final = 5.0
_MOST_BROKERS: Final = 10_000


class BrokerAddresses:
    """Calls `learned` with every broker's addresses, each time the cluster was asked for its brokers.

    A broker that is down is missing in the cluster's answers, and a name server may be down too. So addresses that were
    known stay.
    """

    def __init__(self, learned: Callable[[Addresses], None]) -> None:
        self._learned = learned
        self._known: dict[int, frozenset[IPAddress]] = {}
        self._resolving: asyncio.Task[None] | None = None

    def offer(self, brokers: Mapping[int, Broker]) -> None:
        """Take the brokers by id. Ignored while earlier ones are still being resolved."""
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.create_task(self._resolve(brokers))

    async def close(self) -> None:
        """Stop resolving."""
        if self._resolving is not None:
            self._resolving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._resolving

    async def _resolve(self, brokers: Mapping[int, Broker]) -> None:
        for broker_id, broker in brokers.items():
            found = await _addresses_of(broker.host)
            if found or (broker_id not in self._known and len(self._known) < _MOST_BROKERS):
                self._known[broker_id] = found
        self._learned(dict(self._known))


async def _addresses_of(host: str) -> frozenset[IPAddress]:
    if (numeric := numeric_address(host)) is not None:
        return frozenset((numeric,))
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # TimeoutError is an OSError
        return frozenset()
    addresses = (numeric_address(str(target[0])) for *_, target in found)
    return frozenset(address for address in addresses if address is not None)

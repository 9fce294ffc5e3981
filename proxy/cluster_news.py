# SPDX-License-Identifier: Apache-2.0
"""Hands what the cluster says to the throttles of both sides, and finds out where its brokers are.

Fetches that are held are then planned again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from weir.proxy.cluster.view import Broker, InSyncReplicas, Partitions, ToldMoves
from weir.proxy.config.address import IPAddress, numeric_address
from weir.proxy.relay.replica_sources import Addresses
from weir.proxy.relay.side import Side
from weir.proxy.slices import stopped
from weir.quota.throttle import Throttle

MOST_TOPICS_BEHIND: Final = 200
"""Of so many topics on each side the lists of throttled replicas are read each second: those behind for longest."""


class ClusterNews:
    """Tells both sides. Its methods take what was told."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self._throttles = [side.throttle for side in sides]

    def moves(self, told: ToldMoves) -> None:
        """Take the reassignments that run."""
        adding = {
            topic.encode(): {partition: move.adding for partition, move in partitions.items() if move.adding}
            for topic, partitions in told.moves.items()
        }
        self._tell(lambda throttle: throttle.rules.set_adding_replicas(adding, told.asked_at))

    def told_lists(self, topics: frozenset[bytes] | None) -> None:
        """Take the topics whose lists of throttled replicas were told; None where these do not count."""
        self._tell(lambda throttle: throttle.rules.set_told_lists(topics))

    def racks(self, racks: Mapping[int, str | None]) -> None:
        """Take each broker's rack."""
        self._tell(lambda throttle: throttle.rules.set_racks(racks))

    def in_sync_replicas(self, in_sync: InSyncReplicas) -> None:
        """Take who is in sync."""
        for throttle in self._throttles:
            throttle.set_in_sync_replicas(in_sync)

    def under_min_isr(self, partitions: Partitions) -> None:
        """Take the partitions with fewer replicas in sync than min.insync.replicas."""
        self._tell(lambda throttle: throttle.set_under_min_isr(partitions))

    def topic_names(self, _generation: int) -> None:
        """Look again at topics that have ids only: an id has a name."""
        self._tell(Throttle.classify_anew)

    def _tell(self, tell: Callable[[Throttle], object]) -> None:
        """Tell both throttles something, and decide again about every fetch that is held where it changes anything."""
        for side in self._sides:
            before = side.throttle.rules.generation
            tell(side.throttle)
            if side.throttle.rules.generation != before:
                side.held.wake_now()

    def throttled_topics(self) -> set[str]:
        """Return the topics of which it has to be known who is in sync."""
        topics: set[str] = set()
        for throttle in self._throttles:
            if throttle.settings.rate is not None:
                topics.update(throttle.settings.replicas)
            if throttle.settings.quotas:
                topics.update(throttle.waiting_topics())
        return topics

    def topics_behind(self) -> set[str]:
        """Return topics with replicas that are behind on this sidecar's links: as many as are looked after."""
        behind = (throttle.lag.topics_behind(MOST_TOPICS_BEHIND) for throttle in self._throttles)
        return {topic.decode("utf-8", "replace") for topics in behind for topic in topics}


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
        """Cancel the resolution that is under way."""
        await stopped(self._resolving)

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

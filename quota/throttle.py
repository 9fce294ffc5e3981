# SPDX-License-Identifier: Apache-2.0
"""One side's throttle: on the leader's side for what this broker sends, on the follower's for what it receives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import cast

from weir.protocol.fetch_session import NO_SESSION
from weir.protocol.steps import PER_STEP
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import Clock, SideName, ThrottleSettings
from weir.quota.side_state import SideLink, SideState
from weir.quota.topic_names import TopicNames


class Throttle(SideState):
    """One side's throttle with its links and their fetch sessions. SideState says who may call what."""

    def __init__(
        self,
        side: SideName,
        broker_id: int,
        clock: Clock,
        settings: ThrottleSettings | None = None,
        topic_names: TopicNames | None = None,
    ) -> None:
        super().__init__(side, broker_id, clock, settings, topic_names)
        self._silent_since: dict[int, float] = {}  # the last fetch of replicas whose last connection has ended

    @property
    def links(self) -> set[ReplicaLink]:
        """The links of all connections."""
        return cast(set[ReplicaLink], self.holders)

    def link(self, peer: int, *, is_stranger: bool = False) -> ReplicaLink:
        """Return the state of a new connection with broker `peer`. A stranger only claims to be a broker."""
        link = ReplicaLink(self, peer, is_stranger=is_stranger)
        self._silent_since.pop(link.partitions.counted_peer, None)
        self.holders.add(link)
        return link

    def drop(self, holder: SideLink) -> None:
        ended = holder in self.holders
        try:
            super().drop(holder)
        finally:
            if ended and isinstance(holder, ReplicaLink):
                peer, fetched_at = holder.partitions.counted_peer, holder.partitions.asker.at
                others = any(other.partitions.counted_peer == peer for other in self.links)
                if self.side == "leader" and not others and fetched_at > -inf and self.lag.knows(peer):
                    self._silent_since[peer] = fetched_at

    def away(self) -> dict[int, float]:
        """Return when each follower without a connection, whose lag is known, has fetched last (clock seconds)."""
        self._silent_since = {peer: at for peer, at in self._silent_since.items() if self.lag.knows(peer)}
        return dict(self._silent_since)

    def waiting_topics(self) -> set[str]:
        """Return topics with a partition held back or unknown, among the first PER_STEP of each link."""
        return {
            replica.topic.name.decode("utf-8", "replace")
            for link in self.links
            for replica in islice(link.partitions.queue, PER_STEP)
            if replica.topic.name is not None
        }

    def held_to_a_rate(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield each replica that is behind and that a quota may hold back: topic (as in `lag`), partition and broker.

        A follower that has not fetched for `replica.lag.time.max.ms` is not slow because of a quota. Fetches may go on
        between two.
        """
        if not self.rules.is_throttling:
            return
        before = self.clock() - self.lag.replica_lag_time_max
        told: set[tuple[bytes, int, int]] = set()  # a follower that came back has two connections for a moment
        for link in list(self.links):
            if link.partitions.asker.at < before or self.brokers.is_refused(link.partitions.replica_id):
                continue
            for topic in list(link.partitions.topics.values()):
                for partition in list(topic.behind):
                    if (row := (topic.lag.topic, partition, link.partitions.replica_id)) not in told:
                        told.add(row)
                        yield row

    @property
    def open_sessions(self) -> int:
        """How many fetch sessions are kept for followers."""
        return sum(link.sessions.follower.id != NO_SESSION for link in self.links)

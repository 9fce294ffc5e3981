# SPDX-License-Identifier: Apache-2.0
"""What all links of one side share: the settings in force, the quotas, what is throttled, and what was counted."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Literal, Protocol
from zlib import crc32

from weir.lag.broker_ids import NO_BROKER, BrokerIds
from weir.lag.tracker import LagTracker
from weir.protocol.fetch_session import next_epoch
from weir.protocol.fetch_versions import MAX_INT32
from weir.quota.budget.ledger import LinkAccounts, StrictLedger
from weir.quota.budget.quota import Quota, QuotaState
from weir.quota.counters import CountedQuota, IntervalCounts, ThrottleStats
from weir.quota.figures import LOOK_SECONDS, MOST_FINISHED
from weir.quota.settings import Clock, SideName, ThrottleSettings
from weir.quota.side_quotas import SideQuotas
from weir.quota.throttled_replicas import NO_PARTITION
from weir.quota.topic_names import TopicNames


class SideLink(Hashable, Protocol):
    """A link, as far as a side has to know it."""

    @property
    def accounts(self) -> LinkAccounts:
        """What the link holds of the budget."""

    def release_if_stuck(self) -> None:
        """Count as sent what a stuck peer does not take."""


class SideState:
    """One side's throttle without its links. One event loop owns it.

    After `configure` and each change of what the cluster says, the owner plans every held request again.
    """

    def __init__(
        self,
        side: SideName,
        broker_id: int,
        clock: Clock,
        settings: ThrottleSettings | None = None,
        topic_names: TopicNames | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.topic_names = TopicNames(clock) if topic_names is None else topic_names
        self.rules = SideQuotas(broker_id, clock, self.topic_names)
        """The quotas in force, and what each covers."""
        self.side = side
        self.stats = ThrottleStats()
        self.takes_out = side == "leader"  # whether records above a grant are taken out of answers: beside the broker
        self.brokers = BrokerIds()
        self.brokers.learn([broker_id])
        settings = settings or ThrottleSettings()
        self.lag = LagTracker(
            clock, settings.replica_lag_time_max_ms / 1000, self._forget_topic, self.in_isr, self.brokers
        )
        self.holders: set[SideLink] = set()
        self.refused: set[int] = set()  # ids whom the broker answered last with errors alone, or not at all
        self._stranger_partitions: dict[SideLink, int] = {}
        self._released_stuck_at = -math.inf
        # Each sidecar begins at another id. Where one passes all fetches of a connection from some point on, the next
        # hop must not take their session id for one of its own, which has other partitions.
        self._last_session_id = crc32(f"{side} {broker_id}".encode()) & MAX_INT32
        self.in_force_since: float | None = None  # since when it has a rate and a listed replica here, or another quota
        self._in_sync_replicas: Mapping[tuple[bytes, int], frozenset[int]] = {}
        self.under_min_isr: frozenset[tuple[bytes, int]] = frozenset()
        self.configure(settings)

    # What is in force

    @property
    def settings(self) -> ThrottleSettings:
        """What the operator has set."""
        return self.rules.settings

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """All quotas that bytes may belong to; the one of the listed replicas is the first."""
        return self.rules.quotas

    @property
    def ledger(self) -> StrictLedger:
        """The ledger of the listed replicas' quota."""
        return self.rules.quotas[0].ledger

    def configure(self, settings: ThrottleSettings) -> None:
        """Put other settings in force at once. Requests in flight are settled with the new quotas."""
        if settings.replica_lag_time_max_ms != self.settings.replica_lag_time_max_ms:
            self.lag.replica_lag_time_max = settings.replica_lag_time_max_ms / 1000
        self.rules.put_in_force(settings)
        if self.stats.interval is not None:
            self.stats.interval.set_quotas(self._counted_quotas(), self.clock())
        if (settings.rate is None or not self.rules.listed) and not settings.quotas:
            self.in_force_since = None
        elif self.in_force_since is None:
            self.in_force_since = self.clock()

    def set_in_sync_replicas(self, in_sync: Mapping[tuple[bytes, int], frozenset[int]]) -> None:
        """Take the ISRs from the cluster's metadata, by (topic, partition), for lag alone."""
        self._in_sync_replicas = in_sync

    def set_under_min_isr(self, partitions: frozenset[tuple[bytes, int]]) -> None:
        """Take the partitions, by topic, that have fewer replicas in sync than `min.insync.replicas`."""
        if partitions != self.under_min_isr:
            self.under_min_isr = partitions
            by_topic: dict[bytes, set[int]] = {}
            for topic, partition in partitions:
                by_topic.setdefault(topic, set()).add(partition)
            self.rules.facts.under_min_isr = {topic: frozenset(ids) for topic, ids in by_topic.items()}
            self.classify_anew()

    def classify_anew(self) -> None:
        """Have all partitions classified again: names of topics were learnt, or ids of brokers."""
        self.rules.generation += 1

    # What is in sync

    def in_isr(self, topic: bytes, partition: int, replica: int) -> bool:
        """Whether the cluster's metadata lists `replica` in the partition's ISR; False when it is not known."""
        return replica in self._in_sync_replicas.get((topic, partition), NO_PARTITION)

    # Links

    def next_in_line(self) -> list[Hashable] | None:
        """Return the links whose held fetches could go if budget flowed back now; None where any link's could."""
        if any([quota.limits and not quota.reserves for quota in self.quotas]):
            return None
        # who finds too little budget is in a line, so where all are empty nobody waits for any
        return [link for quota in self.quotas if (link := quota.line.first()) is not None]

    def keep_stranger(self, link: SideLink, partitions: int) -> int:
        """Note how many partitions are kept of a stranger. Returns how many are of all strangers."""
        self._stranger_partitions[link] = partitions
        return sum(self._stranger_partitions.values())

    def note_refused(self, broker_id: int) -> None:
        """Note that the broker refuses a follower. Its next connection is a stranger's until it has an answer."""
        if len(self.refused) > MOST_FINISHED:
            self.refused.clear()  # ids are made up
        self.refused.add(broker_id)

    def release_stuck(self) -> None:
        """Take back what links with stuck peers hold of the budget."""
        now = self.clock()
        if now - self._released_stuck_at < LOOK_SECONDS:
            return  # with hundreds of links in line each plan would look at all of them
        self._released_stuck_at = now
        for holder in self.holders:
            holder.release_if_stuck()

    def drop(self, holder: SideLink) -> None:
        """Forget a link that is closed, or could not be, and all that it holds."""
        try:
            holder.accounts.close()
        finally:
            self.holders.discard(holder)
            self._stranger_partitions.pop(holder, None)
            for quota in self.quotas:
                quota.line.go_away(holder)
                ledger = quota.ledger
                accounts = [other.accounts.account(ledger) for other in self.holders]
                ledger.lent_until.pop(holder, None)
                ledger.recount([one for one in accounts if one is not None])

    def new_session_id(self) -> int:
        """Return the id of a new fetch session with a follower."""
        self._last_session_id = next_epoch(self._last_session_id)
        return self._last_session_id

    # Another process

    def hand_over(self) -> dict[str, QuotaState]:
        """Return what each quota owes, by its name; it earns nothing any more. Called again: what has come since."""
        return {quota.name: quota.hand_over() for quota in self.quotas}

    def take_over(self, states: Mapping[str, QuotaState]) -> None:
        """Have the quotas owe what those of these names owed. One that is not there any more forgives it."""
        for quota in self.quotas:
            if (state := states.get(quota.name)) is not None:
                quota.take_over(state)

    # What was counted

    def record(self, quota: Quota, size: int) -> None:
        """Count bytes of a quota that were sent, in sync or not."""
        quota.passed_bytes += size
        quota.measured.record(size)
        if self.stats.interval is not None:
            self.stats.interval.record(quota.name, self.clock(), size)

    def cut_interval(self, now: float) -> IntervalCounts | None:
        """Begin another interval of counting. Returns the one that ends; None at the first call."""
        ended = self.stats.interval
        self.stats.interval = IntervalCounts(now)
        self.stats.interval.set_quotas(self._counted_quotas(), now)
        return ended

    def _counted_quotas(self) -> Iterator[CountedQuota]:
        """Yield what samples tell of the quotas in force. A share changes too often to be told: its whole rate is."""
        settings = self.settings
        for quota, rate in zip(self.quotas, settings.rates, strict=True):
            if rate is not None:
                shared: Literal["shared"] | None = None if quota.shared_for is None else "shared"
                yield CountedQuota(quota.name, rate, settings.policy, "observe" if quota.is_observed else shared)

    def refuse_replica(self, broker_id: int, topic: bytes) -> None:
        """Note that the cluster knows no replica of `topic` on such a broker: the id gets no metric series."""
        self.brokers.refuse(broker_id, topic)
        if self.side == "leader":
            for is_throttled in (False, True):
                size = self.stats.replication_bytes.pop((broker_id, is_throttled), 0)
                if size:
                    self.stats.count_replication(NO_BROKER, is_throttled, size)

    def _forget_topic(self, topic: bytes) -> None:
        self.stats.partition_bytes.pop(topic, None)

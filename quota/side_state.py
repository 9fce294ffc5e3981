"""What all links of one side share: the settings in force, the quotas, what is throttled, and what was counted."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping
from typing import Protocol

from protocol.metadata import NO_ID
from quota.batches import LargestBatches
from quota.broker_ids import NO_BROKER, BrokerIds
from quota.budget.accounts import LinkAccounts
from quota.budget.ledger import StrictLedger
from quota.budget.offset_probes import OffsetProbes
from quota.budget.optimistic import Kip73Quota
from quota.budget.queue import BudgetQueue
from quota.budget.quota import Quota
from quota.budget.simple_rate import SimpleRate
from quota.budget.strict import StrictQuota
from quota.counters import IntervalCounts
from quota.lag.tracker import LagTracker
from quota.settings import Clock, SideName, ThrottleSettings
from quota.stats import ThrottleStats
from quota.throttled_replicas import CLUSTER_METADATA_TOPIC, EVERY_PARTITION, NO_PARTITION, EveryPartition
from quota.topic_names import TopicNames

CONFIGURED = "configured"
"""The name of the quota that comes from the settings' rate."""

_STUCK_INTERVAL_SECONDS = 0.1  # the least time between two looks for stuck peers


class Holder(Hashable, Protocol):
    """A link, as far as a side has to know it."""

    @property
    def accounts(self) -> LinkAccounts:
        """What the link holds of the budget."""

    def release_if_stuck(self) -> None:
        """Count as sent what a stuck peer does not take."""


class AllOf:
    """The union of `parts`, without a copy of them."""

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[Container[int], ...]) -> None:
        self._parts = parts

    def __contains__(self, partition: object) -> bool:
        return any(partition in part for part in self._parts)


class _ThrottledTopics:
    """The topics that have throttled partitions, by name or by id."""

    def __init__(self, side: SideState, *, by_id: bool) -> None:
        self._side = side
        self._by_id = by_id

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes):
            return False
        name, topic_id = (self._side.topic_names.name_of(key), key) if self._by_id else (key, NO_ID)
        return any(quota.covers(name, topic_id) for quota in self._side.quotas)


class SideState:
    """One side's throttle without its links.

    It is not thread-safe: one event loop owns it. After `configure`, `set_in_sync_replicas` and `set_under_min_isr` the
    owner plans every held request again. All other changes count from the next fetch on.
    """

    def __init__(
        self,
        side: SideName,
        broker_id: int,
        clock: Clock,
        settings: ThrottleSettings | None = None,
        topic_names: TopicNames | None = None,
    ) -> None:
        self.side = side
        self.broker_id = broker_id
        self.clock = clock
        self.settings = settings or ThrottleSettings()
        self.generation = 0  # see `generation_at`
        self.stats = ThrottleStats()
        self.line = BudgetQueue(clock)
        self.offset_probes = OffsetProbes(clock)
        self.ledger = StrictLedger(clock)
        self.largest_batches = LargestBatches()
        self.quotas: tuple[Quota, ...] = ()
        """All quotas that bytes may belong to; the configured one is the first."""
        self._configure_quota(None)
        self.brokers = BrokerIds()
        self.brokers.learn([broker_id])
        self.lag = LagTracker(
            clock, self.settings.replica_lag_time_max_ms / 1000, self._forget_topic, self.in_isr, self.brokers
        )
        self.holders: set[Holder] = set()
        self._released_stuck_at = -math.inf
        self.topic_names = TopicNames(clock) if topic_names is None else topic_names
        self.names_awaited_until = math.inf  # when the first id without a name is no longer throttled (clock seconds)
        self._throttled: dict[bytes, frozenset[int] | EveryPartition] = {}
        self.in_force_since: float | None = None
        """When this side began to throttle; None while it does not. It throttles when it has a rate and a listed
        replica here."""
        self._in_sync_replicas: Mapping[tuple[bytes, int], frozenset[int]] = {}
        self.under_min_isr: frozenset[tuple[bytes, int]] = frozenset()
        self.configure(self.settings)

    # What is in force

    def configure(self, settings: ThrottleSettings) -> None:
        """Put other settings in force at once. Requests in flight are settled with the new quota."""
        previous, self.settings = self.settings, settings
        if settings.replica_lag_time_max_ms != previous.replica_lag_time_max_ms:
            self.lag.replica_lag_time_max = settings.replica_lag_time_max_ms / 1000
        if self.ledger.rate != settings.rate:
            self.ledger.set_rate(settings.rate)
        self._configure_quota(previous)
        if self.stats.interval is not None:
            self.stats.interval.set_quota(settings.rate, settings.policy, self.clock())
        self._throttled = {}
        for topic, replicas in settings.replicas.items():
            if topic == CLUSTER_METADATA_TOPIC:
                continue
            partitions = replicas.partitions_of(self.broker_id)
            if partitions is None:
                self._throttled[topic.encode()] = EVERY_PARTITION
            elif partitions:
                self._throttled[topic.encode()] = partitions
        if settings.rate is None or not self._throttled:
            self.in_force_since = None
        elif self.in_force_since is None:
            self.in_force_since = self.clock()
        self.generation += 1

    def _configure_quota(self, previous: ThrottleSettings | None) -> None:
        """Make the quota of the settings. Only this function knows policies by their names."""
        settings = self.settings
        window = (settings.window_num, settings.window_size_seconds)
        is_new = previous is None or window != (previous.window_num, previous.window_size_seconds)
        if is_new:
            self.throttled_rate = SimpleRate(self.clock, *window)
        has_other_policy = previous is not None and previous.policy != settings.policy
        if not is_new and not has_other_policy:
            return
        if has_other_policy:
            # links that waited in line for another policy wait for nothing any more
            self.line = BudgetQueue(self.clock)
        configured: Quota
        if settings.policy == "strict":
            configured = StrictQuota(CONFIGURED, self.ledger, self._configured_partitions, self.line, self.clock)
        else:
            configured = Kip73Quota(
                CONFIGURED, self.ledger, self._configured_partitions, self.clock, self.throttled_rate, window[1]
            )
        self.quotas = (configured, *self.quotas[1:])

    def add_quota(self, quota: Quota) -> None:
        """Add a quota to this side. Its name must not be taken."""
        self.quotas = (*self.quotas, quota)
        self.generation += 1

    def remove_quota(self, name: str) -> None:
        """Remove an added quota. Fetches in flight are still settled with it."""
        first, *added = self.quotas
        self.quotas = (first, *[quota for quota in added if quota.name != name])
        self.generation += 1

    @property
    def is_throttling(self) -> bool:
        """Whether any quota has a rate."""
        return any([quota.rate is not None for quota in self.quotas])

    def set_in_sync_replicas(self, in_sync: Mapping[tuple[bytes, int], frozenset[int]]) -> None:
        """Take the ISRs from the cluster's metadata, by (topic, partition). Those of missing partitions are unknown."""
        if in_sync != self._in_sync_replicas:
            self._in_sync_replicas = in_sync
            self.generation += 1

    def set_under_min_isr(self, partitions: frozenset[tuple[bytes, int]]) -> None:
        """Take the partitions, by topic, that have fewer replicas in sync than `min.insync.replicas`."""
        if partitions != self.under_min_isr:
            self.under_min_isr = partitions
            self.generation += 1

    def topic_names_changed(self) -> None:
        """Note that names of topics were learnt."""
        self.generation += 1

    def generation_at(self, now: float) -> int:
        """Return a number that grows whenever the answer to "throttled?" or "in sync?" may have changed."""
        if self.names_awaited_until <= now:
            self.names_awaited_until = math.inf
            self.generation += 1
        return self.generation

    # What is throttled, and in sync

    def walked_topics(self, *, by_id: bool) -> Container[bytes]:
        """Return the topics with throttled partitions, by name or id. Only there batches are told from cut ones."""
        if len(self.quotas) == 1 and not by_id:
            return self._throttled
        return _ThrottledTopics(self, by_id=by_id)

    def throttled_partitions(self, topic: bytes | None, topic_id: bytes = NO_ID) -> Container[int]:
        """Return the topic's partitions, on this broker's side, that belong to any quota.

        None is a name not known yet.
        """
        if len(self.quotas) == 1:
            return self._configured_partitions(topic, topic_id)
        return AllOf(tuple(quota.covers(topic, topic_id) for quota in self.quotas if quota.rate is not None))

    def coverage(self, topic: bytes | None, topic_id: bytes) -> tuple[tuple[Quota, Container[int]], ...]:
        """Return each quota with those of the topic's partitions that belong to it."""
        return tuple((quota, quota.covers(topic, topic_id)) for quota in self.quotas)

    def _configured_partitions(self, topic: bytes | None, topic_id: bytes) -> frozenset[int] | EveryPartition:
        """Return the topic's partitions in the settings' lists.

        While the name of `topic_id` is on its way, all of the topic is throttled where anything is. Otherwise the first
        fetch of a new topic would bring as much as fits in an answer.
        """
        if topic is not None:
            return self._throttled.get(topic, NO_PARTITION)
        until = self.topic_names.awaited_until(topic_id)
        if self.settings.rate is None or not self._throttled or until <= self.clock():
            return NO_PARTITION
        self.names_awaited_until = min(self.names_awaited_until, until)
        return EVERY_PARTITION

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether a partition's replica on this broker is throttled on this side."""
        return partition in self.throttled_partitions(topic.encode())

    def in_isr(self, topic: bytes, partition: int, replica: int) -> bool:
        """Whether the cluster's metadata lists `replica` in the partition's ISR; False when it is not known."""
        return replica in self._in_sync_replicas.get((topic, partition), NO_PARTITION)

    # Links

    def next_in_line(self) -> list[Hashable] | None:
        """Return the links whose held fetches could go if budget flowed back now; None where any link's could."""
        first = [link for quota in self.quotas if (link := quota.first_in_line()) is not None]
        if not first:
            return None
        asking = self.offset_probes.first()
        return first if asking is None else [*first, asking]

    def release_stuck(self) -> None:
        """Take back what links with stuck peers hold of the budget."""
        now = self.clock()
        if now - self._released_stuck_at < _STUCK_INTERVAL_SECONDS:
            return  # with hundreds of links in line each plan would look at all of them
        self._released_stuck_at = now
        for holder in self.holders:
            holder.release_if_stuck()

    def drop(self, holder: Holder) -> None:
        """Forget a link that is closed, or could not be, and all that it holds."""
        try:
            holder.accounts.close()
        finally:
            self.holders.discard(holder)
            self.leave_lines(holder)
            self.offset_probes.drop(holder)
            for ledger in {self.ledger, *[quota.ledger for quota in self.quotas]}:
                ledger.recount(sum([other.accounts.held(ledger) for other in self.holders]))

    def leave_lines(self, link: Hashable) -> None:
        """Take a link out of every line."""
        for quota in self.quotas:
            quota.leave(link)
        self.offset_probes.leave(link)

    # What was counted

    def record(self, size: int) -> None:
        """Count throttled bytes that were sent, in sync or not.

        The samples tell the rate, and `kip73` decides by them.
        """
        self.throttled_rate.record(size)
        if self.stats.interval is not None:
            self.stats.interval.record(self.clock(), size)

    def cut_interval(self, now: float) -> IntervalCounts | None:
        """Begin another interval of counting. Returns the one that ends; None at the first call."""
        ended = self.stats.interval
        self.stats.interval = IntervalCounts(now)
        self.stats.interval.set_quota(self.settings.rate, self.settings.policy, now)
        return ended

    def counted_peer(self, peer: int) -> int:
        """Return the id that a peer's bytes are counted under.

        On the follower's side it is configured, so it is always a broker's.
        """
        return NO_BROKER if self.side == "leader" and self.brokers.is_refused(peer) else peer

    def refuse_replica(self, broker_id: int, topic: bytes) -> None:
        """Note that the cluster knows no replica of `topic` on such a broker: the id gets no metric series."""
        self.brokers.refuse(broker_id, topic)
        if self.side == "leader":
            for is_throttled in (False, True):
                size = self.stats.replication_bytes.pop((broker_id, is_throttled), 0)
                if size:
                    self.stats.count_replication(NO_BROKER, is_throttled, size)

    def replicas_known(self) -> None:
        """Have all partitions classified again: ids that were taken for no broker's are known now."""
        self.generation += 1

    def _forget_topic(self, topic: bytes) -> None:
        self.stats.partition_bytes.pop(topic, None)

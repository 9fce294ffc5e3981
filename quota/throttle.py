"""One side's throttle, shared by its links: what is throttled, the budget, and what was counted."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

from protocol.fetch import MAX_INT32
from protocol.fetch_session import NO_SESSION, next_epoch
from protocol.metadata import NO_ID
from quota.batches import LargestBatches
from quota.broker_ids import MOST_IDS, BrokerIds
from quota.catch_up import Order
from quota.interval import IntervalCounts
from quota.kip73 import Kip73Budget
from quota.lag import MOST_PARTITIONS, LagTracker
from quota.ledger import StrictLedger
from quota.questions import Questions
from quota.replica_link import ReplicaLink
from quota.sampled_rate import SampledRate
from quota.throttled_replicas import ThrottledReplicas
from quota.topic_names import TopicNames
from quota.turns import Turns

Side = Literal["leader", "follower"]
Policy = Literal["strict", "kip73"]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """What an operator sets for one side. Absent values do not throttle.

    `rate` is bytes/s (`leader.` or `follower.replication.throttled.rate`), `replicas` is keyed by topic name,
    `response_max_bytes` is KIP-74's cap on what one replica fetch returns.
    """

    rate: int | None = None
    replicas: Mapping[str, ThrottledReplicas] = field(default_factory=dict)
    policy: Policy = "strict"
    order: Order = "urgent-first"
    window_num: int = 11
    window_size_seconds: int = 1
    replica_lag_time_max_ms: int = 30_000
    response_max_bytes: int | None = None
    session_slots: int = 1_000
    """Fetch sessions kept for followers (v7+), as max.incremental.fetch.session.cache.slots; without one a follower
    sends full fetches."""


@dataclass(slots=True)
class ThrottleStats:
    """Plain counters for the metrics; bytes are record bytes, topics UTF-8."""

    replication_bytes: dict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(int))
    """By peer, and whether the partition is throttled."""
    partition_bytes: dict[bytes, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """By topic and partition; a topic that no replica has fetched for long is forgotten. NO_TOPIC is all beyond
    MOST_PARTITIONS topics."""
    cut_bytes: int = 0
    partitions_left_out: int = 0
    fetches_held: int = 0
    questions: int = 0
    full_fetches_received: int = 0
    """From v7 on: fetches of followers that list all that they want. In the steady state there are none."""
    full_fetches_sent: int = 0
    """The same, of our own to leaders."""
    sessions_evicted: int = 0
    """Fetch sessions of followers that gave way to another's, as KIP-227 says."""
    interval: IntervalCounts | None = None
    """What is counted for the next sample; None while nobody takes samples."""

    def sizes(self, topic: bytes) -> Counter[int]:
        """What the bytes of a topic are counted in, by partition."""
        if topic not in self.partition_bytes and len(self.partition_bytes) >= MOST_PARTITIONS:
            topic = NO_TOPIC
        return self.partition_bytes[topic]

    def count_replication(self, peer: int, is_throttled: bool, size: int) -> None:
        """Count bytes of a peer's links."""
        key = peer, is_throttled
        if key not in self.replication_bytes and len(self.replication_bytes) >= 2 * MOST_IDS:
            key = NO_BROKER, is_throttled
        self.replication_bytes[key] += size


class EveryPartition:
    """The set of all partition ids: what `*` throttles."""

    def __contains__(self, partition: object) -> bool:
        return True


SESSION_EVICTION_SECONDS = 120.0  # min.incremental.fetch.session.eviction.ms
_STUCK_INTERVAL_SECONDS = 0.1  # between two looks for stuck peers
NO_BROKER = -1
"""What is counted together of peers that are no brokers, or too many."""

NO_TOPIC = b""
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
NO_PARTITION: frozenset[int] = frozenset()
EVERY_PARTITION = EveryPartition()


class _ThrottledIds:
    """The ids of the topics with throttled partitions."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle

    def __contains__(self, topic_id: object) -> bool:
        if not isinstance(topic_id, bytes):
            return False
        name = self._throttle.topic_names.name_of(topic_id)
        return bool(self._throttle.throttled_partitions(name, topic_id))


class Throttle:
    """One side's quota: on the leader's side for what this broker sends, on the follower's for what it receives.

    Not thread-safe: one event loop owns it. After `configure`, `set_in_sync_replicas` and `set_under_min_isr` the owner
    plans every held request again; all else takes hold at the next fetch.
    """

    def __init__(
        self,
        side: Side,
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
        self.turns = Turns(clock)
        self.questions = Questions(clock)
        self.ledger = StrictLedger(clock)
        self.largest_batches = LargestBatches()
        self._new_samples()
        self.brokers = BrokerIds()
        self.brokers.learn([broker_id])
        self.lag = LagTracker(
            clock, self.settings.replica_lag_time_max_ms / 1000, self._forget_topic, self.in_isr, self.brokers
        )
        self.links: set[ReplicaLink] = set()
        self._released_stuck_at = -math.inf
        self.topic_names = TopicNames(clock) if topic_names is None else topic_names
        self.throttled_ids: Container[bytes] = _ThrottledIds(self)
        self.names_awaited_until = math.inf  # when the first id without a name is no longer throttled (clock seconds)
        # Each sidecar counts from elsewhere: where one gives up on a connection and lets its fetches pass, the next hop
        # must not take them for those of its own session, which has other partitions.
        self._last_session_id = crc32(f"{side} {broker_id}".encode()) & MAX_INT32
        self._throttled: dict[bytes, frozenset[int] | EveryPartition] = {}
        self.in_force_since: float | None = None
        """When this side began to throttle (a rate, and a replica on this broker that is listed); None: it does not."""
        self._in_sync_replicas: Mapping[tuple[bytes, int], frozenset[int]] = {}
        self.under_min_isr: frozenset[tuple[bytes, int]] = frozenset()
        self.configure(self.settings)

    def configure(self, settings: ThrottleSettings) -> None:
        """Put other settings in force at once, requests in flight included: they settle against the new quota."""
        previous, self.settings = self.settings, settings
        window = (settings.window_num, settings.window_size_seconds)
        if window != (previous.window_num, previous.window_size_seconds):
            self._new_samples()
        if settings.replica_lag_time_max_ms != previous.replica_lag_time_max_ms:
            self.lag.replica_lag_time_max = settings.replica_lag_time_max_ms / 1000
        if self.ledger.rate != settings.rate:
            self.ledger.set_rate(settings.rate)
        self.kip73.set_rate(settings.rate)
        if self.stats.interval is not None:
            self.stats.interval.set_quota(settings.rate, settings.policy, self.clock())
        self._throttled = {}
        for topic, replicas in settings.replicas.items():
            if topic == CLUSTER_METADATA_TOPIC:
                continue  # the cluster's own log: to hold it back is to hold back every broker
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

    def set_in_sync_replicas(self, in_sync: Mapping[tuple[bytes, int], frozenset[int]]) -> None:
        """Take the ISRs that the cluster's metadata shows, by (topic, partition); absent ones are not known."""
        if in_sync != self._in_sync_replicas:
            self._in_sync_replicas = in_sync
            self.generation += 1

    def set_under_min_isr(self, partitions: frozenset[tuple[bytes, int]]) -> None:
        """Take the partitions, by topic, of which fewer replicas are in sync than `min.insync.replicas`."""
        if partitions != self.under_min_isr:
            self.under_min_isr = partitions
            self.generation += 1

    @property
    def throttled_topics(self) -> Container[bytes]:
        """The topics with throttled partitions."""
        return self._throttled

    def throttled_partitions(self, topic: bytes | None, topic_id: bytes = NO_ID) -> frozenset[int] | EveryPartition:
        """The topic's throttled partitions on this broker's side.

        None is a topic whose name is not known. While it is on its way all of `topic_id` is throttled, where anything
        is: else the first fetch of a topic that was made lately would bring all that fits in an answer.
        """
        if topic is not None:
            return self._throttled.get(topic, NO_PARTITION)
        until = self.topic_names.awaited_until(topic_id)
        if self.settings.rate is None or not self._throttled or until <= self.clock():
            return NO_PARTITION
        self.names_awaited_until = min(self.names_awaited_until, until)
        return EVERY_PARTITION

    def generation_at(self, now: float) -> int:
        """A number that grows whenever the answer to "throttled?" or "in sync?" may have changed."""
        if self.names_awaited_until <= now:
            self.names_awaited_until = math.inf
            self.generation += 1
        return self.generation

    def topic_names_changed(self) -> None:
        """Names of topics were learned."""
        self.generation += 1

    @property
    def open_sessions(self) -> int:
        """How many fetch sessions are kept for followers."""
        return sum(link.sessions.follower.id != NO_SESSION for link in self.links)

    def open_session(self, size: int) -> int:
        """The id for one more fetch session, of `size` partitions; NO_SESSION when all slots are taken."""
        if self.open_sessions >= self.settings.session_slots and not self._evict_session(size):
            return NO_SESSION
        self._last_session_id = next_epoch(self._last_session_id)
        return self._last_session_id

    def _evict_session(self, size: int) -> bool:
        """Free a slot as brokers do (KIP-227): of the session unused for longest, or of an old one that is smaller."""
        sessions = [link for link in self.links if link.sessions.follower.id != NO_SESSION]
        if not sessions:
            return False
        before = self.clock() - SESSION_EVICTION_SECONDS
        victim = min(sessions, key=lambda link: link.sessions.used_at)
        if victim.sessions.used_at >= before:
            old = [link for link in sessions if link.sessions.opened_at < before and link.partition_count < size]
            if not old:
                return False
            victim = min(old, key=lambda link: link.partition_count)
        victim.sessions.follower.end()  # its next fetch is told so, and begins anew
        self.stats.sessions_evicted += 1
        return True

    def in_isr(self, topic: bytes, partition: int, replica: int) -> bool:
        """Whether the cluster's metadata lists `replica` in the partition's ISR; False when it is not known."""
        return replica in self._in_sync_replicas.get((topic, partition), NO_PARTITION)

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether a partition's replica on this broker is throttled on this side."""
        return partition in self.throttled_partitions(topic.encode())

    def link(self, peer: int) -> ReplicaLink:
        """The state of a new connection with broker `peer`; close it with the connection."""
        link = ReplicaLink(self, peer)
        self.links.add(link)
        return link

    def drop(self, link: ReplicaLink) -> None:
        """Forget a link that is closed, with all that it holds."""
        try:
            link.account.close()
        finally:
            self.links.discard(link)
            self.turns.leave(link)
            self.questions.drop(link)
            self.ledger.recount(sum([other.account.held for other in self.links]))

    def next_in_line(self) -> list[Hashable] | None:
        """The links whose held fetches could go if budget flowed back now; None where that may be any."""
        first = self.turns.first()
        if first is None:
            return None
        asking = self.questions.first()
        return [first] if asking is None else [first, asking]

    def release_stuck(self) -> None:
        """Take back what links with stuck peers keep of the budget."""
        now = self.clock()
        if now - self._released_stuck_at < _STUCK_INTERVAL_SECONDS:
            return  # with hundreds of links in line each plan would look at all of them
        self._released_stuck_at = now
        for link in self.links:
            link.release_if_stuck()

    def record(self, size: int) -> None:
        """Count throttled bytes that were sent, in sync or not, in the samples behind the rate and `kip73`."""
        self.throttled_rate.record(size)
        self.kip73.record(size)
        if self.stats.interval is not None:
            self.stats.interval.record(self.clock(), size)

    def cut_interval(self, now: float) -> IntervalCounts | None:
        """Begin another interval of counting; returns the one that ends, None at the first call."""
        ended = self.stats.interval
        self.stats.interval = IntervalCounts(now)
        self.stats.interval.set_quota(self.settings.rate, self.settings.policy, now)
        return ended

    def counted_peer(self, peer: int) -> int:
        """What bytes of a peer's links are counted under. On the follower's side peers are configured."""
        return NO_BROKER if self.side == "leader" and self.brokers.is_refused(peer) else peer

    def refuse_replica(self, broker_id: int, topic: bytes) -> None:
        """As the cluster says, no such broker has a replica of a topic that it fetches: it has no series."""
        self.brokers.refuse(broker_id, topic)
        if self.side == "leader":
            for is_throttled in (False, True):
                size = self.stats.replication_bytes.pop((broker_id, is_throttled), 0)
                if size:
                    self.stats.count_replication(NO_BROKER, is_throttled, size)

    def replicas_known(self) -> None:
        """Brokers are known now that were taken for none: what they fetch is to be looked at again."""
        self.generation += 1

    def _forget_topic(self, topic: bytes) -> None:
        self.stats.partition_bytes.pop(topic, None)

    def _new_samples(self) -> None:
        settings = self.settings
        self.throttled_rate = SampledRate(self.clock, settings.window_num, settings.window_size_seconds)
        self.kip73 = Kip73Budget(self.clock, settings.rate, settings.window_num, settings.window_size_seconds)

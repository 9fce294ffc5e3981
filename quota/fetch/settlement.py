"""What an answer tells, when it has passed whole: to the budget, the offsets, the batch sizes, the counts, liveness."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from protocol.fetch import RESPONSE_ENTRY
from protocol.metadata import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from protocol.response_scanner import RecordsSeen, ResponseHead, ScannedTopic
from quota.fetch.counts import count_bytes, count_strays
from quota.fetch.link_state import LinkState
from quota.fetch.state import UNKNOWN_OFFSET, InFlight, ReplicaPartition, ReplicaTopic, Upstream
from quota.ledger import StrictLedger

CROWDED_SECONDS: Final = 5.0
"""How long after an answer that others filled the next ones are expected to be full."""

LIVE_SECONDS: Final = 1.0
"""How long after a record of theirs partitions that do not wait count as live."""

_TOPICS_PER_SLICE: Final = 1_000  # settled within about 3 ms
_ERRORS_OF_NO_TOPIC: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})


class _Arrival(NamedTuple):
    """The records of one partition in an answer."""

    topic: ReplicaTopic
    replica: ReplicaPartition | None
    """None: it is not asked for any more."""
    seen: RecordsSeen
    is_throttled: bool
    waited: bool
    """Whether it was throttled and not in sync when it was asked for."""


class Settlement:
    """Takes the answer to one fetch. `steps` yields between slices of long answers, and changes the budget at once."""

    def __init__(self, state: LinkState, fetch: InFlight, topics: Sequence[ScannedTopic], head: ResponseHead) -> None:
        self._state = state
        self._fetch = fetch
        self._topics = topics
        self._head = head
        self._now = state.side.clock()
        self._barren = set(fetch.granted)

    def steps(self, link: Hashable, number: int) -> Iterator[None]:
        """Settle answer `number` of a link."""
        state, fetch, head = self._state, self._fetch, self._head
        state.settled_at = self._now
        if fetch.asks_all and not head.error_code and not head.throttle_time_ms:
            state.unanswered_since = None
        arrivals = self._arrivals()
        waited = sum([one.seen.size for one in arrivals if one.waited])
        throttled = sum([one.seen.size for one in arrivals if one.is_throttled])
        unthrottled = sum([one.seen.size for one in arrivals if not one.is_throttled])
        self._settle_budget(link, arrivals, waited, throttled)
        self._count(arrivals, throttled, unthrottled)
        self._learn_batches(arrivals, number)
        self._note_liveness(arrivals)
        if fetch.granted and (waited or unthrottled):
            state.answer_seconds = self._now - fetch.forwarded_at
        self._note_barren(throttled + unthrottled)
        yield from self._take_offsets(number)
        if state.partitions.unknown_count and state.sessions.is_incremental and not head.error_code:
            self._take_silence()

    def _arrivals(self) -> list[_Arrival]:
        partitions, granted = self._state.partitions, frozenset(self._fetch.granted)
        arrivals: list[_Arrival] = []
        for key, _, records, _ in self._topics:
            if not records:
                continue
            topic = partitions.topics.get(key)
            if topic is None:
                count_strays(partitions, key, self._fetch.uses_topic_ids, records)
                continue
            for seen in records:
                replica = topic.partitions.get(seen.partition)
                is_throttled = seen.partition in topic.throttled
                waited = is_throttled and replica is not None and (replica.is_waiting or replica in granted)
                arrivals.append(_Arrival(topic, replica, seen, is_throttled, waited))
        return arrivals

    # The budget

    def _settle_budget(self, link: Hashable, arrivals: list[_Arrival], waited: int, throttled: int) -> None:
        state, fetch, side = self._state, self._fetch, self._state.side
        of_waiting, in_sync = self._by_ledger(arrivals, waited, throttled)
        if fetch.is_question:
            # At most one batch comes with a probe; nothing was reserved for it, and no quota could have stopped it.
            replica_id = state.partitions.replica_id
            for ledger, size in of_waiting.items():
                ledger.charge_question(size)
            rate = min([ledger.rate or 0 for ledger in of_waiting], default=side.ledger.rate or 0)
            side.questions.answered(link, replica_id, waited, rate)
            for quota in side.quotas:
                quota.owe(replica_id, of_waiting.get(quota.ledger, 0))
        else:
            state.accounts.hand_over(fetch.reserved, of_waiting)
        for ledger, size in in_sync.items():
            ledger.charge(size)
        if throttled:
            side.record(throttled)

    def _by_ledger(
        self, arrivals: list[_Arrival], waited: int, throttled: int
    ) -> tuple[dict[StrictLedger, int], dict[StrictLedger, int]]:
        """By ledger the bytes of what waited, and of what was in sync and throttled."""
        quotas = self._state.side.quotas
        if len(quotas) == 1:
            ledger = quotas[0].ledger
            return {ledger: waited}, {ledger: throttled - waited}
        of_waiting: dict[StrictLedger, int] = {}
        in_sync: dict[StrictLedger, int] = {}
        for topic, _, seen, is_throttled, was_waiting in arrivals:
            if not is_throttled:
                continue
            for quota, covered in topic.coverage:
                if seen.partition in covered and (was_waiting or quota.counts_in_sync):
                    sizes = of_waiting if was_waiting else in_sync
                    sizes[quota.ledger] = sizes.get(quota.ledger, 0) + seen.size
        return of_waiting, in_sync

    # Counts

    def _count(self, arrivals: list[_Arrival], throttled: int, unthrottled: int) -> None:
        partitions, stats = self._state.partitions, self._state.side.stats
        counts = None if stats.interval is None else stats.interval.link(partitions.counted_peer)
        if counts is not None:
            counts.fetches += 1
        for topic, _, seen, is_throttled, _ in arrivals:
            if topic.name is not None:
                stats.sizes(topic.name)[seen.partition] += seen.size
                if counts is not None:
                    counts.topics[topic.name].count(seen, is_throttled)
        count_bytes(partitions, throttled, unthrottled, sum([one.seen.cut_bytes for one in arrivals]))

    # Batch sizes

    def _learn_batches(self, arrivals: list[_Arrival], number: int) -> None:
        for topic, replica, seen, _, _ in arrivals:
            if replica is not None:
                self._barren.discard(replica)
                replica.served_number = number
                replica.batches.learn(seen)
                replica.arrived = seen.complete_bytes
                topic.batches.learn(seen)

    def _note_barren(self, size: int) -> None:
        """Take what was granted and not in an answer of `size` bytes of records.

        An answer without any records says nothing: an earlier hop, or Kafka's own throttle, kept all. Where others
        filled it there was no room. Else the cap was below one batch, which brings nothing behind others. The next
        grants go in front of them; what brings nothing there has nothing to give.
        """
        if not size or self._fetch.grants_are_first:
            return
        for replica in self._barren:
            is_full = self._fetch.max_bytes - size < replica.max_bytes
            if not is_full:
                replica.batches.miss()
            if is_full or replica.batches.has_to_be_first:
                self._state.crowded_until = self._now + CROWDED_SECONDS
                replica.granted_offset = UNKNOWN_OFFSET

    # Liveness

    def _note_liveness(self, arrivals: list[_Arrival]) -> None:
        if any([one.replica is not None and not one.waited for one in arrivals]):
            self._state.live_until = self._now + LIVE_SECONDS

    # Offsets

    def _take_offsets(self, number: int) -> Iterator[None]:
        topics = self._state.partitions.topics
        for index, (key, headers, _, _) in enumerate(self._topics, start=1):
            if not index % _TOPICS_PER_SLICE:
                yield
            topic = topics.get(key)
            if topic is not None and not topic.repeats_response(headers, number):
                self._take_answers(topic, headers)

    def _take_answers(self, topic: ReplicaTopic, headers: bytes) -> None:
        link, now = self._state.partitions, self._now
        partitions = topic.partitions
        for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
            replica = partitions.get(partition)
            if replica is None:
                continue
            if error_code:
                replica.last_reported = UNKNOWN_OFFSET
                if partition in topic.unknown:
                    link.place(replica, behind=False, unknown=False)  # asked, and there is nothing to keep back
                # The leader's own broker may say so because it does not lead the partition: no lag begins with that.
                begins = link.side.side == "follower" and error_code not in _ERRORS_OF_NO_TOPIC
                topic.lag.refuse(partition, now, begins=begins)
                continue
            if replica.last_reported == UNKNOWN_OFFSET:
                topic.lag.answer(partition, now)
            replica.last_reported = high_watermark
            if high_watermark == replica.high_watermark:
                continue
            replica.earlier_high_watermark, replica.high_watermark = replica.high_watermark, high_watermark
            topic.made_up = None
            topic.lag.update(partition, replica.fetch_offset, high_watermark, now)
            link.classify(replica)

    def _take_silence(self) -> None:
        """What an incremental answer leaves out is as the leader told it last: a new leader epoch alone is no news.

        Nothing else would ever tell the high watermark of a partition at rest, and every fetch would be a probe.
        """
        link = self._state.partitions
        for replica in list(link.unknown()):
            if replica.upstream is not Upstream.ABSENT and replica.last_reported != UNKNOWN_OFFSET:
                replica.high_watermark = replica.last_reported
                replica.topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, self._now)
                link.classify(replica)

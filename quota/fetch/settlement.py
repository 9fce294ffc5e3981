"""Takes in what an answer tells, after it has passed whole: budget, offsets, batch sizes, counts and liveness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from weir.protocol.metadata import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import RecordsSeen, ResponseHead, ScannedTopic
from weir.protocol.steps import Steps
from weir.quota.budget.ledger import StrictLedger
from weir.quota.fetch.counts import count_bytes, count_strays
from weir.quota.fetch.intake import PARTITIONS_PER_STEP, blocks_of
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.state import UNKNOWN_OFFSET, InFlight, LeaderEntry, ReplicaPartition, ReplicaTopic

CROWDED_SECONDS: Final = 5.0
"""How long after an answer that was full of other partitions the next ones are expected to be full too."""

LIVE_SECONDS: Final = 1.0
"""How long after a record of a partition that needs no budget the link counts as having live traffic."""

PASSING_SECONDS: Final = 0.04
"""How long a grant may take to pass beside live traffic, whose records wait behind it."""

_SHORT_PASSING_SECONDS: Final = 0.005
"""An answer that passes in less says nothing of what the link carries."""

AT_ONCE_SECONDS: Final = 0.07
"""How much longer than the quickest answer lately one may take, and count as one that did not wait at the leader."""

FORGETS_DISTANCE: Final = 1.01
"""By how much the quickest answer counts for slower with each that follows: the way may have become longer."""

TOPICS_PER_STEP: Final = 500  # settled in one step of about 2 ms, if each has records
_ERRORS_OF_NO_TOPIC: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})


class _Arrival(NamedTuple):
    """The records of one partition in an answer."""

    topic: ReplicaTopic
    replica: ReplicaPartition | None
    """None: the follower does not ask for it any more."""
    seen: RecordsSeen
    is_throttled: bool
    waited: bool
    """Whether it was throttled and not in sync when the fetch was planned."""


class Settlement:
    """Takes in the answer to one fetch; made anew for each.

    A long answer is taken in by slices. The budget is settled once, when the whole answer is known; until then the
    fetch stays in flight and its bytes stay reserved.
    """

    def __init__(self, state: LinkState, fetch: InFlight, head: ResponseHead, number: int) -> None:
        """`number` is the answer's number among those of the link."""
        self._state = state
        self._fetch = fetch
        self._head = head
        self._number = number
        self._now = state.side.clock()
        self._is_throttling = state.side.is_throttling
        self._barren = set[ReplicaPartition]() if fetch.shares_max_bytes else set(fetch.grants)
        self._waited = self._throttled = self._unthrottled = self._cut = 0  # bytes
        self._of_waiting: dict[StrictLedger, int] = {}  # the same for each ledger
        self._in_sync: dict[StrictLedger, int] = {}
        self._is_live = False

    def steps(self, topics: Sequence[ScannedTopic]) -> Steps[None]:
        """Settle `topics`, which the leader sent. Done in steps."""
        state, fetch, head = self._state, self._fetch, self._head
        state.moved_at = state.catch_up.answered_at = self._now
        if fetch.asks_all and not head.error_code and not head.throttle_time_ms:
            state.unanswered_since = None
        for first in range(0, len(topics), TOPICS_PER_STEP):
            if first:
                yield
            some = topics[first : first + TOPICS_PER_STEP]
            if arrivals := self._arrivals(some):
                self._tally(arrivals)
                self._count(arrivals)
                self._learn_batches(arrivals)
            yield from self._take_offsets(some)
        if state.partitions.unknown_count and state.sessions.is_incremental and not head.error_code:
            yield from self._take_silence()
        count_bytes(state.partitions, self._throttled, self._unthrottled, self._cut)
        self._note_liveness()
        self._note_barren()
        self._settle_budget()

    def _arrivals(self, topics: Sequence[ScannedTopic]) -> list[_Arrival]:
        partitions, granted = self._state.partitions, self._fetch.grants
        arrivals: list[_Arrival] = []
        for key, _, records, _ in topics:
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

    def _tally(self, arrivals: list[_Arrival]) -> None:
        for arrival in arrivals:
            _, replica, seen, is_throttled, waited = arrival
            self._cut += seen.cut_bytes
            self._state.side.stats.taken_out_bytes += seen.taken_out
            self._is_live |= replica is not None and not waited
            self._tally_by_ledger(arrival)
            if not is_throttled:
                self._unthrottled += seen.size
                if self._is_throttling and replica is not None and replica.is_known_behind:
                    self._state.side.stats.catch_up_beside_throttle += seen.size
                continue
            self._throttled += seen.size
            if waited:
                self._waited += seen.size

    def _tally_by_ledger(self, arrival: _Arrival) -> None:
        topic, replica, seen, _, waited = arrival
        is_in_sync = replica is None or replica.is_in_sync(self._now)
        for quota, covered in topic.coverage:
            is_behind = not is_in_sync if quota.is_observed else waited
            counts_in_sync = quota.counts_in_sync and not self._state.partitions.is_stranger
            if seen.partition not in covered or not (is_behind or counts_in_sync):
                continue
            sizes = self._of_waiting if waited and quota.limits else self._in_sync
            sizes[quota.ledger] = sizes.get(quota.ledger, 0) + seen.size
            if quota.is_observed and is_behind and quota.is_exceeded(self._now):
                self._state.side.stats.would_leave_out[quota.name] += 1

    def _settle_budget(self) -> None:
        state, fetch, side = self._state, self._fetch, self._state.side
        of_waiting, in_sync = self._of_waiting, self._in_sync
        # taken out first: it is settled once, even if an exception follows
        reserved, fetch.reserved = fetch.reserved, {}
        state.accounts.hand_over(reserved, of_waiting)
        for quota, part in fetch.parts.items():
            quota.settled(state.partitions.replica_id, of_waiting.get(quota.ledger, 0) - part.size)
        for ledger, size in in_sync.items():
            ledger.charge(size)
        for quota in side.quotas:
            if size := of_waiting.get(quota.ledger, 0) + in_sync.get(quota.ledger, 0):
                side.record(quota, size)

    # Counts

    def _count(self, arrivals: list[_Arrival]) -> None:
        stats = self._state.side.stats
        counts = None if stats.interval is None else stats.interval.link(self._state.partitions.counted_peer)
        for topic, _, seen, is_throttled, _ in arrivals:
            if topic.name is not None:
                stats.sizes(topic.name)[seen.partition] += seen.size
                if counts is not None:
                    counts.topics[topic.name].count(seen, is_throttled)

    # Batch sizes

    def _learn_batches(self, arrivals: list[_Arrival]) -> None:
        queue, granted = self._state.partitions.queue, self._fetch.grants
        for topic, replica, seen, _, _ in arrivals:
            if replica is not None:
                self._barren.discard(replica)
                queue.brought_some(replica, seen.size - granted.get(replica, seen.size))
                replica.served_number = self._number
                replica.batches.learn(seen)
                replica.arrived = seen.complete_bytes
                topic.batches.learn(seen)

    def _note_barren(self) -> None:
        """Find out why granted partitions brought nothing.

        - No partition has records: an earlier hop, or Kafka's own throttle, kept all of them. Nothing is learnt.
        - Other partitions filled the answer: there was no room left.
        - Else the cap was below one batch, and such a cap returns a batch only in the first partition with data. The
          next grants go in front of other partitions. One that brings nothing there has nothing to give, or a later hop
          has put a grant of its own in front of it: the next cap is larger.
        """
        state, fetch, size = self._state, self._fetch, self._throttled + self._unthrottled
        state.grants_filled_answer = 2 * self._throttled >= fetch.max_bytes
        if not size:
            for replica in self._barren:
                state.partitions.queue.brought_nothing(replica)
            return
        crowded_until = self._now + CROWDED_SECONDS
        room = fetch.max_bytes - size
        if state.crowded_until > self._now and room < state.partitions.most_max_bytes:
            state.crowded_until = crowded_until  # others would still fill it
        for replica in self._barren:
            is_full = room < replica.max_bytes
            if not is_full or fetch.grants_are_first:
                replica.batches.miss(replica.topic.batches, is_last_hop=state.side.takes_out)
            if not fetch.grants_are_first and (is_full or replica.batches.has_to_be_first):
                state.crowded_until = crowded_until
                state.partitions.queue.had_no_room(replica)

    # Liveness

    def _note_liveness(self) -> None:
        state, fetch = self._state, self._fetch
        interval = state.side.stats.interval
        if interval is not None:
            interval.link(state.partitions.counted_peer).fetches += 1
        if self._is_live:
            state.live_until = self._now + LIVE_SECONDS
        began_at = self._now if fetch.answer_began_at is None else fetch.answer_began_at
        waited = began_at - fetch.forwarded_at
        state.distance = min(waited, FORGETS_DISTANCE * state.distance)
        if fetch.grants and waited > state.distance + AT_ONCE_SECONDS:
            state.made_to_wait_at = self._now
        if fetch.grants and (self._waited or self._unthrottled):
            state.answer_seconds = self._now - fetch.forwarded_at
            state.most_beside_live = self._most_beside_live()

    def _most_beside_live(self) -> float:
        """Return how much the link carries while a live record may wait, by the answer that is settled.

        A link that grants fill has each fetch come late, and be granted what has gathered, which takes longer to pass,
        and so on. So a record that is in sync waited 0.5 s on a link of 10 MB/s, of which a move used 7.
        """
        fetch = self._fetch
        if fetch.answer_began_at is None:
            return math.inf
        passing = self._now - fetch.answer_began_at
        if passing < _SHORT_PASSING_SECONDS:
            return math.inf
        # On a distant link TCP takes some round trips for it, however much the link carries.
        may_pass = max(PASSING_SECONDS, fetch.answer_began_at - fetch.forwarded_at)
        return (self._throttled + self._unthrottled) / passing * may_pass

    # Offsets

    def _take_offsets(self, some: Sequence[ScannedTopic]) -> Steps[None]:
        topics, number = self._state.partitions.topics, self._number
        is_incremental = self._state.sessions.is_incremental  # then each partition that is named counts
        entries = 0  # looked at since the last step
        for key, headers, _, _ in some:
            topic = topics.get(key)
            if topic is None or (topic.repeats_response(headers, number) and not is_incremental):
                continue
            for block in blocks_of(headers, RESPONSE_ENTRY.size):
                self._take_answers(topic, block)
                entries += len(block) // RESPONSE_ENTRY.size
                if entries >= PARTITIONS_PER_STEP:
                    entries = 0
                    yield

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
                    link.fail(replica)
                # On the leader's side an error may mean that the broker does not lead the partition: no lag begins with
                # it.
                begins = link.side.side == "follower" and error_code not in _ERRORS_OF_NO_TOPIC
                topic.lag.refuse(partition, now, begins=begins)
                continue
            if replica.last_reported == UNKNOWN_OFFSET:
                topic.lag.answer(partition, now)
            high_watermark = max(high_watermark, UNKNOWN_OFFSET)  # nothing below it has a meaning
            replica.last_reported = high_watermark
            if high_watermark == replica.high_watermark:
                continue
            if replica.has_caught_up:
                replica.keep_in_sync(replica.high_watermark, link.in_sync_until)
            replica.earlier_high_watermark, replica.high_watermark = replica.high_watermark, high_watermark
            topic.made_up = None
            topic.lag.update(partition, replica.fetch_offset, high_watermark, now)
            link.classify(replica)

    def _take_silence(self) -> Steps[None]:
        """Keep the last known high watermark of partitions that an incremental answer omits.

        An omitted partition has no news, and a new leader epoch by itself is none. Otherwise the high watermark of a
        partition at rest would never be known again, and every fetch would be an offset probe.
        """
        link = self._state.partitions
        for number, replica in enumerate(list(link.unknown())):
            if number and not number % PARTITIONS_PER_STEP:
                yield
            if replica.at_leader is not LeaderEntry.ABSENT and replica.last_reported != UNKNOWN_OFFSET:
                replica.high_watermark = replica.last_reported
                replica.topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, self._now)
                link.classify(replica)

# SPDX-License-Identifier: Apache-2.0
"""Takes in what an answer tells, after it has passed whole: budget, offsets, batch sizes, counts and liveness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import dropwhile
from typing import Final

from weir.lag.broker_ids import STRANGER
from weir.protocol.metadata import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import RecordsSeen, ResponseHead, ScannedTopic
from weir.protocol.steps import Steps
from weir.quota.batches import learn
from weir.quota.budget.ledger import StrictLedger
from weir.quota.fetch.partitions import LinkPartitions, LinkState
from weir.quota.fetch.state import UNKNOWN_OFFSET, InFlight, LeaderEntry, ReplicaPartition, ReplicaTopic
from weir.quota.figures import (
    AT_ONCE_SECONDS,
    BESIDE_OTHERS,
    EXPECTED_SECONDS,
    LEAST_SHARED,
    PARTITIONS_PER_STEP,
    PASSING_SECONDS,
    SLOW_BROKER_SECONDS,
    SLOW_SECONDS,
    TICK_SECONDS,
    WINDOW_SECONDS,
)

_ERRORS_OF_NO_TOPIC: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})


class Settlement:
    """Takes in the answer to one fetch, by slices. The budget is settled once, when the whole answer is known."""

    def __init__(self, state: LinkState, fetch: InFlight, head: ResponseHead) -> None:
        self._state = state
        self._fetch = fetch
        self._head = head
        self._now = state.throttle.clock()
        self._barren = set(fetch.grants)
        self._waited = self._throttled = self._unthrottled = self._cut = 0  # bytes
        self._of_waiting: dict[StrictLedger, int] = {}  # the same for each ledger
        self._in_sync: dict[StrictLedger, int] = {}
        self._is_live = False
        self._had_turn_as = state.partitions.other_id
        self._has_error = self._has_answer = self._has_same = False
        self._told_before, state.partitions.told = state.partitions.told, set()

    def steps(self, topics: Sequence[ScannedTopic]) -> Steps[None]:
        """Settle `topics`, which the leader sent. Done in steps."""
        state, fetch, head = self._state, self._fetch, self._head
        state.moved_at = self._now
        if fetch.asks_all and not head.error_code and not head.throttle_time_ms:
            state.unanswered_since = None
        for first in range(0, len(topics), PARTITIONS_PER_STEP):
            if first:
                yield
            some = topics[first : first + PARTITIONS_PER_STEP]
            for key, _, records, _ in some:
                if records:
                    self._take_records(key, records)
            yield from self._take_offsets(some)
        if state.partitions.unknown_count and state.sessions.is_incremental and not head.error_code:
            yield from self._take_silence()
        self._note_answered()
        _count_bytes(state.partitions, self._throttled, self._unthrottled, self._cut)
        self._note_liveness()
        self._note_barren()
        self._settle_budget()

    def _take_records(self, key: bytes, records: Sequence[RecordsSeen]) -> None:
        """Take in the records of one topic: bytes, counts and batch sizes."""
        partitions, stats, granted = self._state.partitions, self._state.throttle.stats, self._fetch.grants
        # one that the follower does not ask for any more counts, too
        topic = partitions.topics.get(key) or partitions.new_topic(key)
        is_throttling, name, queue = self._state.throttle.rules.is_throttling, topic.name, partitions.queue
        sizes = None if name is None else stats.sizes(name)
        counts = None
        if name is not None and stats.interval is not None:
            counts = stats.interval.link(partitions.counted_peer).topics[name]
        for seen in records:
            replica = topic.partitions.get(seen.partition)  # None: the follower does not ask for it any more
            is_throttled = seen.partition in topic.throttled
            # it was held to a quota, and not in sync, when the fetch was planned
            is_granted = replica in granted
            waited = is_granted or seen.partition in topic.behind or seen.partition in topic.unknown
            waited = waited and is_throttled and not self._fetch.is_passed
            self._tally(topic, replica, seen, waited=waited)
            self._cut += seen.cut_bytes
            stats.taken_out_bytes += seen.taken_out
            if is_throttled:
                self._throttled += seen.size
                self._waited += seen.size if waited else 0
            else:
                self._unthrottled += seen.size
                if is_throttling and replica is not None and replica.fetch_offset < replica.high_watermark:
                    stats.catch_up_beside_throttle += seen.size
            if sizes is not None:
                sizes[seen.partition] += seen.size
            if counts is not None:
                counts.count(seen, is_throttled)
            if replica is not None:
                self._is_live |= not waited
                self._barren.discard(replica)
                if is_granted and seen.size != granted[replica]:
                    queue.brought_some(replica, seen.size - granted[replica])
                replica.served_number = self._state.number
                learn(seen, replica.batches, topic.batches)

    # The budget

    def _tally(self, topic: ReplicaTopic, replica: ReplicaPartition | None, seen: RecordsSeen, *, waited: bool) -> None:
        for quota, covered in topic.coverage:
            is_behind = waited
            if quota.is_observed:
                is_behind = replica is not None and not replica.is_in_sync(self._now)
            counts_in_sync = quota.counts_in_sync and not self._state.partitions.is_stranger
            if seen.partition not in covered or not (is_behind or counts_in_sync):
                continue
            sizes = self._of_waiting if waited and quota.limits else self._in_sync
            sizes[quota.ledger] = sizes.get(quota.ledger, 0) + seen.size
            if quota.is_observed and is_behind and quota.is_exceeded(self._now):
                self._state.throttle.stats.would_leave_out[quota.name] += 1

    def _settle_budget(self) -> None:
        state, fetch, side = self._state, self._fetch, self._state.throttle
        of_waiting, in_sync = self._of_waiting, self._in_sync
        state.accounts.hand_over(of_waiting)
        for quota, part in fetch.parts.items():
            # The turn of a stranger, or of who turns out to be refused, is over whatever it brought: given back, they
            # would always be next.
            if state.partitions.other_id == self._had_turn_as != STRANGER:
                quota.line.settle(self._had_turn_as, of_waiting.get(quota.ledger, 0) - part.size)
        for ledger, size in in_sync.items():
            ledger.charge(size)
        waited_long = bool(state.partitions.queue.waiting) and self._now - fetch.forwarded_at > SLOW_SECONDS
        for quota in side.rules.quotas:
            if waited_long and quota.ledger.rate:
                quota.ledger.keep_wanted()
            if size := of_waiting.get(quota.ledger, 0) + in_sync.get(quota.ledger, 0):
                side.record(quota, size)

    def _note_barren(self) -> None:
        """Find out why granted partitions brought nothing.

        Without any records an earlier hop, or Kafka's own throttle, kept all of them. Where others filled the answer,
        there was no room. Else the cap was below one batch: the next grants go in front of other partitions, and one
        that brings nothing there has nothing to give, or a later hop put a grant of its own in front: its next cap is
        larger.
        """
        state, fetch, size = self._state, self._fetch, self._throttled + self._unthrottled
        # Nothing else came: nothing is there, or each partition is asked for less than a batch and only the first came.
        is_alone = fetch.grants_are_first and size == self._throttled > 0
        state.grants_filled_answer = is_alone or 2 * self._throttled >= fetch.max_bytes
        if fetch.shares_max_bytes:
            if size:
                state.most_shared = max(LEAST_SHARED, 2 * (len(fetch.grants) - len(self._barren)))
            # What stands behind the first one with records had no room, where they filled the answer.
            behind_first = dropwhile(lambda replica: replica in self._barren, fetch.grants)
            for replica in behind_first if state.grants_filled_answer else ():
                if replica in self._barren:
                    state.partitions.queue.had_no_room(replica)
            return
        if not size:
            for replica in self._barren:
                state.partitions.queue.brought_nothing(replica)
            return
        room = fetch.max_bytes - size
        if state.crowded_until > fetch.forwarded_at and any(
            room < waiting.max_bytes for waiting in state.partitions.queue
        ):
            state.crowded_until = self._now + EXPECTED_SECONDS  # others would still fill it
        for replica in self._barren:
            is_full = room < replica.max_bytes
            if not is_full or fetch.grants_are_first:
                replica.batches.miss(replica.topic.batches, is_last_hop=state.throttle.takes_out)
            if fetch.grants_are_first:
                continue
            is_next = is_full or replica.batches.has_to_be_first
            if is_next:
                state.crowded_until = self._now + EXPECTED_SECONDS
            if is_next or state.throttle.takes_out:  # the broker itself found the cap too small: the next one is larger
                state.partitions.queue.had_no_room(replica)

    # Liveness

    def _note_liveness(self) -> None:
        state, fetch = self._state, self._fetch
        interval = state.throttle.stats.interval
        if interval is not None:
            interval.link(state.partitions.counted_peer).fetches += 1
        if self._is_live:
            state.live_until = self._now + WINDOW_SECONDS
        state.answered = self._now, self._throttled if fetch.grants and self._throttled >= self._unthrottled else 0
        began_at = self._now if fetch.answer_began_at is None else fetch.answer_began_at
        waited = began_at - fetch.forwarded_at
        takes_out, quickest = state.throttle.takes_out, min(waited, state.distance)
        if fetch.grants and waited > (SLOW_BROKER_SECONDS if takes_out else quickest + AT_ONCE_SECONDS):
            state.made_to_wait_at = self._now
        state.distance = waited if takes_out else quickest
        if fetch.grants and (self._waited or self._unthrottled):
            state.answer_seconds = self._now - fetch.forwarded_at
            state.pace, state.most_beside_live = self._pace(), self._most_beside_live()

    def _pace(self) -> float:
        """Return how fast the answer came that is settled (bytes/s); inf where it came in one piece."""
        began_at = self._fetch.answer_began_at
        if began_at is None:
            return math.inf
        return (self._throttled + self._unthrottled) / max(self._now - began_at, TICK_SECONDS)

    def _most_beside_live(self) -> float:
        """Return how much the link carries while a live record may wait, by the answer that is settled."""
        fetch = self._fetch
        if fetch.answer_began_at is None:
            return math.inf
        # On a distant link TCP takes some round trips for it, however much the link carries.
        may_pass = max(PASSING_SECONDS, fetch.answer_began_at - fetch.forwarded_at)
        return max(self._pace() * may_pass, BESIDE_OTHERS * self._unthrottled)

    def _note_answered(self) -> None:
        """Find out whether the broker refuses the follower: with errors alone, or without an answer.

        What was told before exactly so is not looked into, and changes nothing.
        """
        partitions = self._state.partitions
        if self._has_answer:
            partitions.is_refused = False
            partitions.side.refused.discard(partitions.ends.follower)
        elif self._head.error_code or (self._has_error and not self._has_same):
            partitions.is_refused = True
            partitions.side.note_refused(partitions.ends.follower)

    # Offsets

    def _take_offsets(self, some: Sequence[ScannedTopic]) -> Steps[None]:
        """Take in what is told of partitions. What the answer before told exactly so is not looked into."""
        link = self._state.partitions
        blocks = [one[:2] for one in some]
        if not self._state.sessions.is_incremental:  # there each partition that is named counts
            link.told.update(blocks)
            earlier = self._told_before
            count, blocks = len(blocks), [one for one in blocks if one not in earlier]
            self._has_same |= len(blocks) < count
        size, taken = PARTITIONS_PER_STEP * RESPONSE_ENTRY.size, 0
        for key, headers in blocks:
            topic = link.topics.get(key)
            if topic is None:
                continue
            for start in range(0, len(headers), size):
                self._take_answers(topic, headers[start : start + size])
                taken += min(size, len(headers) - start)
                if taken >= size:
                    taken = 0
                    yield

    def _take_answers(self, topic: ReplicaTopic, headers: bytes) -> None:
        link, now = self._state.partitions, self._now
        partitions = topic.partitions
        for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
            replica = partitions.get(partition)
            if replica is None:
                continue
            self._has_error |= error_code != 0
            self._has_answer |= not error_code
            if error_code:
                replica.last_reported = UNKNOWN_OFFSET
                # On the leader's side an error may mean that the broker does not lead the partition: no lag begins with
                # it.
                begins = link.side.side == "follower" and error_code not in _ERRORS_OF_NO_TOPIC
                topic.lag.refuse(partition, now, begins=begins)
                continue
            if replica.last_reported == UNKNOWN_OFFSET:
                topic.lag.answer(partition, now)
            high_watermark = max(high_watermark, UNKNOWN_OFFSET)  # nothing below it has a meaning
            replica.last_reported = high_watermark
            if high_watermark < replica.highest or replica.lower_since < math.inf:
                high_watermark = replica.committed(high_watermark, now)
                if replica.lower_since < math.inf:
                    link.told.clear()  # what is told again is looked at again
            if high_watermark == replica.high_watermark:
                continue
            if UNKNOWN_OFFSET < replica.high_watermark <= replica.fetch_offset:
                replica.in_sync_from, replica.in_sync_until = replica.high_watermark, link.in_sync_until
            replica.high_watermark = replica.highest = high_watermark
            topic.made_up = None
            topic.lag.update(partition, replica.fetch_offset, high_watermark, now)
            link.classify(replica)

    def _take_silence(self) -> Steps[None]:
        """Keep the last known high watermark of partitions that an incremental answer omits: they have no news.

        Else that of a partition at rest would never be known again, and every fetch would be an offset probe.
        """
        link = self._state.partitions
        for number, replica in enumerate(list(link.unknown())):
            if number and not number % PARTITIONS_PER_STEP:
                yield
            if replica.at_leader is not LeaderEntry.ABSENT and replica.last_reported != UNKNOWN_OFFSET:
                replica.high_watermark = max(replica.last_reported, replica.highest)
                replica.topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, self._now)
                link.classify(replica)


def _count_bytes(link: LinkPartitions, throttled: int, unthrottled: int, cut: int) -> None:
    """Count record bytes of a link, and those `cut` of them: the end of a batch that the follower throws away."""
    stats, peer = link.side.stats, link.counted_peer
    if throttled:
        stats.count_replication(peer, True, throttled)
    if unthrottled:
        stats.count_replication(peer, False, unthrottled)
    stats.cut_bytes += cut
    if stats.interval is not None and throttled + unthrottled:
        counts = stats.interval.link(peer)
        counts.throttled += throttled
        counts.unthrottled += unthrottled
        counts.cut += cut

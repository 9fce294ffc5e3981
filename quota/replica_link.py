"""One connection's replica fetches: what each brings, which partitions it may fetch now, and what came of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from protocol.fetch import RESPONSE_ENTRY, FetchRequest, encode_fetch_response
from protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND, FIRST_SESSION_VERSION
from protocol.metadata import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from protocol.response_scanner import ResponseHead, ScannedTopic
from protocol.steps import Steps, at_once
from quota.catch_up import CatchUp
from quota.decisions import Answer, Decision, Hold
from quota.fetch_plan import decide
from quota.fetch_sessions import FetchSessions
from quota.grant_queue import GrantQueue
from quota.interval import IntervalCounts
from quota.ledger import Account
from quota.link_counts import count_bytes, count_strays
from quota.replica_state import UNKNOWN_OFFSET, InFlight, ReplicaPartition, ReplicaTopic, Upstream
from quota.request_intake import STEP_PARTITIONS, STEP_TOPICS, blocks_of, take_incremental, take_whole
from quota.response_limit import ResponseRotation
from quota.topic_names import printed_id

if TYPE_CHECKING:
    from quota.throttle import Throttle

UNKNOWN_REPLICA = -1
STUCK_SECONDS = 5.0  # a peer that takes an answer, or asks again, later than this is stuck
CROWDED_SECONDS = 5.0  # how long after an answer that others filled the next ones are expected to be full
LIVE_SECONDS = 1.0  # how long after a record of theirs partitions that do not wait count as live
_NO_ERROR = ResponseHead()
_ERRORS_OF_NO_TOPIC = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})


class ReplicaLink:
    """One follower's fetches of one leader over one connection.

    `plan` decides about a request; `settle` takes what its answer held. Answers come in the order of the requests that
    were forwarded. `abandon` gives up on every answer still to come, `close` ends the link.
    """

    def __init__(self, throttle: Throttle, peer: int) -> None:
        self.throttle = throttle
        self.peer = peer
        self.replica_id = UNKNOWN_REPLICA
        self.topics: dict[bytes, ReplicaTopic] = {}
        self.account = Account(throttle.ledger)
        self.queue = GrantQueue()  # behind or unknown
        self.catch_up = CatchUp()
        self.behind_count = 0
        self.unknown_count = 0
        self.unanswered_since: float | None = None  # since when partitions were left out with no true answer
        self.questioned_at = float("-inf")
        self.unknown_since: float | None = None  # since when a question waits that tells who is in sync
        self.crowded_until = -math.inf  # until when answers are expected to be full without what is granted
        self.answer_seconds = 0.0  # from the last grant to its answer
        self.live_until = -math.inf  # until when records of partitions that do not wait are expected to come
        self.in_flight: deque[InFlight] = deque()
        self.response_rotation = ResponseRotation()
        self.sessions = FetchSessions(throttle.open_session, throttle.stats)
        self.partition_count = 0
        self.most_max_bytes = 0  # partition_max_bytes that was asked for
        self.most_partitions = 0  # at one time: no more are remembered that are absent
        self.absent: dict[ReplicaPartition, float] = {}  # when to forget it, oldest first
        self.left_out_count = 0  # fetches that left out all that was behind, but for what they were granted
        self.request_number = 0
        self._api_version = -1  # of the last fetch taken in
        self.asker = throttle.lag.asker()
        self._is_taken_in = True
        self._unconfirmed = 0  # bytes sent that the follower's next request will show to have arrived
        self._settled_at = -math.inf
        self._response_number = 0
        self._generation = throttle.generation

    def plan(self, request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        """Decide at once, as `plan_steps` does in steps."""
        return at_once(self.plan_steps(request, held_seconds))

    def settle(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> None:
        """Settle at once, as `settle_steps` does in steps."""
        at_once(self.settle_steps(topics, head))

    def plan_steps(self, request: FetchRequest, held_seconds: float = 0.0) -> Steps[Decision]:
        """Decide about `request`, which was held back for `held_seconds` already (this hop only).

        The decision itself is one step; before it, all that the request lists is taken in. Between steps nothing else
        may be asked of this link but to be closed. Raises TooManyPartitions for a follower of which no more can be
        kept.
        """
        now = self.throttle.clock()
        if held_seconds == 0.0:
            self._is_taken_in = False
        if not self._is_taken_in:
            if self.in_flight and request.header.api_version >= FIRST_SESSION_VERSION:
                return Hold(math.inf)  # in a session each request builds on the answer to the one before
            self._is_taken_in = True
            if (refusal := (yield from self._take_in(request, now))) is not None:
                return refusal
            now = self.throttle.clock()
        generation = self.throttle.generation_at(now)
        if self._generation != generation:
            self._generation = generation
            seen = 0
            for topic in self.topics.values():
                self._reclassify(topic, now)
                seen += len(topic.partitions)
                if seen >= STEP_PARTITIONS:
                    seen = 0
                    yield
        return decide(self, request, now, held_seconds)

    def settle_steps(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> Steps[None]:
        """The oldest answer awaited was passed on whole; `topics` is what the leader sent of it, under `head`.

        The fetch stays in flight up to the last step: until then, who closes the link gives back what it reserved.
        """
        fetch = self.in_flight[0]
        if fetch.api_version >= FIRST_SESSION_VERSION:
            self.sessions.answered(head)
        throttle = self.throttle
        now = throttle.clock()
        self._response_number += 1
        self._settled_at = now
        behind_bytes = in_sync_bytes = unthrottled_bytes = cut_bytes = 0
        interval = throttle.stats.interval
        counts = None if interval is None else interval.link(self.counted_peer)
        is_live = False
        seen_entries = 0  # since the last step
        if fetch.asks_all and not head.error_code and not head.throttle_time_ms:
            self.unanswered_since = None
        granted = frozenset(fetch.granted)
        barren = set(granted)
        for first in range(0, len(topics), STEP_TOPICS):
            if first:
                yield
            for key, headers, records, _ in topics[first : first + STEP_TOPICS]:
                topic = self.topics.get(key)
                if topic is None:
                    count_strays(self, key, fetch.uses_topic_ids, records)
                    continue
                sizes = topic_counts = None
                if records and topic.name is not None:
                    sizes = throttle.stats.sizes(topic.name)
                    if interval is not throttle.stats.interval:  # it was cut between two steps
                        interval = throttle.stats.interval
                        counts = None if interval is None else interval.link(self.counted_peer)
                    if counts is not None:
                        topic_counts = counts.topics[topic.name]
                for seen in records:
                    replica = topic.partitions.get(seen.partition)
                    is_throttled = seen.partition in topic.throttled
                    cut_bytes += seen.cut_bytes
                    if sizes is not None:
                        sizes[seen.partition] += seen.size
                    if topic_counts is not None:
                        topic_counts.count(seen, is_throttled)
                    if replica is not None:
                        barren.discard(replica)
                        replica.served_number = self._response_number
                        replica.batches.learn(seen)
                        replica.arrived = seen.complete_bytes
                        topic.batches.learn(seen)
                    if is_throttled and replica is not None and (replica.is_waiting or replica in granted):
                        behind_bytes += seen.size
                        continue
                    is_live |= replica is not None and not replica.is_waiting
                    if is_throttled:
                        in_sync_bytes += seen.size
                    else:
                        unthrottled_bytes += seen.size
                if not topic.repeats_response(headers, self._response_number):
                    for block in blocks_of(headers, RESPONSE_ENTRY.size):
                        self._take_answers(topic, block, now)
                        seen_entries += len(block) // RESPONSE_ENTRY.size
                        if seen_entries >= STEP_PARTITIONS:
                            seen_entries = 0
                            yield
        if interval is not throttle.stats.interval:
            interval = throttle.stats.interval
            counts = None if interval is None else interval.link(self.counted_peer)
        count_bytes(self, behind_bytes + in_sync_bytes, unthrottled_bytes, cut_bytes)
        if counts is not None:
            counts.fetches += 1
        if is_live:
            self.live_until = now + LIVE_SECONDS
        if self.unknown_count and self.sessions.is_incremental and not head.error_code:
            yield from self._take_silence(now)
        if fetch.granted and (behind_bytes or unthrottled_bytes):
            self.answer_seconds = now - fetch.forwarded_at
        self._take_barren(barren, fetch, behind_bytes + in_sync_bytes + unthrottled_bytes, now)
        if fetch.is_question:
            # At most one batch comes with a question; nothing was reserved for it, and no quota could have stopped it.
            throttle.ledger.charge_question(behind_bytes)
            throttle.questions.answered(self, self.replica_id, behind_bytes, throttle.settings.rate or 0)
            throttle.turns.owe(self.replica_id, behind_bytes)
        else:
            self.account.hand_over(fetch.reserved, behind_bytes)
            self._unconfirmed += behind_bytes
        throttle.ledger.charge(in_sync_bytes)
        if behind_bytes or in_sync_bytes:
            throttle.record(behind_bytes + in_sync_bytes)
        self.in_flight.popleft()

    def abandon(self) -> None:
        """No answer will come any more. What was reserved may have been sent in part: it counts as sent."""
        self._confirm()
        while self.in_flight:
            reserved = self.in_flight.popleft().reserved
            self.account.settle(reserved, reserved)

    def release_if_stuck(self) -> None:
        """What a stuck peer has not taken counts as sent: it may not keep others from the budget until it is closed."""
        now = self.throttle.clock()
        if now - self._settled_at >= STUCK_SECONDS:
            self._confirm()
        for fetch in self.in_flight:
            if now - fetch.forwarded_at >= STUCK_SECONDS + fetch.max_wait_seconds:
                reserved, fetch.reserved = fetch.reserved, 0
                self.account.settle(reserved, reserved)

    def close(self) -> None:
        """The connection is gone. Whatever happens in here, it holds nothing of the budget any more."""
        try:
            self.abandon()
            self._count_all_left_out()
            self.asker.close()
        finally:
            self.throttle.drop(self)

    # What a request brings

    def _confirm(self) -> None:
        """A fetcher asks again when it has appended what it was sent: only then is it known when that arrived."""
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, 0
            self.account.confirm(unconfirmed)

    def _take_in(self, request: FetchRequest, now: float) -> Steps[Answer | None]:
        """Take a request in; returns what to answer it with where it does not fit its session."""
        self._confirm()
        self.replica_id = request.replica_id
        sessions, version = self.sessions, request.header.api_version
        error_code = sessions.enter(request, now)
        if not error_code and version != self._api_version:
            # The entries that are kept have another layout. A session cannot go on with them: it begins anew.
            if sessions.is_incremental:
                sessions.follower.end()
                error_code = FETCH_SESSION_ID_NOT_FOUND
            else:
                self._forget_all()
                self._api_version = version
        if error_code:
            correlation_id = request.header.correlation_id
            return Answer(encode_fetch_response(version, correlation_id, 0, [], error_code=error_code))
        if sessions.is_incremental:
            yield from take_incremental(self, request, now)
            if not self.partition_count:
                sessions.follower.end()  # as brokers do: an empty session is closed
        else:
            yield from take_whole(self, request, now)
        return None

    def topic(self, key: bytes, is_id: bool) -> ReplicaTopic:
        """The topic of this name, or of this id; it is made where it is new."""
        topic = self.topics.get(key)
        if topic is None:
            throttle = self.throttle
            name = throttle.topic_names.name_of(key) if is_id else key
            shown = printed_id(key).encode() if name is None else name
            lag = self.asker.topic(self.replica_id, shown, names_topic=name is not None)
            topic = self.topics[key] = ReplicaTopic(key, name, lag, throttle.throttled_partitions(name, key))
        return topic

    @property
    def counted_peer(self) -> int:
        """The other broker's id, as its bytes are counted."""
        return self.throttle.counted_peer(self.peer)

    def partitions(self) -> list[ReplicaPartition]:
        """All that the follower asks for."""
        return [replica for topic in self.topics.values() for replica in topic.partitions.values()]

    def waiting(self) -> Iterator[ReplicaPartition]:
        """All that are throttled and not known to be in sync."""
        for topic in self.topics.values():
            yield from topic.behind.values()
        yield from self.unknown()

    def unknown(self) -> Iterator[ReplicaPartition]:
        """All that are throttled and whose high watermark is not known."""
        if self.unknown_count:
            for topic in self.topics.values():
                for partition in topic.unknown:
                    yield topic.partitions[partition]

    def _forget_all(self) -> None:
        self._count_all_left_out()
        self.asker.close()
        self.asker = self.throttle.lag.asker()
        self.topics, self.queue, self.absent = {}, GrantQueue(), {}
        self.behind_count = self.unknown_count = self.partition_count = 0
        self.sessions.touched = {}

    # What an answer brings

    def _take_barren(self, barren: set[ReplicaPartition], fetch: InFlight, size: int, now: float) -> None:
        """Take what was granted and not in an answer of `size` bytes of records.

        An answer without any records says nothing: an earlier hop, or Kafka's own throttle, kept all. Where others
        filled it there was no room. Else the cap was below one batch, which brings nothing behind others. The next
        grants go in front of them; what brings nothing there has nothing to give.
        """
        if not size or fetch.grants_are_first:
            return
        for replica in barren:
            is_full = fetch.max_bytes - size < replica.max_bytes
            if not is_full:
                replica.batches.miss()
            if is_full or replica.batches.has_to_be_first:
                self.crowded_until = now + CROWDED_SECONDS
                replica.granted_offset = UNKNOWN_OFFSET

    def _take_answers(self, topic: ReplicaTopic, headers: bytes, now: float) -> None:
        partitions = topic.partitions
        for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
            replica = partitions.get(partition)
            if replica is None:
                continue
            if error_code:
                replica.last_reported = UNKNOWN_OFFSET
                if partition in topic.unknown:
                    self.place(replica, behind=False, unknown=False)  # asked, and there is nothing to keep back
                # The leader's own broker may say so because it does not lead the partition: no lag begins with that.
                begins = self.throttle.side == "follower" and error_code not in _ERRORS_OF_NO_TOPIC
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
            self.classify(replica)

    def _take_silence(self, now: float) -> Steps[None]:
        """What an incremental answer leaves out is as the leader told it last: a new leader epoch alone is no news.

        Nothing else would ever tell the high watermark of a partition at rest, and every fetch would be a question.
        """
        for number, replica in enumerate(list(self.unknown())):
            if number and not number % STEP_PARTITIONS:
                yield
            if replica.upstream is not Upstream.ABSENT and replica.last_reported != UNKNOWN_OFFSET:
                replica.high_watermark = replica.last_reported
                replica.topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, now)
                self.classify(replica)

    # Who is behind

    def _reclassify(self, topic: ReplicaTopic, now: float) -> None:
        if topic.name is None:
            topic.name = self.throttle.topic_names.name_of(topic.key)
            if topic.name is not None:
                topic.lag.rename(topic.name)
        topic.throttled = self.throttle.throttled_partitions(topic.name, topic.key)
        is_throttling = self.throttle.settings.rate is not None
        tells_lag = not topic.lag.is_known  # its follower was taken for no broker, perhaps
        for replica in topic.partitions.values():
            if tells_lag:
                topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, now)
            self.classify(replica)
            if (replica.upstream is Upstream.AS_CAME) == (is_throttling and replica.is_waiting):
                self.sessions.touch(replica)

    def classify(self, replica: ReplicaPartition) -> None:
        """In sync: at or past the high watermark last reported, or lately so before an offset went back.

        The cluster's ISR counts only where no high watermark is known, and not at offset 0. It may be old, and none of
        its members is below a high watermark that it was told: the leader's is at most the least offset of them all.
        """
        is_in_sync = replica.has_caught_up or self.throttle.clock() < replica.in_sync_until
        if is_in_sync or replica.partition not in replica.topic.throttled:
            self.place(replica, behind=False, unknown=False)
        elif replica.high_watermark == UNKNOWN_OFFSET:
            self.place(replica, behind=False, unknown=not self._is_in_isr(replica))
        else:
            self.place(replica, behind=True, unknown=False)

    def _is_in_isr(self, replica: ReplicaPartition) -> bool:
        name = replica.topic.name
        if name is None or not replica.fetch_offset:
            return False  # deleted and made anew: the ISR may be of the one before
        return self.throttle.in_isr(name, replica.partition, self.replica_id)

    def place(self, replica: ReplicaPartition, *, behind: bool, unknown: bool) -> None:
        """Note whether a partition is throttled and behind, or throttled with an unknown high watermark."""
        topic, partition = replica.topic, replica.partition
        if behind != replica.behind or unknown != (partition in topic.unknown):
            self.sessions.touch(replica)
        if behind != replica.behind:
            self.count_left_out(replica, self.throttle.stats.interval)
            replica.behind = behind
            topic.made_up = None
            replica.left_out_from = self.left_out_count
            if behind:
                topic.behind[partition] = replica
                self.behind_count += 1
            else:
                del topic.behind[partition]
                self.behind_count -= 1
        if unknown != (partition in topic.unknown):
            self.unknown_count += 1 if unknown else -1
            topic.unknown.symmetric_difference_update((partition,))
        # An earlier hop that asks for 0 bytes wants the partition's offsets only: nothing may be granted here.
        if (behind or unknown) and replica.max_bytes > 0:
            self.queue.enter(replica, is_capped=replica.max_bytes < self.most_max_bytes)
        else:
            self.queue.leave(replica)
            if not (behind or unknown) and replica.is_present:
                replica.was_queued = replica.is_paced = False

    # Counting

    def leave_out(self, granted: Sequence[ReplicaPartition] = ()) -> None:
        """A fetch leaves out all that is behind, but for `granted`.

        It costs nothing for each of them: a partition behind knows from which count on it was left out each time.
        """
        left_out = self.behind_count
        self.left_out_count += 1
        for replica in granted:
            if replica.behind:
                left_out -= 1
                replica.left_out_from += 1
        stats = self.throttle.stats
        stats.partitions_left_out += left_out
        if stats.interval is not None:
            stats.interval.link(self.counted_peer).left_out += left_out

    def hold(self) -> None:
        """A fetch is held until there is budget."""
        stats = self.throttle.stats
        stats.fetches_held += 1
        if stats.interval is not None:
            stats.interval.link(self.counted_peer).fetches_held += 1

    def count_left_out(self, replica: ReplicaPartition, interval: IntervalCounts | None) -> None:
        """Count in `interval` how often a partition was left out since that was last counted."""
        left_out = self.left_out_count - replica.left_out_from
        if not replica.behind or not left_out:
            return
        replica.left_out_from = self.left_out_count
        if interval is not None and replica.topic.name is not None:
            interval.link(self.counted_peer).topics[replica.topic.name].leave_out(replica.partition, left_out)

    def _count_all_left_out(self) -> None:
        """Nothing here stays as it is."""
        for topic in self.topics.values():
            for replica in topic.behind.values():
                self.count_left_out(replica, self.throttle.stats.interval)

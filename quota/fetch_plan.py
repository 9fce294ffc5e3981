"""Which partitions one replica fetch may take along, and what becomes of the others.

Kafka's rule on both sides: a partition is left out when it is throttled, not in sync, and the quota is exceeded. Here
the quota is asked before the bytes are sent, and each partition behind gets one of four treatments:

- *granted*: in the request with a cap, behind everything that is not throttled; in front of it where that fills every
  answer, for a while;
- *asked*: in the request with partition_max_bytes 0, behind a granted one that has data. The leader itself answers
  with true offsets and errors, so nothing has to be made up;
- *left out*: not in the request; an empty entry is appended to the answer. Only where nothing is granted while other
  partitions cannot wait;
- *held*: the whole request waits, when every partition of it would be left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from protocol.fetch import (
    FetchRequest,
    ResponseTopic,
    encode_fetch_response,
    encode_response_topics,
    fetch_version,
)
from quota import response_limit
from quota.decisions import Answer, Decision, Forward, Hold
from quota.fetch_sessions import LEFT_OUT_MS, Grant
from quota.ledger import CREDIT_SECONDS, WINDOW_SECONDS
from quota.questions import QUESTION_SECONDS
from quota.replica_state import UNKNOWN_OFFSET, InFlight, ReplicaPartition, Upstream
from quota.request_parts import granted_topics, split, without_behind
from quota.turns import CLAIM_SECONDS

if TYPE_CHECKING:
    from quota.replica_link import ReplicaLink

SHARE_SECONDS = 0.12  # of quota: what one fetch is granted; small enough to pace, large enough to waste little
SHARE_BESIDE_LIVE_SECONDS = 0.012  # the same on a link with live traffic: a record in sync waits behind every share
LONGEST_RIDE_SECONDS = 0.02  # how long a share waits for a live record to go with
LARGEST_SHARE_SECONDS = 0.15  # what a fetch that comes late may be granted
SLOW_SECONDS = 0.1  # answers that take longer bring larger shares: what gathers meanwhile
SLOWEST_SHARE_SECONDS = 0.9  # the most that one of them is granted: all of it may come at once
ROUND_SECONDS = 4.0  # in which all links in line have had a share, however many there are
SMALLEST_FILL_SECONDS = 0.05  # worth a fetch of its own when the window has no room for a whole share
LONGEST_BESIDE_OTHERS_SECONDS = 1.0  # how long others that cannot wait are held for a question that cannot go yet
LONGEST_HOLD_SECONDS = 30.0  # whatever a follower asks for: its socket's time-out is 30 s by default
_REFRESH_SECONDS = 0.9 * CLAIM_SECONDS  # a held fetch is planned again before its place in the line is lost
SHORTEST_WAIT_SECONDS = 0.05  # a fetch that brings nothing lasts this long at least: held, not spun
_SHORTEST_HOLD_SECONDS = 0.001  # the event loop's own resolution; a shorter hold would spin
_AT_ONCE = 1  # min_bytes: an answer comes as soon as there is anything
_EMPTY_MS = 1
_FIRST_MUTING_VERSION = 8
_LEAST_WHOLE_VERSION = 3  # KIP-74: from v3 on the first partition with data returns at least one whole batch


@dataclass(slots=True)
class _Fill:
    """What one fetch is granted."""

    grants: list[Grant]
    share: int = 0  # bytes asked for
    reserved: int = 0  # bytes that may come: the first partition with data returns a whole batch, however large
    batch: int = 0  # the largest batch among them: what cannot be split, and so may go beyond the window


def decide(link: ReplicaLink, request: FetchRequest, now: float, held_seconds: float) -> Decision:
    """Plan `request` for a link that has taken it in."""
    throttle = link.throttle
    if not (link.behind_count or link.unknown_count) or throttle.settings.rate is None:
        throttle.turns.leave(link)
        throttle.questions.leave(link)
        if link.sessions.is_incremental:
            request = link.sessions.changes(link, request)
        else:
            request = link.sessions.whole(link, request, ())
        # What an earlier hop leaves out at the moment has no answer with this one.
        return _forward(link, request, InFlight(asks_all=not link.absent))
    if throttle.settings.policy == "kip73" and link.queue and not throttle.kip73.is_quota_exceeded():
        # As Kafka, without a reservation; but its samples need answers smaller than the quota's window (KIP-73's Q&A):
        # with whole 10 MB answers they let 1.8 x the quota through at 1 MB/s.
        fill = _fill(link, request, now, throttle.kip73.one_window)
        return _forward_granted(link, request, fill.grants, 0, now, held_seconds)
    is_urgent = link.catch_up.is_urgent(link, now)
    granted, ready = _grants(link, request, now, is_urgent)
    if granted is not None:
        throttle.turns.served(link, granted.share, is_urgent=is_urgent, replica=link.replica_id)
        link.account.reserve(granted.reserved)
        return _forward_granted(link, request, granted.grants, granted.reserved, now, held_seconds)
    question_at = _question_at(link, now)
    if question_at <= throttle.clock():
        return _forward_question(link, request, now)
    return _leave_out(link, request, now, held_seconds, min(ready, question_at))


# Granting


def _grants(link: ReplicaLink, request: FetchRequest, now: float, is_urgent: bool) -> tuple[_Fill | None, float]:
    """The partitions to grant now, or None and the time at which to try again."""
    throttle = link.throttle
    rate = throttle.settings.rate or 0
    if throttle.settings.policy == "kip73":
        return None, throttle.kip73.retry_at(now)
    if not link.queue or not rate:
        return None, float("inf")
    ledger = throttle.ledger
    in_line = len(throttle.turns)
    ledger.want(is_waited_for=in_line > 0)
    share = rate * (SHARE_BESIDE_LIVE_SECONDS if now < link.live_until else SHARE_SECONDS)
    fair = rate * ROUND_SECONDS / (in_line + 1)
    share = min(share, fair)
    turn = _turn(link, share, now)
    # More than can gather until the fetch is planned again, whether it waits for credit or for room.
    most_ahead = rate * (CREDIT_SECONDS + WINDOW_SECONDS)
    ahead = throttle.turns.ahead_of(link, replica=link.replica_id, is_urgent=is_urgent, turn=turn, most=most_ahead)
    # Late by a little: what has gathered meanwhile goes along, within bounds, or bursts would repeat every second.
    spend = min(max(ledger.credit() - ahead, share), rate * LARGEST_SHARE_SECONDS, fair)
    if link.answer_seconds > SLOW_SECONDS:
        spend = max(spend, min(rate * min(link.answer_seconds, SLOWEST_SHARE_SECONDS), fair))
    fill = _fill(link, request, now, spend)
    # A batch larger than the credit that can gather goes when half of that has; the rest becomes debt. Beside records
    # in sync a fetch never finds all of it.
    needed = min(fill.reserved, ledger.most_credit / 2)
    ready = ledger.credit_at(needed + ahead)
    # Compared with a fresh reading: the ledger has read the clock since `now` was taken.
    if ready <= throttle.clock():
        room = ledger.room() - ahead
        if fill.reserved <= room + fill.batch:
            return fill, now
        throttle.release_stuck()
        smallest = min(share, rate * SMALLEST_FILL_SECONDS)
        ready = ledger.room_at(smallest + ahead)
        if ready <= throttle.clock():
            smaller = _fill(link, request, now, room)
            if smaller.reserved <= room + smaller.batch:
                return smaller, now
            ready = ledger.room_at(fill.reserved - fill.batch + ahead)
    throttle.turns.wait(link, needed, now + CLAIM_SECONDS, replica=link.replica_id, is_urgent=is_urgent, turn=turn)
    return None, min(ready, now + _REFRESH_SECONDS)


def _turn(link: ReplicaLink, share: float, now: float) -> float:
    """What one turn of the link takes: its share, or one batch where that is larger."""
    return max(share, *[replica.largest_batch for replica in islice(link.catch_up.order(link, now), 1)], 0)


def _fill(link: ReplicaLink, request: FetchRequest, now: float, spend: float) -> _Fill:
    """Grant partitions in the catch-up order for about `spend` bytes: at least one, whole batches where known.

    No more than one answer may hold: a partition for which it has no room left would look as if it had no batch to
    give.
    """
    fill = _Fill([])
    excess = 0
    limit = link.throttle.settings.response_max_bytes
    left = spend = min(spend, request.max_bytes if limit is None else min(limit, request.max_bytes))
    for replica in link.catch_up.order(link, now):
        if request.header.api_version < _LEAST_WHOLE_VERSION:
            # A cap below the next batch returns a part of it, for ever: take the partition whole or not at all.
            fill.grants.append((replica, replica.max_bytes))
            fill.batch = max(fill.batch, replica.max_bytes)
            left -= replica.max_bytes
        else:
            cap, is_sure = replica.batches.cap_for(
                left, replica.worth_asking(), replica.topic.batches, wastes_some=link.answer_seconds > SLOW_SECONDS
            )
            if fill.grants and (cap > left or not is_sure):
                break
            fill.grants.append((replica, cap))
            batch = replica.largest_batch
            excess = max(excess, batch - cap)
            fill.batch = max(fill.batch, batch)
            # One batch of unknown size: the whole share. One larger than its cap comes whole where it is first.
            left -= max(cap, replica.batches.next_size or replica.batches.largest) if cap > 1 else spend
        if left <= 0:
            break
    fill.share = int(spend - left)
    fill.reserved = max(fill.share, sum([cap for _, cap in fill.grants]) + excess)
    return fill


def _forward_granted(
    link: ReplicaLink, request: FetchRequest, grants: list[Grant], reserved: int, now: float, held_seconds: float
) -> Forward:
    link.catch_up.granted(link, grants, reserved)
    granted = [replica for replica, _ in grants]
    link.leave_out(granted)
    # A partition that is not known may be in sync, and one asked for 0 bytes ends no wait.
    wait_left = 0 if link.unknown_count else max(0, request.max_wait_ms - round(held_seconds * 1000))
    asks_all = True
    grants_are_first = now < link.crowded_until
    if link.sessions.is_incremental:
        asks_all = _is_time_to_ask_all(link, now)
        if grants_are_first:
            link.sessions.leader.begin_anew()  # a session keeps its own order: only a new one has the grants in front
        request = link.sessions.changes(link, request, grants, _asked_along(link, asks_all))
    else:
        front, entries, asked = split(link, request, frozenset(granted))
        funded = granted_topics(request, grants, entries)
        # What is not throttled stays in front, but where it fills every answer: without a quota it would take turns.
        first = funded + front if grants_are_first else front + funded
        request = request.with_(topics=first + asked)
        request = link.sessions.whole(link, request, (*granted, *link.waiting()))
    fetch = InFlight(reserved=reserved, granted=granted, asks_all=asks_all, grants_are_first=grants_are_first)
    min_bytes = _min_bytes(link, grants, now)
    if min_bytes > _AT_ONCE:
        wait_left = min(wait_left, round(LONGEST_RIDE_SECONDS * 1000))
    return _forward(link, request.with_(max_wait_ms=wait_left, min_bytes=min_bytes), fetch)


def _min_bytes(link: ReplicaLink, grants: list[Grant], now: float) -> int:
    """How many bytes the answer waits for: with live traffic a few more than are granted, so that both come together.

    What is granted would come at once else, and a live record that is written meanwhile waits for the answer after it.
    """
    if now >= link.live_until or link.unknown_count:
        return _AT_ONCE
    granted = sum(cap for _, cap in grants)
    is_late = granted > 2 * SHARE_BESIDE_LIVE_SECONDS * (link.throttle.settings.rate or 0)
    # A cap beyond a partition's end is never reached, and live records would wait until max_wait_ms is over.
    if is_late or any(2 * cap > replica.worth_asking() for replica, cap in grants):
        return _AT_ONCE
    return granted + 1


# Not granting


def _is_time_to_ask_all(link: ReplicaLink, now: float) -> bool:
    """Whether all that is left out goes along with what is granted: early, so that no question has to go alone.

    From now on it is without an answer, if it does not.
    """
    since = link.unanswered_since
    if link.sessions.is_asked_for_offsets or (since is not None and now - since >= QUESTION_SECONDS / 2):
        return True
    _leave_unanswered(link, now)
    return False


def _leave_unanswered(link: ReplicaLink, now: float) -> float:
    """Since when what is left out has no true answer: from now on, where it had one so far."""
    if link.unanswered_since is None:
        link.unanswered_since = now
    return link.unanswered_since


def _asked_of_session(link: ReplicaLink, asks_all: bool) -> Iterable[ReplicaPartition]:
    """What an incremental fetch asks for with 0 bytes.

    At other times only what is not known: what is known to be behind would return a batch that no quota could stop.
    """
    if not asks_all:
        return link.unknown()
    link.sessions.is_asked_for_offsets = False
    return link.waiting()


def _asked_along(link: ReplicaLink, asks_all: bool) -> list[ReplicaPartition]:
    """The same beside grants.

    What the leader has already stands in front of what is granted now, and with 0 bytes would return a batch there. It
    had its answer with the fetch before, unless that brought nothing: a later hop may have left it out.
    """
    asked = _asked_of_session(link, asks_all)
    return [
        one for one in asked if one.upstream is Upstream.ABSENT or one.stalls or one.high_watermark == UNKNOWN_OFFSET
    ]


def _question_at(link: ReplicaLink, now: float) -> float:
    """The time at which this link may ask for offsets and errors alone; inf where it has nothing to ask."""
    questions = link.throttle.questions
    if link.unknown_count:  # no high watermark to judge by, nor one to make an entry of
        if link.unknown_since is None:
            link.unknown_since = now
        waits_alone = link.partition_count == link.behind_count + link.unknown_count or link.sessions.is_incremental
        longest = math.inf if waits_alone else LONGEST_BESIDE_OTHERS_SECONDS
        return questions.ready_at(link, link.replica_id, link.unknown_since, is_urgent=True, longest_wait=longest)
    link.unknown_since = None
    if link.sessions.is_asked_for_offsets or not link.queue:
        # The follower's own sidecar asks for 0 bytes of everything behind: its question, to be passed on.
        due = link.questioned_at + QUESTION_SECONDS
    elif link.unanswered_since is not None:
        due = max(link.unanswered_since, link.questioned_at) + QUESTION_SECONDS
    else:
        return float("inf")
    # A full fetch in a session that is held for that long has its follower's time-out before it.
    return questions.ready_at(link, link.replica_id, due, is_urgent=_has_to_wait(link))


def _forward_question(link: ReplicaLink, request: FetchRequest, now: float) -> Forward:
    """Ask for every partition behind with 0 bytes and no wait: true offsets and errors, and at most one batch."""
    link.questioned_at = now
    link.unknown_since = None
    link.throttle.stats.questions += 1
    link.leave_out()
    asks_all = True
    if link.sessions.is_incremental:
        asks_all = _is_time_to_ask_all(link, now)
        question = link.sessions.changes(link, request, (), _asked_of_session(link, asks_all))
    else:
        front, _, asked = split(link, request, ())
        question = link.sessions.whole(link, request.with_(topics=front + asked), link.waiting())
    fetch = InFlight(is_question=True, asks_all=asks_all)
    link.throttle.questions.asked(link, link.replica_id)
    return _forward(link, question.with_(max_wait_ms=0), fetch)


def _leave_out(link: ReplicaLink, request: FetchRequest, now: float, held_seconds: float, ready: float) -> Decision:
    ready = min(ready, _leave_unanswered(link, now) + QUESTION_SECONDS, link.throttle.names_awaited_until)
    wait = min(max(request.max_wait_ms / 1000, SHORTEST_WAIT_SECONDS), LONGEST_HOLD_SECONDS)
    has_to_wait = _has_to_wait(link)
    if link.partition_count > link.behind_count + link.unknown_count and (
        link.sessions.is_incremental or not link.unknown_count
    ):
        link.leave_out()
        shorter = min(request.max_wait_ms / 1000, max(ready - now, SHORTEST_WAIT_SECONDS))
        return _forward_without(link, request.with_(max_wait_ms=round(shorter * 1000), min_bytes=_AT_ONCE))
    if held_seconds < wait - _SHORTEST_HOLD_SECONDS or has_to_wait:
        if held_seconds == 0.0:
            link.hold()
            link.leave_out()
        until = max(ready, now + _SHORTEST_HOLD_SECONDS)
        return Hold(until if has_to_wait else min(until, now + wait - held_seconds))
    return Answer(_empty_answer(link, request))


def _has_to_wait(link: ReplicaLink) -> bool:
    """Whether a full answer needs an entry that only the leader can give, and the question for it may not go yet.

    In a session an answer with nothing at all is no answer: its follower would begin anew, with a full fetch.
    """
    if link.sessions.is_incremental:
        return False
    return link.unknown_count > 0 or (link.sessions.in_session and link.partition_count == link.behind_count)


def _forward_without(link: ReplicaLink, request: FetchRequest) -> Forward:
    """Ask for what is not behind, and make up an answer for the rest where a full answer has to have it."""
    if link.sessions.is_incremental:
        return _forward(link, link.sessions.changes(link, request), InFlight(), leaves_out=True)
    row = fetch_version(request.header.api_version)
    topics = [part for block in request.topics if (part := without_behind(link, row, block)).entries]
    fewer = link.sessions.whole(link, request.with_(topics=topics), (), leaves_out=True)
    made_up = _made_up_topics(link, row.api_version)
    appended = encode_response_topics(row.api_version, made_up)
    return _forward(link, fewer, InFlight(), appended, len(made_up), leaves_out=link.sessions.in_session)


def _empty_answer(link: ReplicaLink, request: FetchRequest) -> bytes:
    """To an incremental fetch an empty response says that nothing is new.

    To a full one it is legal with throttle_time_ms > 0 (KIP-219), and makes nothing up. But from v8 on that mutes the
    follower, and one without KAFKA-17455 then waits for replica.socket.timeout.ms, 30 s, before it asks again.
    """
    version, correlation_id = request.header.api_version, request.header.correlation_id
    if link.sessions.is_incremental:
        return encode_fetch_response(version, correlation_id, LEFT_OUT_MS, [], session_id=link.sessions.follower.id)
    if 0 < version < _FIRST_MUTING_VERSION:
        return encode_fetch_response(version, correlation_id, _EMPTY_MS, [])
    return encode_fetch_response(version, correlation_id, 0, _made_up_topics(link, version))


def _made_up_topics(link: ReplicaLink, version: int) -> list[ResponseTopic]:
    """An empty entry for every partition behind."""
    return [ResponseTopic(topic.key, topic.made_up_entries(version)) for topic in link.topics.values() if topic.behind]


def _forward(
    link: ReplicaLink,
    request: FetchRequest,
    fetch: InFlight,
    appended: bytes = b"",
    appended_topics: int = 0,
    *,
    leaves_out: bool = False,
) -> Forward:
    throttle, row = link.throttle, fetch_version(request.header.api_version)
    fetch.api_version, fetch.uses_topic_ids = row.api_version, row.names_topics_by_id
    fetch.forwarded_at, fetch.max_wait_seconds = throttle.clock(), request.max_wait_ms / 1000
    fetch.max_bytes = request.max_bytes
    link.in_flight.append(fetch)
    limit = throttle.settings.response_max_bytes
    if limit is not None:
        request = response_limit.limit_response(request, limit, link.response_rotation)
    walk = throttle.throttled_ids if row.names_topics_by_id else throttle.throttled_topics
    head_patch, most_partitions = link.sessions.head_patch(leaves_out=leaves_out), link.partition_count
    return Forward(request, appended, appended_topics, walk, head_patch, most_partitions)

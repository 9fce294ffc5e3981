# SPDX-License-Identifier: Apache-2.0
"""Puts the request for the leader together: a whole one, or in a session what changed there (see `sessions`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, ForgottenTopic
from weir.protocol.fetch_session import FINAL_EPOCH, FIRST_SESSION_VERSION, INITIAL_EPOCH, NO_SESSION
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.request_topics import RequestTopic
from weir.protocol.steps import PER_STEP, Steps, StepWork
from weir.quota.fetch.partitions import LinkState
from weir.quota.fetch.sessions import is_raft
from weir.quota.fetch.state import Grant, LeaderEntry, ReplicaPartition
from weir.quota.figures import SHORTEST_WAIT_SECONDS


def whole(
    state: LinkState,
    request: FetchRequest,
    grants: Sequence[Grant],
    asked: Iterable[ReplicaPartition],
    *,
    grants_are_first: bool,
    drops_behind: bool,
) -> Steps[FetchRequest]:
    """Turn `request`, a whole one, into the link's own: with `grants`, `asked` with 0 bytes, and all that passes.

    `drops_behind`: what is behind is missing. From v7 on the leader's session begins anew with it.
    """
    sessions = state.sessions
    if grants or asked or drops_behind:  # else it passes as it came
        topics = yield from _treated_topics(
            state, request, grants, grants_are_first=grants_are_first, drops_behind=drops_behind
        )
        request = request.with_(topics=topics)
    if sessions.row.api_version < FIRST_SESSION_VERSION:
        return request
    state.throttle.stats.full_fetches_sent += not is_raft(request)
    if sessions.follower.id == NO_SESSION:
        sessions.touched = {}
        return request.with_(session_id=sessions.leader.id, session_epoch=FINAL_EPOCH)
    work = StepWork(PER_STEP)
    for topic in list(state.partitions.topics.values()):
        left_out = topic.behind if drops_behind else {}
        for replica in topic.partitions.values():
            is_absent = replica.partition in left_out
            replica.at_leader = LeaderEntry.ABSENT if is_absent else LeaderEntry.AS_CAME
        if work.is_enough(len(topic.partitions)):
            yield
    sessions.touched = {}
    for number, replica in enumerate(chain([replica for replica, _ in grants], asked), start=1):
        sessions.touched[replica] = None
        replica.at_leader = LeaderEntry.CAPPED
        if not number % PER_STEP:
            yield
    return request.with_(session_id=sessions.leader.id, session_epoch=INITIAL_EPOCH, forgotten=())


def changes(
    state: LinkState,
    request: FetchRequest,
    grants: Sequence[Grant],
    asked: Iterable[ReplicaPartition],
    *,
    grants_are_first: bool,
) -> Steps[FetchRequest]:
    """Turn the incremental `request` into the link's own: the leader gets what changed in its session.

    Afterwards that has what is not throttled, `grants`, and `asked` with 0 bytes. `grants_are_first`: a new session
    begins with the grants.
    """
    sessions, is_throttling = state.sessions, state.throttle.rules.is_throttling
    capped = dict(grants)
    for number, replica in enumerate(asked, start=1):
        capped.setdefault(replica, 0)
        if not number % PER_STEP:
            yield
    lists_all = sessions.leader.epoch == INITIAL_EPOCH  # it has no session to build on
    state.throttle.stats.full_fetches_sent += lists_all
    front, gone = list[ReplicaPartition](), list[ReplicaPartition]()
    for number, replica in enumerate(list(state.partitions) if lists_all else sessions.touched, start=1):
        if not number % PER_STEP:
            yield
        if replica in capped:
            continue
        topic, partition = replica.topic, replica.partition
        waits = is_throttling and (partition in topic.behind or partition in topic.unknown)
        if not waits and topic.partitions.get(partition) is replica:
            replica.at_leader = LeaderEntry.AS_CAME
            front.append(replica)
        elif replica.at_leader is not LeaderEntry.ABSENT:
            replica.at_leader = LeaderEntry.ABSENT
            gone.append(replica)
    sessions.touched = dict.fromkeys(capped)
    with_max_bytes = sessions.row.with_max_bytes
    ours: list[tuple[ReplicaPartition, bytes]] = []
    for number, (replica, cap) in enumerate(capped.items(), start=1):
        replica.at_leader = LeaderEntry.CAPPED
        ours.append((replica, with_max_bytes(replica.entry, cap)))
        if not number % PER_STEP:
            yield
    as_came = [(replica, replica.entry) for replica in front if replica.max_bytes]
    no_bytes = [(replica, replica.entry) for replica in front if not replica.max_bytes]  # an earlier hop's probe
    # What is not throttled goes in front, and entries with bytes before those without: the first partition with
    # data returns a whole batch, even for 0 bytes.
    listed = chain(as_came, ours, no_bytes)
    if lists_all:
        # In the leader's old session, partitions that returned data had moved to the end: keep that order.
        as_came.sort(key=lambda sent: sent[0].served_number)
        if grants_are_first:
            granted, asked_for = ours[: len(grants)], ours[len(grants) :]
            listed = chain(granted, as_came, asked_for, no_bytes)
    topics = yield from _in_topics(listed)
    return request.with_(
        topics=topics,
        session_id=sessions.leader.id,
        session_epoch=sessions.leader.epoch,
        forgotten=() if lists_all else (yield from _forgotten(gone)),
    )


def _treated_topics(
    state: LinkState, request: FetchRequest, grants: Sequence[Grant], *, grants_are_first: bool, drops_behind: bool
) -> Steps[list[RequestTopic]]:
    """Return the topics to ask the leader for: in front what does not wait, then `grants`, and last all with 0 bytes.

    That is what waits, but with `drops_behind` only where no high watermark is known, and what an earlier hop asks for
    with 0 bytes: in front it would return a batch before the grants of the same fetch. `grants_are_first` has the
    grants in front of everything: where the others fill every answer, they would take turns if there were no quota.
    """
    row, topics = state.sessions.row, state.partitions.topics
    front, asked = list[RequestTopic](), list[RequestTopic]()
    caps, found = dict(grants), dict[ReplicaPartition, bytes]()
    granted_topics = {replica.topic for replica in caps}
    asks_for_none, make = state.partitions.is_asked_for_none, tuple.__new__  # half of what RequestTopic() costs
    work = StepWork(PER_STEP)
    for number, block in enumerate(request.topics, start=1):
        if not number % PER_STEP:
            yield
        name, entries, stride, tags = block
        topic = topics.get(name)
        if topic is None or not (topic.behind or topic.unknown):
            is_zero = asks_for_none and entries and not row.requested(stride).unpack_from(entries)[2]
            (asked if is_zero else front).append(block)
            continue
        if drops_behind and len(topic.behind) == len(topic.partitions):
            continue
        waiting = len(topic.behind) + len(topic.unknown)
        if topic not in granted_topics and waiting == len(topic.partitions) and not (drops_behind and topic.behind):
            asked.append(make(RequestTopic, (name, row.with_no_bytes(entries, stride), stride, tags)))
            continue
        if work.is_enough(len(entries) // stride):
            yield
        kept, zero = list[bytes](), list[bytes]()
        requested: Iterable[tuple[int, tuple[int, ...]]] = zip(
            range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
        )
        if drops_behind and not topic.unknown:  # the loop below, quicker
            behind = topic.behind
            kept = [
                entries[start : start + stride] for start, (partition, _, _) in requested if partition not in behind
            ]
            requested = ()
        for start, (partition, _, max_bytes) in requested:
            entry = entries[start : start + stride]
            is_behind = partition in topic.behind
            if not is_behind and partition not in topic.unknown:
                (kept if max_bytes else zero).append(entry)
            elif (replica := topic.partitions[partition]) in caps:
                found[replica] = entry
            elif not (is_behind and drops_behind):
                zero.append(entry)
        if kept:
            front.append(RequestTopic(name, b"".join(kept), stride))
        if zero:
            asked.append(RequestTopic(name, row.with_no_bytes(b"".join(zero), stride), stride))
    if len(found) < len(caps):
        raise MalformedFrame("a partition is named twice in a full fetch, and another one not at all", 0)
    funded = [
        RequestTopic(one.topic.key, row.with_max_bytes(found[one], cap), len(found[one])) for one, cap in caps.items()
    ]
    return (funded + front if grants_are_first else front + funded) + asked


def _in_topics(sent: Iterable[tuple[ReplicaPartition, bytes]]) -> Steps[list[RequestTopic]]:
    """Join neighbours of one topic and stride."""
    topics, entries = list[RequestTopic](), list[bytes]()
    topic, stride = None, 0
    for number, (replica, entry) in enumerate(sent, start=1):
        if not number % PER_STEP:
            yield
        if replica.topic is not topic or len(entry) != stride:
            if topic is not None:
                topics.append(RequestTopic(topic.key, b"".join(entries), stride, topic.tags))
            topic, stride, entries = replica.topic, len(entry), []
        entries.append(entry)
    if topic is not None:
        topics.append(RequestTopic(topic.key, b"".join(entries), stride, topic.tags))
    return topics


def _forgotten(gone: Iterable[ReplicaPartition]) -> Steps[tuple[ForgottenTopic, ...]]:
    partitions: dict[bytes, list[int]] = {}
    for number, replica in enumerate(gone, start=1):
        if not number % PER_STEP:
            yield
        partitions.setdefault(replica.topic.key, []).append(replica.partition)
    return tuple(ForgottenTopic(key, tuple(ids)) for key, ids in partitions.items())


def limit_response(request: FetchRequest, limit: int, number: int) -> FetchRequest:
    """Return `request` with its response capped at max(limit, one partition's first batch) bytes of records.

    Below v3 a partition is taken whole or not at all, so the cap is max(limit, partition_max_bytes of one partition).
    They take turns: `number` is one more for each fetch.
    """
    row = fetch_version(request.header.api_version)
    if not row.takes_whole:
        # Never 0: the broker would answer at once each time, with nothing.
        return request.with_(max_bytes=max(1, limit)) if request.max_bytes > limit else request
    partitions = [
        RequestTopic(name, entries[at : at + stride], stride)
        for name, entries, stride, _ in request.topics
        for at in range(0, len(entries), stride)
    ]
    sizes = [row.requested(one.stride).unpack(one.entries)[2] for one in partitions]
    if sum(sizes) <= limit or not sizes:
        return request
    # new data of a partition asked for with 0 bytes wakes no fetch, so come back soon
    wait_ms = round(1000 * SHORTEST_WAIT_SECONDS)
    included = _take_turns(sizes, limit, number * max(1, limit // max(sizes)) % len(sizes))
    topics = [
        one if index in included else RequestTopic(one.name, row.with_no_bytes(one.entries, one.stride), one.stride)
        for index, one in enumerate(partitions)
    ]
    return request.with_(topics=topics, max_wait_ms=min(request.max_wait_ms, wait_ms))


def _take_turns(sizes: list[int], limit: int, start: int) -> set[int]:
    """Return the indexes to include: from `start` on while they fit, and at least one with bytes."""
    included: set[int] = set()
    total = 0
    for index in chain(range(start, len(sizes)), range(start)):
        if total and total + sizes[index] > limit:
            break
        included.add(index)
        total += sizes[index]
    return included

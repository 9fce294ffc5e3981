"""Carries a plan out.

Only here does a fetch reserve bytes, take a place in a quota's line, change its sessions and get counted.

Bytes are reserved through accounts that the end of the link closes. So an exception at any point leaves nothing
reserved.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import chain

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.steps import Steps
from weir.quota.fetch import response_limit
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.inclusion import Inclusion
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.order import granted_bytes
from weir.quota.fetch.plan import Action, FetchPlan, FetchView
from weir.quota.fetch.request_parts import granted_topics, split, without_behind
from weir.quota.fetch.sessions import LEFT_OUT_MS
from weir.quota.fetch.state import UNKNOWN_OFFSET, InFlight, LeaderEntry, ReplicaPartition

_EMPTY_MS = 1
_TOPICS_PER_STEP = 1_000  # topics that are encoded into an answer in one step of about 2 ms


def commit(view: FetchView, plan: FetchPlan) -> Steps[Decision]:
    """Carry out `plan`, which was made from `view` just now. Done in steps."""
    state, request = view.state, view.request
    for claim in plan.claims:
        claim.offer.quota.wait(view.ask, claim.offer, claim.part, view.now)
    if plan.action is Action.GRANT:
        return (yield from _grant(view, plan))
    if plan.action is Action.PROBE:
        return (yield from _probe(view, plan))
    state.leave_unanswered(view.now)
    if plan.action is Action.LEAVE_OUT:
        state.partitions.leave_out()
        return (yield from _leave_out(state, request.with_(max_wait_ms=plan.max_wait_ms, min_bytes=plan.min_bytes)))
    if plan.action is Action.HOLD:
        if not view.held_seconds:
            state.partitions.leave_out()
            _count_held(state)
        return Hold(plan.until)
    return Answer((yield from _empty_answer(state, request)))


def _count_held(state: LinkState) -> None:
    interval = state.side.stats.interval
    if interval is not None:
        interval.link(state.partitions.counted_peer).fetches_held += 1


def commit_pass(state: LinkState, link: Hashable, request: FetchRequest) -> Steps[Decision]:
    """Let a request pass as it came: no partition of it waits."""
    partitions, sessions = state.partitions, state.sessions
    state.side.leave_lines(link)
    if sessions.is_incremental:
        request = yield from sessions.changes(request, partitions, is_throttling=state.side.is_throttling)
    else:
        request = yield from sessions.whole(request, partitions.topics, ())
    # An earlier hop leaves some partitions out at the moment: this answer will say nothing about those.
    return _forward(state, request, InFlight(asks_all=not partitions.absent))


def _grant(view: FetchView, plan: FetchPlan) -> Steps[Decision]:
    state, request = view.state, view.request
    partitions, sessions = state.partitions, state.sessions
    for quota, part in plan.parts.items():
        quota.served(view.ask, part)
    reserved = state.accounts.reserve(plan.parts)
    if not state.side.takes_out:
        state.accounts.let_arrive(0 if view.ask.is_lent else math.inf)
    state.catch_up.granted(view.order, plan.grants, max(reserved.values(), default=0))
    granted = [replica for replica, _ in plan.grants]
    partitions.leave_out(granted)
    grants_are_first = view.now < state.crowded_until and not state.grants_filled_answer
    if sessions.is_incremental:
        asked = _asked_along(state, plan)
        if grants_are_first:
            # a session keeps an order of its own, so only a new session puts the grants in front
            sessions.leader.begin_anew()
        request = yield from sessions.changes(
            request,
            partitions,
            plan.grants,
            asked,
            is_throttling=state.side.is_throttling,
            grants_are_first=grants_are_first,
        )
    else:
        parts = yield from split(partitions.topics, request, frozenset(granted))
        funded, front = granted_topics(request, plan.grants, parts.granted), parts.front
        # What is not throttled goes in front. Only where it fills every answer do the grants go in front of it: it
        # would take turns with them if there were no quota.
        first = funded + front if grants_are_first else front + funded
        request = request.with_(topics=first + parts.asked)
        request = yield from sessions.whole(request, partitions.topics, chain(granted, partitions.waiting()))
    if not plan.asks_all:
        state.leave_unanswered(view.now)
    fetch = InFlight(
        parts=plan.parts,
        reserved=reserved,
        grants={replica: granted_bytes(replica, cap) for replica, cap in plan.grants},
        asks_all=plan.asks_all,
        grants_are_first=grants_are_first,
        shares_max_bytes=plan.max_bytes is not None,
    )
    changed = request.with_(max_wait_ms=plan.max_wait_ms, min_bytes=plan.min_bytes, max_bytes=plan.max_bytes)
    return _forward(state, changed, fetch)


def _asked(state: LinkState, plan: FetchPlan) -> list[ReplicaPartition]:
    """Return the partitions that an incremental fetch asks for with 0 bytes.

    When `plan.asks_all`, that is every partition that waits. Otherwise it is only those without a known high watermark:
    one that is known to be behind would return a batch that no quota could stop.
    """
    if not plan.asks_all:
        return list(state.partitions.unknown())
    return list(state.partitions.waiting())


def _asked_along(state: LinkState, plan: FetchPlan) -> list[ReplicaPartition]:
    """Return the partitions that an incremental fetch asks for with 0 bytes beside those that it is granted.

    A partition that the leader's session has already stands in front of the new grants. Asked for with 0 bytes, it
    would return a whole batch from there. The last answer has told its offsets.
    """
    return [
        one
        for one in _asked(state, plan)
        if one.at_leader is LeaderEntry.ABSENT or one.high_watermark == UNKNOWN_OFFSET
    ]


def _probe(view: FetchView, plan: FetchPlan) -> Steps[Decision]:
    """Send an offset probe: ask for what waits, with 0 bytes and without a wait, to be told true offsets and errors.

    On the follower's side it may bring one batch. So one that is to tell who is in sync asks for nothing that is known
    to be behind: in sync there is no batch for it to bring.
    """
    state, request = view.state, view.request
    is_throttling = state.side.is_throttling
    partitions, sessions = state.partitions, state.sessions
    state.side.stats.offset_probes += 1
    partitions.leave_out()
    appended, appended_topics = b"", 0
    if not plan.asks_all:
        state.leave_unanswered(view.now)
    if sessions.is_incremental:
        request = yield from sessions.changes(request, partitions, (), _asked(state, plan), is_throttling=is_throttling)
    else:
        listed = request
        if not plan.asks_all:
            version = request.header.api_version
            listed = request.with_(topics=(yield from without_behind(partitions.topics, request)))
            made_up = yield from _made_up_topics(state, version)
            appended, appended_topics = (yield from _encoded(version, made_up)), len(made_up)
        parts = yield from split(partitions.topics, listed, frozenset())
        request = yield from sessions.whole(
            request.with_(topics=parts.front + parts.asked),
            partitions.topics,
            partitions.waiting() if plan.asks_all else partitions.unknown(),
            leaves_out=bool(appended_topics),
        )
    return _forward(
        state,
        request.with_(max_wait_ms=0),
        InFlight(asks_all=plan.asks_all, is_probe=True),
        appended,
        appended_topics,
        leaves_out=sessions.in_session and not plan.asks_all,
    )


def _leave_out(state: LinkState, request: FetchRequest) -> Steps[Decision]:
    """Ask only for what is not behind.

    Where the request is a full one, its answer needs an entry for every partition: those left out get an empty one.
    """
    partitions, sessions = state.partitions, state.sessions
    if sessions.is_incremental:
        fewer = yield from sessions.changes(request, partitions, is_throttling=True)
        return _forward(state, fewer, InFlight(), leaves_out=True)
    topics = yield from without_behind(partitions.topics, request)
    fewer = yield from sessions.whole(request.with_(topics=topics), partitions.topics, (), leaves_out=True)
    version = request.header.api_version
    made_up = yield from _made_up_topics(state, version)
    appended = yield from _encoded(version, made_up)
    return _forward(state, fewer, InFlight(), appended, len(made_up), leaves_out=sessions.in_session)


def _empty_answer(state: LinkState, request: FetchRequest) -> Steps[bytes]:
    """Encode an answer with nothing new in it.

    To an incremental fetch that is an empty response: no partition has changed.

    To a full fetch an empty response with throttle_time_ms > 0 is legal too (KIP-219), and states nothing that is not
    true. But from v8 on it mutes the follower, and a follower without KAFKA-17455 then waits for
    replica.socket.timeout.ms (30 s) before it asks again. So from v8 on, and in v0 (which has no such field), every
    partition behind gets an empty entry.
    """
    version, correlation_id = request.header.api_version, request.header.correlation_id
    if state.sessions.is_incremental:
        session_id = state.sessions.follower.id
        return encode_fetch_response(version, correlation_id, LEFT_OUT_MS, [], session_id=session_id)
    if state.sessions.in_session:  # it begins: an empty response would have its follower begin anew with another fetch
        made_up = yield from _made_up_topics(state, version)
        session_id = state.sessions.follower.id
        return encode_fetch_response(version, correlation_id, LEFT_OUT_MS, made_up, session_id=session_id)
    if version and not fetch_version(version).clients_wait:
        return encode_fetch_response(version, correlation_id, _EMPTY_MS, [])
    made_up = yield from _made_up_topics(state, version)
    return encode_fetch_response(version, correlation_id, 0, made_up)


def _encoded(version: int, made_up: Sequence[ResponseTopic]) -> Steps[bytes]:
    appended: list[bytes] = []
    for first in range(0, len(made_up), _TOPICS_PER_STEP):
        if first:
            yield
        appended.append(encode_response_topics(version, made_up[first : first + _TOPICS_PER_STEP]))
    return b"".join(appended)


def _made_up_topics(state: LinkState, version: int) -> Steps[list[ResponseTopic]]:
    """Return an empty response entry for every partition behind."""
    made_up: list[ResponseTopic] = []
    for topic in list(state.partitions.topics.values()):
        if topic.behind:
            made_up.append(ResponseTopic(topic.key, topic.made_up_entries(version, topic.behind.values())))
            if not len(made_up) % _TOPICS_PER_STEP:
                yield
    return made_up


def _forward(
    state: LinkState,
    request: FetchRequest,
    fetch: InFlight,
    appended: bytes = b"",
    appended_topics: int = 0,
    *,
    leaves_out: bool = False,
) -> Forward:
    side, row = state.side, fetch_version(request.header.api_version)
    fetch.api_version, fetch.uses_topic_ids = row.api_version, row.names_topics_by_id
    if fetch.asks_all:
        state.sessions.is_asked_for_offsets = False
    fetch.forwarded_at, fetch.max_wait_seconds = side.clock(), request.max_wait_ms / 1000
    state.in_flight = fetch
    limit = side.settings.response_max_bytes
    if limit is not None:
        request = response_limit.limit_response(request, limit, state.response_rotation)
    fetch.max_bytes = request.max_bytes
    walk = side.rules.walked_topics(state.partitions.ends, by_id=row.names_topics_by_id)
    head_patch = state.sessions.head_patch(leaves_out=leaves_out)
    may_bring_more = fetch.grants or fetch.is_probe or state.partitions.is_asked_for_none
    admit = Inclusion(state, fetch) if side.takes_out and may_bring_more else None
    most = state.partitions.count
    return Forward(request, appended, appended_topics, walk, head_patch, most, admit, holds_all=bool(fetch.grants))

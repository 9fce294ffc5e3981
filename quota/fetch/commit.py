# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out. Only here does a fetch reserve bytes, stand in a line, change its sessions and get counted.

Bytes are reserved through accounts that the end of the link closes, so an exception leaves nothing reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics
from weir.protocol.response_scanner import Expected
from weir.protocol.steps import PER_STEP, Steps
from weir.protocol.take_out import Admit, Passing
from weir.quota.fetch import request_parts
from weir.quota.fetch.decisions import Decision, Forward, Hold
from weir.quota.fetch.partitions import LinkState
from weir.quota.fetch.plan import Action, FetchPlan, FetchView
from weir.quota.fetch.sessions import LEFT_OUT_MS
from weir.quota.fetch.state import UNKNOWN_OFFSET, Grant, InFlight, LeaderEntry, ReplicaPartition
from weir.quota.topic_names import METADATA_LOG

_EMPTY_MS: Final = 1  # a throttle_time_ms above 0 makes an answer without partitions legal


def commit(view: FetchView, plan: FetchPlan) -> Steps[Decision]:
    """Carry out `plan`, which was made from `view` just now. Done in steps."""
    state, request, partitions = view.state, view.request, view.state.partitions
    for offer, part in plan.claims:
        offer.quota.wait(view.ask, offer, part, view.now)
    if state.unanswered_since is None and (not plan.asks_all or plan.action not in (Action.GRANT, Action.PROBE)):
        state.unanswered_since = view.now
    if plan.action is Action.HOLD and view.held_seconds:
        return Hold(plan.until)
    if plan.action is not Action.GRANT:
        partitions.leave_out()
    if plan.action is Action.HOLD:
        interval = state.throttle.stats.interval
        if interval is not None:
            interval.link(partitions.counted_peer).fetches_held += 1
        return Hold(plan.until)
    request = request.with_(max_wait_ms=plan.max_wait_ms, min_bytes=plan.min_bytes, max_bytes=plan.max_bytes)
    if plan.action is Action.LEAVE_OUT:
        return (yield from _forward(state, request, InFlight(), drops_behind=True))
    asked: Iterable[ReplicaPartition] = ()
    if plan.asks_all or partitions.unknown_count:
        asked = partitions.waiting() if plan.asks_all else partitions.unknown()
    if plan.action is Action.PROBE:
        # On the follower's side it may bring one batch. So one that is to tell who is in sync asks for nothing that is
        # known to be behind: in sync there is no batch for it to bring.
        state.throttle.stats.offset_probes += 1
        fetch = InFlight(asks_all=plan.asks_all)
        return (yield from _forward(state, request, fetch, asked=asked, drops_behind=not plan.asks_all))
    if state.sessions.is_incremental:
        # A partition that the leader's session has already stands in front of the new grants. Asked for with 0 bytes,
        # it would return a whole batch from there. The last answer has told its offsets.
        absent = LeaderEntry.ABSENT
        asked = [one for one in asked if one.at_leader is absent or one.high_watermark == UNKNOWN_OFFSET]
    fetch = _granted(view, plan)
    return (yield from _forward(state, request, fetch, plan.grants, asked))


def commit_pass(state: LinkState, request: FetchRequest) -> Steps[Decision]:
    """Let a request pass as it came: no partition of it waits."""
    # An earlier hop leaves some partitions out at the moment: this answer will say nothing about those.
    return (yield from _forward(state, request, InFlight(asks_all=not state.partitions.absent, is_passed=True)))


def _granted(view: FetchView, plan: FetchPlan) -> InFlight:
    """Take the turn, and set aside what is granted."""
    state = view.state
    for quota, part in plan.parts.items():
        quota.line.served(state, part.size, is_urgent=view.ask.is_urgent, broker=view.ask.broker_id)
    reserved = {quota.ledger: part.size for quota, part in plan.parts.items() if quota.reserves}
    state.accounts.reserve(reserved)
    if view.ask.is_lent:
        state.accounts.let_arrive(0)
    state.partitions.queue.granted(plan.grants, max(reserved.values(), default=0), by_turns=view.terms.by_turns)
    state.partitions.leave_out([replica for replica, _ in plan.grants])
    grants_are_first = view.now < state.crowded_until and not state.grants_filled_answer
    if grants_are_first:
        # a session keeps an order of its own, so only a new session puts the grants in front
        state.sessions.leader.begin_anew()
    return InFlight(
        parts=plan.parts,
        grants={replica: max(cap, replica.batches.next_size) for replica, cap in plan.grants},
        asks_all=plan.asks_all,
        is_lent=view.ask.is_lent,
        grants_are_first=grants_are_first,
        shares_max_bytes=plan.max_bytes is not None,
    )


def empty_answer(state: LinkState, request: FetchRequest) -> Steps[bytes]:
    """Encode an answer with nothing new in it, for a fetch that was held for as long as it may be.

    To an incremental fetch that is an empty response. To a full one it is legal with throttle_time_ms > 0 (KIP-219);
    but from v8 on that mutes the follower, and one without KAFKA-17455 then waits for replica.socket.timeout.ms (30 s).
    So from v8 on, and in v0 (without that field), every partition behind gets an empty entry.
    """
    sessions, row = state.sessions, state.sessions.row
    in_session = sessions.is_incremental or sessions.in_session
    # to a fetch that begins a session an empty response would have its follower begin anew with another fetch
    is_empty = sessions.is_incremental or not (in_session or row.clients_wait or not row.api_version)
    made_up = [] if is_empty else (yield from _made_up_topics(state, row.api_version))
    wait_ms = LEFT_OUT_MS if in_session else _EMPTY_MS if is_empty else 0
    return encode_fetch_response(
        row.api_version, request.header.correlation_id, wait_ms, made_up, session_id=sessions.follower.id
    )


def _made_up_topics(state: LinkState, version: int) -> Steps[list[ResponseTopic]]:
    """Return an empty response entry for every partition behind."""
    made_up: list[ResponseTopic] = []
    for topic in list(state.partitions.topics.values()):
        if topic.behind:
            made_up.append(ResponseTopic(topic.key, topic.made_up_entries(version, topic.behind.values())))
            if not len(made_up) % PER_STEP:
                yield
    return made_up


def _forward(
    state: LinkState,
    request: FetchRequest,
    fetch: InFlight,
    grants: Sequence[Grant] = (),
    asked: Iterable[ReplicaPartition] = (),
    *,
    drops_behind: bool = False,
) -> Steps[Decision]:
    """Ask the leader for `grants`, for `asked` with 0 bytes, and for all that does not wait.

    A whole answer has an entry for every partition, so those left out get an empty one.
    """
    side, rules, sessions = state.throttle, state.throttle.rules, state.sessions
    row, partitions, asks = sessions.row, state.partitions, asked != ()
    made_up, appended, are_first = list[ResponseTopic](), list[bytes](), fetch.grants_are_first
    if sessions.is_incremental:
        request = yield from request_parts.changes(state, request, grants, asked, grants_are_first=are_first)
    else:
        request = yield from request_parts.whole(
            state, request, grants, asked, grants_are_first=are_first, drops_behind=drops_behind
        )
        if drops_behind:
            made_up = yield from _made_up_topics(state, row.api_version)
            for first in range(0, len(made_up), PER_STEP):
                if first:
                    yield
                appended.append(encode_response_topics(row.api_version, made_up[first : first + PER_STEP]))
    if fetch.asks_all:
        sessions.is_asked_for_offsets = False
    fetch.forwarded_at, fetch.max_wait_seconds = side.clock(), request.max_wait_ms / 1000
    state.in_flight = fetch
    limit = rules.settings.response_max_bytes
    if limit is not None:
        request = request_parts.limit_response(request, limit, state.number // 2)
    fetch.max_bytes = request.max_bytes
    may_bring_more = grants or asks or partitions.is_asked_for_none
    expected = Expected(
        b"".join(appended),
        len(made_up),
        walk=partitions,
        head_patch=sessions.head_patch(leaves_out=drops_behind),
        most_partitions=partitions.count,
        most_topics=partitions.count + len(request.topics),  # each partition may come in a topic entry of its own
        admit=inclusion(state, fetch) if side.takes_out and may_bring_more else None,
        holds_all=bool(fetch.grants),
    )
    return Forward(request, expected, is_granted=side.takes_out and bool(fetch.grants))


def inclusion(state: LinkState, fetch: InFlight) -> Admit:
    """Return what says how much passes of each partition in the answer, on the leader's side: what was granted.

    What the broker returns above it is taken out (`weir.protocol.take_out`), and the batch's exact size is then known.
    """

    def admit(key: bytes, partition: int, size: int) -> Passing:
        topic = state.partitions.topics.get(key)
        if topic is None or (replica := topic.partitions.get(partition)) is None:
            return Passing.ALL
        granted = fetch.grants.get(replica)
        if granted is None:
            is_held_back = replica.is_waiting and state.throttle.rules.is_throttling
            # Kafka's Raft client fetches the metadata log with 0 bytes, and gets records all the same.
            asks_for_none = not replica.max_bytes and key not in METADATA_LOG
            return Passing.NOTHING if is_held_back or asks_for_none else Passing.ALL
        quotas = replica.quotas
        if any([not quota.ledger.rate for quota in quotas]):  # it became 0 after the grant
            return Passing.NOTHING
        if (extra := size - granted) > 0:  # a first batch that is larger goes where every quota has room for it
            ledgers = [quota.ledger for quota in quotas if quota.reserves]
            if any([ledger.room() < extra for ledger in ledgers]):
                return Passing.NOTHING
            state.accounts.reserve(dict.fromkeys(ledgers, extra))
        return Passing.WHOLE_BATCHES

    return admit

"""Builds the view of one fetch, from which its plan is made."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable
from functools import partial

from weir.protocol.fetch import FetchRequest
from weir.quota.budget.offset_probes import PROBE_SECONDS
from weir.quota.budget.quota import Ask, Quota
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.order import GrantOrder
from weir.quota.fetch.plan import LEAST_WHOLE_VERSION, NO_PROBE, FetchView, ProbeTimes

# the longest that an offset probe which cannot go yet holds up partitions of the same fetch that need no budget
LONGEST_BESIDE_OTHERS_SECONDS = 1.0


def observe(
    state: LinkState, link: Hashable, request: FetchRequest, now: float, held_seconds: float
) -> tuple[FetchView, GrantOrder]:
    """Bring what depends on time up to date, and return what a plan for `request` depends on.

    The request was taken in before. The order ranks every partition that waits, so it is made only where a grant is
    possible.
    """
    side, partitions, sessions = state.side, state.partitions, state.sessions
    queue, is_throttling = partitions.queue, side.is_throttling
    order, largest_batch, is_urgent = GrantOrder(state.catch_up, queue, by_turns=True), 0, False
    ends = partitions.ends
    quotas = [quota for quota in side.quotas if quota.limits and quota.is_for(ends)] if queue else []
    if any([quota.rate for quota in quotas]):
        order = state.catch_up.order(queue, now)
        first = next(iter(order))
        # Below that version a grant takes all that is asked of a partition, however small its batches are.
        is_whole = request.header.api_version < LEAST_WHOLE_VERSION
        largest_batch = first.max_bytes if is_whole else first.largest_batch
        is_urgent = state.catch_up.is_urgent(queue, now)
        side.release_stuck()
    for quota in quotas:
        quota.look()
    ask = Ask(
        link,
        partitions.replica_id,
        largest_batch,
        is_urgent,
        now < state.live_until,
        state.answer_seconds,
        state.most_beside_live if now < state.live_until else math.inf,
    )
    limit = side.settings.response_max_bytes
    must_wait = not sessions.is_incremental and partitions.unknown_count > 0
    view = FetchView(
        api_version=request.header.api_version,
        max_bytes=request.max_bytes if limit is None else min(limit, request.max_bytes),
        max_wait_seconds=request.max_wait_ms / 1000,
        held_seconds=held_seconds,
        now=now,
        ask=ask,
        order=order,
        offers=tuple([quota.offer(ask, now) for quota in quotas]),
        has_several_quotas=len(quotas) > 1,
        count=partitions.count,
        behind_count=partitions.behind_count,
        unknown_count=partitions.unknown_count,
        is_incremental=sessions.is_incremental,
        is_throttling=is_throttling,
        must_wait=must_wait,
        probe_times=partial(_probe_times, state, link, now),
        unanswered_since=state.unanswered_since,
        is_asked_for_offsets=sessions.is_asked_for_offsets,
        are_unknown_paid=partial(_are_unknown_paid, state),
    )
    return view, order


def _are_unknown_paid(state: LinkState, paying: Container[Quota]) -> bool:
    if not state.partitions.unknown_count:
        return True
    for topic in state.partitions.topics.values():
        if topic.unknown:
            unpaid = topic.unpaid(paying)
            if any(partition in unpaid for partition in topic.unknown):
                return False
    return True


def _probe_times(state: LinkState, link: Hashable, now: float) -> ProbeTimes:
    partitions, sessions, probes = state.partitions, state.sessions, state.side.offset_probes
    replica_id = partitions.replica_id
    if partitions.unknown_count:  # neither in sync nor behind can be told, and no empty entry can be made
        due = now if state.unknown_since is None else state.unknown_since
        waits_alone = partitions.all_wait or sessions.is_incremental
        longest = math.inf if waits_alone else LONGEST_BESIDE_OTHERS_SECONDS
        at, ready = probes.look(link, replica_id, due, is_urgent=True, longest_wait=longest)
    else:
        if sessions.is_asked_for_offsets or not partitions.queue:
            # The follower's own sidecar asks for 0 bytes of everything behind: its offset probe, to be passed on.
            due = state.probed_at + PROBE_SECONDS
        elif state.unanswered_since is not None:
            due = max(state.unanswered_since, state.probed_at) + PROBE_SECONDS
        else:
            return NO_PROBE
        at, ready = probes.look(link, replica_id, due)
    return ProbeTimes(now if at <= state.side.clock() else at, ready)

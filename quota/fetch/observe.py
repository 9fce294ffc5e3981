"""Builds the view of one fetch, from which its plan is made."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

from weir.protocol.fetch import FetchRequest
from weir.quota.budget.quota import Ask
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.order import GrantOrder
from weir.quota.fetch.plan import LEAST_WHOLE_VERSION, FetchView

PROBE_SECONDS: Final = 10.0
"""How long a partition goes without a true answer at most on the follower's side: its follower would miss errors.

An offset probe may bring one batch there, and no quota can stop it.
"""

FREE_PROBE_SECONDS: Final = 4.0
"""How long at most on the leader's side. There a probe brings no records: they are taken out of the answer."""

WAITS_SECONDS: Final = 10.0
"""How long after an answer that has waited at its leader the next ones are expected to wait, too."""


def observe(
    state: LinkState, link: Hashable, request: FetchRequest, now: float, held_seconds: float
) -> tuple[FetchView, GrantOrder]:
    """Bring what depends on time up to date, and return what a plan for `request` depends on.

    The request was taken in before. The order ranks every partition that waits, so it is made only where a grant is
    possible.
    """
    side, partitions, sessions = state.side, state.partitions, state.sessions
    queue, is_throttling = partitions.queue, side.is_throttling
    order, next_batch, is_urgent = GrantOrder(state.catch_up, queue, by_turns=True), 0, False
    ends = partitions.ends
    quotas = [quota for quota in side.quotas if quota.limits and quota.is_for(ends)] if queue else []
    if any([quota.rate for quota in quotas]):
        order = state.catch_up.order(queue, now)
        first = next(iter(order))
        # Below that version a grant takes all that is asked of a partition, however small its batches are.
        is_whole = request.header.api_version < LEAST_WHOLE_VERSION
        next_batch = first.max_bytes if is_whole else first.batches.next_size
        is_urgent = state.catch_up.is_urgent(queue, now)
        side.release_stuck()
    for quota in quotas:
        quota.refresh()
    ask = Ask(
        link,
        partitions.replica_id,
        next_batch,
        is_urgent,
        now < state.live_until,
        state.answer_seconds,
        not state.catch_up.has_granted,
        not side.takes_out and now - state.made_to_wait_at < WAITS_SECONDS,
        state.distance,
        state.most_beside_live if now < state.live_until else math.inf,
    )
    limit = side.settings.response_max_bytes
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
        takes_out=side.takes_out,
        probe_at=_probe_at(state, now),
        unanswered_since=state.unanswered_since,
        is_asked_for_offsets=sessions.is_asked_for_offsets,
    )
    return view, order


def _probe_at(state: LinkState, now: float) -> float:
    """Return when the link's next offset probe goes (clock seconds); inf where there is nothing to ask."""
    partitions, sessions = state.partitions, state.sessions
    # Without a high watermark it is not known who is in sync. And who asks for 0 bytes of everything is the follower's
    # own sidecar, with an offset probe.
    if partitions.unknown_count or sessions.is_asked_for_offsets or not partitions.queue:
        return now
    if state.unanswered_since is None:
        return math.inf
    return state.unanswered_since + (FREE_PROBE_SECONDS if state.side.takes_out else PROBE_SECONDS)

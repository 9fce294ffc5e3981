"""Builds the view of one fetch, from which its plan is made."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

from weir.protocol.fetch_request import FetchRequest
from weir.quota.budget.quota import Ask
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.order import GrantOrder
from weir.quota.fetch.plan import LEAST_WHOLE_VERSION, FetchView

WAITS_SECONDS: Final = 10.0
"""How long after an answer that has waited at its leader the next ones are expected to wait, too."""


def observe(state: LinkState, link: Hashable, request: FetchRequest, now: float, held_seconds: float) -> FetchView:
    """Bring what depends on time up to date, and return what a plan for `request` depends on.

    The order ranks every partition that waits, so it is made only where a grant is possible.
    """
    side, partitions = state.side, state.partitions
    queue, ends = partitions.queue, partitions.ends
    order, next_batch, is_urgent = GrantOrder(state.catch_up, queue, by_turns=True), 0, False
    quotas = [quota for quota in side.quotas if quota.limits and quota.is_for(ends)] if queue else []
    if any([quota.rate for quota in quotas]):
        order = state.catch_up.order(queue, now)
        first = next(iter(order))
        # Below that version a grant takes all that is asked of a partition, however small its batches are.
        is_whole = request.header.api_version < LEAST_WHOLE_VERSION
        next_batch = first.max_bytes if is_whole else first.batches.likely_next(first.topic.batches)
        is_urgent = state.catch_up.is_urgent(queue, now)
        side.release_stuck()
    for quota in quotas:
        quota.refresh()
    is_live = now < state.live_until
    ask = Ask(
        link,
        partitions.replica_id,
        next_batch,
        is_urgent,
        is_live,
        state.answer_seconds,
        not state.catch_up.has_granted,
        not side.takes_out and now - state.made_to_wait_at < WAITS_SECONDS,
        state.distance,
        state.most_beside_live if is_live else math.inf,
    )
    return FetchView(state, request, held_seconds, now, ask, order, tuple([quota.offer(ask, now) for quota in quotas]))

# SPDX-License-Identifier: Apache-2.0
"""Decides which partitions one replica fetch may take along, and what becomes of the others.

Kafka's rule holds on both sides: a partition is left out when it is throttled, not in sync, and the quota is exceeded.
Unlike Kafka, weir asks the quota before the bytes are sent. Each partition that waits is *granted* (in the request with
a cap), *asked* (with 0 bytes, behind a granted one), *left out* (an empty entry is appended to the answer), or the
whole request is *held*.

`plan` reads the link and what its quotas offer, live, and returns a value. It changes nothing: `commit` carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from msgspec import Struct, field

from weir.protocol.fetch_request import FetchRequest
from weir.quota.budget.quota import Ask, Offer, Part, Quota
from weir.quota.fetch.order import Choice, Terms, fill, worth_asking
from weir.quota.fetch.partitions import LinkState
from weir.quota.fetch.state import Grant
from weir.quota.figures import (
    CLAIM_SECONDS,
    EXPECTED_SECONDS,
    FREE_PROBE_SECONDS,
    LARGEST_SHARE_SECONDS,
    LONGEST_HOLD_SECONDS,
    LONGEST_RIDE_SECONDS,
    PROBE_SECONDS,
    SHARE_BESIDE_LIVE_SECONDS,
    SHARE_SECONDS,
    SHORTEST_WAIT_SECONDS,
    SLOW_SECONDS,
    TICK_SECONDS,
)

_AT_ONCE: Final = 1  # min_bytes: the leader answers as soon as it has anything


class Action(Enum):
    """What becomes of a fetch."""

    GRANT = auto()  # with some of the partitions that wait
    PROBE = auto()  # an offset probe: what waits is asked for with 0 bytes
    LEAVE_OUT = auto()  # without the partitions that wait
    HOLD = auto()


class FetchView(Struct):
    """One fetch, and what its plan depends on (clock seconds). The link is read live: nothing changes it meanwhile."""

    state: LinkState
    request: FetchRequest  # the link's state has what it says already
    held_seconds: float
    now: float
    ask: Ask
    terms: Terms
    offers: tuple[Offer, ...]
    """One for each quota of topics that wait; empty where nothing waits for a grant."""
    probe_at: float
    """When the link's next offset probe goes; inf where there is nothing to ask."""


def decide(state: LinkState, request: FetchRequest, now: float, held_seconds: float) -> tuple[FetchView, FetchPlan]:
    """Return what a plan for `request` depends on, and the plan."""
    view = observe(state, request, now, held_seconds)
    return view, plan(view)


def observe(state: LinkState, request: FetchRequest, now: float, held_seconds: float) -> FetchView:
    """Bring what depends on time up to date, and return what a plan for `request` depends on."""
    side, partitions, queue = state.throttle, state.partitions, state.partitions.queue
    rules, takes_whole = side.rules, state.sessions.row.takes_whole
    by_turns, next_batch, is_urgent = True, 0, False
    quotas = [one for one in rules.quotas if one.limits and one in partitions.waited_for] if queue.waiting else []
    if any([quota.ledger.rate for quota in quotas]):
        by_turns, first, is_urgent = queue.look()
        # Below that version a grant takes all that is asked of a partition, however small its batches are.
        batches = first.batches
        next_batch = (
            first.max_bytes if takes_whole else batches.next_size or batches.largest or first.topic.batches.largest
        )
        side.release_stuck()
    is_live = now < state.live_until
    # Beside live records the leader's side sets everything aside: else one might wait for room behind a grant.
    is_lent = now - state.made_to_wait_at < EXPECTED_SECONDS and not (side.takes_out and is_live)
    # A follower that asks again after 0.3 s gets 0.3 s of quota a fetch: else what gathers meanwhile is lost to it.
    answer_seconds = max(state.answer_seconds, state.quickest if state.quickest < math.inf else 0.0)
    if is_lent:  # the follower's side can't hold back what comes
        answer_seconds = state.distance + SHARE_SECONDS if side.takes_out else 0.0
    most = state.most_beside_live if is_live else math.inf
    is_first, distance = not queue.last, state.distance
    ask = Ask(
        state, partitions.other_id, next_batch, is_urgent, is_live, answer_seconds, is_first, is_lent, distance, most
    )
    offers = tuple([quota.offer(ask, now) for quota in quotas])
    limit = rules.settings.response_max_bytes
    max_bytes = request.max_bytes if limit is None else min(limit, request.max_bytes)
    # Where answers take long, or more has gathered than an answer may have, one batch an answer leaves quota unused.
    ledgers = [offer.quota.ledger for offer in offers]
    gathered = not is_lent and all([one.credit() > (one.rate or math.inf) * LARGEST_SHARE_SECONDS for one in ledgers])
    wastes_some = gathered or state.answer_seconds > SLOW_SECONDS
    # Records in sync would use up some of what is shared, so a link with such records has a cap for each grant.
    shares_all = is_lent and not (is_live or takes_whole or side.takes_out)
    # The follower's side alone loses the tail that is cut: it shares only what the leader's side divides.
    most_shared = state.most_shared if shares_all or (side.takes_out and not (is_live or takes_whole)) else 1
    takes_out, has_several = side.takes_out, len(offers) > 1
    terms = Terms(
        takes_whole, max_bytes, by_turns, takes_out, wastes_some, has_several, most_shared, shares_all, next_batch
    )
    # Without a high watermark it is not known who is in sync. And who asks for 0 bytes of everything is the
    # follower's own sidecar, with an offset probe.
    probe_at, since = math.inf, state.unanswered_since
    if partitions.unknown_count or state.sessions.is_asked_for_offsets or not queue.waiting:
        probe_at = now
    elif since is not None:
        probe_at = since + (FREE_PROBE_SECONDS if side.takes_out else PROBE_SECONDS)
    return FetchView(state, request, held_seconds, now, ask, terms, offers, probe_at)


Claim = tuple[Offer, Part]
"""A place in a quota's line, in which the link waits for a part."""


class FetchPlan(Struct, frozen=True):
    """What becomes of one fetch. Every partition that waits and is neither granted nor asked for is left out."""

    action: Action
    grants: tuple[Grant, ...] = ()  # the partitions granted, in order, each with its cap in bytes
    parts: Mapping[Quota, Part] = field(default_factory=dict)  # what the grants take of each quota
    claims: tuple[Claim, ...] = ()  # places that the link takes in lines
    asks_all: bool = True
    """Whether everything not granted is asked for with 0 bytes: the answer is then true for all partitions."""
    max_wait_ms: int = 0
    min_bytes: int | None = None  # None keeps the follower's own
    max_bytes: int | None = None
    """The most of all grants together, where some share it; None keeps the follower's own."""
    until: float = math.inf  # when a held fetch is planned again (clock seconds)


def plan(view: FetchView) -> FetchPlan:
    """Decide about a fetch with partitions that wait. Without a commit it has no effect, so it can be tried dry."""
    choice, claims, ready = _choose(view)
    if choice.grants:
        return _granted(view, choice, claims)
    if view.probe_at <= view.now:
        is_asked = view.state.sessions.is_asked_for_offsets
        asks_all = view.state.throttle.takes_out or not view.state.partitions.unknown_count or is_asked
        return FetchPlan(Action.PROBE, claims=claims, asks_all=asks_all)
    return _left_out(view, claims, min(ready, view.probe_at))


# Granting


def _choose(view: FetchView) -> tuple[Choice, tuple[Claim, ...], float]:
    """Return grants and what each quota pays for them, the claims to make, and when to try again (clock seconds)."""
    queue = view.state.partitions.queue
    spends = {offer.quota: offer.spend for offer in view.offers if offer.ready <= view.now}
    first: dict[Quota, Part] = {}
    smaller: dict[Quota, float] = {}  # quotas whose part was made smaller, and when the larger one would fit
    claims = [(offer, offer.claimed) for offer in view.offers if offer.claimed is not None]
    ready = min([offer.ready for offer in view.offers if offer.ready > view.now], default=math.inf)
    soon = {offer.quota for offer in view.offers if view.now < offer.ready <= view.now + CLAIM_SECONDS}
    while spends:
        choice = fill(view.terms, queue, spends, soon)
        if not choice.grants:
            break
        for offer in view.offers:
            quota, part = offer.quota, choice.parts.get(offer.quota)
            if part is None:
                continue
            first.setdefault(quota, part)
            if quota in smaller:
                if part.size <= spends[quota]:
                    continue
                fits_at = smaller[quota]
            else:
                verdict = quota.judge(offer, part)
                if verdict.fits:
                    continue
                fits_at = verdict.ready
                if verdict.spend is not None:
                    spends[quota], smaller[quota] = verdict.spend, verdict.ready
                    break
            del spends[quota]
            if fits_at <= view.now + CLAIM_SECONDS:
                soon.add(quota)
            claims.append((offer, first[quota]))
            ready = min(ready, fits_at)
            break
        else:
            return choice, tuple(claims), ready
    return Choice(), tuple(claims), min(ready, view.now + CLAIM_SECONDS) if claims else ready


def _granted(view: FetchView, choice: Choice, claims: tuple[Claim, ...]) -> FetchPlan:
    wait_left = max(0, view.request.max_wait_ms - round(view.held_seconds * 1000))
    if view.terms.shares_all:  # whoever was held here for long would else leave the leader's line before its turn
        wait_left = max(wait_left, min(view.request.max_wait_ms, round(CLAIM_SECONDS * 1000)))
    # A partition without a high watermark may be in sync. Asked for with 0 bytes, its new records would not end the
    # wait at the leader, so there is none.
    if view.state.partitions.unknown_count:
        wait_left = 0
    min_bytes = _min_bytes(view, choice.grants, choice.parts)
    if min_bytes > _AT_ONCE:
        wait_left = min(wait_left, round(LONGEST_RIDE_SECONDS * 1000))
    return FetchPlan(
        Action.GRANT,
        choice.grants,
        choice.parts,
        claims,
        asks_all=_asks_all(view),
        max_wait_ms=wait_left,
        min_bytes=min_bytes,
        max_bytes=choice.max_bytes,
    )


def _asks_all(view: FetchView) -> bool:
    """Whether everything that is not granted goes along with 0 bytes.

    A whole fetch does so each time, an incremental one as soon as half of the time before the next offset probe is
    over.
    """
    sessions, since = view.state.sessions, view.state.unanswered_since
    if not sessions.is_incremental or sessions.is_asked_for_offsets:
        return True
    return since is not None and view.now - since >= (view.probe_at - since) / 2


def _min_bytes(view: FetchView, grants: Iterable[Grant], parts: Mapping[Quota, Part]) -> int:
    """Return the min_bytes of a fetch with grants: beside live traffic one byte more than they can bring.

    With min_bytes 1 a live record that is written meanwhile would wait for the next answer.
    """
    if not view.ask.is_live or view.state.partitions.unknown_count:
        return _AT_ONCE
    granted = sum(cap for _, cap in grants)
    is_late = granted > 2 * SHARE_BESIDE_LIVE_SECONDS * min([quota.ledger.rate or 0 for quota in parts])
    is_late |= 2 * granted > view.terms.max_bytes  # more may have gathered than one answer holds
    # A cap beyond the partition's end is never filled: the live record would wait until max_wait_ms is over.
    if is_late or any(2 * cap > worth_asking(replica) for replica, cap in grants):
        return _AT_ONCE
    return granted + 1


# Not granting


def _left_out(view: FetchView, claims: tuple[Claim, ...], ready: float) -> FetchPlan:
    now, partitions = view.now, view.state.partitions
    if partitions.count > partitions.behind_count:
        max_wait_ms = round(min(view.request.max_wait_ms, max(ready - now, SHORTEST_WAIT_SECONDS) * 1000))
        return FetchPlan(Action.LEAVE_OUT, claims=claims, max_wait_ms=max_wait_ms, min_bytes=_AT_ONCE)
    until = min(max(ready, now + TICK_SECONDS), now + longest_hold(view.request) - view.held_seconds)
    return FetchPlan(Action.HOLD, claims=claims, until=until)


def longest_hold(request: FetchRequest) -> float:
    """Return for how long (seconds) a fetch of which everything waits is held: then it is answered with nothing new."""
    return min(max(request.max_wait_ms / 1000, SHORTEST_WAIT_SECONDS), LONGEST_HOLD_SECONDS)

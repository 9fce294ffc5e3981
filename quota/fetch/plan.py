"""Decides which partitions one replica fetch may take along, and what becomes of the others.

Kafka's rule holds on both sides: a partition is left out when it is throttled, not in sync, and the quota is exceeded.
Unlike Kafka, weir asks the quota before the bytes are sent. Each partition that waits is *granted* (in the request with
a cap), *asked* (with 0 bytes, behind a granted one), *left out* (an empty entry is appended to the answer), or the
whole request is *held*.

`plan` reads the link and what its quotas offer, live, and returns a value. It changes nothing: `commit` carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Final

from msgspec import Struct, field

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.take_out import MOST_HELD
from weir.quota.budget.queue import CLAIM_SECONDS
from weir.quota.budget.quota import Ask, Offer, Part, Quota
from weir.quota.budget.strict import SHARE_BESIDE_LIVE_SECONDS, SLOW_SECONDS
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.order import granted_bytes
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.state import Grant, ReplicaPartition

WAITS_SECONDS: Final = 10.0  # how long answers are expected to wait at their leader after one that did
LONGEST_RIDE_SECONDS: Final = 0.02  # how long a grant waits at the leader for a live record: both come in one answer
LONGEST_HOLD_SECONDS: Final = 30.0  # a fetch is held no longer: a follower's socket times out after 30 s by default
LEAST_WHOLE_VERSION: Final = 3  # from it on the first partition with data returns at least a batch (KIP-74)
LONGEST_KEPT_SECONDS: Final = 1.0  # how long one quota's budget is left to a partition that waits for another quota too
PROBE_SECONDS: Final = 10.0  # without a true answer, on the follower's side: a probe may bring a batch there
FREE_PROBE_SECONDS: Final = 4.0  # the same on the leader's side, where a probe brings no records
SHORTEST_WAIT_SECONDS: Final = 0.05  # for what brings nothing: else its follower would ask at once, for ever
MOST_OFFERED: Final = 16  # how many partitions a fetch offers to a leader's side that has quotas of its own

# the event loop's resolution; after a shorter hold the plan would be the same again
_SHORTEST_HOLD_SECONDS: Final = 0.001
_REFRESH_SECONDS: Final = 0.9 * CLAIM_SECONDS  # a held fetch is planned again before its claim in the line lapses
_HELD_BYTES: Final = int(0.9 * MOST_HELD)  # granted in an answer that loses its tails: there is more in it than grants
_AT_ONCE: Final = 1  # min_bytes: the leader answers as soon as it has anything


class Action(Enum):
    """What becomes of a fetch."""

    GRANT = auto()  # with some of the partitions that wait
    PROBE = auto()  # an offset probe: what waits is asked for with 0 bytes
    LEAVE_OUT = auto()  # without the partitions that wait
    HOLD = auto()
    ANSWER = auto()  # by the sidecar itself, with nothing new


class FetchView(Struct):
    """One fetch, and what its plan depends on (clock seconds). The link is read live: nothing changes it meanwhile."""

    state: LinkState
    request: FetchRequest  # the link's state has what it says already
    held_seconds: float
    now: float
    ask: Ask
    max_bytes: int  # the most record bytes of the answer: as in the request, or the configured cap
    by_turns: bool  # whether the catch-up order goes by turns, not by urgency
    offers: tuple[Offer, ...]
    """One for each quota that limits something on the link; empty where nothing waits for a grant."""

    @property
    def order(self) -> Iterator[ReplicaPartition]:
        """All that waits, from what is to be granted first on."""
        return self.partitions.queue.in_order(by_turns=self.by_turns)

    @property
    def partitions(self) -> LinkPartitions:
        """What the follower asks for."""
        return self.state.partitions

    @property
    def most_offered(self) -> int | None:
        """How many bytes the leader's side may divide among all that is granted; None where each grant has its own.

        Records in sync would use up some of them, so a link with such records has a cap for each grant.
        """
        is_bounded = self.request.header.api_version >= LEAST_WHOLE_VERSION and len(self.offers) == 1
        if not is_bounded or not self.ask.is_lent or self.ask.is_live:
            return None
        return max(1, int(min(self.offers[0].spend, self.max_bytes)))

    @property
    def probe_at(self) -> float:
        """When the link's next offset probe goes; inf where there is nothing to ask."""
        # Without a high watermark it is not known who is in sync. And who asks for 0 bytes of everything is the
        # follower's own sidecar, with an offset probe.
        partitions, since = self.partitions, self.state.unanswered_since
        if partitions.unknown_count or self.state.sessions.is_asked_for_offsets or not partitions.queue:
            return self.now
        takes_out = self.state.throttle.takes_out
        return math.inf if since is None else since + (FREE_PROBE_SECONDS if takes_out else PROBE_SECONDS)


def observe(state: LinkState, request: FetchRequest, now: float, held_seconds: float) -> FetchView:
    """Bring what depends on time up to date, and return what a plan for `request` depends on."""
    side, partitions = state.throttle, state.partitions
    queue, ends = partitions.queue, partitions.ends
    by_turns, next_batch, is_urgent = True, 0, False
    quotas = [quota for quota in side.quotas if quota.limits and quota.is_for(ends)] if queue else []
    if any([quota.rate for quota in quotas]):
        by_turns = queue.goes_by_turns()
        first = next(queue.in_order(by_turns=by_turns))
        # Below that version a grant takes all that is asked of a partition, however small its batches are.
        is_whole = request.header.api_version < LEAST_WHOLE_VERSION
        next_batch = first.max_bytes if is_whole else first.batches.likely_next(first.topic.batches)
        is_urgent = queue.is_urgent()
        side.release_stuck()
    for quota in quotas:
        quota.refresh()
    is_live = now < state.live_until
    ask = Ask(
        state,
        partitions.replica_id,
        next_batch,
        is_urgent,
        is_live,
        state.answer_seconds,
        not queue.has_granted,
        not side.takes_out and now - state.made_to_wait_at < WAITS_SECONDS,
        state.distance,
        state.most_beside_live if is_live else math.inf,
    )
    offers = tuple([quota.offer(ask, now) for quota in quotas])
    limit = side.settings.response_max_bytes
    max_bytes = request.max_bytes if limit is None else min(limit, request.max_bytes)
    return FetchView(state, request, held_seconds, now, ask, max_bytes, by_turns, offers)


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
    """The most of all grants together, where each has that much; None keeps the follower's own."""
    until: float = math.inf  # when a held fetch is planned again (clock seconds)


def plan(view: FetchView) -> FetchPlan:
    """Decide about a fetch with partitions that wait. Without a commit it has no effect, so it can be tried dry."""
    grants, parts, claims, ready = _grants(view)
    if grants:
        return _granted(view, grants, parts, claims)
    if view.probe_at <= view.now:
        is_asked = view.state.sessions.is_asked_for_offsets
        asks_all = view.state.throttle.takes_out or not view.partitions.unknown_count or is_asked
        return FetchPlan(Action.PROBE, claims=claims, asks_all=asks_all)
    return _left_out(view, claims, min(ready, view.probe_at))


# Granting


def _grants(view: FetchView) -> tuple[tuple[Grant, ...], dict[Quota, Part], tuple[Claim, ...], float]:
    """Return the grants, what each quota pays for them, the claims to make, and when to try again (clock seconds)."""
    spends = {offer.quota: offer.spend for offer in view.offers if offer.ready <= view.now}
    first: dict[Quota, Part] = {}
    smaller: dict[Quota, float] = {}  # quotas whose part was made smaller, and when the larger one would fit
    claims = [(offer, offer.claimed) for offer in view.offers if offer.claimed is not None]
    ready = min([offer.ready for offer in view.offers if offer.ready > view.now], default=math.inf)
    soon = {offer.quota for offer in view.offers if view.now < offer.ready <= view.now + LONGEST_KEPT_SECONDS}
    while spends:
        grants, parts = fill(view, spends, soon)
        if not grants:
            break
        for offer in view.offers:
            quota, part = offer.quota, parts.get(offer.quota)
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
            if fits_at <= view.now + LONGEST_KEPT_SECONDS:
                soon.add(quota)
            claims.append((offer, first[quota]))
            ready = min(ready, fits_at)
            break
        else:
            return grants, parts, tuple(claims), ready
    return (), {}, tuple(claims), min(ready, view.now + _REFRESH_SECONDS) if claims else ready


class _Purse:
    """What is left of one quota, or of the answer, while grants are chosen."""

    __slots__ = ("batch", "is_open", "left", "size")

    def __init__(self, spend: float) -> None:
        self.left = spend
        self.size = self.batch = 0
        self.is_open = True  # whether it may have room for one more partition

    def pay(self, size: int, batch: int) -> None:
        self.left -= size
        self.size += size
        self.batch = max(self.batch, batch)
        self.is_open = self.left > 0


def fill(
    view: FetchView, spends: Mapping[Quota, float], soon: Container[Quota] = ()
) -> tuple[tuple[Grant, ...], dict[Quota, Part]]:
    """Grant partitions in the catch-up order for about what `spends` allow, and at least one.

    Never more than one answer may hold: a partition without room in it would look as if it had no data.
    """
    if (shared := view.most_offered) is not None:
        return _offered(view, shared)
    grants: list[Grant] = []
    purses = {quota: _Purse(min(spend, view.max_bytes)) for quota, spend in spends.items()}
    answer, version = _Purse(float(view.max_bytes)), view.request.header.api_version
    every = [answer, *purses.values()]
    wastes_some, has_several_quotas = view.ask.answer_seconds > SLOW_SECONDS, len(view.offers) > 1
    can_take_out = view.state.throttle.takes_out
    awaited: set[Quota] = set()
    for replica in view.order:
        own = [answer, *_purses_of(replica, purses)] if has_several_quotas else every
        if len(own) == 1:
            _keep_scarcest(replica, purses, soon, awaited)
            continue
        if not all([purse.is_open for purse in own]):
            continue
        left = min([purse.left for purse in own])
        if version < LEAST_WHOLE_VERSION:
            # v0 to v2 cut a batch larger than the cap, and would do so for ever: take the partition whole or not at
            # all.
            cap = size = replica.max_bytes
        else:
            takes_out = can_take_out and answer.size + left <= _HELD_BYTES
            cap, is_sure = replica.batches.cap_for(
                left, replica.worth_asking(), replica.topic.batches, takes_out=takes_out, wastes_some=wastes_some
            )
            if (
                grants
                and (cap > left or not is_sure)
                # the first grant of a quota does not wait until those of other quotas leave it the first place
                and not (cap <= answer.left and not any([purse.size for purse in own[1:]]))
            ):
                min(own, key=lambda purse: purse.left).is_open = False
                if not _any_open(every):
                    break
                continue
            size = granted_bytes(replica, cap)
        grants.append((replica, cap))
        for purse in own:
            purse.pay(size, size if size > left else 0)
        if not _any_open(every):
            break
    return tuple(grants), {quota: Part(purse.size, purse.batch) for quota, purse in purses.items() if purse.size}


def _offered(view: FetchView, most: int) -> tuple[tuple[Grant, ...], dict[Quota, Part]]:
    """Grant `most` bytes to each of the first partitions; the answer's max_bytes bounds all together.

    The leader's side has quotas of its own. A single choice made here would leave those of other partitions unused.
    """
    grants = tuple([(one, min(most, one.max_bytes)) for one in islice(view.order, MOST_OFFERED)])
    size = max(min(most, sum([cap for _, cap in grants])), view.ask.next_batch)
    return grants, {view.offers[0].quota: Part(size, size if size > most else 0)}


def _any_open(purses: list[_Purse]) -> bool:
    """Whether the answer (first of `purses`) and at least one quota have room for more."""
    return purses[0].is_open and any([purse.is_open for purse in purses[1:]])


def _purses_of(replica: ReplicaPartition, purses: Mapping[Quota, _Purse]) -> list[_Purse]:
    """Return what a partition's bytes are paid from; empty where one of its quotas has nothing to spend."""
    quotas = replica.quotas
    return [purses[quota] for quota in quotas] if all([quota in purses for quota in quotas]) else []


def _keep_scarcest(
    replica: ReplicaPartition, purses: Mapping[Quota, _Purse], soon: Container[Quota], awaited: set[Quota]
) -> None:
    """Leave what a partition's scarcest quota has to it, where its other quotas have enough in a moment.

    Else partitions of one quota each would take turns with either. `awaited`: what earlier partitions wait for.
    """
    quotas = sorted(replica.quotas, key=lambda quota: quota.rate or 0)
    missing = [quota for quota in quotas if quota not in purses]
    if quotas and quotas[0] in purses and all([quota in soon and quota not in awaited for quota in missing]):
        purses[quotas[0]].is_open = False
    awaited.update(missing)


def _granted(
    view: FetchView, grants: tuple[Grant, ...], parts: Mapping[Quota, Part], claims: tuple[Claim, ...]
) -> FetchPlan:
    # A partition without a high watermark may be in sync. Asked for with 0 bytes, its new records would not end the
    # wait at the leader, so there is none.
    wait_left = (
        0 if view.partitions.unknown_count else max(0, view.request.max_wait_ms - round(view.held_seconds * 1000))
    )
    min_bytes = _min_bytes(view, grants, parts)
    if min_bytes > _AT_ONCE:
        wait_left = min(wait_left, round(LONGEST_RIDE_SECONDS * 1000))
    return FetchPlan(
        Action.GRANT,
        grants,
        parts,
        claims,
        asks_all=_asks_all(view),
        max_wait_ms=wait_left,
        min_bytes=min_bytes,
        max_bytes=view.most_offered,
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
    if not view.ask.is_live or view.partitions.unknown_count:
        return _AT_ONCE
    granted = sum(cap for _, cap in grants)
    is_late = granted > 2 * SHARE_BESIDE_LIVE_SECONDS * min([quota.rate or 0 for quota in parts])
    is_late |= 2 * granted > view.max_bytes  # more may have gathered than one answer holds
    # A cap beyond the partition's end is never filled: the live record would wait until max_wait_ms is over.
    if is_late or any(2 * cap > replica.worth_asking() for replica, cap in grants):
        return _AT_ONCE
    return granted + 1


# Not granting


def _left_out(view: FetchView, claims: tuple[Claim, ...], ready: float) -> FetchPlan:
    now = view.now
    if view.partitions.count > view.partitions.behind_count:
        max_wait_ms = round(min(view.request.max_wait_ms, max(ready - now, SHORTEST_WAIT_SECONDS) * 1000))
        return FetchPlan(Action.LEAVE_OUT, claims=claims, max_wait_ms=max_wait_ms, min_bytes=_AT_ONCE)
    wait = min(max(view.request.max_wait_ms / 1000, SHORTEST_WAIT_SECONDS), LONGEST_HOLD_SECONDS)
    if view.held_seconds < wait - _SHORTEST_HOLD_SECONDS:
        until = min(max(ready, now + _SHORTEST_HOLD_SECONDS), now + wait - view.held_seconds)
        return FetchPlan(Action.HOLD, claims=claims, until=until)
    return FetchPlan(Action.ANSWER, claims=claims)

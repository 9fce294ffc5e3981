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

`plan` reads a view and returns a value. It changes nothing: `quota.fetch.commit` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from quota.budget.offset_probes import PROBE_SECONDS
from quota.budget.queue import CLAIM_SECONDS
from quota.budget.quota import Ask, Offer, Part, Quota
from quota.budget.strict import SHARE_BESIDE_LIVE_SECONDS, SLOW_SECONDS
from quota.fetch.state import Grant, ReplicaPartition

LONGEST_RIDE_SECONDS: Final = 0.02
"""How long a share waits for a live record to go with."""

LONGEST_HOLD_SECONDS: Final = 30.0
"""Whatever a follower asks for: its socket's time-out is 30 s by default."""

SHORTEST_WAIT_SECONDS: Final = 0.05
"""A fetch that brings nothing lasts this long at least: held, not spun."""

_SHORTEST_HOLD_SECONDS: Final = 0.001  # the event loop's own resolution; a shorter hold would spin
_REFRESH_SECONDS: Final = 0.9 * CLAIM_SECONDS  # a held fetch is planned again before its place in the line is lost
_AT_ONCE: Final = 1  # min_bytes: an answer comes as soon as there is anything
_LEAST_WHOLE_VERSION: Final = 3  # KIP-74: from v3 on the first partition with data returns at least one whole batch
_NEVER: Final = float("inf")


class Action(Enum):
    """What becomes of a fetch."""

    PASS = auto()  # as it came: nothing of it waits
    GRANT = auto()  # some of what waits is granted
    PROBE = auto()  # all that waits is asked for with 0 bytes: true offsets and errors, and at most one batch
    LEAVE_OUT = auto()  # without what waits
    HOLD = auto()
    ANSWER = auto()  # with nothing new


class ProbeTimes(NamedTuple):
    """When a link may ask for offsets and errors alone; inf where it has nothing to ask."""

    at: float
    """At the earliest: `now` where it may ask at once."""
    ready: float
    """When its probe is due and paid for, whoever stands in front."""


NO_PROBE: Final = ProbeTimes(_NEVER, _NEVER)


@dataclass(slots=True)
class FetchView:
    """All that a plan depends on: the request, what the link knows of its partitions, and what its quotas offer.

    Times are clock seconds. `order` and `offers` read live state: nothing changes it while a plan is made.
    """

    api_version: int
    max_bytes: int
    """Of the answer: as asked, or the configured cap where that is less."""
    max_wait_seconds: float
    held_seconds: float
    now: float
    ask: Ask
    order: Iterable[ReplicaPartition]
    offers: tuple[Offer, ...]
    """Of each quota that has a rate; none where nothing may be granted."""
    has_several_quotas: bool
    """Whether partitions differ in the quotas that they belong to; else all that waits belongs to the only one."""
    count: int
    behind_count: int
    unknown_count: int
    is_incremental: bool
    in_session: bool
    is_throttling: bool
    """Whether any quota has a rate."""
    must_wait: bool
    """Whether a full answer needs an entry that only the leader can give: it can't be made up, nor left out."""
    probe_times: Callable[[], ProbeTimes]
    """When the link may ask for offsets and errors alone; looked up only where nothing is granted."""
    unanswered_since: float | None
    """Since when partitions were left out without a true answer."""
    is_asked_for_offsets: bool
    """Whether an earlier hop asks for offsets and errors alone."""
    names_awaited_until: float
    """When the first topic without a name is no longer throttled."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A place in a quota's line: the link waits for `needed` bytes."""

    offer: Offer
    needed: float


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What becomes of one fetch. Everything behind that is neither granted nor asked for is left out."""

    action: Action
    grants: tuple[Grant, ...] = ()
    """What is granted, in order, each with its cap."""
    parts: Mapping[Quota, Part] = field(default_factory=dict)
    """What that takes of each quota."""
    claims: tuple[Claim, ...] = ()
    """Where the link stands in line from now on."""
    asks_all: bool = True
    """Whether what is not granted is asked for with 0 bytes, so that the answer is true for all."""
    max_wait_ms: int = 0
    min_bytes: int | None = None
    """None: as the follower asked."""
    until: float = _NEVER
    """When a held fetch is planned again."""
    probe_ready: float = _NEVER
    """When its probe is due and paid for, where it waits to ask for offsets and errors alone."""


def plan(view: FetchView) -> FetchPlan:
    """Decide about one fetch. A dry run of a quota is this function without a commit."""
    if not (view.behind_count or view.unknown_count) or not view.is_throttling:
        return FetchPlan(Action.PASS)
    grants, parts, claims, ready = _grants(view)
    if grants:
        return _granted(view, grants, parts, claims)
    probe = view.probe_times()
    if probe.at <= view.now:
        return FetchPlan(Action.PROBE, claims=claims, asks_all=_asks_all(view))
    return _left_out(view, claims, min(ready, probe.at), probe.ready)


# Granting


def _grants(view: FetchView) -> tuple[tuple[Grant, ...], dict[Quota, Part], tuple[Claim, ...], float]:
    """The partitions to grant now with what each quota pays, places to keep in line, and when to try again."""
    spends = {offer.quota: offer.spend for offer in view.offers if offer.ready <= view.now}
    first: dict[Quota, Part] = {}
    smaller: dict[Quota, float] = {}  # quotas whose part was made smaller, and when else
    claims: list[Claim] = []
    ready = min([offer.ready for offer in view.offers if offer.ready > view.now], default=_NEVER)
    while spends:
        grants, parts = fill(view, spends)
        if not grants:
            break
        for offer in view.offers:
            quota, part = offer.quota, parts.get(offer.quota)
            if part is None:
                continue
            first.setdefault(quota, part)
            if quota in smaller:
                if part.reserved <= spends[quota] + part.batch:
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
            claims.append(Claim(offer, quota.needed(first[quota])))
            ready = min(ready, fits_at)
            break
        else:
            return grants, parts, tuple(claims), ready
    return (), {}, tuple(claims), min(ready, view.now + _REFRESH_SECONDS) if claims else ready


class _Purse:
    """What is left of one quota while a fetch is filled."""

    __slots__ = ("batch", "caps", "excess", "is_open", "left", "spend")

    def __init__(self, spend: float) -> None:
        self.spend = self.left = spend
        self.caps = self.excess = self.batch = 0
        self.is_open = True  # it may have room for one more partition

    def pay(self, taken: float, cap: int, batch: int, excess: int) -> None:
        self.left -= taken
        self.caps += cap
        self.batch = max(self.batch, batch)
        self.excess = max(self.excess, excess)
        self.is_open = self.left > 0

    def part(self) -> Part:
        share = int(self.spend - self.left)
        return Part(share, max(share, self.caps + self.excess), self.batch)


def fill(view: FetchView, spends: Mapping[Quota, float]) -> tuple[tuple[Grant, ...], dict[Quota, Part]]:
    """Grant partitions in the catch-up order for about what `spends` allow: at least one, whole batches where known.

    No more than one answer may hold: a partition for which it has no room left would look as if it had no batch to
    give. A partition of which any quota has nothing to spend is passed over.
    """
    grants: list[Grant] = []
    purses = {quota: _Purse(min(spend, view.max_bytes)) for quota, spend in spends.items()}
    answer = _Purse(float(view.max_bytes))
    every = [answer, *purses.values()]
    wastes_some = view.ask.answer_seconds > SLOW_SECONDS
    for replica in view.order:
        own = [answer, *_purses_of(replica, purses)] if view.has_several_quotas else every
        if len(own) == 1 or not all([purse.is_open for purse in own]):
            continue
        left = min([purse.left for purse in own])
        excess = 0
        if view.api_version < _LEAST_WHOLE_VERSION:
            # A cap below the next batch returns a part of it, for ever: take the partition whole or not at all.
            cap = batch = replica.max_bytes
            taken: float = cap
        else:
            cap, is_sure = replica.batches.cap_for(
                left, replica.worth_asking(), replica.topic.batches, wastes_some=wastes_some
            )
            if grants and (cap > left or not is_sure):
                min(own, key=_left).is_open = False
                if not _any_open(every):
                    break
                continue
            batch = replica.largest_batch
            excess = max(0, batch - cap)
            # One batch of unknown size: the whole share. One larger than its cap comes whole where it is first.
            taken = max(cap, replica.batches.next_size or replica.batches.largest) if cap > 1 else left
        grants.append((replica, cap))
        for purse in own:
            purse.pay(taken, cap, batch, excess)
        if not _any_open(every):
            break
    return tuple(grants), {quota: purse.part() for quota, purse in purses.items() if purse.caps}


def _any_open(purses: list[_Purse]) -> bool:
    """Whether the answer, which is the first of `purses`, and any quota have room for more."""
    return purses[0].is_open and any([purse.is_open for purse in purses[1:]])


def _left(purse: _Purse) -> float:
    return purse.left


def _purses_of(replica: ReplicaPartition, purses: Mapping[Quota, _Purse]) -> list[_Purse]:
    """What a partition's bytes are paid from; nothing where one of its quotas has nothing to spend."""
    coverage = replica.topic.coverage
    quotas = [quota for quota, covered in coverage if quota.rate is not None and replica.partition in covered]
    return [purses[quota] for quota in quotas] if all([quota in purses for quota in quotas]) else []


def _granted(
    view: FetchView, grants: tuple[Grant, ...], parts: Mapping[Quota, Part], claims: tuple[Claim, ...]
) -> FetchPlan:
    # A partition that is not known may be in sync, and one asked for 0 bytes ends no wait.
    wait_left = 0 if view.unknown_count else max(0, round((view.max_wait_seconds - view.held_seconds) * 1000))
    min_bytes = _min_bytes(view, grants, parts)
    if min_bytes > _AT_ONCE:
        wait_left = min(wait_left, round(LONGEST_RIDE_SECONDS * 1000))
    asks_all = _asks_all(view)
    return FetchPlan(Action.GRANT, grants, parts, claims, asks_all=asks_all, max_wait_ms=wait_left, min_bytes=min_bytes)


def _asks_all(view: FetchView) -> bool:
    """Whether all that is left out goes along with what is granted: early, so that no probe has to go alone.

    A whole fetch asks for everything each time.
    """
    if not view.is_incremental or view.is_asked_for_offsets:
        return True
    since = view.unanswered_since
    return since is not None and view.now - since >= PROBE_SECONDS / 2


def _min_bytes(view: FetchView, grants: Iterable[Grant], parts: Mapping[Quota, Part]) -> int:
    """How many bytes the answer waits for: with live traffic a few more than are granted, so that both come together.

    What is granted would come at once else, and a live record that is written meanwhile waits for the answer after it.
    """
    if not view.ask.is_live or view.unknown_count:
        return _AT_ONCE
    granted = sum(cap for _, cap in grants)
    is_late = granted > 2 * SHARE_BESIDE_LIVE_SECONDS * min([quota.rate or 0 for quota in parts])
    # A cap beyond a partition's end is never reached, and live records would wait until max_wait_ms is over.
    if is_late or any(2 * cap > replica.worth_asking() for replica, cap in grants):
        return _AT_ONCE
    return granted + 1


# Not granting


def _left_out(view: FetchView, claims: tuple[Claim, ...], ready: float, probe_ready: float) -> FetchPlan:
    now = view.now
    since = now if view.unanswered_since is None else view.unanswered_since
    ready = min(ready, since + PROBE_SECONDS, view.names_awaited_until)
    if view.count > view.behind_count + view.unknown_count and (view.is_incremental or not view.unknown_count):
        shorter = min(view.max_wait_seconds, max(ready - now, SHORTEST_WAIT_SECONDS))
        max_wait_ms = round(shorter * 1000)
        return FetchPlan(
            Action.LEAVE_OUT, claims=claims, max_wait_ms=max_wait_ms, min_bytes=_AT_ONCE, probe_ready=probe_ready
        )
    wait = min(max(view.max_wait_seconds, SHORTEST_WAIT_SECONDS), LONGEST_HOLD_SECONDS)
    if view.held_seconds < wait - _SHORTEST_HOLD_SECONDS or view.must_wait:
        until = max(ready, now + _SHORTEST_HOLD_SECONDS)
        until = until if view.must_wait else min(until, now + wait - view.held_seconds)
        return FetchPlan(Action.HOLD, claims=claims, until=until, probe_ready=probe_ready)
    return FetchPlan(Action.ANSWER, claims=claims, probe_ready=probe_ready)

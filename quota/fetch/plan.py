"""Decides which partitions one replica fetch may take along, and what becomes of the others.

Kafka's rule holds on both sides: a partition is left out when it is throttled, not in sync, and the quota is exceeded.
Unlike Kafka, weir asks the quota before the bytes are sent. Each partition that waits gets one of four treatments:

- *granted*: in the request with a cap, after everything that is not throttled. Where the latter fills every answer,
  grants go in front of it for a while;
- *asked*: in the request with partition_max_bytes 0, after a granted one that has data. The leader itself then answers
  with true offsets and errors;
- *left out*: not in the request; an empty entry is appended to the answer. Only where nothing is granted while other
  partitions cannot wait;
- *held*: the whole request waits, as every partition of it would be left out.

`plan` reads the link and what its quotas offer, and returns a value. It changes nothing: `weir.quota.fetch.commit`
carries the plan out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
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
from weir.quota.fetch.order import GrantOrder, granted_bytes
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.state import Grant, ReplicaPartition

LONGEST_RIDE_SECONDS: Final = 0.02
"""How long a grant waits at the leader for a live record, so that both come in one answer."""

LONGEST_HOLD_SECONDS: Final = 30.0
"""The longest that a fetch is held, whatever its max_wait_ms: a follower's socket times out after 30 s by default."""

LEAST_WHOLE_VERSION: Final = 3
"""From this Fetch version on the first partition with data returns at least one whole batch (KIP-74)."""

LONGEST_KEPT_SECONDS: Final = 1.0
"""How long one quota's budget is left to a partition that waits for another quota too."""

PROBE_SECONDS: Final = 10.0
"""How long a partition goes without a true answer at most on the follower's side: its follower would miss errors.

An offset probe may bring one batch there, and no quota can stop it.
"""

FREE_PROBE_SECONDS: Final = 4.0
"""How long at most on the leader's side. There a probe brings no records: they are taken out of the answer."""

SHORTEST_WAIT_SECONDS: Final = 0.05
"""A fetch that brings nothing is held for at least this long: else its follower would ask again at once, for ever."""

MOST_OFFERED: Final = 16
"""How many partitions a fetch offers to a leader's side that has quotas of its own."""

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
    """One fetch, and what its plan depends on. Times are clock seconds.

    The link's state is read live, and so is the order: nothing changes them while a plan is made.
    """

    state: LinkState
    request: FetchRequest
    """The link's state has what it says already."""
    held_seconds: float
    now: float
    ask: Ask
    order: GrantOrder
    offers: tuple[Offer, ...]
    """One for each quota that limits something on the link; empty where nothing waits for a grant."""

    @property
    def partitions(self) -> LinkPartitions:
        """What the follower asks for."""
        return self.state.partitions

    @property
    def takes_out(self) -> bool:
        """Whether records above a grant are taken out of the answer. Then a probe brings none."""
        return self.state.side.takes_out

    @property
    def most_offered(self) -> int | None:
        """How many bytes the leader's side may divide among all that is granted; None where each grant has its own.

        Example: 16 partitions are granted 120 KB each, and the answer's max_bytes is 120 KB. Records in sync would use
        up some of these, so a link with such records has a cap for each grant.
        """
        is_bounded = self.request.header.api_version >= LEAST_WHOLE_VERSION and len(self.offers) == 1
        if not is_bounded or not self.ask.is_lent or self.ask.is_live:
            return None
        return max(1, int(min(self.offers[0].spend, self.max_bytes)))

    @property
    def max_bytes(self) -> int:
        """The most record bytes of the answer: as in the request, or the configured cap where that is less."""
        limit = self.state.side.settings.response_max_bytes
        return self.request.max_bytes if limit is None else min(limit, self.request.max_bytes)

    @property
    def max_wait_seconds(self) -> float:
        """How long the follower lets the leader wait for records."""
        return self.request.max_wait_ms / 1000

    @property
    def probe_at(self) -> float:
        """When the link's next offset probe goes; inf where there is nothing to ask."""
        # Without a high watermark it is not known who is in sync. And who asks for 0 bytes of everything is the
        # follower's own sidecar, with an offset probe.
        partitions, since = self.partitions, self.state.unanswered_since
        if partitions.unknown_count or self.state.sessions.is_asked_for_offsets or not partitions.queue:
            return self.now
        return math.inf if since is None else since + (FREE_PROBE_SECONDS if self.takes_out else PROBE_SECONDS)


class Claim(Struct, frozen=True):
    """A place in a quota's line, in which the link waits for `part`."""

    offer: Offer
    part: Part


class FetchPlan(Struct, frozen=True):
    """What becomes of one fetch. Every partition that waits and is neither granted nor asked for is left out."""

    action: Action
    grants: tuple[Grant, ...] = ()
    """The partitions granted, in order, each with its cap in bytes."""
    parts: Mapping[Quota, Part] = field(default_factory=dict)
    """What the grants take of each quota."""
    claims: tuple[Claim, ...] = ()
    """Places that the link takes in lines."""
    asks_all: bool = True
    """Whether everything not granted is asked for with 0 bytes: the answer is then true for all partitions."""
    max_wait_ms: int = 0
    min_bytes: int | None = None
    """None keeps the follower's own."""
    max_bytes: int | None = None
    """The most of all grants together, where each has that much; None keeps the follower's own."""
    until: float = math.inf
    """When a held fetch is planned again (clock seconds)."""


def plan(view: FetchView) -> FetchPlan:
    """Decide about a fetch with partitions that wait. Without a commit it has no effect, so it can be tried dry."""
    grants, parts, claims, ready = _grants(view)
    if grants:
        return _granted(view, grants, parts, claims)
    if view.probe_at <= view.now:
        is_asked = view.state.sessions.is_asked_for_offsets
        asks_all = view.takes_out or not view.partitions.unknown_count or is_asked
        return FetchPlan(Action.PROBE, claims=claims, asks_all=asks_all)
    return _left_out(view, claims, min(ready, view.probe_at))


# Granting


def _grants(view: FetchView) -> tuple[tuple[Grant, ...], dict[Quota, Part], tuple[Claim, ...], float]:
    """Return the grants, what each quota pays for them, the claims to make, and when to try again (clock seconds)."""
    spends = {offer.quota: offer.spend for offer in view.offers if offer.ready <= view.now}
    first: dict[Quota, Part] = {}
    smaller: dict[Quota, float] = {}  # quotas whose part was made smaller, and when the larger one would fit
    claims = [Claim(offer, offer.claimed) for offer in view.offers if offer.claimed is not None]
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
            claims.append(Claim(offer, first[quota]))
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

    The grants are never worth more than one answer may hold. A partition that the answer has no room for would look as
    if it had no data. A partition is passed over where one of its quotas has nothing to spend.
    """
    if (shared := view.most_offered) is not None:
        return _offered(view, shared)
    grants: list[Grant] = []
    purses = {quota: _Purse(min(spend, view.max_bytes)) for quota, spend in spends.items()}
    answer, version = _Purse(float(view.max_bytes)), view.request.header.api_version
    every = [answer, *purses.values()]
    wastes_some, has_several_quotas = view.ask.answer_seconds > SLOW_SECONDS, len(view.offers) > 1
    can_take_out = view.takes_out
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
                min(own, key=_left).is_open = False
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
    """Grant `most` bytes to each of the first partitions in the order. The answer's max_bytes bounds all together.

    The leader's side has quotas of its own. If one partition was chosen here, the leader's quota of that one would bind
    while those of others are left unused.
    """
    grants = tuple([(one, min(most, one.max_bytes)) for one in islice(view.order, MOST_OFFERED)])
    size = max(min(most, sum([cap for _, cap in grants])), view.ask.next_batch)
    return grants, {view.offers[0].quota: Part(size, size if size > most else 0)}


def _any_open(purses: list[_Purse]) -> bool:
    """Whether the answer (first of `purses`) and at least one quota have room for more."""
    return purses[0].is_open and any([purse.is_open for purse in purses[1:]])


def _left(purse: _Purse) -> float:
    return purse.left


def _purses_of(replica: ReplicaPartition, purses: Mapping[Quota, _Purse]) -> list[_Purse]:
    """Return what a partition's bytes are paid from; empty where one of its quotas has nothing to spend."""
    quotas = replica.quotas
    return [purses[quota] for quota in quotas] if all([quota in purses for quota in quotas]) else []


def _keep_scarcest(
    replica: ReplicaPartition, purses: Mapping[Quota, _Purse], soon: Container[Quota], awaited: set[Quota]
) -> None:
    """Leave what a partition's scarcest quota has to it, where its other quotas have enough in a moment.

    Else partitions of one quota each would take turns with either, and it would never find both at once. `awaited` are
    the quotas that earlier partitions wait for: these take what comes first.
    """
    quotas = sorted(replica.quotas, key=_rate)
    missing = [quota for quota in quotas if quota not in purses]
    if quotas and quotas[0] in purses and all([quota in soon and quota not in awaited for quota in missing]):
        purses[quotas[0]].is_open = False
    awaited.update(missing)


def _rate(quota: Quota) -> int:
    return quota.rate or 0


def _granted(
    view: FetchView, grants: tuple[Grant, ...], parts: Mapping[Quota, Part], claims: tuple[Claim, ...]
) -> FetchPlan:
    # A partition without a high watermark may be in sync. Asked for with 0 bytes, its new records would not end the
    # wait at the leader, so there is none.
    wait_left = (
        0 if view.partitions.unknown_count else max(0, round((view.max_wait_seconds - view.held_seconds) * 1000))
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

    A whole fetch does so each time. An incremental one does so as soon as half of the time before the next offset probe
    is over, so that none has to go alone.
    """
    sessions, since = view.state.sessions, view.state.unanswered_since
    if not sessions.is_incremental or sessions.is_asked_for_offsets:
        return True
    return since is not None and view.now - since >= (view.probe_at - since) / 2


def _min_bytes(view: FetchView, grants: Iterable[Grant], parts: Mapping[Quota, Part]) -> int:
    """Return the min_bytes of a fetch with grants. Beside live traffic it is one byte more than they can bring.

    With min_bytes 1 the grants would come back at once. A live record written meanwhile would then wait for the next
    answer. With one byte more, both come together.
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
        shorter = min(view.max_wait_seconds, max(ready - now, SHORTEST_WAIT_SECONDS))
        max_wait_ms = round(shorter * 1000)
        return FetchPlan(Action.LEAVE_OUT, claims=claims, max_wait_ms=max_wait_ms, min_bytes=_AT_ONCE)
    wait = min(max(view.max_wait_seconds, SHORTEST_WAIT_SECONDS), LONGEST_HOLD_SECONDS)
    if view.held_seconds < wait - _SHORTEST_HOLD_SECONDS:
        until = min(max(ready, now + _SHORTEST_HOLD_SECONDS), now + wait - view.held_seconds)
        return FetchPlan(Action.HOLD, claims=claims, until=until)
    return FetchPlan(Action.ANSWER, claims=claims)

# SPDX-License-Identifier: Apache-2.0
"""The order in which one link's partitions catch up. No broker can choose one.

*Urgent first* feeds partitions below their min ISR first, then those with the fewest bytes to go. The bytes are the
same as in turn, but partitions get in sync one after the other: the mean time to that falls towards half.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from msgspec import Struct

from weir.protocol.steps import PER_STEP, Steps
from weir.quota.budget.quota import Part, Quota
from weir.quota.fetch.state import UNKNOWN_OFFSET, Grant, ReplicaPartition
from weir.quota.figures import FLOOR, HELD_BYTES, RANK_SECONDS
from weir.quota.side_state import SideState


@dataclass(slots=True)
class _Turn:
    """The next turn of a partition, since it fell behind last."""

    begin: float  # on a scale of seconds: what it had counts by the rate that was in force then
    granted_offset: int = UNKNOWN_OFFSET  # the fetch offset at the last grant


class GrantQueue:
    """The partitions of one link that wait for a grant. It iterates in turn, from the one that had the fewest bytes on.

    One that an earlier hop leaves out for a while returns to its old place: else it would come last, each time anew.
    """

    def __init__(self, side: SideState) -> None:
        self._side = side
        self.waiting: dict[ReplicaPartition, None] = {}  # sorted only while the queue is iterated
        self.turns: dict[ReplicaPartition, _Turn] = {}  # also of those that are left out for a while
        self._is_sorted = True
        self._reached = 0.0  # where the last turn began
        self._furthest = 0.0  # where the last of all turns to come begins
        self._ranked: dict[ReplicaPartition, None] = {}  # the most urgent PER_STEP of those that waited then, in order
        self._entered: dict[ReplicaPartition, None] = {}  # what has come since, in its order
        self._ranked_at = -math.inf
        self._ranked_for = side.under_min_isr  # the partitions below their min ISR at that time
        self._owed = 0.0  # bytes that FLOOR has given to what is not the most urgent and it has not had yet
        self.last = 0  # bytes of the last grant; 0 while there was none

    def __iter__(self) -> Iterator[ReplicaPartition]:
        if not self._is_sorted:
            self._is_sorted = True
            turns = self.turns
            self.waiting = dict.fromkeys(sorted(self.waiting, key=lambda replica: turns[replica].begin))
        return iter(self.waiting)

    def enter(self, replica: ReplicaPartition) -> None:
        """Let a partition wait that does not yet. One that returns keeps its place."""
        turn = self.turns.get(replica)
        if turn is None:
            turn = self.turns[replica] = _Turn(self._reached)
        self._is_sorted &= turn.begin >= self._furthest
        self.waiting[replica] = self._entered[replica] = None

    def leave(self, replica: ReplicaPartition, *, returns: bool) -> None:
        """Take out a partition that does not wait. One that `returns` soon keeps its place."""
        if replica in self.waiting:
            del self.waiting[replica]
            self._entered.pop(replica, None)
        if not returns:
            self.turns.pop(replica, None)

    # What is next

    def look(self) -> tuple[bool, ReplicaPartition, bool]:
        """Return whether the next grants go by turns, the partition that is the first to have one, and whether a
        partition below its min ISR waits on the link: then it goes before links that have none.

        By turns go all for `round-robin`, else FLOOR's part of the bytes.
        """
        has_ranks = self._side.rules.settings.order != "round-robin"
        by_turns = not has_ranks or self._owed >= self.last > 0
        is_urgent = has_ranks and any(one in self.waiting and not self._stalls(one) for one in self._at_risk())
        return by_turns, next(self.in_order(by_turns=by_turns)), is_urgent

    def in_order(self, *, by_turns: bool) -> Iterator[ReplicaPartition]:
        """Iterate over the whole queue, from what is to be granted first on."""
        return iter(self) if by_turns else self.by_rank()

    def by_rank(self) -> Iterator[ReplicaPartition]:
        """The most urgent first. Those whose last grant brought nothing come last, but where its cap was too small.

        What has entered since the ranking goes first: an earlier hop leaves it out at times, and lets it through now.
        """
        stalled, first, entered = [], self._ranked, self._entered
        ranked = (replica for replica in first if replica in self.waiting and replica not in entered)
        others = (replica for replica in self if replica not in first and replica not in entered)
        has_at_risk = any(True for _ in self._at_risk())
        for replica in chain(ranked, entered, others) if has_at_risk else chain(entered, ranked, others):
            if self._stalls(replica):
                stalled.append(replica)
            else:
                yield replica
        yield from stalled

    def rank_steps(self, now: float, answered_at: float) -> Steps[None]:
        """Rank the queue, where that is due, by an answer at `answered_at` or since. Done in steps."""
        if self._side.rules.settings.order == "round-robin":
            return
        under_min_isr = self._side.under_min_isr
        is_same = answered_at < self._ranked_at and not self._entered
        if under_min_isr == self._ranked_for and (now - self._ranked_at < RANK_SECONDS or is_same):
            return
        waiting, self._entered = list(self), {}
        ranked: list[tuple[bool, float, int]] = []
        for first in range(0, len(waiting), PER_STEP):
            if first:
                yield
            for place, one in enumerate(waiting[first : first + PER_STEP], start=first):
                is_safe = not under_min_isr or (one.topic.name, one.partition) not in under_min_isr
                ranked.append((is_safe, bytes_to_go(one), place))
            ranked = sorted(ranked)[:PER_STEP]
        self._ranked = {waiting[place]: None for _, _, place in ranked}
        self._ranked_at, self._ranked_for = now, under_min_isr

    def _at_risk(self) -> Iterator[ReplicaPartition]:
        under_min_isr = self._side.under_min_isr
        if not under_min_isr:
            return iter(())
        return takewhile(lambda one: (one.topic.name, one.partition) in under_min_isr, self._ranked)

    def _stalls(self, replica: ReplicaPartition) -> bool:
        """Whether its last grant brought nothing: others go before it, and FLOOR's part of the bytes tries again."""
        turn = self.turns.get(replica)
        return turn is not None and turn.granted_offset == replica.fetch_offset

    # What became of it

    def granted(self, grants: Sequence[Grant], reserved: int, *, by_turns: bool) -> None:
        """Note grants, and the bytes reserved for them (0 where the policy reserves none): others are next."""
        self.last = reserved or sum(cap for _, cap in grants)
        if self._side.rules.settings.order == "round-robin":
            self._owed = 0.0  # every grant goes by turns, so there is no floor to pay
        elif by_turns:
            self._owed -= self.last
        else:
            self._owed += self.last * FLOOR / (1 - FLOOR)
        for replica, cap in grants:
            turn = self.turns[replica]
            self._reached = max(self._reached, turn.begin)
            turn.begin = self._reached + _seconds(replica, max(cap, replica.batches.next_size))
            turn.granted_offset = replica.fetch_offset
            self._is_sorted &= turn.begin >= self._furthest
            self._furthest = max(self._furthest, turn.begin)
            del self.waiting[replica]
            self.waiting[replica] = None

    def brought_some(self, replica: ReplicaPartition, more: int) -> None:
        """Note that an answer had records of a partition, `more` bytes than it was granted: a whole batch."""
        turn = self.turns.get(replica)
        if turn is not None:
            turn.begin += _seconds(replica, more)
            self._furthest = max(self._furthest, turn.begin)
            self._is_sorted = False

    def had_no_room(self, replica: ReplicaPartition) -> None:
        """Note that a grant brought nothing, as others had filled the answer: that says nothing of the partition."""
        if (turn := self.turns.get(replica)) is not None:
            turn.granted_offset = UNKNOWN_OFFSET

    def brought_nothing(self, replica: ReplicaPartition) -> None:
        """Let a partition have its turn once more, and then come behind all others.

        The next hop may let nothing of it through at all, or had no budget yet. Without a second turn two partitions
        may take turns so that one of them always comes while there is none.
        """
        replica.batches.misses += 1
        if (turn := self.turns.get(replica)) is not None:
            turn.begin = self._reached if replica.batches.misses % 2 else self._furthest
            self._is_sorted = False


def _seconds(replica: ReplicaPartition, size: int) -> float:
    """Return the seconds that so many bytes take at the lowest rate of a partition's quotas; none at 0."""
    partition, coverage = replica.partition, replica.topic.coverage
    ledgers = [quota.ledger for quota, covered in coverage if partition in covered and not quota.is_observed]
    return size / min([ledger.rate or math.inf for ledger in ledgers], default=math.inf)


def bytes_to_go(replica: ReplicaPartition) -> float:
    """Bytes to go as far as they can be estimated, and half a batch; inf without a high watermark, or any size."""
    high_watermark, known, topic = replica.high_watermark, replica.batches, replica.topic.batches
    if not known.bytes_per_offset:
        known = topic
    if high_watermark == UNKNOWN_OFFSET or not known.bytes_per_offset or not known.largest:
        return math.inf
    return (high_watermark - replica.fetch_offset) * known.bytes_per_offset + known.largest / 2


def worth_asking(replica: ReplicaPartition) -> int:
    """Return the partition_max_bytes that the rest of the partition is worth, or all where that may be wrong."""
    most = replica.max_bytes
    return most if replica.batches.barren else int(min(most, bytes_to_go(replica)))


# Granting


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


class Terms(Struct, frozen=True):
    """What grants of one fetch depend on beside the queue and the quotas."""

    takes_whole: bool  # whether a partition is taken whole or not at all, as in Fetch v0 to v2
    max_bytes: int  # the most record bytes of the answer: as in the request, or the configured cap
    by_turns: bool  # whether the catch-up order goes by turns, not by urgency
    takes_out: bool  # whether records above a grant are taken out of the answer
    wastes_some: bool  # whether a cut batch costs less than an answer with a single one
    has_several_quotas: bool  # whether more than one limits something on the link
    most_shared: int  # how many partitions may share what is left, if their sizes are not known; 1: none do
    shares_all: bool  # whether all grants share it: the leader's side divides it, as it has quotas of its own
    next_batch: int  # as in `Ask`


class Choice(Struct, frozen=True):
    """The partitions granted, in order, each with its cap in bytes, and what they take of each quota."""

    grants: tuple[Grant, ...] = ()
    parts: Mapping[Quota, Part] = {}
    max_bytes: int | None = None  # what all grants together may bring, where each may bring what several share


def fill(terms: Terms, queue: GrantQueue, spends: Mapping[Quota, float], soon: Container[Quota] = ()) -> Choice:
    """Grant partitions in the catch-up order for about what `spends` allow, and at least one.

    Never more than one answer may hold: a partition without room in it would look as if it had no data. From the first
    one on whose size is not known, all share what is left, and the request's max_bytes bounds what they bring.
    """
    grants: list[Grant] = []
    purses = {quota: _Purse(min(spend, terms.max_bytes)) for quota, spend in spends.items()}
    answer = _Purse(float(terms.max_bytes))
    every = [answer, *purses.values()]
    awaited: set[Quota] = set()
    sharers: list[tuple[ReplicaPartition, list[_Purse]]] = []
    most = 0  # bytes for all that share
    for replica in queue.in_order(by_turns=terms.by_turns):
        own = [answer, *_purses_of(replica, purses)] if terms.has_several_quotas else every
        if len(own) == 1:
            _keep_scarcest(replica, purses, soon, awaited)
            continue
        if not all([purse.is_open for purse in own]):
            continue
        left = min([purse.left for purse in own])
        if sharers:
            if left < most and not terms.shares_all:  # a quota of its own allows less than what is shared
                continue
        else:
            cap, is_sure = _cap_for(terms, replica, left, answer)
            can_share = terms.most_shared > 1 and not is_sure and cap <= left and _all_from(own, every)
        if sharers or can_share:
            most = max(1, int(min(left, most or left)))
            sharers.append((replica, own))
            if len(sharers) >= terms.most_shared:
                break
            continue
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
        size = max(cap, replica.batches.next_size)
        grants.append((replica, cap))
        for purse in own:
            purse.pay(size, size if size > left else 0)
        if not _any_open(every):
            break
    max_bytes = answer.size + _share(sharers, most, 0 if grants else terms.next_batch) if sharers else None
    grants += [(replica, min(most, replica.max_bytes)) for replica, _ in sharers]
    parts = {quota: Part(purse.size, purse.batch) for quota, purse in purses.items() if purse.size}
    return Choice(tuple(grants), parts, max_bytes)


def _share(sharers: Iterable[tuple[ReplicaPartition, list[_Purse]]], most: int, next_batch: int) -> int:
    """Pay what those who share may bring from the purses of each: `most`, or their first batch. Returns the bytes."""
    sums: dict[_Purse, int] = {}
    for replica, own in sharers:
        for purse in own:
            sums[purse] = sums.get(purse, 0) + replica.max_bytes
    batch = next_batch if next_batch > most else 0
    for purse, size in sums.items():
        purse.pay(max(min(most, size), batch), batch)
    return min(most, max(sums.values()))


def _cap_for(terms: Terms, replica: ReplicaPartition, left: float, answer: _Purse) -> tuple[int, bool]:
    """Return the cap of a partition's grant for about `left` bytes, and whether it is sure to bring a batch."""
    if terms.takes_whole:  # a batch larger than the cap would be cut, for ever
        return replica.max_bytes, True
    if terms.shares_all:
        return min(replica.max_bytes, max(1, int(left))), False
    takes_out = terms.takes_out and answer.size + left <= HELD_BYTES
    return replica.batches.cap_for(
        left, worth_asking(replica), replica.topic.batches, takes_out=takes_out, wastes_some=terms.wastes_some
    )


def _all_from(own: list[_Purse], every: list[_Purse]) -> bool:
    """Whether all grants so far are paid from a partition's `own` purses, each from all of them.

    Else those who share could have what the other grants leave of the answer.
    """
    paid = {purse for purse in every if purse.size}
    return not paid or paid == set(own)


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

"""The order in which one link's partitions catch up. No broker can choose one.

*Urgent first* feeds partitions below their min ISR first, then those with the fewest bytes to go. The bytes are the
same as in turn, but partitions get in sync one after the other: the mean time to that falls towards half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from weir.protocol.steps import PER_STEP, Steps
from weir.quota.budget.queue import FLOOR
from weir.quota.fetch.state import UNKNOWN_OFFSET, Grant, ReplicaPartition
from weir.quota.side_state import SideState

RANK_SECONDS = 0.5  # how long a ranking is kept: one of thousands of partitions costs more than a fetch


@dataclass(slots=True)
class _Turn:
    """The next turn of a partition, since it fell behind last."""

    begin: float  # on a scale of bytes
    granted_offset: int = UNKNOWN_OFFSET  # the fetch offset at the last grant


class GrantQueue:
    """The partitions of one link that wait for a grant. It iterates in turn, from the one that had the fewest bytes on.

    One that an earlier hop leaves out for a while returns to its old place: else it would come last, each time anew.
    """

    def __init__(self, side: SideState) -> None:
        self._side = side
        self._waiting: dict[ReplicaPartition, None] = {}
        self._turns: dict[ReplicaPartition, _Turn] = {}  # also of those that are left out for a while
        self._is_sorted = True
        self._reached = 0.0  # where the last turn began
        self._furthest = 0.0  # where the last of all turns to come begins
        self._ranked: dict[ReplicaPartition, None] = {}  # all that waited when they were ranked, the most urgent first
        self._entered: dict[ReplicaPartition, None] = {}  # what has come since, in its order
        self._ranked_at = -math.inf
        self._owed = 0.0  # bytes that FLOOR has given to what is not the most urgent and it has not had yet
        self._last = 0  # bytes of the last grant

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, replica: ReplicaPartition) -> bool:
        return replica in self._waiting

    def __iter__(self) -> Iterator[ReplicaPartition]:
        if not self._is_sorted:
            self._is_sorted = True
            turns = self._turns
            self._waiting = dict.fromkeys(sorted(self._waiting, key=lambda replica: turns[replica].begin))
        return iter(self._waiting)

    @property
    def has_granted(self) -> bool:
        """Whether anything was granted to the link."""
        return self._last > 0

    def enter(self, replica: ReplicaPartition) -> None:
        """Let a partition wait; one that waits already keeps its place, and so does one that returns."""
        if replica not in self._waiting:
            turn = self._turns.get(replica)
            if turn is None:
                turn = self._turns[replica] = _Turn(self._reached)
            self._is_sorted &= turn.begin >= self._furthest
            self._waiting[replica] = self._entered[replica] = None

    def leave(self, replica: ReplicaPartition, *, returns: bool) -> None:
        """Take out a partition that does not wait. One that `returns` soon keeps its place."""
        if replica in self._waiting:
            del self._waiting[replica]
            self._entered.pop(replica, None)
        if not returns:
            self._turns.pop(replica, None)

    # What is next

    def goes_by_turns(self) -> bool:
        """Whether the next grants go by turns: always for `round-robin`, else for FLOOR's part of the bytes."""
        return self._side.settings.order == "round-robin" or self._owed >= self._last > 0

    def in_order(self, *, by_turns: bool) -> Iterator[ReplicaPartition]:
        """Iterate over the whole queue, from what is to be granted first on."""
        return iter(self) if by_turns else self.by_rank()

    def by_rank(self) -> Iterator[ReplicaPartition]:
        """The most urgent first; partitions whose last grant brought nothing come last.

        What has entered since the ranking goes first: an earlier hop leaves it out at times, and lets it through now.
        """
        stalled, entered = [], self._entered
        ranked = (replica for replica in self._ranked if replica in self._waiting and replica not in entered)
        has_at_risk = any(True for _ in self._at_risk())
        for replica in chain(ranked, entered) if has_at_risk else chain(entered, ranked):
            if self._stalls(replica):
                stalled.append(replica)
            else:
                yield replica
        yield from stalled

    def is_urgent(self) -> bool:
        """Whether a partition below its min ISR waits on the link: then it goes before links that have none."""
        has_ranks = self._side.settings.order != "round-robin"
        return has_ranks and any(one in self._waiting and not self._stalls(one) for one in self._at_risk())

    def rank_steps(self, now: float, answered_at: float) -> Steps[None]:
        """Rank the queue, where that is due, by an answer at `answered_at` or since. Done in steps."""
        if self._side.settings.order == "round-robin":
            return
        is_same = answered_at < self._ranked_at and len(self._waiting) == len(self._ranked)
        if now - self._ranked_at < RANK_SECONDS or is_same:
            return
        waiting, self._entered = list(self), {}
        remaining: list[float] = []
        for first in range(0, len(waiting), PER_STEP):
            if first:
                yield
            remaining += [_remaining(replica) for replica in waiting[first : first + PER_STEP]]
        ranked = [waiting[place] for place in (yield from _sorted_places(remaining))]
        if under_min_isr := self._side.under_min_isr:
            ranked.sort(key=lambda one: (one.topic.name, one.partition) not in under_min_isr)
        self._ranked, self._ranked_at = dict.fromkeys(ranked), now

    def rank_anew(self) -> None:
        """Have the queue ranked before the next grant: other partitions are below their min ISR."""
        self._ranked_at = -math.inf

    def _at_risk(self) -> Iterator[ReplicaPartition]:
        under_min_isr = self._side.under_min_isr
        if not under_min_isr:
            return iter(())
        return takewhile(lambda one: (one.topic.name, one.partition) in under_min_isr, self._ranked)

    def _stalls(self, replica: ReplicaPartition) -> bool:
        """Whether its last grant brought nothing: others go before it, and FLOOR's part of the bytes tries again."""
        turn = self._turns.get(replica)
        return turn is not None and turn.granted_offset == replica.fetch_offset

    # What became of it

    def granted(self, grants: Sequence[Grant], reserved: int, *, by_turns: bool) -> None:
        """Note grants, and the bytes reserved for them (0 where the policy reserves none): others are next."""
        self._last = reserved or sum(cap for _, cap in grants)
        if self._side.settings.order == "round-robin":
            self._owed = 0.0  # every grant goes by turns, so there is no floor to pay
        elif by_turns:
            self._owed -= self._last
        else:
            self._owed += self._last * FLOOR / (1 - FLOOR)
        for replica, cap in grants:
            turn = self._turns[replica]
            self._reached = max(self._reached, turn.begin)
            turn.begin = self._reached + granted_bytes(replica, cap)
            turn.granted_offset = replica.fetch_offset
            self._is_sorted &= turn.begin >= self._furthest
            self._furthest = max(self._furthest, turn.begin)
            del self._waiting[replica]
            self._waiting[replica] = None

    def brought_some(self, replica: ReplicaPartition, more: int) -> None:
        """Note that an answer had records of a partition, `more` bytes than it was granted: a whole batch."""
        turn = self._turns.get(replica)
        if turn is not None and more:
            turn.begin += more
            self._furthest = max(self._furthest, turn.begin)
            self._is_sorted = False

    def had_no_room(self, replica: ReplicaPartition) -> None:
        """Note that a grant brought nothing, as others had filled the answer: that says nothing of the partition."""
        if (turn := self._turns.get(replica)) is not None:
            turn.granted_offset = UNKNOWN_OFFSET

    def brought_nothing(self, replica: ReplicaPartition) -> None:
        """Let a partition come behind all others: the next hop may let nothing of it through at all."""
        if (turn := self._turns.get(replica)) is not None:
            turn.begin = self._furthest
            self._is_sorted = False


def granted_bytes(replica: ReplicaPartition, cap: int) -> int:
    """Return what a grant may bring: in the first place a batch comes whole, whatever its cap is."""
    return max(cap, replica.batches.next_size)


def _sorted_places(values: Sequence[float]) -> Steps[Sequence[int]]:
    """Return the places of all values, the least first. Sorted in steps: parts, which are then merged two by two."""
    count = len(values)
    parts = []
    for first in range(0, count, PER_STEP):
        parts.append(sorted(range(first, min(first + PER_STEP, count)), key=values.__getitem__))
        if count > PER_STEP:
            yield
    while len(parts) > 1:
        merged = []
        for pair in range(0, len(parts), 2):
            merged.append(sorted(chain(*parts[pair : pair + 2]), key=values.__getitem__))
            yield
        parts = merged
    return parts[0] if parts else ()


def _remaining(replica: ReplicaPartition) -> float:
    """Bytes to go as far as they can be estimated; inf without a high watermark."""
    high_watermark = replica.high_watermark
    if high_watermark == UNKNOWN_OFFSET:
        return math.inf
    return replica.batches.remaining(high_watermark - replica.fetch_offset, replica.topic.batches)

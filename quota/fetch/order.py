"""The order in which one link's partitions catch up. No broker can choose one.

Under one quota Kafka feeds all partitions that are behind in turn, so all of them are in sync only at the very end.
*Urgent first* feeds partitions below their min ISR first, then those with the fewest bytes to go. The bytes are the
same, but partitions get in sync one after the other: the mean time to that falls towards half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from weir.protocol.steps import Steps, at_once
from weir.quota.budget.queue import FLOOR
from weir.quota.fetch.grant_queue import GrantQueue
from weir.quota.fetch.state import UNKNOWN_OFFSET, Grant, ReplicaPartition
from weir.quota.side_state import SideState

RANK_SECONDS = 0.5
"""How long a ranking is kept. With thousands of partitions a new one for each fetch would cost more than the fetch."""

_RANKED_PER_STEP = 2_000  # partitions, in about 2 ms

_LONGEST = float("inf")


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """A link's whole queue, from what is to be granted first on. It can be iterated over any number of times."""

    order: CatchUp
    queue: GrantQueue
    by_turns: bool
    """Whether the order goes by turns, not by urgency: always in the order `round-robin`, else for FLOOR's part of the
    bytes."""

    def __iter__(self) -> Iterator[ReplicaPartition]:
        if self.by_turns:
            return iter(self.queue)
        return self.order.by_rank(self.queue)


class CatchUp:
    """The order of one link's partitions, and what was granted in it."""

    __slots__ = (
        "_at_risk",
        "_last",
        "_owed",
        "_ranked",
        "_ranked_at",
        "_side",
        "_under_min_isr",
        "answered_at",
    )

    def __init__(self, side: SideState) -> None:
        self._side = side
        # all that was behind when they were ranked, the most urgent first
        self._ranked: dict[ReplicaPartition, None] = {}
        self._at_risk: list[ReplicaPartition] = []  # those among them below min ISR
        self._under_min_isr: frozenset[tuple[bytes, int]] = frozenset()  # the set that the ranking was made with
        self._ranked_at = float("-inf")
        self._owed = 0.0  # bytes that FLOOR has given to the others and they have not had yet
        self._last = 0  # bytes of the last grant
        self.answered_at = float("-inf")
        """When the link's last answer was settled (clock seconds). Until the next one a ranking stays as it is."""

    @property
    def has_granted(self) -> bool:
        """Whether anything was granted to the link."""
        return self._last > 0

    def is_urgent(self, queue: GrantQueue, now: float) -> bool:
        """Whether a partition below its min ISR waits on the link: then it goes before links that have none."""
        if self._side.settings.order == "round-robin" or not self._side.under_min_isr:
            return False
        self._rank_when_due(queue, now)
        return any(replica in queue and not queue.stalls(replica) for replica in self._at_risk)

    def order(self, queue: GrantQueue, now: float) -> GrantOrder:
        """Return the order for one fetch."""
        if self._side.settings.order == "round-robin":
            return GrantOrder(self, queue, by_turns=True)
        self._rank_when_due(queue, now)
        return GrantOrder(self, queue, by_turns=self._owed >= self._last > 0)

    def granted(self, order: GrantOrder, grants: Sequence[Grant], reserved: int) -> None:
        """Note what was granted in `order`, and the bytes reserved for it (0 where the policy reserves none)."""
        self._last = reserved or sum(cap for _, cap in grants)
        if self._side.settings.order == "round-robin":
            self._owed = 0.0  # every grant goes by turns, so there is no floor to pay
        elif order.by_turns:
            self._owed -= self._last
        else:
            self._owed += self._last * FLOOR / (1 - FLOOR)
        for replica, cap in grants:
            order.queue.granted(replica, granted_bytes(replica, cap))

    def forget(self) -> None:
        """Drop the ranking: its partitions are dropped."""
        self._ranked, self._at_risk, self._ranked_at = {}, [], float("-inf")

    def by_rank(self, queue: GrantQueue) -> Iterator[ReplicaPartition]:
        """The most urgent first; partitions whose last grant brought nothing come last.

        What has entered since the ranking goes first: an earlier hop leaves it out at times, and lets it through now.
        """
        stalled, entered = [], queue.entered
        ranked = (replica for replica in self._ranked if replica in queue and replica not in entered)
        for replica in chain(ranked, entered) if self._at_risk else chain(entered, ranked):
            if queue.stalls(replica):
                stalled.append(replica)
            else:
                yield replica
        yield from stalled

    def rank_steps(self, queue: GrantQueue, now: float) -> Steps[None]:
        """Rank the queue, where that is due. Done in steps."""
        under_min_isr = self._side.under_min_isr
        if under_min_isr is self._under_min_isr and (
            now - self._ranked_at < RANK_SECONDS
            or (self.answered_at < self._ranked_at and len(queue) == len(self._ranked))
        ):
            return
        waiting, queue.entered = list(queue), {}
        remaining: list[float] = []
        for first in range(0, len(waiting), _RANKED_PER_STEP):
            if len(waiting) > _RANKED_PER_STEP:
                yield
            remaining += [_remaining(replica) for replica in waiting[first : first + _RANKED_PER_STEP]]
        if len(waiting) > _RANKED_PER_STEP:
            yield
        ranked = [waiting[place] for place in (yield from _sorted_places(remaining))]
        at_risk: list[ReplicaPartition] = []
        if under_min_isr:
            at_risk = [one for one in ranked if (one.topic.name, one.partition) in under_min_isr]
            are_at_risk = frozenset(at_risk)
            ranked = at_risk + [one for one in ranked if one not in are_at_risk]
        if len(waiting) > _RANKED_PER_STEP:
            yield
        self._ranked, self._at_risk = dict.fromkeys(ranked), at_risk
        self._ranked_at, self._under_min_isr = now, under_min_isr

    def _rank_when_due(self, queue: GrantQueue, now: float) -> None:
        at_once(self.rank_steps(queue, now))


def granted_bytes(replica: ReplicaPartition, cap: int) -> int:
    """Return what a grant may bring: in the first place a batch comes whole, whatever its cap is."""
    return max(cap, replica.batches.next_size)


def _sorted_places(values: Sequence[float]) -> Steps[Sequence[int]]:
    """Return the places of all values, the least first. Sorted in steps: parts, which are then merged two by two."""
    count = len(values)
    parts = []
    for first in range(0, count, _RANKED_PER_STEP):
        parts.append(sorted(range(first, min(first + _RANKED_PER_STEP, count)), key=values.__getitem__))
        if count > _RANKED_PER_STEP:
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
        return _LONGEST
    return replica.batches.remaining(high_watermark - replica.fetch_offset, replica.topic.batches)

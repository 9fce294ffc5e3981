"""Which of one link's partitions catch up first: what no broker can choose.

Under one quota Kafka feeds all that is behind in turn, so all of it is in sync at the very end only. *Urgent first*
feeds partitions below their min ISR first, then those with the fewest bytes to go: the same bytes, but partitions are
in sync one after the other, and the mean time to it falls towards half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from quota.budget.queue import FLOOR
from quota.fetch.grant_queue import GrantQueue
from quota.fetch.state import UNKNOWN_OFFSET, Grant, ReplicaPartition
from quota.side_state import SideState

RANK_SECONDS = 0.5
"""How long a ranking is kept: with thousands behind, a new one for each fetch would cost more than the fetch."""

_LONGEST = float("inf")


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """All of a link's queue, first what is to be granted first; it can be walked any number of times."""

    order: CatchUp
    queue: GrantQueue
    by_turns: bool
    """Whether it goes by turns and not by urgency: always so in the order `round-robin`, else for the FLOOR's share."""
    paced: Sequence[ReplicaPartition] = ()
    """What an earlier hop paces, where it is their turn."""

    def __iter__(self) -> Iterator[ReplicaPartition]:
        if self.by_turns:
            return iter(self.queue)
        by_rank = self.order.by_rank(self.queue)
        return _first_then(self.paced, by_rank) if self.paced else by_rank


class CatchUp:
    """The order of one link's partitions, and what was granted by it."""

    __slots__ = (
        "_at_risk",
        "_is_other_hops_turn",
        "_last",
        "_members",
        "_owed",
        "_ranked",
        "_ranked_at",
        "_side",
        "_under_min_isr",
    )

    def __init__(self, side: SideState) -> None:
        self._side = side
        self._ranked: list[ReplicaPartition] = []  # all that was behind lately, the most urgent first
        self._members: frozenset[ReplicaPartition] = frozenset()  # the same
        self._at_risk: list[ReplicaPartition] = []  # those of them below min ISR
        self._under_min_isr: frozenset[tuple[bytes, int]] = frozenset()  # that the ranking was made by
        self._ranked_at = float("-inf")
        self._owed = 0.0  # bytes that the floor has to come
        self._last = 0  # bytes granted last
        self._is_other_hops_turn = True

    def is_urgent(self, queue: GrantQueue, now: float) -> bool:
        """Whether the link has a partition below min ISR to feed, and so goes before links that have none."""
        if self._side.settings.order == "round-robin" or not self._side.under_min_isr:
            return False
        self._rank_when_due(queue, now)
        return any(replica in queue and not replica.stalls for replica in self._at_risk)

    def order(self, queue: GrantQueue, now: float) -> GrantOrder:
        """The order for one fetch."""
        if self._side.settings.order == "round-robin":
            return GrantOrder(self, queue, by_turns=True)
        self._rank_when_due(queue, now)
        is_floors_turn = self._owed >= self._last > 0
        paced = self._paced(queue) if self._is_other_hops_turn and not is_floors_turn else ()
        return GrantOrder(self, queue, is_floors_turn, paced)

    def granted(self, order: GrantOrder, grants: Sequence[Grant], reserved: int) -> None:
        """Note what was granted by `order`, and the bytes reserved for it (0 without a reservation)."""
        self._last = reserved or sum(cap for _, cap in grants)
        if self._side.settings.order == "round-robin":
            self._owed = 0.0  # all is alike
        elif order.by_turns:
            self._owed -= self._last
        else:
            self._owed += self._last * FLOOR / (1 - FLOOR)
        self._is_other_hops_turn = not (self._is_other_hops_turn and grants[0][0].is_paced)
        for replica, cap in grants:
            replica.granted_offset = replica.fetch_offset
            order.queue.granted(replica, cap)

    def _paced(self, queue: GrantQueue) -> Sequence[ReplicaPartition]:
        """What an earlier hop grants now, that which had least first; nothing where this hop sees no other kind.

        That hop has chosen them, and may not have them here when their rank's turn comes: they take every other grant.
        """
        paced = queue.paced
        if not paced or len(paced) == len(queue) or self._at_risk:
            return ()
        return sorted(paced, key=attrgetter("turn"))

    def by_rank(self, queue: GrantQueue) -> Iterator[ReplicaPartition]:
        """The most urgent first; what stalls comes last."""
        stalled = []
        for replica in self._ranked:
            if replica not in queue:
                continue
            if replica.stalls:
                stalled.append(replica)
            else:
                yield replica
        if len(queue) > len(stalled):
            for replica in queue:  # behind since the ranking was made
                if replica not in self._members:
                    yield replica
        yield from stalled

    def _rank_when_due(self, queue: GrantQueue, now: float) -> None:
        under_min_isr = self._side.under_min_isr
        if now - self._ranked_at < RANK_SECONDS and under_min_isr is self._under_min_isr:
            return
        self._ranked_at, self._under_min_isr = now, under_min_isr
        self._ranked = sorted(queue, key=_remaining)
        if under_min_isr:
            self._at_risk = [one for one in self._ranked if (one.topic.name, one.partition) in under_min_isr]
            at_risk = frozenset(self._at_risk)
            self._ranked = self._at_risk + [one for one in self._ranked if one not in at_risk]
        else:
            self._at_risk = []
        self._members = frozenset(self._ranked)


def _first_then(first: Sequence[ReplicaPartition], order: Iterable[ReplicaPartition]) -> Iterator[ReplicaPartition]:
    yield from first
    taken = frozenset(first)
    for replica in order:
        if replica not in taken:
            yield replica


def _remaining(replica: ReplicaPartition) -> float:
    """Bytes to go, as far as they are known."""
    high_watermark = replica.high_watermark
    if high_watermark == UNKNOWN_OFFSET:
        return _LONGEST
    return replica.batches.remaining(high_watermark - replica.fetch_offset, replica.topic.batches)

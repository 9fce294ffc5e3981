"""The partitions of one link that wait for a grant, in the order of their turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weir.quota.fetch.state import UNKNOWN_OFFSET, ReplicaPartition


@dataclass(slots=True)
class _Turn:
    """The next turn of a partition, since it fell behind last."""

    begin: float  # on a scale of bytes
    granted_offset: int = UNKNOWN_OFFSET  # the fetch offset at the last grant


class GrantQueue:
    """The partitions that wait for a grant, in turn (start-time fair queueing).

    It iterates from the one that had the fewest bytes on.

    A partition that an earlier hop leaves out for a while returns to its old place. At the end of the queue it would
    come after partitions that are never left out, each time anew.
    """

    __slots__ = ("_furthest", "_is_sorted", "_reached", "_turns", "_waiting", "entered")

    def __init__(self) -> None:
        self._waiting: dict[ReplicaPartition, None] = {}
        self._turns: dict[ReplicaPartition, _Turn] = {}  # also of those that are left out for a while
        self._is_sorted = True
        self._reached = 0.0  # where the last turn began
        self._furthest = 0.0  # where the last of all turns to come begins
        self.entered: dict[ReplicaPartition, None] = {}
        """Partitions that came since the queue was ranked last, in their order. Who ranks it empties this."""

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

    def enter(self, replica: ReplicaPartition) -> None:
        """Let a partition wait; one that waits already keeps its place, and so does one that returns."""
        if replica not in self._waiting:
            turn = self._turns.get(replica)
            if turn is None:
                turn = self._turns[replica] = _Turn(self._reached)
            self._is_sorted &= turn.begin >= self._furthest
            self._waiting[replica] = self.entered[replica] = None

    def leave(self, replica: ReplicaPartition, *, returns: bool) -> None:
        """Take out a partition that does not wait. One that `returns` soon keeps its place."""
        if replica in self._waiting:
            del self._waiting[replica]
            self.entered.pop(replica, None)
        if not returns:
            self._turns.pop(replica, None)

    def granted(self, replica: ReplicaPartition, size: int) -> None:
        """Note a grant of `size` bytes: the partition's next turn comes when all others have had as much."""
        turn = self._turns[replica]
        self._reached = max(self._reached, turn.begin)
        turn.begin = self._reached + size
        turn.granted_offset = replica.fetch_offset
        self._is_sorted &= turn.begin >= self._furthest
        self._furthest = max(self._furthest, turn.begin)
        del self._waiting[replica]
        self._waiting[replica] = None

    def stalls(self, replica: ReplicaPartition) -> bool:
        """Whether its last grant brought nothing.

        Others then go before it, and FLOOR's part of the bytes tries it again.
        """
        turn = self._turns.get(replica)
        return turn is not None and turn.granted_offset == replica.fetch_offset

    def brought_some(self, replica: ReplicaPartition, more: int) -> None:
        """Note that an answer had records of a partition, `more` bytes than it was granted.

        The first partition with data returns a whole batch, however small its grant was. Example: a grant of 135 KB
        brings 900 KB. Were 135 KB counted, its next turn would come when others had a seventh of that.
        """
        turn = self._turns.get(replica)
        if turn is not None and more:
            turn.begin += more
            self._furthest = max(self._furthest, turn.begin)
            self._is_sorted = False

    def had_no_room(self, replica: ReplicaPartition) -> None:
        """Note that the last grant brought nothing as the answer was full: it says nothing of the partition."""
        turn = self._turns.get(replica)
        if turn is not None:
            turn.granted_offset = UNKNOWN_OFFSET

    def brought_nothing(self, replica: ReplicaPartition) -> None:
        """Let a partition come behind all others: the answer to its grant had no records of any partition.

        The next hop may let nothing of it through at all.
        """
        turn = self._turns.get(replica)
        if turn is not None:
            turn.begin = self._furthest
            self._is_sorted = False

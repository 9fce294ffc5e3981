"""The partitions of one link that wait for a grant, in the order of their turns."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from weir.quota.fetch.state import ReplicaPartition


class GrantQueue:
    """The partitions that wait for a grant, in turn (start-time fair queueing).

    It iterates from the one that had the fewest bytes on.

    A partition that an earlier hop leaves out for a while returns to its old place. At the end of the queue it would
    come after partitions that are never left out, each time anew.
    """

    __slots__ = ("_furthest", "_is_sorted", "_reached", "_waiting", "entered")

    def __init__(self) -> None:
        self._waiting: dict[ReplicaPartition, None] = {}
        self._is_sorted = True
        self._reached = 0.0  # where the last turn began, on a scale of bytes
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
            self._waiting = dict.fromkeys(sorted(self._waiting, key=attrgetter("turn")))
        return iter(self._waiting)

    def enter(self, replica: ReplicaPartition) -> None:
        """Let a partition wait; one that waits already keeps its place, and so does one that returns."""
        if replica not in self._waiting:
            if not replica.was_queued:
                replica.was_queued = True
                replica.turn = self._reached
            self._is_sorted &= replica.turn >= self._furthest
            self._waiting[replica] = self.entered[replica] = None

    def leave(self, replica: ReplicaPartition) -> None:
        """Take out a partition that no longer waits, or not at the moment."""
        if replica in self._waiting:
            del self._waiting[replica]
            self.entered.pop(replica, None)

    def granted(self, replica: ReplicaPartition, size: int) -> None:
        """Note a grant of `size` bytes: the partition's next turn comes when all others have had as much."""
        self._reached = max(self._reached, replica.turn)
        replica.turn_before, replica.turn = replica.turn, self._reached + size
        self._is_sorted &= replica.turn >= self._furthest
        self._furthest = max(self._furthest, replica.turn)
        del self._waiting[replica]
        self._waiting[replica] = None

    def brought_nothing(self, replica: ReplicaPartition) -> None:
        """Give a partition its turn back: the answer to its grant had no records of any partition.

        The reason for this: the next hop may have budget for some of the fetches only. Partitions that take turns would
        then fall into step with that hop, and one of them would get nothing for as long as it lasts. With two grants
        and three in every other turn they fall out of step.

        After that the partition comes behind all others, as the next hop may let nothing of it through at all.
        """
        replica.barren_grants += 1
        if replica.barren_grants < 2 + replica.barren_turns % 2:
            replica.turn = replica.turn_before - 1  # in front of others whose turn begins at the same byte
        else:
            replica.barren_grants = 0
            replica.barren_turns += 1
            replica.turn = self._furthest
        self._is_sorted = False

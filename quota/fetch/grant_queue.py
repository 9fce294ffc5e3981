"""The partitions of one link that wait for a grant, and whose turn among them is next."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from quota.fetch.state import ReplicaPartition


class GrantQueue:
    """Iterates over what waits for a grant: first what had the fewest bytes (start-time fair queueing).

    What an earlier hop leaves out for a while returns to its place: else a partition that is there now and then would
    be behind all that is always there, for ever.
    """

    __slots__ = ("_is_sorted", "_reached", "_waiting", "paced")

    def __init__(self) -> None:
        self._waiting: dict[ReplicaPartition, None] = {}
        self._is_sorted = True
        self._reached = 0.0  # where the last turn began, in bytes
        self.paced: dict[ReplicaPartition, None] = {}
        """Those that an earlier hop paces: it leaves them out at times, or has given them smaller caps."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, replica: ReplicaPartition) -> bool:
        return replica in self._waiting

    def __iter__(self) -> Iterator[ReplicaPartition]:
        if not self._is_sorted:
            self._is_sorted = True
            self._waiting = dict.fromkeys(sorted(self._waiting, key=attrgetter("turn")))
        return iter(self._waiting)

    def enter(self, replica: ReplicaPartition, *, is_capped: bool) -> None:
        """A partition waits; one that does already keeps its place. `is_capped` says that others may have more."""
        if replica not in self._waiting:
            if replica.was_queued:
                replica.is_paced = True
            else:
                replica.was_queued = True
                replica.turn = self._reached
            self._is_sorted = False
            self._waiting[replica] = None
        replica.is_paced |= is_capped
        if replica.is_paced:
            self.paced[replica] = None

    def leave(self, replica: ReplicaPartition) -> None:
        """A partition does not wait any more, or not at the moment."""
        if replica in self._waiting:
            del self._waiting[replica]
            self.paced.pop(replica, None)

    def granted(self, replica: ReplicaPartition, size: int) -> None:
        """A partition has its grant of `size` bytes: its next turn is when all others have had as much."""
        self._reached = max(self._reached, replica.turn)
        replica.turn_before, replica.turn = replica.turn, self._reached + size
        replica.is_again, replica.is_due_again = replica.is_due_again, False
        del self._waiting[replica]
        self._waiting[replica] = None
        self._is_sorted = False

    def brought_nothing(self, replica: ReplicaPartition) -> None:
        """A grant's answer had no records, of any partition: it counts as no turn, but only once in a row.

        The next hop may have budget for every other fetch only. Two partitions in turn would then fall into step with
        it, and one of them would get nothing for as long as that lasts.
        """
        if not replica.is_again:
            replica.is_due_again = True
            replica.turn = replica.turn_before - 1  # in front of others whose turn begins at the same byte
            self._is_sorted = False

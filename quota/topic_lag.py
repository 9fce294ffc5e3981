"""The lag of one replica on one topic, by partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

IN_SYNC_SECONDS: Final = 15.0
"""How long the cluster's word that a replica is in sync holds: longer than it takes to ask again (`poll_seconds`)."""


class LagRow(NamedTuple):
    """One partition of one replica at the moment it is read.

    `topic` is its name (UTF-8), or its id as Kafka prints it while that is all that is known.
    """

    topic: bytes
    partition: int
    replica: int
    lag_seconds: float
    lag_messages: int
    stuck: bool
    """The replica did not ask for it, or had errors only, for `replica.lag.time.max.ms`."""


class _Note:
    """What is seldom known of a partition; all times are clock seconds."""

    __slots__ = ("hidden_at", "in_sync_at", "is_in_sync", "refused_at", "returned_at", "silent_since")

    def __init__(self) -> None:
        self.hidden_at: float | None = None  # the last fetch of its connection before it was left out as unassigned
        self.in_sync_at = -math.inf  # when the cluster said last that it is
        self.is_in_sync = False  # its last word, until that is old
        self.refused_at: float | None = None  # from when on it had errors only
        self.silent_since = self.returned_at = -math.inf  # its own last silence


class Asker(Protocol):
    """The fetches of one connection, in clock seconds."""

    at: float
    """Its last fetch."""
    is_open: bool
    silent_since: float
    """Its last fetch before it was silent for more than a long poll."""
    returned_at: float
    """Its first one after that."""


class Asked(Protocol):
    """One topic of one connection."""

    @property
    def asker(self) -> Asker:
        """Whose fetches ask for it."""


class Tracker(Protocol):
    """What keeps the lag of all topics. `count` takes what came or went, `in_sync` what the cluster says."""

    replica_lag_time_max: float
    silence_grace_seconds: float
    expire_seconds: float
    now: Callable[[], float]
    in_sync: Callable[[bytes, int, int], bool]

    def count(self, partitions: int, messages: int) -> None: ...

    def has_room(self) -> bool: ...


_Seen = tuple[int, float, Asked | float]
"""Messages behind; lag_begin, or when it was last seen caught up; who asks for it, or when it was last asked for."""


class TopicLag:
    """The lag of one replica on the partitions of one topic."""

    __slots__ = ("_emptied_at", "_notes", "_partitions", "_tracker", "is_kept", "names_topic", "replica", "topic")

    def __init__(self, tracker: Tracker, replica: int, topic: bytes, names_topic: bool) -> None:
        self._tracker = tracker
        self.replica = replica
        self.topic = topic
        self.names_topic = names_topic
        """Whether `topic` is the topic's name, and not its id."""
        self.is_kept = True
        """Whether the tracker has it still."""
        self._partitions: dict[int, _Seen] = {}
        self._notes: dict[int, _Note] = {}
        self._emptied_at = -math.inf

    def __len__(self) -> int:
        """Return how many partitions are known."""
        return len(self._partitions)

    # What connections tell

    def ask(self, partition: int, asked: Asked, now: float) -> None:
        """A connection asks for a partition that it did not ask for."""
        seen = self._partitions.get(partition)
        if seen is None:
            return
        messages, since, before = seen
        asked_at = _asked_at(before)
        if messages == 0 and now - asked_at > self._tracker.silence_grace_seconds:
            note = self._note(partition)
            note.silent_since, note.returned_at = asked_at, now
        self._partitions[partition] = (messages, since, asked)

    def leave(self, partition: int, asked: Asked, now: float) -> None:
        """A connection asks no more for a partition; ignored where another one does meanwhile."""
        seen = self._partitions.get(partition)
        if seen is not None and seen[2] is asked:
            self._partitions[partition] = (seen[0], seen[1], now)

    def update(self, partition: int, behind: int, asked: Asked, now: float) -> None:
        """A partition that a connection asks for is so many messages behind."""
        seen = self._partitions.get(partition)
        if seen is None:
            if self._tracker.has_room():
                self._tracker.count(1, behind)
                self._partitions[partition] = (behind, now, asked)
            return
        messages, since, _ = seen
        if behind != messages:
            self._tracker.count(0, behind - messages)
        if not behind:
            since = now
        elif not messages:
            since = self._lag_begin(partition, since, asked.asker, now)
        self._partitions[partition] = (behind, since, asked)
        if self._notes and (note := self._notes.get(partition)) is not None:
            note.refused_at = None

    def refuse(self, partition: int, asked: Asked, now: float, *, begins: bool) -> None:
        """A partition that a connection asks for has an error: it lags from the last good answer on."""
        seen = self._partitions.get(partition)
        if seen is None:
            if not begins or not self._tracker.has_room():
                return
            self._tracker.count(1, 0)
            seen = (0, now, asked)
        messages, since, _ = seen
        self._partitions[partition] = (messages, since, asked)
        note = self._note(partition)
        if note.refused_at is None:
            # Back after a silence, it had no good answer since.
            note.refused_at = note.silent_since if note.returned_at > since else now

    def answer(self, partition: int, asked: Asked, now: float) -> None:
        """A partition has no error any more, and is where it was."""
        note = self._notes.get(partition)
        if note is None or note.refused_at is None:
            return
        messages, since, _ = self._partitions[partition]
        if not messages:
            since = now
        note.refused_at = None
        self._partitions[partition] = (messages, since, asked)

    def take(self, other: TopicLag) -> None:
        """Take in what was seen of the topic under another name of it."""
        for partition, seen in other._partitions.items():
            self._put(partition, seen, other._notes.get(partition))

    # What the cluster's metadata tells

    def overdue(self, now: float, silent_seconds: float) -> list[int]:
        """The partitions that had no good answer for so long, or that lag for `replica.lag.time.max.ms`."""
        since = now - self._tracker.replica_lag_time_max
        found = []
        for partition, (messages, begin, asked) in self._partitions.items():
            is_late = now - _asked_at(asked) > silent_seconds or (messages > 0 and begin < since)
            note = self._notes.get(partition) if self._notes else None
            if note is not None:
                is_late |= note.refused_at is not None and now - note.refused_at > silent_seconds
                is_late &= not _is_hidden(note, asked)
            if is_late:
                found.append(partition)
        return found

    def answered_at(self, partition: int) -> float:
        """When the replica asked for a partition last, before it had errors only; -inf when it is not known."""
        seen, note = self._partitions.get(partition), self._notes.get(partition)
        if seen is None:
            return -math.inf
        return _asked_at(seen[2]) if note is None or note.refused_at is None else note.refused_at

    def is_answered(self, partition: int, now: float, silent_seconds: float) -> bool:
        """Whether the replica asks for a partition and has answers: leaders refuse what they do not lead."""
        seen = self._partitions.get(partition)
        if seen is None or not _is_open(seen[2]) or _is_refused(self._notes.get(partition)):
            return False
        return now - _asked_at(seen[2]) <= silent_seconds

    def set_in_sync(self, partition: int, now: float, is_in_sync: bool) -> None:
        """The cluster says whether the replica is in sync."""
        if partition in self._partitions and (is_in_sync or partition in self._notes):
            note = self._note(partition)
            note.is_in_sync = is_in_sync
            if is_in_sync:
                note.in_sync_at = now

    def leave_out(self, partition: int) -> None:
        """The partition is not assigned to the replica, or its leader is another broker.

        Where a silent connection still asks for it, it is back when that fetches again. Nothing else would tell of a
        partition at rest.
        """
        seen = self._partitions.get(partition)
        if seen is None:
            return
        messages, since, asked = seen
        if not _is_open(asked) or _is_refused(self._notes.get(partition)):
            self.forget(partition)
            self._emptied_at = self._tracker.now()
            return
        self._tracker.count(0, -messages)
        self._partitions[partition] = (0, since, asked)
        self._note(partition).hidden_at = _asked_at(asked)

    # What the tracker asks

    def of(self, partition: int, now: float) -> tuple[int, float] | None:
        """Return how far behind a partition is: messages, and seconds as `rows` tells them; None when not known."""
        seen = self._partitions.get(partition)
        if seen is None:
            return None
        lag, _ = self._lag(partition, seen, now)
        return seen[0], lag

    def rows(self, now: float) -> Iterator[LagRow]:
        """Every partition at `now`."""
        topic, replica = self.topic, self.replica
        # A copy: the caller may let fetches in between two rows.
        for partition, seen in list(self._partitions.items()):
            if self._notes and _is_hidden(self._notes.get(partition), seen[2]):
                continue
            lag, is_stuck = self._lag(partition, seen, now)
            yield LagRow(topic, partition, replica, lag, seen[0], is_stuck)

    @property
    def is_asked(self) -> bool:
        """Whether an open connection asks for one of its partitions."""
        return any(_is_open(asked) for _, _, asked in self._partitions.values())

    def expire(self, now: float) -> bool:
        """Forget what nobody asks for and was silent for long; returns whether nothing is left that is to be told."""
        before = now - self._tracker.expire_seconds
        over = [
            partition
            for partition, (_, _, asked) in self._partitions.items()
            if _asked_at(asked) < before and not _is_open(asked)
        ]
        for partition in over:
            self.forget(partition)
        return not self._partitions and self._emptied_at < before

    def forget(self, partition: int) -> None:
        """Drop a partition; an unknown one is ignored."""
        seen = self._partitions.pop(partition, None)
        if seen is not None:
            self._notes.pop(partition, None)
            self._tracker.count(-1, -seen[0])

    def empty(self) -> None:
        """The tracker keeps it no longer."""
        self._tracker.count(-len(self._partitions), -sum(messages for messages, _, _ in self._partitions.values()))
        self._partitions, self._notes, self.is_kept = {}, {}, False

    def _put(self, partition: int, seen: _Seen, note: _Note | None) -> None:
        self.forget(partition)
        if self._tracker.has_room():
            self._tracker.count(1, seen[0])
            self._partitions[partition] = seen
            if note is not None:
                self._notes[partition] = note

    def _note(self, partition: int) -> _Note:
        note = self._notes.get(partition)
        if note is None:
            note = self._notes[partition] = _Note()
        return note

    def _lag_begin(self, partition: int, caught_up_at: float, asker: Asker, now: float) -> float:
        """Return since when a partition lags that was caught up and is not any more.

        That is now, unless the replica has just come back and was last seen caught up before it went: then it lags
        since it went silent, or its lag would begin at 0 again though it never caught up (KIP-16's third scenario).
        Only soon after the return: a partition with nothing new is not updated, and may be idle for days before it is.
        """
        soon = now - self._tracker.replica_lag_time_max
        note = self._notes.get(partition) if self._notes else None
        if note is not None:
            if note.refused_at is not None:
                return note.refused_at
            if note.returned_at >= soon and caught_up_at < note.returned_at:
                return note.silent_since
        return asker.silent_since if asker.returned_at >= soon and caught_up_at < asker.returned_at else now

    def _lag(self, partition: int, seen: _Seen, now: float) -> tuple[float, bool]:
        """Return for how long a partition lags, and whether it is stuck."""
        messages, since, asked = seen
        tracker = self._tracker
        silence = now - _asked_at(asked)
        note = self._notes.get(partition) if self._notes else None
        if note is not None and note.refused_at is not None:
            silence = max(silence, now - note.refused_at)
        lag = now - since if messages else 0.0
        # Within the grace a silence is none: a follower that waits for new records says nothing meanwhile.
        if silence > lag and silence > tracker.silence_grace_seconds:
            lag = silence
        if lag > tracker.silence_grace_seconds:
            if self.names_topic and tracker.in_sync(self.topic, partition, self.replica):
                self._note(partition).in_sync_at = now
                return 0.0, False
            if note is not None:
                since_in_sync = now - note.in_sync_at
                if note.is_in_sync and since_in_sync <= IN_SYNC_SECONDS:
                    return 0.0, False
                # Who is in sync has caught up within `replica.lag.time.max.ms`.
                lag = min(lag, since_in_sync + tracker.replica_lag_time_max)
        return lag, min(silence, lag) > tracker.replica_lag_time_max


def _asked_at(asked: Asked | float) -> float:
    return asked if isinstance(asked, (int, float)) else asked.asker.at


def _is_open(asked: Asked | float) -> bool:
    return not isinstance(asked, (int, float)) and asked.asker.is_open


def _is_refused(note: _Note | None) -> bool:
    return note is not None and note.refused_at is not None


def _is_hidden(note: _Note | None, asked: Asked | float) -> bool:
    """Whether a partition was left out, and the connection that asked for it has not fetched since."""
    return note is not None and note.hidden_at is not None and _asked_at(asked) == note.hidden_at

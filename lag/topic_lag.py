# SPDX-License-Identifier: Apache-2.0
"""The lag of one replica on one topic, by partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

IN_SYNC_SECONDS: Final = 15.0
"""How long the cluster's word that a replica is in sync holds: longer than the time between two polls (`poll_seconds`).
"""


class LagRow(NamedTuple):
    """One partition of one replica, at the moment it is read.

    `topic` is its name (UTF-8), or its id as Kafka prints it while the name is not known.
    """

    topic: bytes
    partition: int
    replica: int
    lag_seconds: float
    lag_messages: int
    stuck: bool
    """Whether the replica did not ask for it, or was answered with errors only, for `replica.lag.time.max.ms`."""


class CaughtUp(NamedTuple):
    """The last time that a replica is known to have caught up."""

    offset: int
    """The high watermark that it had reached."""
    at: float
    """Clock seconds."""


class _Note:
    """Facts that only few partitions have; times are clock seconds."""

    __slots__ = ("hidden_at", "in_sync_at", "is_in_sync", "refused_at", "returned_at", "silent_since")

    def __init__(self) -> None:
        self.hidden_at: float | None = None  # its connection's last fetch when it was left out as not assigned
        self.in_sync_at = -math.inf  # when the cluster last said that it is in sync
        self.is_in_sync = False  # the cluster's last word, until that is too old
        self.refused_at: float | None = None  # since when it was answered with errors only
        self.silent_since = self.returned_at = -math.inf  # the partition's own last silence


class FetchTimes(Protocol):
    """When one connection fetched, in clock seconds; an `Asker` is one."""

    at: float
    """The time of its last fetch."""
    is_open: bool
    silent_since: float
    """Its last fetch before a silence that was longer than a long poll."""
    returned_at: float
    """Its first fetch after that silence."""

    @property
    def caught_up_at(self) -> float:
        """The last fetch at which what has caught up until now is known to have."""


class Asked(Protocol):
    """One topic of one connection; an `AskedTopic` is one."""

    @property
    def asker(self) -> FetchTimes:
        """The connection whose fetches ask for it."""


class Tracker(Protocol):
    """What a topic needs of the `LagTracker` that keeps it. Times are seconds.

    - `in_sync` says whether the cluster has a replica (topic, partition, broker id) in the ISR now.
    - `count` adds to the totals by how many partitions and messages a topic has grown; either may be negative.
    - `has_room`: whether one more partition may be kept.
    """

    replica_lag_time_max: float
    silence_grace_seconds: float
    expire_seconds: float
    now: Callable[[], float]
    in_sync: Callable[[bytes, int, int], bool]

    def count(self, lag: TopicLag, partitions: int, messages: int) -> None: ...

    def has_room(self) -> bool: ...


_Seen = tuple[int, float, Asked | float, int, int]
"""Messages behind; lagBegin, or when it was last seen caught up; who asks for it, or when that was last the case; the
high watermark that it had reached then; the last one that was told."""

_NEVER_CAUGHT_UP: Final = -1
_NOT_TOLD: Final = -1


@dataclass(eq=False, repr=False, slots=True)
class TopicLag:
    """The lag of one replica on the partitions of one topic."""

    _tracker: Tracker
    replica: int
    topic: bytes
    names_topic: bool
    """Whether `topic` is the topic's name rather than its id."""
    is_kept: bool = True
    """Whether the tracker still keeps it."""
    messages: int = 0
    """Messages behind, of all partitions."""
    _partitions: dict[int, _Seen] = field(default_factory=dict)
    _notes: dict[int, _Note] = field(default_factory=dict)
    _emptied_at: float = -math.inf

    def __len__(self) -> int:
        """Return how many partitions are known."""
        return len(self._partitions)

    # What connections tell

    def ask(self, partition: int, asked: Asked, now: float) -> None:
        """Note that a connection asks for a partition that it did not ask for before."""
        seen = self._partitions.get(partition)
        if seen is None:
            return
        messages, since, before, reached, told = seen
        asked_at = _asked_at(before)
        if messages == 0 and now - asked_at > self._tracker.silence_grace_seconds:
            note = self._note(partition)
            note.silent_since, note.returned_at = asked_at, now
        self._partitions[partition] = (messages, since, asked, reached, told)

    def leave(self, partition: int, asked: Asked, now: float) -> None:
        """Note that a connection no longer asks for a partition. Ignored where another connection does meanwhile."""
        seen = self._partitions.get(partition)
        if seen is not None and seen[2] is asked:
            self._partitions[partition] = (seen[0], seen[1], now, seen[3], seen[4])

    def update(self, partition: int, high_watermark: int, behind: int, asked: Asked, now: float) -> None:
        """Note that a partition is `behind` messages behind `high_watermark`."""
        seen = self._partitions.get(partition)
        if seen is None:
            if self._tracker.has_room():
                self._count(1, behind)
                reached = _NEVER_CAUGHT_UP if behind else high_watermark
                self._partitions[partition] = (behind, now, asked, reached, high_watermark)
            return
        messages, since, _, reached, _ = seen
        if behind != messages:
            self._count(0, behind - messages)
        if not behind:
            since, reached = now, high_watermark
        elif high_watermark - behind < reached:
            reached = _NEVER_CAUGHT_UP  # it may have been deleted and made anew
        if behind and not messages:
            since = self._lag_begin(partition, since, asked.asker, now)
        self._partitions[partition] = (behind, since, asked, reached, high_watermark)
        if self._notes and (note := self._notes.get(partition)) is not None:
            note.refused_at = None

    def refuse(self, partition: int, asked: Asked, now: float, *, begins: bool) -> None:
        """Note that a partition is answered with an error: it lags since its last good answer."""
        seen = self._partitions.get(partition)
        if seen is None:
            if not begins or not self._tracker.has_room():
                return
            self._count(1, 0)
            seen = (0, now, asked, _NEVER_CAUGHT_UP, _NOT_TOLD)
        messages, since, _, reached, told = seen
        self._partitions[partition] = (messages, since, asked, reached, told)
        note = self._note(partition)
        if note.refused_at is None:
            # it came back after a silence, and has had no good answer since
            note.refused_at = note.silent_since if note.returned_at > since else now

    def answer(self, partition: int, asked: Asked, now: float) -> None:
        """Note that a partition has no error any more, and has not moved."""
        note = self._notes.get(partition)
        if note is None or note.refused_at is None:
            return
        messages, since, _, reached, told = self._partitions[partition]
        if not messages:
            since = now
        note.refused_at = None
        self._partitions[partition] = (messages, since, asked, reached, told)

    def take(self, other: TopicLag) -> None:
        """Take in what was seen of the topic under another key of it."""
        for partition, seen in other._partitions.items():
            self._put(partition, seen, other._notes.get(partition))

    # What the cluster's metadata tells

    def overdue(self, now: float, silent_seconds: float) -> list[int]:
        """Return the partitions without a good answer for `silent_seconds`, or behind by `replica.lag.time.max.ms`."""
        since = now - self._tracker.replica_lag_time_max
        found = []
        for partition, (messages, begin, asked, *_) in self._partitions.items():
            is_late = now - _asked_at(asked) > silent_seconds or (messages > 0 and begin < since)
            note = self._notes.get(partition) if self._notes else None
            if note is not None:
                is_late |= note.refused_at is not None and now - note.refused_at > silent_seconds
                is_late &= not _is_hidden(note, asked)
            if is_late:
                found.append(partition)
        return found

    def answered_at(self, partition: int) -> float:
        """Return when the replica last asked for a partition, before errors began; -inf where that is not known."""
        seen, note = self._partitions.get(partition), self._notes.get(partition)
        if seen is None:
            return -math.inf
        return _asked_at(seen[2]) if note is None or note.refused_at is None else note.refused_at

    def caught_up(self, partition: int) -> CaughtUp | None:
        """Return when the replica had caught up last; None where it is not known, or never had."""
        seen, note = self._partitions.get(partition), self._notes.get(partition)
        if seen is None or seen[3] == _NEVER_CAUGHT_UP:
            return None
        messages, since, asked, reached, _ = seen
        if messages:
            return CaughtUp(reached, since)
        at = asked if isinstance(asked, (int, float)) else asked.asker.caught_up_at
        if note is not None and note.returned_at > since:  # no answer since
            at = note.silent_since
        if note is not None and note.refused_at is not None:
            at = min(at, note.refused_at)
        return CaughtUp(reached, at)

    def told(self, partition: int, fetch_offset: int) -> int:
        """Return the high watermark that was told last; -1 where none is known, or its replica has gone back since."""
        seen = self._partitions.get(partition)
        return _NOT_TOLD if seen is None or fetch_offset < seen[4] - seen[0] else seen[4]

    def is_answered(self, partition: int, now: float, silent_seconds: float) -> bool:
        """Whether the replica asks for a partition and gets answers.

        Leaders refuse partitions that they do not lead.
        """
        seen = self._partitions.get(partition)
        if seen is None or not _is_open(seen[2]) or _is_refused(self._notes.get(partition)):
            return False
        return now - _asked_at(seen[2]) <= silent_seconds

    def set_in_sync(self, partition: int, now: float, is_in_sync: bool) -> None:
        """Note whether the cluster says that the replica is in sync."""
        if partition in self._partitions and (is_in_sync or partition in self._notes):
            note = self._note(partition)
            note.is_in_sync = is_in_sync
            if is_in_sync:
                note.in_sync_at = now

    def leave_out(self, partition: int) -> None:
        """Hide a partition that is not assigned to the replica, or is led by another broker.

        If a silent connection still asks for it, it is shown again when that connection fetches again. A partition at
        rest would show by nothing else.
        """
        seen = self._partitions.get(partition)
        if seen is None:
            return
        messages, since, asked, *_ = seen
        if not _is_open(asked) or _is_refused(self._notes.get(partition)):
            self.forget(partition)
            self._emptied_at = self._tracker.now()
            return
        self._count(0, -messages)
        self._partitions[partition] = (0, since, asked, _NEVER_CAUGHT_UP, _NOT_TOLD)
        self._note(partition).hidden_at = _asked_at(asked)

    # What the tracker asks

    def of(self, partition: int, now: float) -> tuple[int, float] | None:
        """Return how far behind a partition is: messages, and seconds as in `rows`. None where it is not known."""
        seen = self._partitions.get(partition)
        if seen is None:
            return None
        lag, _ = self._lag(partition, seen, now)
        return seen[0], lag

    def rows(self, now: float) -> Iterator[LagRow]:
        """Yield every partition, with its lag at `now`."""
        topic, replica = self.topic, self.replica
        # a copy: the caller may let fetches in between two rows
        for partition, seen in list(self._partitions.items()):
            if self._notes and _is_hidden(self._notes.get(partition), seen[2]):
                continue
            lag, is_stuck = self._lag(partition, seen, now)
            yield LagRow(topic, partition, replica, lag, seen[0], is_stuck)

    @property
    def is_asked(self) -> bool:
        """Whether an open connection asks for one of its partitions."""
        return any(_is_open(asked) for _, _, asked, *_ in self._partitions.values())

    def expire(self, now: float) -> bool:
        """Forget partitions that nobody asks for and that were silent for long. Returns whether none is left."""
        before = now - self._tracker.expire_seconds
        over = [
            partition
            for partition, (_, _, asked, *_) in self._partitions.items()
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
            self._count(-1, -seen[0])

    def empty(self) -> None:
        """Drop all partitions: the tracker no longer keeps the topic."""
        self._count(-len(self._partitions), -self.messages)
        self._partitions, self._notes, self.is_kept = {}, {}, False

    def _count(self, partitions: int, messages: int) -> None:
        self.messages += messages
        self._tracker.count(self, partitions, messages)

    def _put(self, partition: int, seen: _Seen, note: _Note | None) -> None:
        self.forget(partition)
        if self._tracker.has_room():
            self._count(1, seen[0])
            self._partitions[partition] = seen
            if note is not None:
                self._notes[partition] = note

    def _note(self, partition: int) -> _Note:
        note = self._notes.get(partition)
        if note is None:
            note = self._notes[partition] = _Note()
        return note

    def _lag_begin(self, partition: int, caught_up_at: float, asker: FetchTimes, now: float) -> float:
        """Return since when a partition lags that was caught up until now.

        That is `now`, unless the replica has just come back from a silence and was last seen caught up before it. Then
        the partition lags since the silence began. Otherwise its lag would begin at 0 again although it has never
        caught up (KIP-16's third scenario).

        This holds only soon after the return: a partition without new records is not updated, and may be idle for days.
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
        """Return for how many seconds a partition lags, and whether it is stuck."""
        messages, since, asked, *_ = seen
        tracker = self._tracker
        silence = now - _asked_at(asked)
        note = self._notes.get(partition) if self._notes else None
        if note is not None and note.refused_at is not None:
            silence = max(silence, now - note.refused_at)
        lag = now - since if messages else 0.0
        # Within the grace it is no silence: a follower that waits for new records sends nothing meanwhile.
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
                # A replica in sync has caught up within the last `replica.lag.time.max.ms`.
                lag = min(lag, since_in_sync + tracker.replica_lag_time_max)
        return lag, min(silence, lag) > tracker.replica_lag_time_max


def _asked_at(asked: Asked | float) -> float:
    return asked if isinstance(asked, (int, float)) else asked.asker.at


def _is_open(asked: Asked | float) -> bool:
    return not isinstance(asked, (int, float)) and asked.asker.is_open


def _is_refused(note: _Note | None) -> bool:
    return note is not None and note.refused_at is not None


def _is_hidden(note: _Note | None, asked: Asked | float) -> bool:
    """Whether a partition was left out as not assigned, and its connection has not fetched since."""
    return note is not None and note.hidden_at is not None and _asked_at(asked) == note.hidden_at

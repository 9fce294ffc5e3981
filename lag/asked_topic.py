# SPDX-License-Identifier: Apache-2.0
"""What connections tell the lag tracker: who asks for which partitions, and what the answers have.

A connection asks for a partition from the first request that has it until one leaves it out, or until the connection is
closed. The requests in between cost nothing per partition: each partition refers to its connection's `Asker`, and that
knows the time of the last fetch.
"""

from __future__ import annotations

import math
from typing import Protocol

from weir.lag.topic_lag import CaughtUp, TopicLag


class TopicLags(Protocol):
    """What a connection needs of the `LagTracker`, whose methods these are."""

    silence_grace_seconds: float

    def fetched(self) -> None: ...

    def known(self, replica: int, topic: bytes) -> TopicLag | None: ...

    def made(self, asked: AskedTopic) -> TopicLag | None: ...

    def makes_later(self, asked: AskedTopic) -> bool: ...

    def renamed(self, lag: TopicLag, asked: AskedTopic) -> TopicLag | None: ...


class Asker:
    """When one connection fetches. `LagTracker.asker` makes it with the connection."""

    __slots__ = ("at", "is_open", "returned_at", "silent_since", "tracker")

    def __init__(self, tracker: TopicLags) -> None:
        self.tracker = tracker
        self.at = -math.inf
        """The time of its last fetch (clock seconds)."""
        self.is_open = True
        # The last silence that was longer than a long poll: the last fetch before it, and the first one after it.
        self.silent_since = self.returned_at = -math.inf

    def fetched(self, now: float) -> None:
        """Note a fetch. It counts for every partition that this connection asks for."""
        if now - self.at > self.tracker.silence_grace_seconds and self.at > -math.inf:
            self.silent_since = self.at
            self.returned_at = now
        self.at = now
        self.tracker.fetched()

    @property
    def caught_up_at(self) -> float:
        """The last fetch at which what has caught up until now is known to have (clock seconds).

        The first one after a silence asks for what was written meanwhile.
        """
        return self.silent_since if self.returned_at == self.at else self.at

    def close(self) -> None:
        """End the connection. Each of its partitions is silent from the last fetch on."""
        self.is_open = False

    def topic(self, replica: int, topic: bytes, names_topic: bool = True) -> AskedTopic:
        """Return the topic, through which the lag of `replica` (a broker id) on it is noted.

        `names_topic` is False where `topic` is the topic's id as Kafka prints it.
        """
        return AskedTopic(self, replica, topic, names_topic)


class AskedTopic:
    """One topic of one connection. It takes nothing in the tracker until an answer has told a high watermark."""

    __slots__ = ("_early", "_lag", "asker", "names_topic", "replica", "topic")

    def __init__(self, asker: Asker, replica: int, topic: bytes, names_topic: bool) -> None:
        self.asker = asker
        self.replica = replica
        self.topic = topic
        self.names_topic = names_topic
        self._lag = asker.tracker.known(replica, topic)
        # Observations that wait: partition, high watermark, messages behind (None: refused with an error), and when.
        self._early: list[tuple[int, int, int | None, float]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the tracker keeps a lag of the replica on this topic."""
        return self._lag is not None and self._lag.is_kept

    def ask(self, partition: int, now: float) -> CaughtUp | None:
        """Note that the connection asks for a partition from `now` on.

        Returns when the replica had caught up last, on any connection. None where it is not known, or never had.
        """
        if (lag := self._known()) is None:
            return None
        caught_up = lag.caught_up(partition)
        lag.ask(partition, self, now)
        return caught_up

    def told(self, partition: int, fetch_offset: int) -> int:
        """Return the high watermark that was told last, on any connection.

        -1 where none is known, or the replica, which is at `fetch_offset` now, has gone back since.
        """
        return -1 if (lag := self._known()) is None else lag.told(partition, fetch_offset)

    def leave(self, partition: int, now: float) -> None:
        """Note that the connection no longer asks for a partition, which is silent from `now` on."""
        if (lag := self._known()) is not None:
            lag.leave(partition, self, now)

    def update(self, partition: int, fetch_offset: int, high_watermark: int, now: float) -> None:
        """Note the replica's position after either offset has changed.

        A high watermark below 0 is unknown, and ignored.

        Both offsets belong to one fetch: the offset asked for, and the high watermark in its answer or in the one
        before.
        """
        if high_watermark < 0:
            return
        behind = max(high_watermark - fetch_offset, 0)
        lag = self._lag
        if lag is None or not lag.is_kept:
            if self._is_left_for_later(partition, high_watermark, behind, now):
                return
            lag = self._lag = self.asker.tracker.made(self)
            if lag is None:
                return
        lag.update(partition, high_watermark, behind, self, now)

    def take_early(self) -> TopicLag | None:
        """Take in the observations that were left for later."""
        early, self._early = self._early, None
        if not early:
            return None
        self._lag = lag = self.asker.tracker.made(self)
        if lag is not None:
            for partition, high_watermark, behind, at in early:
                if behind is None:
                    lag.refuse(partition, self, at, begins=True)
                else:
                    lag.update(partition, high_watermark, behind, self, at)
        return lag

    def refuse(self, partition: int, now: float, *, begins: bool) -> None:
        """Note that a partition was answered with an error.

        `begins`: its lag begins now, if nothing was known of it.
        """
        if begins and self._is_left_for_later(partition, 0, None, now):
            return
        lag = self._known()
        if lag is None and begins:
            lag = self._lag = self.asker.tracker.made(self)
        if lag is not None:
            lag.refuse(partition, self, now, begins=begins)

    def answer(self, partition: int, now: float) -> None:
        """Note that a partition is answered without an error again, at the offsets known before."""
        if (lag := self._known()) is not None:
            lag.answer(partition, self, now)

    def rename(self, topic: bytes) -> None:
        """Give a topic that was known by its id its name."""
        lag, self.topic, self.names_topic = self._known(), topic, True
        self._lag = (
            self.asker.tracker.known(self.replica, topic) if lag is None else self.asker.tracker.renamed(lag, self)
        )

    def _is_left_for_later(self, partition: int, high_watermark: int, behind: int | None, now: float) -> bool:
        if self._early is None and self._known() is None and self.asker.tracker.makes_later(self):
            self._early = []
        if self._early is None:
            return False
        self._early.append((partition, high_watermark, behind, now))
        return True

    def _known(self) -> TopicLag | None:
        if self._early is not None:
            self.take_early()
        if self._lag is not None and not self._lag.is_kept:
            self._lag = self.asker.tracker.known(self.replica, self.topic)
        return self._lag

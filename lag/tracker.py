# SPDX-License-Identifier: Apache-2.0
"""Replica lag as seen on the wire: in time (KIP-16), and in messages (KIP-73's SumReplicaLag).

A replica is caught up when its fetch offset has reached the high watermark. (KIP-16 compares it with the leader's log
end offset, which no Fetch carries. What the leader has beyond the high watermark is on its way to every in-sync
replica.) `lag_begin` is the KIP's lagBegin: it is set when a replica is first seen not caught up, and kept until it is.

A partition that its replica no longer asks for lags from then on. One that is answered with errors only lags since its
last good answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from typing import Final, TypeVar

from weir.lag.asked_topic import AskedTopic, Asker
from weir.lag.broker_ids import BrokerIds
from weir.lag.topic_lag import LagRow, TopicLag

SILENCE_GRACE_SECONDS: Final = 2.0
"""A silence up to this long is no lag.

An idle follower is silent for one long poll at a time (`replica.fetch.wait.max.ms`, 0.5 s), and for
`replica.fetch.backoff.ms` (1 s) after an error. Without a grace the lag of a caught-up replica would flap between 0 and
these values. Nothing is lost by it, as what matters is `replica.lag.time.max.ms`, 10 to 30 s. Where that is less than
twice the grace, the grace is half of it.
"""

EXPIRE_SECONDS: Final = 3600.0
"""A partition that nobody asks for is forgotten after a silence of this long.

Where `replica.lag.time.max.ms` is longer than a tenth of it, ten times that counts instead. It is long enough to raise
an alert for a dead broker and to answer it; Kafka drops an idle quota sensor after an hour too.
"""

MOST_PARTITIONS: Final = 100_000
"""The most partitions of replicas, and also the most topics of replicas, that one side keeps.

They take about 80 MB at most, where each topic has one partition; a large broker has a fifth as many. What has been
silent for longest makes room for more.
"""

_Key = TypeVar("_Key")

_LOOKED_AT: Final = 2  # topics looked at to make room, so that this never costs more
_LOOKED_AT_IN_A_SECOND: Final = 8  # topics looked at for whether they have expired; `rows` looks at all of them
_FORGOTTEN_IN_A_LOOK: Final = 500  # partitions and topics that one look forgets in about 1 ms; others wait for it
_LOOKED_AT_FOR_BEHIND: Final = 10  # replicas of topics, for each topic that is wanted
_MADE_AT_A_FETCH: Final = 100  # topics made in about 1 ms; the first fetch of 50,000 topics leaves the others for later


class LagTracker:
    """The lag of every replica that fetches through one side.

    - `clock` gives monotonic seconds; `replica_lag_time_max_seconds` is `replica.lag.time.max.ms`.
    - `forgotten` is called with a topic when its last replica is forgotten.
    - `in_sync` says whether the cluster has a replica (topic, partition, broker id) in the ISR now.

    Only `rows` takes longer where more topics are known.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        replica_lag_time_max_seconds: float,
        forgotten: Callable[[bytes], None] = lambda topic: None,
        in_sync: Callable[[bytes, int, int], bool] = lambda topic, partition, replica: False,
        brokers: BrokerIds | None = None,
        most_partitions: int = MOST_PARTITIONS,
    ) -> None:
        self.now = clock
        self.in_sync = in_sync
        self.evicted = 0
        """Partitions that made room for others, plus the times that no room could be made."""
        self._brokers = BrokerIds() if brokers is None else brokers
        self._forgotten = forgotten
        self._most_partitions = most_partitions
        self._topics: dict[tuple[int, bytes], TopicLag] = {}
        self._turns: deque[TopicLag] = deque()  # the one looked at longest ago first; some are no longer kept
        self._early: deque[AskedTopic] = deque()  # topics with observations that wait to be taken in
        self._to_make = _MADE_AT_A_FETCH
        self._replicas_of: dict[bytes, int] = {}  # how many replicas have each topic
        self._topics_of: dict[int, int] = {}  # how many topics each replica has
        self._partitions = 0
        self._messages = 0
        self._behind: dict[TopicLag, None] = {}  # those with messages behind, the one that is so for longest first
        self.found_messages = 0
        """How far behind partitions were when they were first seen, less what they were when they were forgotten.

        The part of `sum_messages` that came with partitions, rather than by what was produced and fetched since.
        """
        self._expire_at = -math.inf  # when to look for expired topics next
        self.replica_lag_time_max = replica_lag_time_max_seconds

    @property
    def replica_lag_time_max(self) -> float:
        """`replica.lag.time.max.ms` in seconds; may be set at any time. ValueError unless it is more than 0."""
        return self._replica_lag_time_max

    @replica_lag_time_max.setter
    def replica_lag_time_max(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"replica_lag_time_max must be more than 0 seconds, not {seconds}.")
        self._replica_lag_time_max = seconds
        self.silence_grace_seconds = min(SILENCE_GRACE_SECONDS, seconds / 2)
        self.expire_seconds = max(EXPIRE_SECONDS, 10 * seconds)

    def asker(self) -> Asker:
        """Return the Asker of a new connection."""
        return Asker(self)

    def known(self, replica: int, topic: bytes) -> TopicLag | None:
        """Return the lag of this replica on this topic. None where it is not known; nothing is made."""
        return self._topics.get((replica, topic))

    def knows(self, replica: int) -> bool:
        """Whether the lag of this replica on any topic is known."""
        return replica in self._topics_of

    def topics(self) -> list[TopicLag]:
        """Return the lag of every replica on every topic."""
        return list(self._topics.values())

    def rows(self) -> Iterator[LagRow]:
        """Iterate over every partition of every replica, each with its lag at the moment it is read.

        Fetches may go on between two rows: each topic is copied when its first row is read. What has expired is
        forgotten, but only so much at once that other connections hardly wait for it. The rest is told once more.
        """
        may_forget = _FORGOTTEN_IN_A_LOOK
        for lag in self.topics():
            now = self.now()
            if not lag.is_kept:
                continue
            is_over = self._brokers.is_refused(lag.replica)
            if may_forget > 0:
                before = len(lag)
                if is_over := lag.expire(now) or is_over:
                    self.drop(lag)
                may_forget -= before - len(lag) + is_over
            if not is_over:
                yield from lag.rows(now)
        while self._early:
            asked = self._early.popleft()
            if (new := asked.take_early()) is not None:
                yield from new.rows(self.now())

    def topics_behind(self, most: int) -> set[bytes]:
        """Return the names of topics with a replica that is behind: those that are so for longest, `most` at most."""
        found: set[bytes] = set()
        for lag in islice(self._behind, _LOOKED_AT_FOR_BEHIND * most):
            if lag.names_topic:
                found.add(lag.topic)
            if len(found) >= most:
                break
        return found

    def sum_messages(self) -> int:
        """Return KIP-73's SumReplicaLag: messages behind, summed over all replicas."""
        return self._messages

    # For the topics

    def fetched(self) -> None:
        """Note that a connection fetches: a number of topics may be made again."""
        self._to_make = _MADE_AT_A_FETCH
        while self._early and self._to_make > 0:
            self._to_make -= 1
            self._early.popleft().take_early()

    def makes_later(self, asked: AskedTopic) -> bool:
        """Whether to make a topic later: so many were made at this fetch that other connections would wait."""
        self._to_make -= 1
        if self._to_make >= 0 or len(self._early) >= self._most_partitions:
            return False
        self._early.append(asked)
        return True

    def made(self, asked: AskedTopic) -> TopicLag | None:
        """Return the lag of a topic that a connection asks for.

        None where its replica is no broker, or there is no room.
        """
        key = asked.replica, asked.topic
        lag = self._topics.get(key)
        if lag is not None:
            return lag
        if not self._brokers.admits(asked.replica, asked.topic if asked.names_topic else b""):
            return None
        self._expire()
        if len(self._topics) >= self._most_partitions and not self._evict():
            return None
        self._topics[key] = lag = TopicLag(self, asked.replica, asked.topic, asked.names_topic)
        if len(self._turns) > 2 * len(self._topics) + _MADE_AT_A_FETCH:
            self._turns = deque(self._topics.values())
        else:
            self._turns.append(lag)
        self._replicas_of[asked.topic] = self._replicas_of.get(asked.topic, 0) + 1
        self._topics_of[asked.replica] = self._topics_of.get(asked.replica, 0) + 1
        return lag

    def renamed(self, lag: TopicLag, asked: AskedTopic) -> TopicLag | None:
        """Give a topic its name. Returns its lag, with what was seen so far under its id."""
        seen = copy(lag)
        self.drop(lag)
        named = self.made(asked)
        if named is not None:
            named.take(seen)
        return named

    def drop(self, lag: TopicLag) -> None:
        """Drop a topic of a replica."""
        lag.empty()
        del self._topics[lag.replica, lag.topic]
        if _is_last(self._replicas_of, lag.topic):
            self._forgotten(lag.topic)
        if _is_last(self._topics_of, lag.replica):
            self._brokers.forget(lag.replica)

    def count(self, lag: TopicLag, partitions: int, messages: int) -> None:
        """Add what a topic has changed to the totals; both numbers may be negative."""
        self._partitions += partitions
        self._messages += messages
        if lag.messages:
            self._behind[lag] = None
        elif messages:
            self._behind.pop(lag, None)
        if partitions:
            self.found_messages += messages

    def has_room(self) -> bool:
        """Whether one more partition may be kept. Another one may have to go for it."""
        return self._partitions < self._most_partitions or self._evict()

    def _expire(self) -> None:
        now = self.now()
        if now < self._expire_at:
            return
        self._expire_at = now + 1.0
        for _ in range(min(_LOOKED_AT_IN_A_SECOND, len(self._turns))):
            lag = self._turns.popleft()
            if lag.is_kept and lag.expire(now):
                self.drop(lag)
            elif lag.is_kept:
                self._turns.append(lag)

    def _evict(self) -> bool:
        looked_at = 0
        while looked_at < _LOOKED_AT and self._turns:
            lag = self._turns.popleft()
            if not lag.is_kept:
                continue
            looked_at += 1
            if not lag.is_asked:
                self.evicted += len(lag)
                self.drop(lag)
                return True
            self._turns.append(lag)
        self.evicted += 1
        return False


def _is_last(counts: dict[_Key, int], key: _Key) -> bool:
    left = counts.pop(key) - 1
    if left:
        counts[key] = left
    return not left

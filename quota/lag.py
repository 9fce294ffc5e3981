"""How far behind each replica is, in time (KIP-16) and in messages (KIP-73's SumReplicaLag), as seen on the wire.

A replica is caught up when its fetch offset has reached the high watermark. KIP-16 compares with the leader's log end
offset, which no Fetch carries: what the leader has beyond the high watermark is on its way to every in-sync replica.
`lag_begin` is the KIP's lagBegin: set when a replica is first seen not caught up, kept until it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

SILENCE_GRACE_SECONDS: Final = 2.0
"""Silence up to here is not lag: an idle follower is silent for one long poll at a time (`replica.fetch.wait.max.ms`,
0.5 s) and for `replica.fetch.backoff.ms` (1 s) after an error. Without a grace the lag of a caught-up replica would
flap between 0 and these. Nothing is lost: what matters is `replica.lag.time.max.ms`, 10 to 30 s. Half of that, where it
is set below twice the grace."""

EXPIRE_SECONDS: Final = 3600.0
"""A replica that has not fetched a topic for this long is forgotten; ten times `replica.lag.time.max.ms` where that is
longer. Long enough to raise an alert for a dead broker and answer it; Kafka drops an idle quota sensor after an hour
too."""


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
    """No fetch of this topic came from the replica for `replica.lag.time.max.ms`."""


class TopicLag:
    """The lag of one replica on the partitions of one topic; made by `LagTracker.topic`.

    Silence is the topic's, not the partition's: nothing may be done for each of 2,000 partitions at each fetch.
    """

    __slots__ = (
        "_fetched_at",
        "_partitions",
        "_returned_at",
        "_returning",
        "_silent_since",
        "_tracker",
        "lag_messages",
        "names_topic",
        "replica",
        "topic",
    )

    def __init__(self, tracker: LagTracker, replica: int, topic: bytes, now: float, names_topic: bool) -> None:
        self._tracker = tracker
        self.replica = replica
        self.topic = topic
        self.names_topic = names_topic
        """Whether `topic` is the topic's name, and not its id."""
        self.lag_messages = 0
        """Sum over the partitions, as of their last update."""
        # By partition: (messages behind, lag_begin), or (0, when it was last seen caught up).
        self._partitions: dict[int, tuple[int, float]] = {}
        self._returning: dict[int, tuple[int, float]] = {}  # those of `leave_out`
        self._fetched_at = now
        # The last silence that was more than a long poll, from its last fetch before to its first fetch after.
        self._silent_since = now
        self._returned_at = now

    def __len__(self) -> int:
        """Return how many partitions are known."""
        return len(self._partitions)

    def fetched(self, now: float) -> None:
        """Note that the replica asks for this topic: once a fetch. `now` is the tracker's clock, in seconds."""
        if now - self._fetched_at > self._tracker.silence_grace_seconds:
            self._silent_since = self._fetched_at
            self._returned_at = now
            self._tracker._keep(self)
            self._take(self._returning)
            self._returning = {}
        self._fetched_at = now

    def update(self, partition: int, fetch_offset: int, high_watermark: int, now: float) -> None:
        """Note where the replica is, when either offset changed; a high watermark below 0 is unknown and says nothing.

        Both belong to one fetch: the offset asked for and the high watermark that answered it, or the one before.
        """
        if high_watermark < 0:
            return
        behind = high_watermark - fetch_offset
        if behind < 0:
            behind = 0
        before = self._partitions.get(partition)
        if before is None:
            self.lag_messages += behind
            self._partitions[partition] = (behind, now)
            return
        messages, since = before
        self.lag_messages += behind - messages
        if behind == 0:
            self._partitions[partition] = (0, now)
        elif messages == 0:
            self._partitions[partition] = (behind, self._lag_begin(since, now))
        else:
            self._partitions[partition] = (behind, since)

    def of(self, partition: int, now: float) -> tuple[int, float] | None:
        """Return how far behind a partition is: messages, and seconds as `rows` tells them; None when not known."""
        known = self._partitions.get(partition)
        if known is None:
            return None
        messages, since = known
        return messages, max(now - since if messages else 0.0, self._silence_that_counts(now))

    @property
    def partitions(self) -> list[int]:
        """The partitions that are known."""
        return list(self._partitions)

    def is_overdue(self, now: float, silent_seconds: float) -> bool:
        """Whether no fetch of the topic came for so long, or a partition lags for `replica.lag.time.max.ms`."""
        if not self._partitions:
            return False
        if self._silence(now) > silent_seconds:
            return True
        since = now - self._tracker.replica_lag_time_max
        return self.lag_messages > 0 and any(behind and begin < since for behind, begin in self._partitions.values())

    def forget(self, partition: int) -> None:
        """Drop a partition that this replica no longer fetches from here; an unknown one is ignored."""
        self.lag_messages -= self._partitions.pop(partition, (0, 0.0))[0]

    def leave_out(self, partition: int, *, may_return: bool) -> None:
        """Forget a partition that is not assigned to the replica.

        Where a silent connection still asks for it, it `may_return`: when that fetches again. Nothing else would tell
        of a partition at rest.
        """
        if may_return:
            self._returning[partition] = self._partitions[partition]
        self.forget(partition)

    def closed(self) -> None:
        """A connection that fetched the topic is gone: what was left out will not return as it was."""
        self._returning = {}

    def take_over(self, other: TopicLag) -> None:
        """Take what `other` has seen of the same partitions, later than this one."""
        self._take(other._partitions)

    def _take(self, partitions: Mapping[int, tuple[int, float]]) -> None:
        for partition, (messages, since) in partitions.items():
            self.forget(partition)
            self._partitions[partition] = (messages, since)
            self.lag_messages += messages

    def _lag_begin(self, caught_up_at: float, now: float) -> float:
        """Return since when a partition lags that was caught up and is not any more.

        That is now, unless the replica has just come back and was last seen caught up before it went: then it lags
        since it went silent, or its lag would begin at 0 again though it never caught up (KIP-16's third scenario).
        Only soon after the return: a partition with nothing new is not updated, and may be idle for days before it is.
        """
        soon = now - self._returned_at <= self._tracker.replica_lag_time_max
        return self._silent_since if soon and caught_up_at < self._returned_at else now

    def _silence(self, now: float) -> float:
        return now - self._fetched_at

    def _silence_that_counts(self, now: float) -> float:
        """0 within the grace: a follower that waits for new records says nothing meanwhile."""
        silence = self._silence(now)
        return silence if silence > self._tracker.silence_grace_seconds else 0.0

    def _rows(self, now: float) -> Iterator[LagRow]:
        topic, replica, silence = self.topic, self.replica, self._silence_that_counts(now)
        stuck = self._silence(now) > self._tracker.replica_lag_time_max
        # A copy: the caller may let fetches in between two rows. `silence` is at least 0, and so is the lag.
        for partition, (messages, since) in list(self._partitions.items()):
            lag = now - since if messages else 0.0
            yield LagRow(topic, partition, replica, lag if lag > silence else silence, messages, stuck)


class LagTracker:
    """The lag of every replica that fetches through one side.

    `clock` gives monotonic seconds; `replica_lag_time_max_seconds` is `replica.lag.time.max.ms`. Memory is bounded by
    the partitions fetched in the last `expire_seconds`: what is silent for longer goes at the next `rows()`, or when a
    new topic comes. `forgotten` is called with a topic that went with its last replica.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        replica_lag_time_max_seconds: float,
        forgotten: Callable[[bytes], None] = lambda topic: None,
    ) -> None:
        self._clock = clock
        self._forgotten = forgotten
        self._topics: dict[tuple[int, bytes], TopicLag] = {}
        self.replica_lag_time_max = replica_lag_time_max_seconds

    @property
    def replica_lag_time_max(self) -> float:
        """`replica.lag.time.max.ms` in seconds; may be set at any time. ValueError unless more than 0."""
        return self._replica_lag_time_max

    @replica_lag_time_max.setter
    def replica_lag_time_max(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"replica_lag_time_max must be more than 0 seconds, not {seconds}.")
        self._replica_lag_time_max = seconds
        self.silence_grace_seconds = min(SILENCE_GRACE_SECONDS, seconds / 2)
        self.expire_seconds = max(EXPIRE_SECONDS, 10 * seconds)

    def topic(self, replica: int, topic: bytes, names_topic: bool = True) -> TopicLag:
        """Return the lag of this replica (its broker id) on this topic: the same object on every connection.

        `names_topic` is False where `topic` is the topic's id as Kafka prints it.
        """
        found = self._topics.get((replica, topic))
        if found is None:
            now = self._clock()
            self._expire(now)
            found = self._topics[replica, topic] = TopicLag(self, replica, topic, now, names_topic)
        return found

    def rename(self, topic_lag: TopicLag, topic: bytes) -> TopicLag:
        """Return the lag under the name of a topic that went by its id so far, with what was seen by then."""
        if topic_lag.topic == topic:
            return topic_lag  # by another connection of the replica
        self._topics.pop((topic_lag.replica, topic_lag.topic), None)
        known = self.topic(topic_lag.replica, topic)
        known.take_over(topic_lag)
        return known

    def known(self, replica: int, topic: bytes) -> TopicLag | None:
        """Return the lag of this replica on this topic, None where it is not known; nothing is made."""
        return self._topics.get((replica, topic))

    def topics(self) -> Iterator[TopicLag]:
        """Iterate over the lag of every replica on every topic."""
        return iter(self._topics.values())

    def rows(self) -> Iterator[LagRow]:
        """Iterate over every partition of every replica, each with its lag at the moment it is read.

        Lazy, and steady while fetches go on between two rows: each topic is copied when its first row is read.
        """
        self._expire(self._clock())
        for topic_lag in list(self._topics.values()):
            yield from topic_lag._rows(self._clock())

    def sum_messages(self) -> int:
        """Return KIP-73's SumReplicaLag: messages behind, over all replicas. Costs one addition a topic."""
        return sum(topic_lag.lag_messages for topic_lag in self._topics.values())

    def _keep(self, topic_lag: TopicLag) -> None:
        """Take back what a connection still holds although it had expired."""
        self._topics.setdefault((topic_lag.replica, topic_lag.topic), topic_lag)

    def _expire(self, now: float) -> None:
        silent = [key for key, topic_lag in self._topics.items() if topic_lag._silence(now) > self.expire_seconds]
        for key in silent:
            del self._topics[key]
        if silent:
            kept = {topic for _, topic in self._topics}
            for topic in {topic for _, topic in silent} - kept:
                self._forgotten(topic)

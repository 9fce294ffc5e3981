"""Forgets the lag of replicas that follow no more: moved away, deleted, or made the leader.

A follower that has nothing more to fetch from a leader falls silent, or closes the connection. On the wire that is a
broker that hangs or died; the cluster's metadata alone knows better.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from quota.lag import TopicLag
from quota.throttle import CLUSTER_METADATA_TOPIC, Throttle

Assignment = Mapping[int, frozenset[int] | None]
"""The followers' broker ids by partition, None where the cluster does not tell them now. A partition that is not in it
does not exist."""

SILENT_SECONDS: Final = 10.0
"""How long a replica has to be silent before its topic is asked for, and how long answers then have to leave it out: a
broker's metadata may be older than the replica's last fetch. A third of `replica.lag.time.max.ms` where that is less:
what is gone should be forgotten before it counts as out of sync."""

MOST_TOPICS: Final = 500
"""Topics asked for at a time: the others' turn comes next. A broker that died has perhaps thousands."""

_CLUSTER_METADATA: Final = CLUSTER_METADATA_TOPIC.encode()  # no Metadata response knows it


class UnassignedReplicas:
    """Names the topics to ask for, and takes the answers; one for both sides of a sidecar."""

    def __init__(self, throttles: Sequence[Throttle], most_topics: int = MOST_TOPICS) -> None:
        self._throttles = throttles
        self._most_topics = most_topics
        self._asked_last = b""
        # By partition: since when (clock seconds) answers leave the replica out. Of overdue replicas only.
        self._left_out: dict[TopicLag, dict[int, float]] = {}

    def topics(self) -> list[bytes]:
        """Return names (UTF-8) of topics with replicas that look as if they were gone, the next ones in turn."""
        overdue = [lag for throttle in self._throttles for lag in _overdue(throttle)]
        self._left_out = {lag: self._left_out[lag] for lag in overdue if lag in self._left_out}
        names = sorted({lag.topic for lag in overdue})
        if len(names) > self._most_topics:
            first = bisect_right(names, self._asked_last)
            names = [*names[first:], *names[:first]][: self._most_topics]
            self._asked_last = names[-1]
        return names

    def take(self, assignments: Mapping[bytes, Assignment]) -> Iterator[int]:
        """Take what the cluster said, by topic; a topic that is not in it may be there.

        Yields after each replica's topic how many partitions were forgotten: other work may be done in between. What is
        being fetched is kept whatever the answer: a leader refuses replicas that are not assigned.
        """
        for throttle in self._throttles:
            connected: _Connected | None = None
            for lag in _overdue(throttle):
                assignment = assignments.get(lag.topic)
                if assignment is None or not _is_overdue(throttle, lag):  # it fetched meanwhile
                    continue
                left_out = [one for one in lag.partitions if not _may_have(assignment, one, lag.replica)]
                if left_out and connected is None:
                    connected = _Connected(throttle)
                yield self._forget(throttle, lag, left_out, connected)

    def _forget(self, throttle: Throttle, lag: TopicLag, left_out: Sequence[int], connected: _Connected | None) -> int:
        """Forget those of `left_out` that were so long enough; returns how many."""
        now = throttle.clock()
        before = self._left_out.pop(lag, {})
        if connected is None:
            return 0
        fetched, silent = connected.fetched.get(lag, ()), connected.silent.get(lag, ())
        since = {partition: before.get(partition, now) for partition in left_out if partition not in fetched}
        forgotten = [partition for partition, begin in since.items() if now - begin >= _silent_seconds(throttle)]
        for partition in forgotten:
            lag.leave_out(partition, may_return=partition in silent)
            del since[partition]
        if since:
            self._left_out[lag] = since
        return len(forgotten)


class _Connected:
    """The partitions that open connections ask for, or asked for a moment ago: a hop before may leave them out."""

    def __init__(self, throttle: Throttle) -> None:
        self.fetched: dict[TopicLag, set[int]] = {}
        """Of connections that are not silent."""
        self.silent: dict[TopicLag, set[int]] = {}
        silent_since = throttle.clock() - _silent_seconds(throttle)
        for link in throttle.links:
            found = self.fetched if link.pulsed_at >= silent_since else self.silent
            for topic in link.topics.values():
                found.setdefault(topic.lag, set()).update(topic.partitions, topic.absent)


def _silent_seconds(throttle: Throttle) -> float:
    return min(SILENT_SECONDS, throttle.lag.replica_lag_time_max / 3)


def _overdue(throttle: Throttle) -> list[TopicLag]:
    named = (lag for lag in throttle.lag.topics() if lag.names_topic and lag.topic != _CLUSTER_METADATA)
    return [lag for lag in named if _is_overdue(throttle, lag)]


def _is_overdue(throttle: Throttle, lag: TopicLag) -> bool:
    return lag.is_overdue(throttle.clock(), _silent_seconds(throttle))


def _may_have(assignment: Assignment, partition: int, replica: int) -> bool:
    followers = assignment.get(partition, frozenset())
    return followers is None or replica in followers

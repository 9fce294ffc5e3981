# SPDX-License-Identifier: Apache-2.0
"""Asks the cluster about replicas that lag: forgets those that no longer follow, and notes which are in sync.

A follower with nothing left to fetch falls silent. On the wire this looks like a broker that hangs or has died; only
metadata tells the difference. The same answers tell which ids are no broker's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from weir.lag.broker_ids import NO_BROKER
from weir.lag.topic_lag import TopicLag
from weir.protocol.steps import PER_STEP, StepWork
from weir.quota.throttle import Throttle
from weir.quota.topic_names import METADATA_LOG


class Replicas(NamedTuple):
    """The brokers with a replica of one partition, by id: the leader, all replicas, and those in sync."""

    leader: int
    followers: frozenset[int]
    in_sync: frozenset[int] = frozenset()


Assignment = Mapping[int, Replicas | None]
"""Replicas by partition. None: the cluster can't tell now. A partition that is missing does not exist."""

SILENT_SECONDS: Final = 10.0
"""How long a partition has to be silent before the cluster is asked about its topic.

Answers then have to leave the replica out for as long again: a broker's metadata may be older than the replica's last
fetch. It is a third of `replica.lag.time.max.ms` where that is less, so that a removed replica is forgotten before it
counts as out of sync.
"""

MOST_TOPICS: Final = 500  # asked about at a time, the others in turn: a broker that died may have thousands


class RemovedReplicas:
    """Names the topics to ask the cluster about, and takes in its answers; one for both sides of a sidecar."""

    def __init__(self, throttles: Sequence[Throttle], most_topics: int = MOST_TOPICS) -> None:
        self.throttles = throttles
        self.topics: list[bytes] = []  # names (UTF-8) of the topics to ask about, as `look` has found them
        self._most_topics = most_topics
        self._asked: dict[TopicLag, Throttle] = {}  # the replicas' topics from which `topics` was made
        self._turn: list[tuple[Throttle, TopicLag]] = []  # still to be looked at, the next one last
        # By partition: since when (clock seconds) answers leave the replica out. Only of overdue replicas.
        self._left_out: dict[TopicLag, dict[int, float]] = {}

    def check(self) -> Iterator[None]:
        """Find the topics to ask about: the next ones, in turn, whose replicas look removed. Done in steps."""
        self._left_out = {lag: since for lag, since in self._left_out.items() if lag.is_kept}
        self._asked = {}
        found: dict[bytes, None] = {}
        work = StepWork(PER_STEP)
        is_full = False
        for turn in (self._turn, None):  # first what was left from the last time, then everything anew
            if is_full:
                break
            self._turn = self._all() if turn is None else turn
            while self._turn and not is_full:
                throttle, lag = self._turn[-1]
                if lag.is_kept and self._is_overdue(throttle, lag):
                    is_full = len(found) >= self._most_topics and lag.topic not in found
                    if is_full:
                        break
                    found[lag.topic] = None
                    self._asked[lag] = throttle
                self._turn.pop()
                if work.is_enough(1 + len(lag)):
                    yield
        for throttle in self.throttles:
            found |= dict.fromkeys(sorted(throttle.brokers.topics())[: self._most_topics])
        self.topics = list(found)

    def take(self, assignments: Mapping[bytes, Assignment]) -> Iterator[int]:
        """Take in the cluster's answer by topic, and yield after each replica's topic how many partitions were
        forgotten.

        A partition that is being fetched without errors is kept: a leader refuses replicas that are not assigned.
        """
        self._learn(assignments)
        asked, self._asked = self._asked, {}
        for lag, throttle in asked.items():
            assignment = assignments.get(lag.topic)
            if assignment is not None and lag.is_kept:
                yield self._take(throttle, lag, assignment)

    def _all(self) -> list[tuple[Throttle, TopicLag]]:
        return [
            (throttle, lag)
            for throttle in self.throttles
            for lag in throttle.lag.topics()
            if lag.names_topic and lag.topic not in METADATA_LOG
        ][::-1]

    def _is_overdue(self, throttle: Throttle, lag: TopicLag) -> bool:
        if throttle.brokers.is_unsure(lag.replica) and lag.is_asked:
            throttle.brokers.admits(lag.replica, lag.topic)  # with a topic that it fetches now
        if lag.overdue(throttle.clock(), _silent_seconds(throttle)):
            return True
        self._left_out.pop(lag, None)
        return False

    def _take(self, throttle: Throttle, lag: TopicLag, assignment: Assignment) -> int:
        """Forget the partitions that answers have left out for long enough. Returns how many."""
        now, silent_seconds = throttle.clock(), _silent_seconds(throttle)
        before = self._left_out.pop(lag, {})
        since: dict[int, float] = {}
        forgotten = 0
        for partition in lag.overdue(now, silent_seconds):
            state = assignment.get(partition, _GONE)
            if state is None:
                continue
            if _follows(throttle, state, lag.replica):
                lag.set_in_sync(partition, now, lag.replica in state.in_sync)
            elif not lag.is_answered(partition, now, silent_seconds):
                begin = before.get(partition, now)
                if begin < lag.answered_at(partition):
                    begin = now
                if now - begin >= silent_seconds:
                    lag.leave_out(partition)
                    forgotten += 1
                else:
                    since[partition] = begin
        if since:
            self._left_out[lag] = since
        return forgotten

    def _learn(self, assignments: Mapping[bytes, Assignment]) -> None:
        described = {topic: told for topic, of in assignments.items() if (told := [*of.values()]) and None not in told}
        states = [state for told in described.values() for state in told if state is not None]
        found = {one for state in states for one in (state.leader, *state.followers)} - {NO_BROKER}
        for throttle in self.throttles:
            if throttle.brokers.learn(found):
                throttle.classify_anew()
            for broker_id, topic in throttle.brokers.unsure():
                lag = throttle.lag.known(broker_id, topic)
                if topic in described and lag is not None and lag.is_asked:
                    throttle.refuse_replica(broker_id, topic)


_GONE: Final = Replicas(NO_BROKER, frozenset())


def _silent_seconds(throttle: Throttle) -> float:
    return min(SILENT_SECONDS, throttle.lag.replica_lag_time_max / 3)


def _follows(throttle: Throttle, state: Replicas, replica: int) -> bool:
    """Whether a replica has to fetch through this side: on the leader's side only what this broker leads."""
    if throttle.side == "leader" and state.leader != throttle.broker_id:
        return False
    return replica in state.followers

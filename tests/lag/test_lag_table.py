# SPDX-License-Identifier: Apache-2.0
"""What the table of lags costs: bounded in memory, and in time for each call, however many topics there are."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Follower, Leader, Log
from weir.lag.asked_topic import Asker
from weir.lag.tracker import LagTracker
from weir.proxy.cluster.removed_replicas import RemovedReplicas
from weir.quota.throttle import Throttle

pytestmark = pytest.mark.long

LAG_TIME_MAX = 30.0
FOLLOWER = 2
TOPICS = 50_000
LONGEST_SECONDS = 0.02


def asker_of(tracker: LagTracker, topics: range, replica: int = FOLLOWER) -> Asker:
    """A connection that asks for partition 0 of these topics, each one message behind."""
    asker = tracker.asker()
    asker.fetched(tracker.now())
    for number in topics:
        asker.topic(replica, b"topic-%d" % number).update(0, 0, 1, tracker.now())
        if number % 100 == 99:
            asker.fetched(tracker.now())  # so many are made at a fetch
    return asker


def cpu_seconds(call: object) -> float:
    """CPU that one call takes; the best of three, for a machine that does other work too."""
    assert callable(call)
    taken = []
    for _ in range(3):
        before = time.process_time()
        call()
        taken.append(time.process_time() - before)
    return min(taken)


def test_new_topic_costs_the_same_however_many_are_known() -> None:
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    asker_of(tracker, range(TOPICS))
    starts = iter(range(TOPICS, 10 * TOPICS, 500))
    assert cpu_seconds(lambda: asker_of(tracker, range(start := next(starts), start + 500))) < LONGEST_SECONDS
    assert cpu_seconds(tracker.sum_messages) < LONGEST_SECONDS / 100


def test_topics_of_a_first_fetch_are_taken_in_a_few_at_a_time() -> None:
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    asker = tracker.asker()
    asker.fetched(0.0)
    topics = [asker.topic(FOLLOWER, b"topic-%d" % number) for number in range(1000)]
    for topic in topics:
        topic.update(0, 0, 1, 0.0)
    assert len(tracker.topics()) == 100
    clock.move(0.5)
    asker.fetched(0.5)
    assert len(tracker.topics()) == 200
    topics[900].update(0, 0, 3, 0.5)
    topics[901].leave(0, 0.5)
    clock.move(9.5)
    lags = {row.topic: (row.lag_messages, row.lag_seconds) for row in tracker.rows()}
    assert lags == dict.fromkeys((topic.topic for topic in topics), (1, 10.0)) | {b"topic-900": (3, 10.0)}
    assert tracker.sum_messages() == 1002


def test_errors_of_a_first_fetch_are_taken_in_a_few_at_a_time() -> None:
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    asker = tracker.asker()
    asker.fetched(0.0)
    for number in range(1000):
        asker.topic(FOLLOWER, b"topic-%d" % number).refuse(0, 0.0, begins=True)
    assert len(tracker.topics()) == 100
    asker.fetched(10.0)
    clock.move(10.0)
    assert [row.lag_seconds for row in tracker.rows()] == [10.0] * 1000


def test_first_row_costs_little_however_many_topics_are_known() -> None:
    tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX)
    asker_of(tracker, range(TOPICS))
    assert cpu_seconds(lambda: next(tracker.rows())) < LONGEST_SECONDS


def test_connection_of_many_topics_is_closed_at_once() -> None:
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    asker = asker_of(tracker, range(TOPICS))
    assert cpu_seconds(asker.close) < LONGEST_SECONDS / 100


def test_many_topics_that_expired_are_forgotten_a_few_at_a_look() -> None:
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    asker_of(tracker, range(TOPICS)).close()
    clock.move(4000.0)
    looking = tracker.rows()
    assert cpu_seconds(lambda: next(looking)) < LONGEST_SECONDS / 4
    assert TOPICS - 600 < 1 + sum(1 for _ in looking) < TOPICS


def test_look_for_what_to_ask_the_cluster_is_made_in_slices() -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock)
    asker_of(throttle.lag, range(TOPICS))
    clock.move(5)
    looking = RemovedReplicas([throttle]).check()
    next(looking)
    assert cpu_seconds(lambda: next(looking)) < LONGEST_SECONDS / 2
    assert sum(1 for _ in looking) > 50


def test_made_up_topics_have_no_lag() -> None:
    """20,000 names of which the leader knows none."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock)
    names = [(b"made-up-%d" % number, 0) for number in range(20_000)]
    link, follower = throttle.link(FOLLOWER), Follower(dict.fromkeys(names, 0), FOLLOWER)
    leader = Leader({key: Log([], error_code=3) for key in names})
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    assert throttle.lag.topics() == []


def test_partitions_beyond_the_most_have_no_lag_and_are_counted() -> None:
    tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX, most_partitions=100)
    asker_of(tracker, range(150))
    assert len(list(tracker.rows())) == tracker.sum_messages() == 100
    assert tracker.evicted == 50
    topic = tracker.asker().topic(FOLLOWER, b"topic-0")
    for partition in range(1, 10):
        topic.update(partition, 0, 1, 0.0)
    assert (tracker.sum_messages(), tracker.evicted) == (100, 59)


def test_silent_replicas_make_room_for_those_that_fetch() -> None:
    tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX, most_partitions=100)
    live = asker_of(tracker, range(50))
    asker_of(tracker, range(50, 100)).close()
    asker_of(tracker, range(100, 400), replica=3)
    assert sum(row.replica == 3 for row in tracker.rows()) == 50
    assert sum(row.replica == FOLLOWER for row in tracker.rows()) == 50
    assert tracker.sum_messages() == 100
    assert tracker.evicted == 50 + 250
    live.close()
    asker_of(tracker, range(400, 450), replica=3)
    assert sum(row.replica == 3 for row in tracker.rows()) > 60  # a few are looked at for each


def test_memory_of_the_most_partitions_is_below_80_mb() -> None:
    """In the worst case each is of a topic of its own."""
    tracemalloc.start()
    try:
        tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX, most_partitions=20_000)
        asker_of(tracker, range(25_000))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tracker.topics()) == 20_000
    assert used < 80_000_000 / 5

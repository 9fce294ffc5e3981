# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.planning.assignment import Partition, PartitionMove, Reassignment, Replica
from weir.planning.finish_by import Moving
from weir.planning.move_status import (
    RATE_WINDOW_SECONDS,
    PartitionStatus,
    ProgressMeter,
    log_states,
    needed_rates,
    next_to_move,
    partition_statuses,
)

FOO_0, FOO_1, FOO_2 = (Partition("foo", number) for number in range(3))


def behind(broker: int, has: int, of: int) -> Moving:
    """A partition of `of` bytes, of which one new replica has some."""
    return Moving(1, of, 1, {broker: of - has})


def test_partition_moves_to_where_the_plan_says_or_elsewhere() -> None:
    plan = {FOO_0: (0, 1, 3), FOO_1: (1, 2, 3), FOO_2: (4,), Partition("bar", 0): (1,), Partition("gone", 0): (1,)}
    current = {FOO_0: (0, 1, 2), FOO_1: (1, 2, 3), FOO_2: (3,), Partition("bar", 0): (2,)}
    moving = {
        FOO_0: Reassignment((0, 1, 3, 2), (3,), (2,)),
        Partition("bar", 0): Reassignment((3, 2), (3,), (2,)),
    }
    states = [status.state for status in partition_statuses(plan, current, moving).values()]
    assert states == ["elsewhere", "moving", "done", "waiting", "gone"]


def test_same_brokers_in_another_order_are_still_to_be_moved() -> None:
    assert partition_statuses({FOO_0: (2, 1)}, {FOO_0: (1, 2)}, {})[FOO_0].state == "waiting"


def test_log_is_done_when_it_is_no_longer_a_future_one() -> None:
    """ReassignPartitionsUnitTest.testFindLogDirMoveStates."""
    replicas = [Replica("foo", number, 0) for number in range(4)]
    logs = {
        replicas[0]: {"/b": False},
        replicas[1]: {"/a": False, "/b": True},
        replicas[2]: {"/a": False},
    }
    found = log_states(dict.fromkeys(replicas, "/b"), logs)
    assert list(found.values()) == ["done", "moving", "waiting", "missing"]


def test_leader_needs_what_it_sends_new_replicas_what_they_get() -> None:
    """A leader sends what is written to all its followers, and what those in sync get counts, too."""
    moves = {
        FOO_0: PartitionMove(frozenset({1, 2}), frozenset({3})),
        FOO_1: PartitionMove(frozenset({1}), frozenset({3, 4})),
        FOO_2: PartitionMove(frozenset({1, 2}), frozenset()),
    }
    needed = needed_rates(moves, {FOO_0: 1, FOO_1: 1, FOO_2: 1}, {FOO_0: 10.0, FOO_1: 1.0, FOO_2: 100.0})
    assert needed == {(3, FOLLOWER_RATE): 11.0, (4, FOLLOWER_RATE): 1.0, (1, LEADER_RATE): 22.0}


def test_first_look_knows_no_rate() -> None:
    progress = ProgressMeter().measure(5.0, {FOO_0: behind(2, 10, 100)})
    assert (progress.copied, progress.left, progress.rate, progress.seconds_left) == (10, 90, None, None)


def test_rate_is_that_of_the_last_seconds() -> None:
    meter = ProgressMeter()
    for second in range(100):
        progress = meter.measure(second, {FOO_0: behind(2, 1000 * second if second < 80 else 80_000, 10**6)})
    assert progress.rate == pytest.approx(0, abs=1)
    assert progress.slowest is not None
    assert RATE_WINDOW_SECONDS < 19


def test_broker_that_stands_still_holds_a_move_up() -> None:
    meter = ProgressMeter()
    meter.measure(0.0, {FOO_0: behind(2, 0, 100), FOO_1: behind(3, 40, 50)})
    progress = meter.measure(1.0, {FOO_0: behind(2, 1, 100), FOO_1: behind(3, 40, 50)})
    assert progress.slowest is not None
    assert (progress.slowest.broker, progress.slowest.seconds_left, progress.seconds_left) == (3, None, None)


def test_topic_that_vanishes_takes_no_rate_below_zero() -> None:
    meter = ProgressMeter()
    meter.measure(0.0, {FOO_0: behind(2, 50, 100), FOO_1: behind(3, 50, 100)})
    progress = meter.measure(1.0, {FOO_0: behind(2, 60, 100)})
    assert progress.rate == 10


def status(state: str) -> PartitionStatus:
    return PartitionStatus(state, (1,), (2,))  # type: ignore[arg-type]


def test_next_partitions_begin_in_order_and_no_more_than_wanted() -> None:
    statuses = {FOO_0: status("moving"), FOO_1: status("waiting"), FOO_2: status("waiting")}
    assert next_to_move(statuses, 0) == [FOO_1, FOO_2]
    assert next_to_move(statuses, 1) == []
    assert next_to_move(statuses, 2) == [FOO_1]
    assert next_to_move({FOO_0: status("done"), FOO_1: status("waiting")}, 1) == [FOO_1]


def test_nine_brokers_become_three_in_steps() -> None:
    """kafka-kit's chunked plans: so many at a time until all are there, and none where nothing changes."""
    plan = {Partition("t", number): (number % 3,) for number in range(9)}
    current = {Partition("t", number): (number,) for number in range(9)}
    for at_once, steps in ((3, 2), (1, 6), (4, 2)):
        now = dict(current)
        taken = 0
        while begun := next_to_move(partition_statuses(plan, now, {}), at_once):
            assert len(begun) <= at_once
            now |= {partition: plan[partition] for partition in begun}
            taken += 1
        assert (now, taken) == (plan, steps)
    assert next_to_move(partition_statuses(current, current, {}), 3) == []

# SPDX-License-Identifier: Apache-2.0
"""Who holds a move up that stands still, and why."""

from __future__ import annotations

import pytest

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.planning.assignment import Partition
from weir.planning.finish_by import Moving
from weir.planning.stuck import STILL_SECONDS, Circumstances, StillMeter, why_stuck

P0, P1 = Partition("orders", 0), Partition("orders", 1)
MB = 1_000_000
ALIVE = frozenset({1, 2, 3})


def moving(left: int, size: int = 10 * MB, leader: int = 1) -> dict[Partition, Moving]:
    """Broker 3 gets both partitions, and has all of the second."""
    return {P0: Moving(leader, size, 1, {3: left}), P1: Moving(2, MB, 1, {3: 0})}


def test_broker_that_got_no_nearer_for_a_minute_stands_still() -> None:
    meter = StillMeter()
    assert meter.measure(0.0, moving(5000)) == []
    assert meter.measure(10.0, moving(4000)) == []
    assert meter.measure(10.0 + STILL_SECONDS - 1, moving(4000)) == []
    assert [still.broker for still in meter.measure(10.0 + STILL_SECONDS, moving(6000))] == [3]
    assert meter.measure(11.0 + STILL_SECONDS, moving(3999)) == []


def test_broker_with_nothing_left_does_not_stand_still() -> None:
    meter = StillMeter()
    for now in range(0, 300, 10):
        assert meter.measure(float(now), moving(0)) == []


@pytest.mark.parametrize(
    ("found", "leader", "why"),
    [
        (Circumstances(frozenset({1, 2})), 1, "broker 3 is down"),
        (Circumstances(frozenset({2, 3})), 1, "orders-0 has no leader that is up"),
        (Circumstances(ALIVE), -1, "orders-0 has no leader that is up"),
        (
            Circumstances(ALIVE, {(3, FOLLOWER_RATE): 0}),
            1,
            f"{FOLLOWER_RATE} of broker 3 is 0 B/s, which is not what this move has set, and producers write 100 kB/s"
            " that passes under it",
        ),
        (
            Circumstances(ALIVE, {(1, LEADER_RATE): 100_000}, {(1, LEADER_RATE): frozenset({100_000})}),
            1,
            f"{LEADER_RATE} of broker 1 is 100 kB/s, and producers write 100 kB/s that passes under it",
        ),
        (
            Circumstances(ALIVE, {(1, LEADER_RATE): MB, (2, LEADER_RATE): 0}, {}, {1: "The quota holds it back."}),
            1,
            "the sidecar of broker 1 says: The quota holds it back",
        ),
        (Circumstances(ALIVE), 1, "no setting of Kafka's explains it: look at the log of broker 3"),
    ],
)
def test_cause_is_told_in_a_sentence(found: Circumstances, leader: int, why: str) -> None:
    meter = StillMeter()
    meter.measure(0.0, moving(5000, 10 * MB, leader))
    later = moving(5000, 16 * MB, leader)
    (still,) = meter.measure(60.0, later)
    stuck = why_stuck(still, 60.0, later, found)
    assert (stuck.broker, stuck.partitions, stuck.why) == (3, (P0,), why)

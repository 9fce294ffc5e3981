# SPDX-License-Identifier: Apache-2.0
"""Which of Kafka's own throttles were left behind, and which moves cannot end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.control.cluster_admin import DISK_RATE, Partition, Reassignment, ThrottleSetting
from weir.control.fleet import ClusterState

OWN = ThrottleSetting("broker", "1", LEADER_RATE, "5000000", "DYNAMIC_BROKER_CONFIG")
LIST = ThrottleSetting("topic", "orders", LEADER_REPLICAS, "*", "DYNAMIC_TOPIC_CONFIG")
DEFAULT = ThrottleSetting("broker", "1", LEADER_RATE, "5000000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
FILE = ThrottleSetting("broker", "1", LEADER_RATE, "5000000", "STATIC_BROKER_CONFIG")
DISK = ThrottleSetting("broker", "1", DISK_RATE, "5000000", "DYNAMIC_BROKER_CONFIG")
MOVES = {
    Partition("orders", 0): Reassignment((1, 2, 4), (4,), (1,)),
    Partition("orders", 1): Reassignment((1, 2, 3), (3,), (1,)),
}


def state(
    moves: Mapping[Partition, Reassignment] | None = None, out_of_sync: int = 0, *throttles: ThrottleSetting
) -> ClusterState:
    return ClusterState(frozenset({1, 2, 3}), moves or {}, out_of_sync, throttles)


def test_only_a_resource_s_own_settings_can_be_left_behind() -> None:
    """The cluster's default and the broker's file are policy; moves between disks are not listed, so may go on."""
    assert state(None, 0, OWN, LIST, DEFAULT, FILE, DISK).clearable() == (OWN, LIST)


@pytest.mark.parametrize(
    ("found", "none_behind", "why_not"),
    [
        (state(), [600.0, 5000.0], None),
        (state(MOVES), [600.0], "2 partitions are being reassigned"),
        (state(None, 1), [600.0], "1 replica is not in sync"),
        (state(), [], "no sidecar tells for how long nothing has been behind"),
        (state(), [5000.0, 599.0], "a sidecar knows for 599 s only that nothing is behind; 600 s are wanted"),
        (state(), [0.0], "a sidecar knows for 0 s only that nothing is behind; 600 s are wanted"),
    ],
)
def test_throttle_is_stale_if_nothing_moves_and_none_was_behind(
    found: ClusterState, none_behind: list[float], why_not: str | None
) -> None:
    assert found.why_not_stale(none_behind) == why_not


def test_throttle_of_a_silent_broker_is_not_called_stale() -> None:
    found = ClusterState(frozenset({1, 4}), {}, 0, (OWN,), {4: "UnknownBrokerIdError: 4"})
    assert found.why_not_stale([600.0]) == "broker 4 is silent about its throttle"


def test_move_to_a_broker_down_or_not_following_is_stuck() -> None:
    assert state(MOVES).stuck_moves(set()) == {Partition("orders", 0): "broker 4 is down"}
    # broker 2 is not being added, and the other partition does not move
    silent = {("orders", 1, 3), ("orders", 1, 2), ("live", 0, 3)}
    assert state(MOVES).stuck_moves(silent)[Partition("orders", 1)] == "broker 3 is not following: look at its log"

"""Which throttles may have been forgotten: those that are neither in the file nor end by themselves."""

from __future__ import annotations

import math

import pytest

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from weir.proxy.config.tables import QuotaTable
from weir.proxy.throttle.by_hand import is_set_by_hand
from weir.quota.layers import EffectiveThrottle, Lease, Part, Path
from weir.quota.settings import SideName
from weir.quota.throttled_replicas import ALL_REPLICAS

LISTED = ("topics", "orders", LEADER_REPLICAS)
QUOTA = QuotaTable(name="zones", side="follower", rate=5)


@pytest.mark.parametrize(
    ("path", "part", "sides"),
    [
        ((LEADER_RATE,), Part(5, "http"), {"leader"}),
        ((FOLLOWER_RATE,), Part(5, "kafka"), {"follower"}),
        (LISTED, Part(ALL_REPLICAS, "http"), {"leader"}),
        (("leader.recovery.throttled.rate",), Part(5, "http"), {"leader"}),
        (("quotas", "zones"), Part(QUOTA, "http"), {"follower"}),
        (("mode",), Part("observe", "http"), set()),
        ((LEADER_RATE,), Part(5, "file"), set()),
        (LISTED, Part(ALL_REPLICAS, "file"), set()),
        ((LEADER_RATE,), Part(5, "http", Lease(100.0)), set()),
        ((LEADER_RATE,), Part(5, "http", Lease(math.inf, "ann")), {"leader"}),
    ],
)
def test_what_is_in_the_file_or_leased_was_not_forgotten(path: Path, part: Part, sides: set[SideName]) -> None:
    effective = EffectiveThrottle({path: part})
    assert {side for side in ("leader", "follower") if is_set_by_hand(effective, side)} == sides

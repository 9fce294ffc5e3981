# SPDX-License-Identifier: Apache-2.0
"""The leader's quota and the follower's in real moves: each alone, and both at once."""

from collections.abc import Iterator

import pytest

from tests.integration.moves import (
    BATCH_BYTES,
    MB,
    assert_identical,
    assert_keeps,
    assert_throttled,
    filled,
    moving,
    throttle,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode
from weir.lab.settings import Route
from weir.quota.figures import SHARE_SECONDS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    """Broker 1 has an ingress, broker 2 both, broker 3 nothing: to be moved from, and through."""
    with mode.cluster(routes={1: Route.INGRESS, 2: Route.BOTH}) as cluster:
        yield cluster
        cluster.check_logs()


def test_followers_quota_holds_where_the_leader_has_no_sidecar(cluster: Cluster) -> None:
    topic = filled(cluster, "egress-only", [3], 20 * MB)
    cluster.sidecars[2].put_throttle(throttle(topic, follower=3 * MB))
    with moving(cluster, [topic], [3, 2]) as received:
        pass
    assert_keeps(received.series(), 3 * MB)
    assert_identical(cluster, [topic], 3, 2)
    assert_throttled(cluster, 2, "follower")


@pytest.mark.parametrize(("leader", "follower"), [(3 * MB, 5 * MB), (5 * MB, 3 * MB)])
def test_lower_quota_of_both_sides_rules(cluster: Cluster, leader: int, follower: int) -> None:
    topic = filled(cluster, f"from-{leader}-to-{follower}", [1], 20 * MB)
    cluster.sidecars[1].put_throttle(throttle(topic, leader=leader))
    cluster.sidecars[2].put_throttle(throttle(topic, follower=follower))
    with moving(cluster, [topic], [1, 2]) as received:
        pass
    # what the follower's side asks for waits at a leader that throttles, so it is not set aside (docs/throttle.md)
    lent = SHARE_SECONDS * follower if follower < leader else 0.0
    assert_keeps(received.series(), min(leader, follower), batch_bytes=BATCH_BYTES + round(lent))
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")
    assert_throttled(cluster, 2, "follower")


def test_sidecar_that_throttles_both_roles_keeps_each_quota(cluster: Cluster) -> None:
    """Broker 2 follows one topic and leads another at the same time: one process, two budgets."""
    topics = arriving, leaving = filled(cluster, "arriving", [3], 20 * MB), filled(cluster, "leaving", [2], 10 * MB)
    cluster.sidecars[2].put_throttle(throttle(*topics, leader=2 * MB, follower=4 * MB))
    with moving(cluster, [arriving], [3, 2]) as received, moving(cluster, [leaving], [2, 3]) as sent:
        pass
    assert_keeps(received.series(), 4 * MB)
    assert_keeps(sent.series(), 2 * MB)
    assert_identical(cluster, topics, 2, 3)
    assert_throttled(cluster, 2, "leader")
    assert_throttled(cluster, 2, "follower")

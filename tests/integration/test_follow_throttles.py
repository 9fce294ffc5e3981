"""Kafka's own throttle configurations, followed: Kafka's own tools drive the sidecars."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from control.cluster_admin import Partition
from lab.cluster import Cluster
from lab.modes import MODES
from quota.setting_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from tests.integration.moves import MB, assert_identical, assert_rate, filled, now, wait_for_bytes

pytestmark = pytest.mark.integration

PART = 0.98
IN_FORCE_SECONDS = 2.0
RATE = 2 * MB


@pytest.fixture(scope="module", params=["kraft-4.1", "zookeeper-2.8"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    followed = {"cluster": {"follow_throttles": True, "followed_part": PART}}
    with MODES[request.param].cluster(3, sidecars=True, poll_isr=True, sidecar_tables=followed) as running:
        yield running


def in_force(cluster: Cluster, broker_id: int) -> dict[str, Any]:
    table: dict[str, Any] = cluster.sidecars[broker_id].throttle()
    return {key: value for key, value in table.items() if key not in ("layers", "sources")}


def seconds_until(cluster: Cluster, what: str, table: dict[str, Any], *broker_ids: int) -> float:
    begin = monotonic()
    cluster.wait_for(what, lambda: all(in_force(cluster, one) == table for one in broker_ids), 20)
    return monotonic() - begin


def test_throttle_set_in_kafka_is_in_force_within_two_seconds_and_gone_after_five(cluster: Cluster) -> None:
    cluster.create_topic("orders", {0: [1, 2]})
    cluster.create_topic("payments", {0: [1, 2]})
    seconds_until(cluster, "no throttle", {"topics": {}}, 1, 2, 3)
    rates = {1: {LEADER_RATE: RATE}, 2: {FOLLOWER_RATE: RATE, LEADER_RATE: 3 * MB}}
    lists = {"orders": {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}}
    cluster.admin.set_native_throttle(rates, lists)
    expected = {
        1: {LEADER_RATE: int(PART * RATE)},
        2: {FOLLOWER_RATE: int(PART * RATE), LEADER_RATE: int(3 * PART * MB)},
    }
    for broker_id, own in expected.items():
        assert seconds_until(cluster, "Kafka's throttle", {**own, "topics": lists}, broker_id) < IN_FORCE_SECONDS
    sources = cluster.sidecars[1].throttle()["sources"]
    assert set(sources.values()) == {"kafka"}
    assert cluster.sidecars[1].metrics().value("weir_kafka_throttle_age_seconds") < 3
    cluster.admin.clear_native_throttle([1, 2], ["orders"])
    begin = monotonic()
    seconds_until(cluster, "no throttle", {"topics": {}}, 1, 2)
    assert 4 < monotonic() - begin < 8  # a rate stays for five seconds


def test_move_with_kafkas_own_throttle_is_exact_and_survives_the_loss_of_its_lists(cluster: Cluster) -> None:
    """The lists are deleted and the rates removed in mid-move, as an operator and a tool would do."""
    topic = filled(cluster, "bulk", [1], 24 * MB)
    partitions = sorted(cluster.admin.partitions([topic]))
    lists = {topic: {LEADER_REPLICAS: ",".join(f"{number}:1" for _, number in partitions)}}
    cluster.admin.set_native_throttle({1: {LEADER_RATE: RATE}}, lists)
    with cluster.received_bytes(2, partitions) as received:
        cluster.reassign({Partition(*one): [1, 2] for one in partitions})
        wait_for_bytes(cluster, received, MB)
        cluster.admin.clear_native_throttle([1], [topic])
        begin = now(received)
        sleep(5)
        end = now(received)
        assert cluster.admin.reassignments()
        assert in_force(cluster, 1)[LEADER_RATE] == int(PART * RATE)
        assert_rate(received.series(), begin + 1, end, int(PART * RATE))
        cluster.admin.set_native_throttle({1: {LEADER_RATE: 100 * MB}}, lists)
        cluster.admin.wait_for_reassignments(30)
    cluster.admin.clear_native_throttle([1], [topic])
    assert_identical(cluster, [topic], 1, 2)
    cluster.check_logs()

# SPDX-License-Identifier: Apache-2.0
"""`weir status` and `weir throttle` for a whole cluster of real brokers, and throttles that a move left in Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.moves import LONG, MB, filled, moving, throttle, wait_for_bytes
from weir.cli.main import main
from weir.control import fleet
from weir.lab.cluster import Cluster

pytestmark = pytest.mark.integration

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"


@pytest.fixture
def options(pair: Cluster) -> Iterator[list[str]]:
    """The options that name the cluster; its sidecars share loopback, so each is named too."""
    admins = [word for sidecar in pair.sidecars.values() for word in ("--admin", sidecar.admin_address)]
    yield ["--bootstrap-server", pair.bootstrap_servers[0], *admins]
    pair.admin.clear_native_throttle(pair.broker_ids, sorted({topic for topic, _ in pair.admin.partitions()}))


def _told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_fleet_shows_a_move_and_clears_what_it_left(
    pair: Cluster, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The throttle that is set in Kafka is cleared only when nothing moves any more, and other settings stay."""
    topic = filled(pair, "orders", [1], 60 * MB, batch_bytes=LONG)
    pair.admin.set_native_throttle({}, {topic: {"retention.ms": "86400000"}})  # any setting of the topic's own
    with moving(pair, [topic], [1, 2], seconds=60) as received:
        pair.sidecars[1].put_throttle(throttle(topic, leader=2 * MB))
        # far above what weir lets through, so that it does nothing here
        pair.admin.set_native_throttle({1: {LEADER_RATE: 90 * MB}}, {topic: {LEADER_REPLICAS: "*"}})
        wait_for_bytes(pair, received, 4 * MB)

        def held_up_by_the_quota() -> bool:  # a busy machine may hold it up for a moment
            found.update(_told(capsys, "status", *options))
            return bool(found["sidecars"][0]["status"]["sides"]["leader"]["held_up_by"]["by"] == "quota")

        found: dict[str, Any] = {}
        pair.wait_for("a move that the quota holds up", held_up_by_the_quota, 20)
        move = {"topic": topic, "partition": 4, "adding": [2], "removing": [], "stuck": None}
        assert found["cluster"]["moves"][-1] == move
        assert {(setting["name"], setting["setting"]) for setting in found["cluster"]["throttles"]} == {
            ("1", LEADER_RATE),
            (topic, LEADER_REPLICAS),
        }
        assert main(["throttle", "clear", "--stale", *options]) == 1
        assert "being reassigned" in capsys.readouterr().err
        pair.sidecars[1].delete_throttle()
    pair.wait_for("the replicas in sync", lambda: pair.is_in_sync(topic), 30)
    assert main(["throttle", "clear", "--stale", *options]) == 1
    assert "600 s are wanted" in capsys.readouterr().err

    monkeypatch.setattr(fleet, "STALE_SECONDS", 1.0)
    ago = pair.wait_for("a second without anything behind", lambda: _quiet(pair) > 1.0, 30)
    assert ago < 30
    assert len(_told(capsys, "status", *options)["cluster"]["stale"]) == 2
    assert main(["throttle", "clear", "--stale", *options]) == 0
    assert f"Cleared broker 1: {LEADER_RATE} = {90 * MB}" in capsys.readouterr().out
    pair.assert_no_native_throttle()
    assert pair.admin.configs(topics=[topic])[f"topic {topic}"]["retention.ms"] == "86400000"


def test_fleet_throttle_is_set_on_every_sidecar(
    pair: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["throttle", "set", "--follower-rate", "7MB", *options]) == 0
    assert [sidecar.throttle()[FOLLOWER_RATE] for sidecar in pair.sidecars.values()] == [7 * MB] * 2
    assert main(["throttle", "show", *options]) == 0
    assert capsys.readouterr().out.count("7000000 bytes/s (7 MB/s)") >= 2


def test_fleet_status_tells_all_else_when_a_broker_has_gone(
    pair: Cluster, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pair.admin.set_native_throttle({1: {LEADER_RATE: MB}}, {})
    pair.kill_broker(2)
    try:
        found = _told(capsys, "status", *options)
        assert [row["status"]["broker_id"] for row in found["sidecars"]] == [1, 2]
        assert [one["setting"] for one in found["cluster"]["throttles"]] == [LEADER_RATE]
        assert list(found["cluster"]["silent_brokers"]) in (["2"], [])  # empty once it is fenced
    finally:
        pair.start_broker(2)


def _quiet(cluster: Cluster) -> float:
    statuses = [sidecar.status() for sidecar in cluster.sidecars.values()]
    return min(float(side["lag"]["none_for_seconds"]) for status in statuses for side in status["sides"].values())

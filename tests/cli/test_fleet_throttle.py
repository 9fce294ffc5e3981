# SPDX-License-Identifier: Apache-2.0
"""Throttles of many sidecars, and Kafka's own beside them."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Admin, failing
from tests.cli.made_up_cluster import CLUSTER, DEFAULT, MadeUpCluster, say
from tests.cli.test_fleet import quiet
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.cli.main import main
from weir.control.cluster_admin import Partition, Reassignment
from weir.planning.move_throttle import ConfigChange


def test_throttle_show_has_kafka_s_own_settings(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    assert main(["throttle", "show", *both]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "Kafka" in line]
    assert rows[0] == ["Kafka", "broker", "1:", LEADER_RATE, "5000000", "DYNAMIC_BROKER_CONFIG"]
    assert main(["throttle", "show", "--json", *both]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [setting["value"] for setting in found["kafka"]] == ["5000000", "*", "7"]
    assert len(found["sidecars"]) == 2


def test_throttle_set_and_clear_reach_every_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    assert main(["throttle", "set", "--leader-rate", "5MB", *both]) == 0
    assert main(["throttle", "clear", *both]) == 0
    for admin in admins:
        assert admin.requests == [
            ("PATCH", "/v1/throttle", {LEADER_RATE: 5_000_000}),
            ("DELETE", "/v1/throttle?source=http", None),
        ]
    assert cluster.changes == []


def test_clear_stale_deletes_what_moves_left_not_sidecars_own(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    """Sidecars are asked for their status alone."""
    for admin in admins:
        say(admin, quiet(600))
    assert main(["throttle", "clear", "--stale", *both]) == 0
    assert cluster.changes == [
        ConfigChange("broker", "1", LEADER_RATE, "delete"),
        ConfigChange("topic", "orders", LEADER_REPLICAS, "delete"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        f"Cleared broker 1: {LEADER_RATE} = 5000000",
        f"Cleared topic orders: {LEADER_REPLICAS} = *",
    ]
    assert {(method, path) for admin in admins for method, path, _ in admin.requests} == {("GET", "/v1/status")}


def test_clear_stale_that_is_refused_in_part_says_what_was(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    for admin in admins:
        say(admin, quiet(600))
    cluster.refused = {"topic orders": "not allowed"}
    assert main(["throttle", "clear", "--stale", *both]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"Cleared broker 1: {LEADER_RATE} = 5000000\n"
    assert captured.err == "weir: the cluster refused: topic orders, not allowed.\n"


@pytest.mark.parametrize("reason", ["moves", "out of sync", "behind lately", "nobody knows"])
def test_clear_stale_refuses_while_a_throttle_may_be_needed(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster, reason: str
) -> None:
    for admin in admins:
        say(admin, quiet(600))
    if reason == "moves":
        cluster.moves = {Partition("orders", 0): Reassignment((1, 2), (2,), ())}
    elif reason == "out of sync":
        cluster.in_sync = (1,)
    elif reason == "behind lately":
        say(admins[1], quiet(599))
    else:
        for admin in admins:
            admin.answers["/v1/status"] = (200, b"{}")
    code, error = failing(capsys, "throttle", "clear", "--stale", *both)
    assert code == 1
    assert error.startswith("nothing is cleared, as ")
    assert cluster.changes == []


def test_clear_stale_without_a_throttle_says_so(
    capsys: pytest.CaptureFixture[str], both: list[str], cluster: MadeUpCluster
) -> None:
    cluster.throttles = [DEFAULT]
    assert main(["throttle", "clear", "--stale", *both]) == 0
    assert "Nothing is stale" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--stale"], ["--stale", "--topic", "a", *CLUSTER]])
def test_clear_stale_needs_a_cluster_and_no_topic(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    code, error = failing(capsys, "throttle", "clear", *options)
    assert code == 2
    assert "--stale" in error

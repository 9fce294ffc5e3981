# SPDX-License-Identifier: Apache-2.0
"""Every query of the dashboard, and every rule, in a real Prometheus that scrapes the sidecars of real brokers."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.deploy.files import needs, queries
from tests.deploy.prometheus import Prometheus, prometheus
from tests.integration.moves import MB, filled, moving, throttle
from tests.proxy.limited import SINK, fetch
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST

pytestmark = [pytest.mark.integration, needs("prometheus")]

RATE = 2 * MB
CHOSEN = {"$job": "weir", "$broker": "1|2", "$__rate_interval": "30s"}
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
IMPOSSIBLE_SIZE = bytes.fromhex("ffffffff")


def without_data(server: Prometheus) -> list[str]:
    """The panels of which a query finds nothing, each with the query."""
    empty = []
    for title, query in queries():
        for variable, value in CHOSEN.items():
            query = query.replace(variable, value)
        if "weir_captured" not in query and not server.query(query):  # nothing is captured here
            empty.append(f"{title}: {query}")
    return empty


def connect(address: str, data: bytes) -> None:
    """Send `data`, and read until the other end closes."""
    host, port = address.rsplit(":", 1)
    with suppress(ConnectionResetError), socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        while connection.recv(4096):
            pass


def assert_rules_work(server: Prometheus) -> None:
    """Every rule was evaluated without an error, and no alert is on its way."""
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
    assert server.get("alerts")["alerts"] == []


def assert_move_is_seen(server: Prometheus, cluster: Cluster) -> None:
    """KIP-73's metrics of a move from broker 1 to broker 2, at the quota's rate on both sides."""

    def at_the_quota() -> bool:
        sent = server.total('kip73:LeaderReplicationThrottledRate{broker="1"}')
        received = server.total('kip73:FollowerReplicationThrottledRate{broker="2"}')
        return 0.9 * RATE < sent < 1.1 * RATE and 0.9 * RATE < received < 1.1 * RATE

    cluster.wait_for("KIP-73's rates at the quota", at_the_quota, 20)
    incoming = 'kip73:PartitionBytesInRate{broker="2", side="follower"}'
    cluster.wait_for(incoming, lambda: server.total(incoming) > 0, 5)
    assert server.total('kip73:SumReplicaLag{broker="1", side="leader"}') > 0


def test_every_panel_shows_data_of_a_throttled_move(tmp_path: Path) -> None:
    export = {"export": {"interval_seconds": 1, "directory": str(tmp_path)}}
    with NEWEST.cluster(brokers=2, sidecars=True, sidecar_tables=export) as cluster:
        filled(cluster, "unthrottled", [1, 2], MB)
        topic = filled(cluster, "orders", [1], 20 * MB)
        for sidecar in cluster.sidecars.values():
            sidecar.put_throttle(throttle(topic, leader=RATE, follower=RATE))
        limited = {"client": [{"client_id": SINK, "record.rate.limit": 1000}]}
        assert {one.http("PUT", "/v1/limits", limited)[0] for one in cluster.sidecars.values()} == {200}
        targets = {broker_id: sidecar.admin_address for broker_id, sidecar in cluster.sidecars.items()}
        with prometheus(targets) as server:
            with moving(cluster, [topic], [1, 2]):
                assert_move_is_seen(server, cluster)
            assert_rules_work(server)
            cluster.check_logs()
            # What has no sample until it happens.
            connect(cluster.places[1].advertised_address, API_VERSIONS + IMPOSSIBLE_SIZE)
            connect(cluster.places[1].advertised_address, fetch(1, client_id=SINK) + IMPOSSIBLE_SIZE)
            cluster.kill_broker(2)
            connect(cluster.places[2].advertised_address, API_VERSIONS)
            deadline = monotonic() + 15
            while (missing := without_data(server)) and monotonic() < deadline:
                sleep(0.5)
            assert missing == []

# SPDX-License-Identifier: Apache-2.0
import tomllib
from pathlib import Path
from typing import Any

import pytest

from weir.lab.settings import (
    Place,
    Route,
    SidecarOptions,
    has_record_batches,
    has_zstd,
    hosts_file,
    kraft_properties,
    properties_text,
    sidecar_toml,
    zookeeper_config,
    zookeeper_mode_properties,
)
from weir.proxy.config.load import parse_config


def place(broker_id: int, route: Route, client: int | None = None) -> Place:
    advertised = 20000 + broker_id
    listener = 21000 + broker_id if Route.INGRESS in route else advertised
    return Place(
        broker_id=broker_id,
        route=route,
        advertised=advertised,
        listener=listener,
        client=client or advertised,
        admin=22000 + broker_id,
        controller=24000,
    )


def config_of(route: Route, **options: Any) -> Any:
    """Sidecar 2's file of three brokers, as the sidecar itself reads it."""
    places = [place(broker_id, route) for broker_id in (1, 2, 3)]
    return parse_config(sidecar_toml(places[1], places, SidecarOptions(**options)))


def test_ingress_route_stands_where_the_broker_is_advertised() -> None:
    config = config_of(Route.INGRESS)
    assert [(str(route.listen), str(route.upstream)) for route in config.ingress] == [
        ("127.0.0.1:20002", "127.0.0.1:21002")
    ]
    assert config.egress == ()


def test_egress_listens_for_each_peer_and_for_its_own_broker() -> None:
    """The broker's own name leads to the sidecar too, so its connections to itself must find a listener there."""
    config = config_of(Route.EGRESS)
    assert [(route.peer, str(route.listen), str(route.upstream)) for route in config.egress] == [
        (1, "127.0.1.2:20001", "127.0.0.1:20001"),
        (3, "127.0.1.2:20003", "127.0.0.1:20003"),
    ]
    assert [(str(route.listen), str(route.upstream)) for route in config.ingress] == [
        ("127.0.1.2:20002", "127.0.0.1:20002")
    ]


def test_both_routes_lead_from_the_egress_to_the_peers_ingress() -> None:
    config = config_of(Route.BOTH)
    assert {str(route.upstream) for route in config.egress} == {"127.0.0.1:20001", "127.0.0.1:20003"}
    assert {str(route.upstream) for route in config.ingress} == {"127.0.0.1:21002"}


def test_ingress_options_reach_every_ingress_of_their_broker() -> None:
    tls = {"certificate": "key.pem", "least_version": "1.2"}
    places = [place(broker_id, Route.BOTH) for broker_id in (1, 2)]
    options = SidecarOptions(ingress={2: {"tls": tls}})
    assert "tls" not in sidecar_toml(places[0], places, options)
    assert [route["tls"] for route in tomllib.loads(sidecar_toml(places[1], places, options))["ingress"]] == [tls, tls]


def test_sidecar_options_reach_the_file() -> None:
    table = {
        "leader.replication.throttled.rate": 5_000_000,
        "topics": {"or.ders": {"leader.replication.throttled.replicas": "0:1,1:*".replace("*", "2")}},
    }
    config = config_of(
        Route.BOTH, policy="kip73", throttle=table, poll_isr=True, tables={"fetch": {"response_max_bytes": 1000}}
    )
    assert config.quota.policy == "kip73"
    assert config.fetch.response_max_bytes == 1000
    assert config.throttle.leader_rate == 5_000_000
    assert config.throttle.topics["or.ders"].leader_replicas is not None
    assert config.cluster is not None
    assert [str(address) for address in config.cluster.bootstrap_servers] == ["127.0.0.1:21002"]


def test_isr_poll_asks_the_clients_listener_where_there_is_one() -> None:
    here = place(1, Route.BOTH, client=23001)
    config = parse_config(sidecar_toml(here, [here], SidecarOptions(poll_isr=True)))
    assert config.cluster is not None
    assert str(config.cluster.bootstrap_servers[0]) == "127.0.0.1:23001"


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [
        (None, None),
        ({}, {}),
        ({"leader.replication.throttled.rate": 1}, {"leader.replication.throttled.rate": 1}),
        ({2: {"leader.replication.throttled.rate": 2}}, {"leader.replication.throttled.rate": 2}),
        ({1: {"leader.replication.throttled.rate": 1}}, None),
    ],
)
def test_throttle_of_a_broker_is_its_own_or_the_one_of_all(throttle: Any, expected: Any) -> None:
    assert SidecarOptions(throttle=throttle).throttle_of(2) == expected


@pytest.mark.parametrize(
    ("route", "brokers", "controller"),
    [
        (Route.EGRESS, "127.0.1.2", "127.0.0.1"),
        (Route.INGRESS, "127.0.0.1", "127.0.0.1"),
        (Route.BOTH | Route.CONTROLLER, "127.0.1.2", "127.0.1.2"),
    ],
)
def test_hosts_file_leads_to_the_sidecar_only_with_a_route(route: Route, brokers: str, controller: str) -> None:
    hosts = hosts_file(place(2, route), "machine")
    assert hosts == f"{brokers} localhost\n127.0.0.1 machine\n{controller} controller\n"


def test_kraft_broker_listens_as_controller_only_if_it_is_one() -> None:
    first = kraft_properties(place(1, Route.BOTH, client=23001), 1, "/data")
    second = kraft_properties(place(2, Route.BOTH, client=23002), 1, "/data")
    assert first["process.roles"] == "broker,controller"
    assert "CONTROLLER://127.0.0.1:24000" in str(first["listeners"])
    assert first["controller.quorum.voters"] == second["controller.quorum.voters"] == "1@controller:24000"
    assert second["process.roles"] == "broker"
    assert second["listeners"] == "CLIENT://127.0.0.1:23002,REPL://127.0.0.1:21002"
    assert second["advertised.listeners"] == "CLIENT://localhost:23002,REPL://localhost:20002"


def test_controllers_route_leads_through_its_brokers_sidecar() -> None:
    here = place(2, Route.BOTH | Route.CONTROLLER, client=23002)
    config = parse_config(sidecar_toml(here, [here], SidecarOptions()))
    assert ("127.0.1.2:24000", "127.0.0.1:24000") in {(str(r.listen), str(r.upstream)) for r in config.ingress}


@pytest.mark.parametrize(("level", "named"), [("0.10.1", True), ("2.8", True), ("3.0", False), ("3.9-IV0", False)])
def test_message_format_follows_the_level_up_to_2_8(level: str, named: bool) -> None:
    """From 3.0 on Kafka ignores log.message.format.version, and warns."""
    properties = zookeeper_mode_properties(place(1, Route.BOTH), 24000, level, "/data")
    assert ("log.message.format.version" in properties) is named
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:21001"
    assert properties["advertised.listeners"] == "PLAINTEXT://localhost:20001"


def test_properties_text_writes_javas_booleans() -> None:
    assert properties_text({"a": True, "b": 1, "c": "x,y"}) == "a=true\nb=1\nc=x,y\n"


def test_zookeeper_grants_sessions_as_short_as_brokers_ask_for() -> None:
    lines = dict(line.split("=") for line in zookeeper_config(24000, str(Path("/data"))).splitlines())
    assert 2 * int(lines["tickTime"]) <= 6000
    assert lines["admin.enableServer"] == "false"


@pytest.mark.parametrize(
    ("level", "batches", "zstd"),
    [
        ("0.10.2", False, False),
        ("0.11.0-IV0", True, False),
        ("2.0", True, False),
        ("2.1", True, True),
        ("4.1", True, True),
    ],
)
def test_level_tells_what_a_log_may_hold(level: str, batches: bool, zstd: bool) -> None:
    assert (has_record_batches(level), has_zstd(level)) == (batches, zstd)

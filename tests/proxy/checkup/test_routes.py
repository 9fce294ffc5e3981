# SPDX-License-Identifier: Apache-2.0
"""What is said of each misconfiguration that only the world shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.told_broker import OF_A_BROKER, OF_A_CONTROLLER
from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.look import Seen
from weir.proxy.checkup.routes import World, route_findings
from weir.proxy.cluster.view import Broker
from weir.proxy.config.address import Address, IPAddress, numeric_address
from weir.proxy.config.load import parse_config

INGRESS, EGRESS_2, EGRESS_3 = "127.0.0.1:19092", "10.0.0.2:9092", "10.0.0.3:9092"
FILE = """
broker_id = 1
[[ingress]]
listen = "10.0.0.1:9092"
upstream = "127.0.0.1:19092"
[[egress]]
peer = 2
listen = "127.0.1.2:9092"
upstream = "10.0.0.2:9092"
[[egress]]
peer = 3
listen = "127.0.1.3:9092"
upstream = "10.0.0.3:9092"
[throttle.topics.orders]
"leader.replication.throttled.replicas" = "*"
"""
CONFIG = parse_config(FILE)
BROKERS = {number: Broker(f"kafka{number}", 9092) for number in (1, 2, 3)}
NAMES = {"kafka1": "10.0.0.1", "kafka2": "127.0.1.2", "kafka3": "127.0.1.3"}


def resolve(names: Mapping[str, str], host: str) -> set[IPAddress]:
    found = numeric_address(names.get(host, host))
    return set() if found is None else {found}


def seen(address: str, broker_id: int | None, **how: Any) -> Seen:
    told: dict[str, Any] = {"brokers": BROKERS, "apis": OF_A_BROKER, "operations": -1, **how}
    return Seen(address=Address.parse(address), broker_id=broker_id, **told)


def failed(address: str, trouble: Any, **how: Any) -> Seen:
    return Seen(address=Address.parse(address), trouble=trouble, **how)


def found(
    *instead: Seen, text: str = FILE, names: Mapping[str, str] = NAMES, silent: Mapping[Address, str] | None = None
) -> list[Finding]:
    """What is found where all is well but for `instead`."""
    well = (seen(INGRESS, 1), seen(EGRESS_2, 2), seen(EGRESS_3, 3))
    by_address = {one.address: one for one in (*well, *instead)}
    world = World(by_address, lambda host: resolve(names, host), lambda host: resolve(names, host), silent=silent or {})
    return list(route_findings(parse_config(text), world))


def not_ok(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.about) for finding in findings if finding.level != "ok"]


def sentence(findings: list[Finding], about: str) -> str:
    return next(finding.sentence for finding in findings if finding.level != "ok" and finding.about == about)


def test_routes_that_lead_where_they_should_are_ok() -> None:
    findings = found()
    assert not_ok(findings) == []
    assert [finding.sentence for finding in findings if finding.about == "egress[1].upstream"] == [
        "10.0.0.3:9092 is broker 3"
    ]


def test_swapped_egress_upstreams_are_told_as_such() -> None:
    findings = found(seen(EGRESS_2, 3), seen(EGRESS_3, 2))
    assert not_ok(findings) == [("fail", "egress[0].upstream"), ("fail", "egress[1].upstream")]
    assert sentence(findings, "egress[0].upstream") == (
        "10.0.0.2:9092 is broker 3, and not peer 2: the two upstreams are swapped"
    )


def test_egress_to_another_peer_or_to_its_own_broker_is_told() -> None:
    assert "egress[1] has that peer" in sentence(found(seen(EGRESS_2, 3)), "egress[0].upstream")
    assert "which is this broker itself" in sentence(found(seen(EGRESS_2, 1)), "egress[0].upstream")
    assert "correct peer or upstream" in sentence(found(seen(EGRESS_2, 7)), "egress[0].upstream")


def test_ingress_that_leads_to_another_broker_is_told() -> None:
    findings = found(seen(INGRESS, 2))
    assert not_ok(findings) == [("fail", "ingress[0].upstream")]
    assert "broker 2, and broker_id is 1" in sentence(findings, "ingress[0].upstream")


def test_ids_that_no_broker_has_are_told_with_those_there_are() -> None:
    findings = found(text=FILE.replace("broker_id = 1", "broker_id = 8"))
    assert "8 (1, 2 and 3)" in sentence(findings, "broker_id")
    findings = found(text=FILE.replace("peer = 3", "peer = 33"))
    assert "33 (1, 2 and 3)" in sentence(findings, "egress[1].peer")
    assert sentence(findings, "egress").startswith("3 has no egress")


def test_upstream_that_is_the_controller_is_told() -> None:
    findings = found(seen(EGRESS_2, None, apis=OF_A_CONTROLLER, brokers={}))
    assert not_ok(findings) == [("fail", "egress[0].upstream")]
    assert "controller's listener" in sentence(findings, "egress[0].upstream")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("unresolved", "does not resolve on this machine"),
        ("refused", "nothing listens on 10.0.0.2:9092: correct the port"),
        ("timeout", "cannot be reached"),
        ("silent", "answers nothing that Kafka would"),
        ("plaintext", "speaks no TLS"),
        ("certificate", "TLS with 10.0.0.2:9092 fails"),
    ],
)
def test_upstream_that_is_not_reached_says_why(trouble: str, said: str) -> None:
    findings = found(failed(EGRESS_2, trouble))
    assert not_ok(findings) == [("fail", "egress[0].upstream")]
    assert said in sentence(findings, "egress[0].upstream")


def test_tls_that_passes_as_it_is_is_a_warning() -> None:
    findings = found(failed(INGRESS, None, speaks_tls=True))
    assert not_ok(findings) == [("warn", "ingress[0].upstream")]
    assert "no quota counts" in sentence(findings, "ingress[0].upstream")


def test_silent_broker_is_a_warning_and_its_names_are_compared() -> None:
    """A silent broker does not tell its id."""
    findings = found(seen(INGRESS, None, not_told="it wants more"))
    assert not_ok(findings) == [("warn", "ingress[0].upstream")]
    assert "it wants more" in sentence(findings, "ingress[0].upstream")
    assert Finding("ok", "ingress[0].listen", "broker 1 advertises kafka1:9092, which leads here") in findings


def test_broker_that_advertises_itself_or_another_port_is_told() -> None:
    itself = {**BROKERS, 1: Broker("127.0.0.1", 19092)}
    assert "which is itself" in sentence(found(seen(INGRESS, 1, brokers=itself)), "ingress[0].listen")
    elsewhere = {**BROKERS, 1: Broker("kafka1", 9999)}
    assert "no ingress listens on port 9999" in sentence(
        found(seen(INGRESS, 1, brokers=elsewhere)), "ingress[0].listen"
    )
    findings = found(names={**NAMES, "kafka1": "10.9.9.9"})
    assert not_ok(findings) == [("warn", "ingress[0].listen")]
    assert "leads to 10.9.9.9" in sentence(findings, "ingress[0].listen")


def test_peer_whose_name_does_not_lead_to_its_listener_is_told() -> None:
    findings = found(names={**NAMES, "kafka2": "10.0.0.2"})
    assert not_ok(findings) == [("fail", "egress[0].listen")]
    assert "leads to 10.0.0.2 from this machine, and not to 127.0.1.2:9092" in sentence(findings, "egress[0].listen")
    assert "nowhere" in sentence(found(names={"kafka1": "10.0.0.1"}), "egress[0].listen")
    other_port = {**BROKERS, 2: Broker("kafka2", 9094)}
    assert "listen on port 9094" in sentence(found(seen(EGRESS_2, 2, brokers=other_port)), "egress[0].listen")


def test_misspelled_topic_fails_and_one_to_come_is_a_warning() -> None:
    findings = found(seen(INGRESS, 1, missing={"ordres": "orders", "next-year": None}))
    assert not_ok(findings) == [("warn", "throttle.topics.next-year"), ("fail", "throttle.topics.ordres")]
    assert sentence(findings, "throttle.topics.ordres").endswith("did you mean orders?")


def test_followers_without_cluster_action_are_told() -> None:
    findings = found(seen(INGRESS, 1, operations=1 << 8))
    assert not_ok(findings) == [("fail", "ingress[0].upstream")]
    assert "ClusterAction" in sentence(findings, "ingress[0].upstream")


def test_broker_with_a_newer_fetch_is_a_warning() -> None:
    findings = found(seen(INGRESS, 1, apis={**OF_A_BROKER, 1: (4, 99)}))
    assert not_ok(findings) == [("warn", "ingress[0].upstream")]


def test_server_of_the_cluster_that_tells_nothing_is_told() -> None:
    servers = ["10.0.0.8:9092", "10.0.0.9:9092"]
    text = FILE + f'[cluster]\nbootstrap_servers = "{",".join(servers)}"\n'
    down = [failed(server, "refused", reason="Connection refused") for server in servers]
    assert not_ok(found(*down, text=text)) == [("fail", "cluster.bootstrap_servers")] * 2
    assert not_ok(found(down[0], seen(servers[1], 2), text=text)) == [("warn", "cluster.bootstrap_servers")]


CAPTURE = 'broker_id = 1\n[cluster]\nbootstrap_servers = "10.0.0.1:9092"\n[capture]\nport = 9092\n'


def captured(one: Seen | None, text: str = CAPTURE, advertised: int = 9092) -> list[Finding]:
    """What is found of a capture whose broker looks like `one` at the captured port."""
    brokers = {number: Broker(f"kafka{number}", advertised) for number in (1, 2, 3)}
    server = seen("10.0.0.1:9092", 1, brokers=brokers)
    world = World({server.address: server}, lambda host: resolve(NAMES, host), lambda host: resolve(NAMES, host), one)
    return list(route_findings(parse_config(text), world))


def test_advertised_address_that_answers_nobody_fails() -> None:
    silent = {Address("kafka1", 9092): "Connection refused"}
    findings = found(silent=silent)
    assert not_ok(findings) == [("fail", "ingress[0].listen")]
    assert "where nobody answers (Connection refused)" in sentence(findings, "ingress[0].listen")


def test_advertised_name_that_is_not_known_here_does_not_fail() -> None:
    """Its followers may know it."""
    silent = {Address("kafka1", 9092): "Name or service not known"}
    findings = found(silent=silent, names={name: NAMES[name] for name in ("kafka2", "kafka3")})
    assert not any("nobody answers" in one.sentence for one in findings)


def test_broker_behind_a_captured_port_is_looked_at_as_ingress() -> None:
    assert not_ok(captured(seen("kafka1:9092", 1))) == []
    assert not_ok(captured(seen("kafka1:9092", 2))) == [("fail", "capture.upstream")]
    assert not_ok(captured(None)) == []
    only_follower = f'{CAPTURE}sides = ["follower"]\n'
    assert not_ok(captured(seen("kafka1:9092", 2), only_follower)) == []


def test_captured_port_with_tls_passes_or_says_why_it_fails() -> None:
    """TLS passes as it is where there are no keys; where it cannot be ended, the reason is told."""
    opaque = Seen(address=Address.parse("kafka1:9092"), speaks_tls=True, not_told="it speaks TLS")
    assert "set capture.tls and capture.upstream_tls" in sentence(captured(opaque), "capture.upstream")
    refused = captured(failed("kafka1:9092", "certificate", reason="unknown ca", speaks_tls=True))
    assert "TLS with kafka1:9092 fails: unknown ca" in sentence(refused, "capture.upstream")


def test_servers_at_another_port_than_captured_are_told_of() -> None:
    findings = captured(seen("kafka1:9092", 1), advertised=9094)
    assert not_ok(findings) == [("warn", "capture.port")]
    assert "9094 is what broker 1 advertises" in sentence(findings, "capture.port")

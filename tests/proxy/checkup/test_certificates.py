# SPDX-License-Identifier: Apache-2.0
"""Certificates: days that are left, and names that brokers look for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.proxy.checkup.certificates import certificate_findings
from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.look import Seen
from weir.proxy.checkup.routes import World
from weir.proxy.cluster.view import Broker
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config


def found(tmp_path: Path, host: str = "kafka2", days: float = 90, later_days: float = 0) -> list[Finding]:
    """What is found of an egress whose certificate is for kafka2 and *.kafka, where peer 2 advertises `host`."""
    authority = Authority(tmp_path)
    issued = authority.issue("kafka2", names=["kafka2", "*.kafka"], days=days)
    config = parse_config(
        f"""
        broker_id = 1
        [[egress]]
        peer = 2
        listen = "127.0.1.2:9092"
        upstream = "10.0.0.2:9092"
        [egress.tls]
        certificate = "{issued.together}"
        [egress.upstream_tls]
        ca = "{authority.ca}"
        """
    )
    upstream = config.egress[0].upstream
    world = World({upstream: Seen(address=upstream, brokers={2: Broker(host, 9092)})}, lambda _: set(), lambda _: set())
    return list(certificate_findings(config, RouteKeys(config).all_keys, world, time.time() + later_days * 86_400))


def test_certificate_for_captured_connections_names_all_peers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("peers", names=["kafka2"], days=90)
    config = parse_config(
        f"""
        broker_id = 1
        [cluster]
        bootstrap_servers = "10.0.0.1:9092"
        [capture]
        port = 9092
        [capture.peer_tls]
        certificate = "{issued.together}"
        [capture.peer_upstream_tls]
        ca = "{authority.ca}"
        """
    )
    (server,) = config.cluster.bootstrap_servers if config.cluster else ()
    brokers = {number: Broker(f"kafka{number}", 9092) for number in (1, 2, 3)}
    world = World({server: Seen(address=server, brokers=brokers)}, lambda _: set(), lambda _: set())
    _, warning = certificate_findings(config, RouteKeys(config).all_keys, world, time.time())
    assert (warning.level, warning.about) == ("warn", "capture.peer_tls")
    assert "is for kafka2, and who connects here looks for kafka3:" in warning.sentence


@pytest.mark.parametrize(("days", "levels"), [(5, ["ok"]), (-1, ["fail", "ok"])])
def test_list_of_revoked_certificates_that_has_expired_is_a_failure(
    tmp_path: Path, days: float, levels: list[str]
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("kafka1", days=90)
    with open(authority.ca, "ab") as file:
        file.write(authority.revoke(days=days))
    config = parse_config(
        f"""
        broker_id = 1
        [[ingress]]
        listen = "127.0.0.1:9192"
        upstream = "127.0.0.1:9092"
        [ingress.tls]
        certificate = "{issued.together}"
        ca = "{authority.ca}"
        client_auth = "required"
        """
    )
    upstream = config.ingress[0].upstream
    world = World({upstream: Seen(address=upstream)}, lambda _: set(), lambda _: set())
    findings = list(certificate_findings(config, RouteKeys(config).all_keys, world, time.time()))
    assert [one.level for one in findings] == levels
    assert ("(CRL) in ca has expired" in findings[0].sentence) is (days < 0)


@pytest.mark.parametrize(
    ("later", "level", "said"),
    [
        (0, "ok", "(for kafka2 and *.kafka) is valid for 90 days"),
        (80, "warn", "expires in 10 days"),
        (95, "fail", "expired 5 days ago"),
    ],
)
def test_certificate_has_days_left(tmp_path: Path, later: float, level: str, said: str) -> None:
    (finding,) = found(tmp_path, later_days=later)
    assert (finding.level, finding.about, said in finding.sentence) == (level, "egress[0].tls", True)


@pytest.mark.parametrize(
    ("host", "is_named"), [("kafka2", True), ("KAFKA2", True), ("b.kafka", True), ("10.0.0.2", True), ("kafka3", False)]
)
def test_certificate_has_the_name_that_the_peer_advertises(tmp_path: Path, host: str, is_named: bool) -> None:
    levels = [finding.level for finding in found(tmp_path, host)]
    assert levels == (["ok"] if is_named else ["ok", "warn"])

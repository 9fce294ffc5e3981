# SPDX-License-Identifier: Apache-2.0
"""A follower's side that ends TLS: its egress has a certificate with the leader's name, which the follower trusts.

The brokers authorize what they are asked, and look for their peers' names in certificates. Only the follower's sidecar
has such a certificate: that of the leader carries TLS as it is where the leader follows.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_read_once,
    clear,
    filled,
    moving,
    throttle,
    wait_for_bytes,
)
from tests.integration.secured import (
    BROKERS,
    FOLLOWER,
    LEADER,
    RATE,
    Pki,
    accepted,
    assert_keeps_rate,
    restart,
    secured,
)
from weir.cli.main import main
from weir.lab.network import LOOPBACK, egress_address
from weir.lab.produce import LiveProducer
from weir.lab.secured import SecuredCluster
from weir.lab.security import principal
from weir.lab.sidecar import Sidecar

pytestmark = pytest.mark.integration

WORKERS = 2
"""How many processes do TLS in each sidecar, with SASL_SSL; with SSL the sidecar does it itself."""


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SecuredCluster, Pki]]:
    tables = {"tls": {"workers": WORKERS}} if request.param == "SASL_SSL" else {}
    with secured(request.param, tmp_path_factory.mktemp("keys"), stands_in=True, sidecar_tables=tables) as running:
        yield running


@pytest.fixture
def cluster(running: tuple[SecuredCluster, Pki]) -> Iterator[SecuredCluster]:
    """The brokers, without topics and throttles afterwards."""
    yield running[0]
    clear(running[0])


@pytest.mark.parametrize("running", ["SSL"], indirect=True)
def test_quota_at_its_own_side_outlives_the_key(running: tuple[SecuredCluster, Pki], cluster: SecuredCluster) -> None:
    """TLS ends twice, at the follower's and at the leader's sidecar. The key is in a locked PKCS12 file."""
    _, pki = running
    sidecar = cluster.sidecars[FOLLOWER]
    moved = filled(cluster, "moved", [LEADER], 26 * MB)
    sidecar.put_throttle(throttle(moved, follower=RATE))
    with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
        wait_for_bytes(cluster, received, MB)
        before, old = accepted(sidecar, "follower"), shown_serial(cluster, pki)
        keystore = Path(pki.stand_in().keystore)
        cluster.wait_for("the new key in use", lambda: reloads(sidecar, "ok") == 1, 15)
        new = shown_serial(cluster, pki)
        assert new != old
        keystore.write_bytes(keystore.read_bytes()[:100])
        cluster.wait_for("the broken file seen", lambda: reloads(sidecar, "refused") >= 1, 15)
        assert shown_serial(cluster, pki) == new
        cluster.wait_for("a line of the log", lambda: logged(sidecar, "tls_keys_refused", "egress[0].tls"), 10)
        pki.stand_in()  # whole files again, for a sidecar that starts anew
        assert_keeps_rate(cluster, received, 3 * MB)
        knocks = 3
        assert accepted(sidecar, "follower") == before + knocks  # the follower's connection goes on
        sidecar.delete_throttle()
    assert_identical(cluster, [moved], *BROKERS)
    metrics = sidecar.metrics()
    assert metrics.value("weir_partitions_left_out_total", side="follower") > 0
    assert metrics.value("weir_passthrough_total") == 0
    assert cluster.fetchers(LEADER) == {(principal(LEADER), LOOPBACK)}  # as its own sidecar asks it


def shown_serial(cluster: SecuredCluster, pki: Pki) -> str:
    """Return the serial number of the certificate that the follower's egress shows to the follower."""
    context = ssl.create_default_context(cafile=pki.authority.ca)
    context.load_cert_chain(pki.brokers[FOLLOWER].together)
    address = (egress_address(FOLLOWER), cluster.places[LEADER].advertised)
    with (
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=principal(LEADER)) as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def reloads(sidecar: Sidecar, result: str) -> float:
    return sidecar.metrics().value("weir_tls_reloads_total", result=result)


def logged(sidecar: Sidecar, *words: str) -> bool:
    """Whether one line of a sidecar's log has all these words."""
    return any(all(word in line for word in words) for line in sidecar.log.read_text().splitlines())


def test_leader_without_a_sidecar_sees_the_follower_itself(cluster: SecuredCluster) -> None:
    """By its certificate with SSL, and by its user with SASL_SSL."""
    place, sidecar = cluster.places[LEADER], cluster.sidecars[FOLLOWER]
    text = sidecar.config.read_text()
    restart(cluster, FOLLOWER, text.replace(f'"{place.advertised_address}"', f'"{place.listener_address}"'))
    try:
        moved = filled(cluster, "moved-alone", [LEADER], 8 * MB)
        sidecar.put_throttle(throttle(moved, follower=RATE))
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, MB)
            assert_keeps_rate(cluster, received, 3 * MB)
            sidecar.delete_throttle()
        assert_identical(cluster, [moved], *BROKERS)
        assert (principal(FOLLOWER), LOOPBACK) in cluster.fetchers(LEADER)
        busy = sidecar.metrics().samples("weir_tls_worker_busy_ratio")
        assert len(busy) == (WORKERS if "workers" in text else 0)
    finally:
        restart(cluster, FOLLOWER, text)


@pytest.mark.parametrize("running", ["SSL"], indirect=True)
def test_follower_that_refuses_the_certificate_has_no_quota(
    running: tuple[SecuredCluster, Pki], cluster: SecuredCluster
) -> None:
    """As it does when the certificate has expired. TLS passes as it is then, until there is a new one."""
    _, pki = running
    sidecar = cluster.sidecars[FOLLOWER]
    cluster.create_topic("live", {0: [LEADER, FOLLOWER]})
    shrunk = shrinks(cluster)
    with LiveProducer(cluster.bootstrap_servers, "live", [0], rate=30) as producer:
        pki.stand_in(days=-1)
        restart(cluster, FOLLOWER, sidecar.config.read_text())
        cluster.wait_for("TLS that passes", lambda: passes_as_it_is(sidecar) > 0, 20)
        cluster.wait_for("a line of the log", lambda: logged(sidecar, "tls_not_ended", "passes as it is"), 10)
        assert handshakes(sidecar, "client") == 0
        pki.stand_in()
        cluster.wait_for("TLS that is ended", lambda: handshakes(sidecar, "client") > 0, 20)
        assert passes_as_it_is(sidecar) == 0
    assert producer.failed == 0
    assert_read_once(cluster, "live", producer)
    assert shrinks(cluster) == shrunk
    pki.denied = cluster.denials()


def shrinks(cluster: SecuredCluster) -> int:
    return sum(broker.log.read_text().count("Shrinking ISR") for broker in cluster.brokers.values())


def passes_as_it_is(sidecar: Sidecar) -> float:
    return sidecar.metrics().value("weir_opaque_connections", side="follower")


def handshakes(sidecar: Sidecar, end: str) -> float:
    return sidecar.metrics().value("weir_tls_handshakes_total", side="follower", end=end, result="ok")


@pytest.mark.parametrize("running", ["SSL"], indirect=True)
def test_check_says_which_side_has_a_certificate(cluster: SecuredCluster, capsys: pytest.CaptureFixture[str]) -> None:
    notes, said = checked(cluster, FOLLOWER, capsys)
    assert notes == []
    assert said["egress[0].upstream"] == ("ok", f"{cluster.places[LEADER].advertised_address} is broker {LEADER}")
    assert said["egress[0].listen"][0] == "ok"
    cluster.create_topic("back", {0: [FOLLOWER, LEADER]})
    cluster.wait_for("the leader's own fetches", lambda: passed_as_it_is(cluster.sidecars[LEADER]) > 0, 20)
    notes, said = checked(cluster, LEADER, capsys)
    assert "no certificate for connections of peer 1: they pass as they are" in notes[0]
    level, sentence = said["egress[0].upstream"]
    assert level == "warn"
    assert "speaks TLS, which passes as it is" in sentence
    assert "egress[0].tls a certificate with the name of broker 1" in sentence


def passed_as_it_is(sidecar: Sidecar) -> float:
    return sidecar.metrics().value("weir_passthrough_total", side="follower", reason="tls")


def checked(
    cluster: SecuredCluster, broker: int, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return what `weir check --live` notes of a sidecar's file, and the last that it finds, by what it is about."""
    hosts = cluster.brokers[broker].data.parent / "hosts"
    assert main(["check", "--live", str(cluster.sidecars[broker].config), "--hosts-file", str(hosts), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    notes = [note for note in told["notes"] if "cluster" not in note]
    return notes, {one["about"]: (one["level"], one["sentence"]) for one in told["live"]}

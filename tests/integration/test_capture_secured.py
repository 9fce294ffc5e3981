# SPDX-License-Identifier: Apache-2.0
"""Sidecars that capture TLS between real brokers that authorize what they are asked, as Strimzi's do.

Each broker is on a host (a network namespace) of its own. None is changed, restarted or given a key for weir: the
leader's side has the broker's own key, and the follower's side carries TLS as it is. In every test records are produced
with acks=all all the while: none may be lost, and no replica may leave the ISR.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.fakes.pki import Authority, Issued
from tests.integration.captures import CAPTURES, links, passes_directly, unharmed
from tests.integration.moves import (
    MB,
    assert_identical,
    assert_rate,
    filled,
    now,
    throttle,
    wait_for_bytes,
)
from weir.lab.hosted import HostedCluster
from weir.lab.hosts import Hosts
from weir.lab.received import ReceivedBytes
from weir.lab.security import BrokerKeys, Protocol, Security, denials, fetchers, principal
from weir.lab.sidecar import PROJECT, Sidecar

pytestmark = CAPTURES

LEADER, PEER, FOLLOWER = BROKERS = (1, 2, 3)
LEADERS = (LEADER, PEER)
RATE = 2 * MB
INTO_FOLLOWER = {
    "quotas": [{"name": "into-3", "side": "follower", "rate": RATE, "peers": [FOLLOWER], "kept_at": "leaders"}]
}
_numbers = count(1)


class Secured:
    """The brokers, and the keys with which their sidecars capture: copies of the brokers' own.

    With SASL a process of its own ends and begins TLS.
    """

    def __init__(self, protocol: Protocol, folder: Path) -> None:
        self.protocol = protocol
        self._authority = Authority(folder)
        self.cluster = HostedCluster(security=self._security)
        self.issued: dict[int, Issued] = {}
        self.denied: list[str] = []
        """What brokers have refused, and had to."""

    def put_in(self, brokers: tuple[int, ...] = BROKERS, **capture: Any) -> None:
        """Put sidecars in, which keep the follower's quota from the start unless they wait for a throttle."""
        tables: dict[str, Any] = {} if "when" in capture else {"throttle": INTO_FOLLOWER}
        if self.protocol == "SASL_SSL":
            tables["tls"] = {"workers": 1}
        for broker in brokers:
            self.cluster.put_in(broker, {**self.tls(broker), **capture}, tables)
        for broker in brokers:
            self.cluster.sidecars[broker].wait_until("/readyz", 20)

    def issue(self, broker: int) -> Issued:
        """Sign a key for a broker; the files of its sidecar's last one are replaced."""
        names = [principal(broker), self.cluster.hosts.address(broker)]
        self.issued[broker] = self._authority.issue(principal(broker), names=names)
        return self.issued[broker]

    def _security(self, hosts: Hosts) -> Security:
        keys = {}
        for broker in BROKERS:
            keystore = Path(self.issue(broker).together)
            copy = keystore.with_suffix(".broker")
            copy.write_text(keystore.read_text())
            keys[broker] = BrokerKeys(str(copy), self._authority.ca)
        return Security(self.protocol, keys)

    def tls(self, broker: int) -> dict[str, Any]:
        """Return how a broker's sidecar ends TLS, and begins it again."""
        tls: dict[str, Any] = {"certificate": self.issued[broker].together}
        if self.protocol == "SSL":
            tls |= {"ca": self._authority.ca, "client_auth": "required", "allowed_names": ["broker-*"]}
        return {"tls": tls, "upstream_tls": {"ca": self._authority.ca}}

    def as_peers(self, broker: int) -> dict[str, Any]:
        """Return how a broker's sidecar ends TLS in the names of all its peers, and begins it again in its own."""
        addresses = [self.cluster.hosts.address(peer) for peer in BROKERS if peer != broker]
        both = {"ca": self._authority.ca}
        peers = {"certificate": self._authority.issue("peers", names=addresses).together, **both}
        upstream = {"certificate": self.issued[broker].together, "allowed_names": ["broker-*"], **both}
        mutual = {"client_auth": "required", "allowed_names": [principal(broker)]}
        return {"peer_tls": {**peers, **mutual}, "peer_upstream_tls": upstream}

    def who_fetches(self, whom: int) -> set[tuple[str, str]]:
        """Return whose fetches the leader has allowed when brokers are captured: (principal, host)."""
        # through a sidecar, a follower is its leader's own certificate, or still its own SASL user
        name = principal(LEADER if self.protocol == "SSL" else whom)
        return {(name, self.cluster.hosts.address(LEADER))}


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(request.param, tmp_path_factory.mktemp("keys"))
    with secured.cluster as cluster:
        secured.denied = denials(cluster.brokers.values())
        yield secured
        assert denials(cluster.brokers.values()) == secured.denied


@pytest.fixture
def live(secured: Secured) -> Iterator[str]:
    """A topic that is produced to; sidecars are stopped afterwards."""
    topic = f"live-{next(_numbers)}"
    secured.cluster.create_topic(topic, {0: [LEADER, PEER]})
    yield topic
    for sidecar in secured.cluster.sidecars.values():
        if sidecar.alive:
            sidecar.kill()


@pytest.fixture
def topics(secured: Secured, live: str) -> tuple[list[str], str]:
    """Two topics that are moved, of two leaders, and one that is produced to."""
    return [filled(secured.cluster, f"moved-of-{live}-{leader}", [leader], 12 * MB) for leader in LEADERS], live


@contextmanager
def moving_in(cluster: HostedCluster, moved: list[str]) -> Iterator[ReceivedBytes]:
    """Move the topics, each from its own leader, to the follower too while the block runs; then wait for the end."""
    homes = {
        partition: leader for leader, topic in zip(LEADERS, moved, strict=True) for partition in parts(cluster, topic)
    }
    with cluster.received_bytes(FOLLOWER, homes) as received:
        cluster.reassign({partition: [leader, FOLLOWER] for partition, leader in homes.items()})
        yield received
        cluster.admin.wait_for_reassignments(60, poll_seconds=0.1)
    for leader, topic in zip(LEADERS, moved, strict=True):
        assert_identical(cluster, [topic], leader, FOLLOWER)


def parts(cluster: HostedCluster, topic: str) -> list[tuple[str, int]]:
    return sorted(cluster.admin.partitions([topic]))


def handshakes(sidecar: Sidecar, end: str, result: str = "ok") -> float:
    return sidecar.metrics().value("weir_tls_handshakes_total", side="leader", end=end, result=result)


def passed_as_it_is(sidecar: Sidecar, side: str) -> float:
    return sidecar.metrics().value("weir_passthrough_total", side=side, reason="tls")


def test_quota_at_captured_leaders_outlives_their_keys(secured: Secured, topics: tuple[list[str], str]) -> None:
    """Each leader ends TLS with its broker's own key. The followers' sides have none for peers, and carry it on."""
    moved, live = topics
    cluster = secured.cluster
    with unharmed(cluster, live):
        sleep(2)
        secured.put_in()
        cluster.wait_for("all in the path", lambda: links(cluster.sidecars[PEER], "follower") > 0, 30)
        with moving_in(cluster, moved) as received:
            wait_for_bytes(cluster, received, 3 * MB)
            begun = now(received)
            sidecars = [cluster.sidecars[broker] for broker in LEADERS]
            accepted = [handshakes(sidecar, "client") for sidecar in sidecars]
            for broker in LEADERS:
                secured.issue(broker)
            for sidecar in sidecars:
                cluster.wait_for("the new key in use", partial(has_reloaded, sidecar), 15)
            wait_for_bytes(cluster, received, 16 * MB)
            assert_rate(received.series(), begun, now(received), RATE)
            # connections that stand go on; only where SASL ends a session, others come
            assert secured.protocol != "SSL" or accepted == [handshakes(sidecar, "client") for sidecar in sidecars]
            for broker in BROKERS:
                assert passed_as_it_is(cluster.sidecars[broker], "leader") == 0
            assert passed_as_it_is(cluster.sidecars[FOLLOWER], "follower") >= len(LEADERS)
            said = checked(cluster, LEADER)
            secured.denied = denials(cluster.brokers.values())  # a look without TLS
            taken_out(cluster)
        sleep(1)
    assert said["capture.upstream"] == said["cluster.bootstrap_servers"] == "ok"
    assert fetchers(cluster.brokers[LEADER]) >= secured.who_fetches(PEER)
    assert all(passes_directly(cluster, broker) for broker in BROKERS)


@pytest.mark.parametrize("secured", ["SSL"], indirect=True)
def test_quota_at_its_own_side_with_a_certificate_of_its_peers(secured: Secured, topics: tuple[list[str], str]) -> None:
    """No leader has a sidecar: each sees the follower's own certificate, from the follower's address."""
    moved, live = topics
    cluster, follower = secured.cluster, secured.cluster.hosts.address(FOLLOWER)
    before = {leader: fetchers(cluster.brokers[leader]) for leader in LEADERS}
    with unharmed(cluster, live):
        sidecar = cluster.put_in(FOLLOWER, {"sides": ["follower"], **secured.as_peers(FOLLOWER)})
        sidecar.wait_until("/readyz", 20)
        sidecar.put_throttle(throttle(*moved, follower=RATE))
        with moving_in(cluster, moved) as received:
            wait_for_bytes(cluster, received, MB)
            begun = now(received)
            wait_for_bytes(cluster, received, 12 * MB)
            assert_rate(received.series(), begun, now(received), RATE)
            metrics = sidecar.metrics()
            assert metrics.value("weir_tls_handshakes_total", side="follower", end="client", result="ok") >= len(
                LEADERS
            )
            assert passed_as_it_is(sidecar, "follower") == 0
            taken_out(cluster, [FOLLOWER])
    for leader in LEADERS:
        assert fetchers(cluster.brokers[leader]) - before[leader] <= {(principal(FOLLOWER), follower)}


def checked(cluster: HostedCluster, broker: int) -> dict[str, str]:
    """Return what `weir check --live` says of a sidecar's file, by what it is about; the worst of each."""
    command = [sys.executable, "-m", "weir", "check", "--live", "--json", str(cluster.sidecars[broker].config)]
    found = subprocess.run(
        cluster.hosts.on(broker, command), cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    levels: dict[str, str] = {}
    for one in json.loads(found.stdout)["live"]:
        if levels.get(one["about"], "ok") == "ok":
            levels[one["about"]] = one["level"]
    return levels


def has_reloaded(sidecar: Sidecar) -> bool:
    return sidecar.metrics().value("weir_tls_reloads_total", result="ok") > 0


def taken_out(cluster: HostedCluster, brokers: Sequence[int] = BROKERS) -> None:
    sidecars = [cluster.sidecars[broker] for broker in brokers]
    for sidecar in sidecars:
        sidecar.send(signal.SIGTERM)
    for sidecar in sidecars:
        assert sidecar.wait(20) == 0


def test_replication_over_tls_goes_on_past_a_killed_sidecar(secured: Secured, topics: tuple[list[str], str]) -> None:
    moved, live = topics
    cluster = secured.cluster
    with unharmed(cluster, live):
        secured.put_in()
        with moving_in(cluster, moved) as received:
            wait_for_bytes(cluster, received, 4 * MB)
            cluster.sidecars[LEADER].kill()
            killed = monotonic()
            cluster.sidecars[PEER].delete_throttle()
        assert monotonic() - killed < 15  # the rest, 12 MB, takes a second without a throttle
    assert passes_directly(cluster, LEADER)


@pytest.mark.parametrize("secured", ["SSL"], indirect=True)
def test_sidecar_comes_into_tls_and_goes_with_each_throttle(secured: Secured, live: str) -> None:
    cluster = secured.cluster
    with unharmed(cluster, live, p99_seconds=15):
        secured.put_in((LEADER,), when="throttled")
        sidecar = cluster.sidecars[LEADER]
        assert links(sidecar, "leader") == 0
        for _ in range(3):
            sidecar.put_throttle(throttle(live, leader=RATE))
            cluster.wait_for("in the path", lambda: links(sidecar, "leader") > 0, 30)
            sidecar.delete_throttle()
            cluster.wait_for("out of the path", lambda: links(sidecar, "leader") == 0, 30)


@pytest.mark.parametrize("secured", ["SSL"], indirect=True)
def test_sidecar_that_takes_no_follower_goes_out_of_their_way(secured: Secured, live: str) -> None:
    cluster = secured.cluster
    with unharmed(cluster, live, p99_seconds=15):
        sleep(1)
        tables = secured.tls(LEADER)
        sidecar = cluster.put_in(LEADER, {**tables, "tls": {**tables["tls"], "allowed_names": ["somebody-else"]}})
        sidecar.wait_until("/healthz", 20)
        cluster.wait_for("followers refused", lambda: handshakes(sidecar, "client", "wrong_name") >= 3, 30)
        cluster.wait_for("out of the path", lambda: sidecar.metrics().value("weir_captured") == 0, 30)
        sleep(2)
        status, said = sidecar.http("GET", "/readyz")
        assert (status, "no follower came through" in str(said)) == (503, True)

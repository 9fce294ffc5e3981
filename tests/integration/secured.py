# SPDX-License-Identifier: Apache-2.0
"""Two brokers that speak TLS, SASL or both with each other, with sidecars between them; several test files use them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.pki import Authority, Issued
from tests.integration.moves import MB, assert_rate, now, wait_for_bytes
from weir.lab.received import ReceivedBytes
from weir.lab.sasl import PASSWORD
from weir.lab.secured import SecuredCluster
from weir.lab.security import BrokerKeys, Protocol, principal
from weir.lab.sidecar import Sidecar

FOLLOWER, LEADER = 1, 2  # broker 1 is the controller, from which the other one fetches too
BROKERS = (FOLLOWER, LEADER)
RATE = MB


class Pki:
    """An authority, and the certificate of each broker. Brokers are reached as `localhost`."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.brokers = {one: self.issue(one) for one in BROKERS}
        self.denied: list[str] = []
        """What brokers have refused, and had to."""

    def issue(self, broker: int) -> Issued:
        """Sign a key of a broker; the files of its last one are replaced."""
        name = principal(broker)
        return self.authority.issue(name, names=[name, "localhost"])

    @property
    def keys(self) -> dict[int, BrokerKeys]:
        """Copies of the brokers' keys, which stay when the sidecars' are replaced."""
        copies = {one: Path(issued.together).with_suffix(".broker") for one, issued in self.brokers.items()}
        for one, copy in copies.items():
            copy.write_text(Path(self.brokers[one].together).read_text())
        return {one: BrokerKeys(str(copy), self.authority.ca) for one, copy in copies.items()}

    def ingress(self, protocol: Protocol) -> dict[int, dict[str, Any]]:
        """How each broker's ingress ends TLS, and begins it again, with the broker's own key."""
        if not protocol.endswith("SSL"):
            return {}
        mutual = {"ca": self.authority.ca, "client_auth": "required", "allowed_names": ["broker-*"]}
        return {
            one: {
                "tls": {"certificate": issued.together, **(mutual if protocol == "SSL" else {})},
                "upstream_tls": {"ca": self.authority.ca},
            }
            for one, issued in self.brokers.items()
        }

    def stand_in(self, days: float = 30) -> Issued:
        """Sign a locked key of the follower's egress, with the leader's name; its last one's files are replaced."""
        return self.authority.issue("stand-in", names=[principal(LEADER)], days=days, password=PASSWORD)

    def egress(self, protocol: Protocol) -> dict[int, dict[int, dict[str, Any]]]:
        """How the follower's egress ends TLS in the leader's name, and begins it again in the follower's own."""
        issued = self.stand_in()
        tls: dict[str, Any] = {"keystore": issued.keystore, "password_file": issued.password_file}
        upstream_tls: dict[str, Any] = {"ca": self.authority.ca, "server_name": principal(LEADER)}
        if protocol == "SSL":
            tls |= {"ca": self.authority.ca, "client_auth": "required", "allowed_names": [principal(FOLLOWER)]}
            upstream_tls |= {"certificate": self.brokers[FOLLOWER].together}
        return {FOLLOWER: {LEADER: {"tls": tls, "upstream_tls": upstream_tls}}}

    def between_sidecars(self, broker: int) -> dict[str, Any]:
        """A sidecar's table [tls]."""
        certificate = self.brokers[broker].together
        return {"certificate": certificate, "ca": self.authority.ca, "allowed_names": ["broker-*"]}


@contextmanager
def secured(
    protocol: Protocol, folder: Path, throttle: dict[str, Any] | None = None, *, stands_in: bool = False, **options: Any
) -> Iterator[tuple[SecuredCluster, Pki]]:
    """Run two brokers with sidecars; at the end nobody was denied, and no log has a bad sign.

    With `stands_in`, the follower's egress has a certificate with the leader's name. Options: SecuredCluster's.
    """
    pki = Pki(folder)
    with SecuredCluster(
        protocol,
        pki.keys,
        ingress=pki.ingress(protocol),
        egress=pki.egress(protocol) if stands_in else {},
        own_names=stands_in,
        brokers=2,
        sidecars=True,
        poll_isr=True,
        throttle=throttle,
        **options,
    ) as cluster:
        pki.denied = cluster.denials()
        yield cluster, pki
        assert cluster.denials() == pki.denied
        cluster.check_logs()


def accepted(sidecar: Sidecar, side: str = "leader") -> float:
    """How many connections a side of a sidecar has taken."""
    return sidecar.metrics().value("weir_connections_accepted_total", side=side)


def restart(cluster: SecuredCluster, broker: int, text: str) -> None:
    """Start a sidecar anew, with another configuration."""
    sidecar = cluster.sidecars[broker]
    sidecar.config.write_text(text)
    sidecar.send(signal.SIGTERM)
    sidecar.wait(20)
    cluster.start_sidecar(broker)


def assert_keeps_rate(cluster: SecuredCluster, received: ReceivedBytes, size: int) -> None:
    """Prove that the next `size` bytes come at RATE."""
    begin, total = now(received), received.total
    wait_for_bytes(cluster, received, total + size)
    assert_rate(received.series(), begin, now(received), RATE)

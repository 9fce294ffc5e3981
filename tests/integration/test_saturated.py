# SPDX-License-Identifier: Apache-2.0
"""A sidecar that is given a part of a core: it says so before a replica leaves the ISR."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.integration.moves import MB, filled, throttle
from tests.integration.secured import Pki
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveProducer, fill
from weir.lab.secured import SecuredCluster
from weir.lab.security import Protocol
from weir.lab.sidecar import Sidecar

pytestmark = pytest.mark.integration

LAG_LIMIT_SECONDS = 15
SATURATED = 'weir_trouble{what="saturated"} 1'


@contextmanager
def held_to(sidecar: Sidecar, run_seconds: float, stop_seconds: float) -> Iterator[None]:
    """The process runs and is stopped by turns, as by a CPU limit."""
    is_over = threading.Event()

    def take_turns() -> None:
        while not is_over.is_set():
            sidecar.send(signal.SIGSTOP)
            is_over.wait(stop_seconds)
            sidecar.send(signal.SIGCONT)
            is_over.wait(run_seconds)

    turns = threading.Thread(target=take_turns)
    turns.start()
    try:
        yield
    finally:
        is_over.set()
        turns.join()
        sidecar.send(signal.SIGCONT)


def shrunk(cluster: Cluster) -> int:
    """How often a replica has left the ISR."""
    return sum(broker.log.read_text().count("Shrinking ISR") for broker in cluster.brokers.values())


def is_saturated(sidecar: Sidecar) -> bool:
    """Whether the metric of the alert is high; a sidecar that is stopped answers late."""
    try:
        return SATURATED in sidecar.http("GET", "/metrics")[1]
    except OSError:
        return False


@contextmanager
def two_brokers(protocol: Protocol, folder: Path) -> Iterator[Cluster]:
    """Two brokers with sidecars, which speak plaintext, or end TLS and begin it again."""
    options: dict[str, Any] = {
        "brokers": 2,
        "sidecars": True,
        "throttle": throttle("moved", leader=MB // 10),
        "properties": {"replica.lag.time.max.ms": LAG_LIMIT_SECONDS * 1000},
        "sidecar_tables": {"quota": {"replica_lag_time_max_ms": LAG_LIMIT_SECONDS * 1000}},
    }
    if protocol == "PLAINTEXT":
        with NEWEST.cluster(**options) as cluster:
            yield cluster
        return
    pki = Pki(folder)
    with SecuredCluster(protocol, pki.keys, ingress=pki.ingress(protocol), **options) as secured:
        yield secured


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_saturated_sidecar_says_so_before_the_isr_shrinks(protocol: Protocol, tmp_path: Path) -> None:
    """Replication in sync, with acks=all, beside a throttled move: as fast as producers are, and far too slowly."""
    with two_brokers(protocol, tmp_path) as cluster:
        topic = filled(cluster, "busy", [1, 2], MB, partitions=1)
        filled(cluster, "moved", [1], 12 * MB, partitions=1)
        sidecar = cluster.sidecars[1]
        cluster.wait_for("a calm sidecar", lambda: not is_saturated(sidecar), 30)
        cluster.reassign({("moved", 0): [1, 2]})
        fill(cluster.bootstrap_servers, topic, {0: 30 * MB})  # at line speed, with acks=all
        assert not shrunk(cluster)
        with LiveProducer(cluster.bootstrap_servers, topic, [0], rate=100, message_bytes=10_240) as producer:
            with held_to(sidecar, 0.03, 0.27):  # a tenth of a core carries 1 MB/s
                cluster.wait_for("the alert's metric", lambda: is_saturated(sidecar), 30)
                sleep(LAG_LIMIT_SECONDS * 1.5)
                assert not shrunk(cluster)
                assert producer.acked
            assert cluster.admin.reassignments(), "the move is throttled all the while"
            with held_to(sidecar, 0.01, 10.0):  # and with less the alert has fired already
                cluster.wait_for("a replica that leaves the ISR", lambda: shrunk(cluster) > 0, 90)

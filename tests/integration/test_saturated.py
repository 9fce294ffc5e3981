"""A sidecar that is given a part of a core: it says so before a replica leaves the ISR."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.moves import MB, filled
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveProducer
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


def test_sidecar_is_told_to_be_saturated_before_a_replica_leaves_the_isr() -> None:
    lag = LAG_LIMIT_SECONDS * 1000
    tables = {"quota": {"replica_lag_time_max_ms": lag}}
    properties = {"replica.lag.time.max.ms": lag}
    with NEWEST.cluster(brokers=2, sidecars=True, sidecar_tables=tables, properties=properties) as cluster:
        topic = filled(cluster, "busy", [1, 2], MB, partitions=1)
        sidecar = cluster.sidecars[1]
        cluster.wait_for("a calm sidecar", lambda: not is_saturated(sidecar), 30)
        with LiveProducer(cluster.bootstrap_servers, topic, [0], rate=100, message_bytes=10_240, acks=1):
            with held_to(sidecar, 0.03, 0.27):  # a tenth of a core carries 1 MB/s
                cluster.wait_for("the alert's metric", lambda: is_saturated(sidecar), 30)
                time.sleep(LAG_LIMIT_SECONDS * 1.5)
                assert not shrunk(cluster)
            with held_to(sidecar, 0.01, 10.0):  # and with less the alert has fired already
                cluster.wait_for("a replica that leaves the ISR", lambda: shrunk(cluster) > 0, 90)

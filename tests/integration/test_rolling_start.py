# SPDX-License-Identifier: Apache-2.0
"""A cluster in use gets sidecars, loses one, has one replaced, and is rid of them, as docs/operations.md tells."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_keeps,
    assert_throttled,
    filled,
    moving,
    throttle,
)
from weir.lab.broker import Broker
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS
from weir.lab.network import LOOPBACK
from weir.lab.produce import LiveConsumer, LiveProducer, latency

pytestmark = pytest.mark.integration

RATE = 3 * MB
WAY_ROUND = Path(__file__).resolve().parents[2] / "deploy" / "way-round" / "way_round.py"
LED_ROUND_SECONDS = 25  # less than replica.lag.time.max.ms, after which the leader goes on alone
MOST_LED_ROUND = 0.1
"""Seconds that half of all records wait at most then: a relay that holds small packets back makes it 0.2."""
REPLICATION = "REPL"  # the listener for brokers alone
OF_LISTENERS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def properties(broker: Broker) -> dict[str, str]:
    """The lab's properties, with clients' listeners by address: only the brokers' one leads to a sidecar."""
    text = broker.properties.read_text()
    return dict(line.split("=", 1) for line in text.replace("CLIENT://localhost", "CLIENT://127.0.0.1").splitlines())


def write(broker: Broker, changed: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in changed.items())
    broker.properties.write_text(text)


def without_replication(after: dict[str, str]) -> dict[str, str]:
    """The properties of a broker that never heard of weir: its peers come to the listener that its clients use."""
    before = dict(after)
    for key in OF_LISTENERS:
        before[key] = ",".join(one for one in after[key].split(",") if not one.startswith(f"{REPLICATION}:"))
    return {**before, "inter.broker.listener.name": "CLIENT"}


def restart_with(cluster: Cluster, broker_id: int, changed: dict[str, str]) -> None:
    cluster.stop_broker(broker_id)
    write(cluster.brokers[broker_id], changed)
    cluster.start_broker(broker_id)
    cluster.wait_for("live in sync", lambda: cluster.is_in_sync("live"), 60)


def restart_sidecar(cluster: Cluster, broker_id: int) -> None:
    """Replace a sidecar as an upgrade does: SIGTERM drains it, and the new process takes its place."""
    sidecar = cluster.sidecars[broker_id]
    sidecar.send(signal.SIGTERM)
    assert sidecar.wait(20) == 0
    cluster.start_sidecar(broker_id)


@contextmanager
def led_round(cluster: Cluster, broker_id: int) -> Iterator[None]:
    """Relay every route of a dead sidecar by the script of deploy/."""
    command = [sys.executable, "-I", str(WAY_ROUND), str(cluster.sidecars[broker_id].config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as relays:
        try:
            yield
            assert relays.poll() is None
        finally:
            relays.terminate()
    assert relays.returncode == 0


def wait_for_acks(cluster: Cluster, producer: LiveProducer, seconds: float) -> None:
    """Wait until records are acknowledged that are sent from now on."""
    sent = producer.sent
    cluster.wait_for("new acknowledgements", lambda: any(one.number >= sent for one in producer.acked[-50:]), seconds)


def test_cluster_in_use_gets_sidecars_and_is_rid_of_them() -> None:
    with CORNERS[-1].cluster(2, sidecars=True) as cluster:
        after = {broker_id: properties(broker) for broker_id, broker in cluster.brokers.items()}
        before = {broker_id: without_replication(one) for broker_id, one in after.items()}
        for broker_id in (2, 1):
            cluster.stop_broker(broker_id)
            write(cluster.brokers[broker_id], before[broker_id])
        for broker_id in (1, 2):
            cluster.start_broker(broker_id)
        topic = filled(cluster, "orders", [1], 20 * MB)
        cluster.create_topic("live", {0: [1, 2]})
        live = cluster.bootstrap_servers, "live", [0]
        with LiveConsumer(*live) as consumer, LiveProducer(*live, rate=20) as producer:
            for broker_id in (2, 1):
                own = {key: after[broker_id][key] for key in OF_LISTENERS}
                restart_with(cluster, broker_id, {**before[broker_id], **own})
            assert fetches(cluster) == {1: 0, 2: 0}
            for broker_id in (2, 1):
                restart_with(cluster, broker_id, after[broker_id])
            cluster.wait_for("fetches through every sidecar", lambda: all(fetches(cluster).values()), 20)
            cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
            with moving(cluster, [topic], [1, 2]) as received:
                pass
            assert_throttled(cluster, 1, "leader")
            # an upgrade
            restart_sidecar(cluster, 1)
            wait_for_acks(cluster, producer, 30)
            cluster.wait_for("fetches through the new process", lambda: fetches(cluster)[1] > 0, 20)
            # the loss of one: acks=all stands still until its routes are led round it
            cluster.kill_sidecar(1)
            with led_round(cluster, 1):
                wait_for_acks(cluster, producer, LED_ROUND_SECONDS)
                cluster.wait_for("live in sync", lambda: cluster.is_in_sync("live"), 30)
                begun = producer.sent
                sleep(4)
                led = [record for record in producer.acked if record.number >= begun]
                print(f"p50 {latency(led, 0.5) * 1000:.0f} ms of {len(led)} records led round")
                assert latency(led, 0.5) < MOST_LED_ROUND
            cluster.start_sidecar(1)
            wait_for_acks(cluster, producer, 30)
            # the roll-back: brokers talk at the listener that they had before, and nothing needs a sidecar any more
            for broker_id in (2, 1):
                restart_with(cluster, broker_id, {**after[broker_id], "inter.broker.listener.name": "CLIENT"})
            cluster.wait_for("the end of all connections", lambda: not any(connections(cluster).values()), 30)
            for sidecar in cluster.sidecars.values():
                sidecar.send(signal.SIGTERM)
                assert sidecar.wait(20) == 0
            wait_for_acks(cluster, producer, 30)
            # the next restart takes away the listener, and the names that led to the sidecars
            for broker_id in (2, 1):
                hosts = cluster.brokers[broker_id].data.parent / "hosts"
                hosts.write_text(re.sub(r"\S+ localhost\n", f"{LOOPBACK} localhost\n", hosts.read_text()))
                restart_with(cluster, broker_id, before[broker_id])
                assert REPLICATION not in cluster.brokers[broker_id].properties.read_text()
            wait_for_acks(cluster, producer, 30)
        assert producer.failed == 0
        assert_keeps(received.series(), RATE)
        assert_identical(cluster, [topic, "live"], 1, 2)
        # One whose acknowledgement a restart cut off was sent again, and may be there twice.
        acked = {record.number for record in producer.acked}
        assert acked
        assert acked <= {record.number for record in consumer.consumed}
        cluster.check_logs(allow={"Shrinking ISR", "Truncating"})


def connections(cluster: Cluster) -> dict[int, float]:
    """Connections that are open through each sidecar."""
    return {broker_id: sidecar.metrics().value("weir_connections") for broker_id, sidecar in cluster.sidecars.items()}


def fetches(cluster: Cluster) -> dict[int, float]:
    """Replica fetches that each sidecar has seen, on both sides."""
    return {
        broker_id: sidecar.metrics().value("weir_fetch_requests_total")
        for broker_id, sidecar in cluster.sidecars.items()
    }

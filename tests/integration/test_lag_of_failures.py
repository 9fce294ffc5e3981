# SPDX-License-Identifier: Apache-2.0
"""Lag tells each replica that really stopped following, partition by partition, and none that follows elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from tests.modes import every_mode
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS, Mode
from weir.lab.produce import LiveProducer

pytestmark = pytest.mark.integration

LAG_TIME_MAX_SECONDS = 6
NOTICED_SECONDS = 40  # until lag is above that, and until a sidecar has heard from the cluster who leads
POLL_SECONDS = 1.0
PROPERTIES = {
    "replica.lag.time.max.ms": LAG_TIME_MAX_SECONDS * 1000,
    "replica.high.watermark.checkpoint.interval.ms": 500,  # a log folder that failed is noticed when it is written to
}
TABLES = {
    "cluster": {"poll_seconds": POLL_SECONDS},
    "quota": {"replica_lag_time_max_ms": LAG_TIME_MAX_SECONDS * 1000},
}
FIRST_VERSION_WITH_LOG_FOLDERS = 7  # of Fetch: at levels below, a broker whose log folder fails ends itself


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    with mode.cluster(3, sidecars=True, poll_isr=True, sidecar_tables=TABLES, properties=PROPERTIES) as cluster:
        yield cluster


def lags(cluster: Cluster, leader: int, topic: str, replica: int) -> dict[int, float]:
    """Seconds by partition that a replica is behind, by the sidecar of `leader`."""
    metrics = cluster.sidecars[leader].metrics()
    samples = metrics.samples("weir_replica_lag_seconds", side="leader", topic=topic, replica=replica)
    return {int(sample.labels["partition"]): sample.value for sample in samples}


def wait_for_fetches(cluster: Cluster, leader: int, topic: str, replica: int, partitions: set[int]) -> None:
    cluster.wait_for(
        f"fetches of broker {replica}", lambda: lags(cluster, leader, topic, replica).keys() == partitions, 30
    )


def wait_for_lag(cluster: Cluster, leader: int, topic: str, replica: int, partitions: set[int]) -> None:
    """Wait until these partitions of a replica, and no others, lag for longer than a replica in sync may."""

    def has_come() -> bool:
        found = lags(cluster, leader, topic, replica).items()
        return {partition for partition, seconds in found if seconds > LAG_TIME_MAX_SECONDS} == partitions

    cluster.wait_for(f"lag of {sorted(partitions)} of broker {replica}", has_come, NOTICED_SECONDS)


def out_of_sync(cluster: Cluster, topic: str) -> set[int]:
    """The partitions of which a replica is not in the ISR."""
    states = cluster.admin.partitions([topic]).items()
    return {number for (_, number), state in states if set(state.in_sync_replicas) != set(state.replicas)}


def add_log_folder(cluster: Cluster, broker_id: int) -> Path:
    """Restart a broker with a second log folder; a new replica goes to the one with fewer."""
    cluster.stop_broker(broker_id)
    broker = cluster.brokers[broker_id]
    second = broker.data.with_name("second")
    second.mkdir()
    whose = (broker.data / "meta.properties").read_text()
    (second / "meta.properties").write_text(
        re.sub(r"directory\.id=.*", "directory.id=c2Vjb25kLWZvbGRlci0wMg", whose)  # any, but of its own
    )
    text = broker.properties.read_text()
    assert f"log.dirs={broker.data}\n" in text
    broker.properties.write_text(text.replace(f"log.dirs={broker.data}\n", f"log.dirs={broker.data},{second}\n"))
    cluster.start_broker(broker_id)
    return second


def fail(folder: Path) -> None:
    """Let nothing be written to a log folder any more, as on a full disk: its broker takes it out of service."""
    folder.rename(folder.with_name("failed"))
    folder.touch()


@pytest.mark.parametrize(
    "mode", every_mode(lambda mode: mode.fetch_version >= FIRST_VERSION_WITH_LOG_FOLDERS, always=CORNERS[-1:])
)
def test_replicas_in_a_log_folder_that_failed_lag_alone(mode: Mode) -> None:
    with mode.cluster(2, sidecars=True, poll_isr=True, sidecar_tables=TABLES, properties=PROPERTIES) as cluster:
        second = add_log_folder(cluster, 2)
        topic, partitions = "folders", set(range(10))
        cluster.admin.create_topic(topic, {partition: [1, 2] for partition in partitions})
        cluster.wait_for("all in sync", lambda: cluster.is_in_sync(topic), 30)
        with LiveProducer(cluster.bootstrap_servers, topic, sorted(partitions), rate=40, acks=1):
            wait_for_fetches(cluster, 1, topic, 2, partitions)
            failed = {partition for partition in partitions if (second / f"{topic}-{partition}").is_dir()}
            assert set() < failed < partitions
            fail(second)
            cluster.wait_for("their end in the ISR", lambda: out_of_sync(cluster, topic) == failed, 40)
            wait_for_lag(cluster, 1, topic, 2, failed)
            sleep(3 * POLL_SECONDS)  # it stays, as they are assigned to it all the same
            wait_for_lag(cluster, 1, topic, 2, failed)


def test_broker_that_leads_nothing_after_a_restart_tells_no_lag(cluster: Cluster) -> None:
    """Its followers went over to the new leader: that they ask the old one for nothing any more is no lag."""
    topic, partitions = "led-elsewhere", set(range(4))
    cluster.create_topic(topic, {partition: [2, 1, 3] for partition in partitions})
    for replica in (1, 3):
        wait_for_fetches(cluster, 2, topic, replica, partitions)
    cluster.stop_broker(2)
    cluster.start_broker(2)
    cluster.wait_for("all in sync", lambda: cluster.is_in_sync(topic), 60)
    assert 2 not in {state.leader for state in cluster.admin.partitions([topic]).values()}

    def worst() -> float:
        return max((seconds for replica in (1, 3) for seconds in lags(cluster, 2, topic, replica).values()), default=0)

    cluster.wait_for("no lag", lambda: worst() == 0, NOTICED_SECONDS)
    sleep(LAG_TIME_MAX_SECONDS)
    assert worst() == 0


def test_replicas_lag_whose_leaders_are_mistaken_for_each_other(cluster: Cluster) -> None:
    """The follower's sidecar leads to each of two brokers under the other one's name; there, all is refused."""
    topic = "mistaken"
    leaders = {0: 1, 1: 3}
    cluster.create_topic(topic, {partition: [leader, 2] for partition, leader in leaders.items()})
    sidecar = cluster.sidecars[2]
    text = sidecar.config.read_text()
    first, third = (f'"upstream" = "{cluster.places[leader].advertised_address}"' for leader in leaders.values())
    assert first in text and third in text
    with LiveProducer(cluster.bootstrap_servers, topic, sorted(leaders), rate=20, acks=1):
        for partition, leader in leaders.items():
            wait_for_fetches(cluster, leader, topic, 2, {partition})
        cluster.kill_sidecar(2)
        sidecar.config.write_text(third.join(first.join(part.split(third)) for part in text.split(first)))
        cluster.start_sidecar(2)
        for partition, leader in leaders.items():
            wait_for_lag(cluster, leader, topic, 2, {partition})

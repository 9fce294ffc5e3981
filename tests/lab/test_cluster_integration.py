# SPDX-License-Identifier: Apache-2.0
"""The lab on real brokers: both modes, with and without sidecars, faults, and clean ends."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.programs import processes_of, python
from tests.modes import every_mode
from weir.lab.admin import LabAdmin
from weir.lab.cluster import Cluster
from weir.lab.errors import ProcessFailed
from weir.lab.modes import CORNERS, KraftCluster, Mode, ZooKeeperCluster
from weir.lab.processes import Process
from weir.lab.produce import LiveProducer, fill, read_numbers
from weir.lab.settings import Route

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_temporary_folder")]

PARTITIONS = [("orders", 0), ("orders", 1)]


def moved(cluster: Cluster, bytes_each: int = 2_000_000) -> float:
    """Move a topic from broker 1 to brokers 1 and 2, check the bytes, and return what the follower received."""
    cluster.create_topic("orders", {partition: [1] for _, partition in PARTITIONS})
    fill(cluster.bootstrap_servers, "orders", {partition: bytes_each for _, partition in PARTITIONS})
    cluster.assert_no_native_throttle()
    with cluster.received_bytes(2, PARTITIONS) as received:
        cluster.reassign({partition: [1, 2] for partition in PARTITIONS}, seconds=60)
    compared = sum(cluster.compare_segments(topic, partition, 1, 2) for topic, partition in PARTITIONS)
    # In KRaft mode a broker may be asked that has not heard of the new ISR yet.
    cluster.wait_for("orders in sync", lambda: cluster.is_in_sync("orders"), 30)
    assert compared == received.series().received > 2 * bytes_each
    cluster.check_logs()
    return compared


@pytest.mark.parametrize("start", [KraftCluster, ZooKeeperCluster])
def test_cluster_moves_a_topic_and_leaves_nothing_behind(start: Callable[..., Cluster], tmp_path: Path) -> None:
    with start(brokers=2) as cluster:
        assert cluster.admin.brokers() == [1, 2]
        moved(cluster)
        assert len(processes_of(tmp_path)) >= 2
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", every_mode(always=CORNERS[-1:]))
async def test_replicas_of_a_mode_fetch_with_its_version(mode: Mode) -> None:
    """The follower's egress and the leader's ingress both see every fetch, and change no byte.

    The other corners' versions are counted in test_every_level.py, too.
    """
    async with mode.cluster(brokers=2, routes={1: Route.INGRESS, 2: Route.EGRESS}) as cluster:
        await asyncio.to_thread(moved, cluster)
        for broker_id, side in ((1, "leader"), (2, "follower")):
            fetches = cluster.sidecars[broker_id].metrics().samples("weir_fetch_requests_total", side=side)
            assert {sample.labels["api_version"] for sample in fetches} == {str(mode.fetch_version)}


def test_broker_and_sidecar_come_back_after_they_were_killed() -> None:
    """Records acknowledged by all in-sync replicas are there after the fault; what was in flight may be lost.

    A broker that registers later than the one that an admin client asked first is asked by it, too.
    """
    with ZooKeeperCluster(brokers=2, sidecars=True) as cluster:
        cluster.create_topic("orders", {0: [1, 2]})
        with LiveProducer(cluster.bootstrap_servers, "orders", [0], rate=20) as producer:
            cluster.kill_broker(2)
            cluster.wait_for(
                "an ISR of one",
                lambda: all(s.in_sync_replicas == (1,) for s in cluster.admin.partitions(["orders"]).values()),
                60,
            )
            with LabAdmin(cluster.bootstrap_servers) as admin:
                cluster.wait_for("a cluster of one", lambda: admin.brokers() == [1], 60)
            with LabAdmin(cluster.bootstrap_servers) as admin:
                cluster.start_broker(2)
                assert admin.configs(brokers=[2])["broker 2"]["broker.id"] == "2"
            cluster.kill_sidecar(2)
            cluster.start_sidecar(2)
            cluster.wait_for("an ISR of two", lambda: cluster.is_in_sync("orders"), 60)
        assert producer.acked
        read = read_numbers(cluster.bootstrap_servers, "orders", [0])
        assert {acked.number for acked in producer.acked} <= set(read)
        cluster.wait_for("both logs alike", lambda: cluster.compare_segments("orders", 0, 1, 2) > 0, 30)
        assert {line.sign for line in cluster.bad_signs()} <= {"Shrinking ISR", "Truncating"}


def test_broker_that_cannot_start_is_told_with_its_log_kept(tmp_path: Path) -> None:
    shown: list[str] = []
    cluster = ZooKeeperCluster(brokers=1, properties={"num.network.threads": "none"}, show=shown.append)
    with pytest.raises(ProcessFailed, match=r"broker 1: ended with status \d+ before it was up") as failed, cluster:
        pass
    assert "num.network.threads" in failed.value.tail
    assert failed.value.log.exists()
    assert processes_of(tmp_path) == []
    assert [entry.name for entry in failed.value.log.parent.parent.iterdir()] == ["logs"]
    assert any("the logs are kept in" in line for line in shown)


def test_cluster_starts_again_where_a_port_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between taking a free port and the broker's listening on it another program may take it."""
    shown: list[str] = []
    cluster = ZooKeeperCluster(brokers=1, show=shown.append)
    thieves: list[subprocess.Popen[bytes]] = []
    start = Process.start

    def stolen(process: Process) -> None:
        if process.name == "broker 1" and not thieves:
            listen = f"import socket; s = socket.create_server(('127.0.0.1', {cluster.places[1].listener})); print()"
            command = [sys.executable, "-c", f"{listen}; import sys; sys.stdout.flush(); sys.stdin.read()"]
            thieves.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert thieves[0].stdout is not None
            thieves[0].stdout.readline()
        start(process)

    monkeypatch.setattr(Process, "start", stolen)
    try:
        with cluster:
            assert cluster.admin.brokers() == [1]
    finally:
        for thief in thieves:
            thief.communicate()
    assert any("was taken by another process" in line and "again" in line for line in shown)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_program_that_is_interrupted_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    program = (
        "from weir.lab.modes import ZooKeeperCluster\n"
        "with ZooKeeperCluster(brokers=1) as cluster:\n"
        "    print('up', cluster._lab._reaper.pid, flush=True)\n"
        "    input()\n"
    )
    with python(tmp_path, "-c", program) as interrupted:
        assert interrupted.stdout is not None
        said, reaper = interrupted.stdout.readline().split()
        assert said == "up"
        handle = os.pidfd_open(int(reaper))
        interrupted.send_signal(number)
        assert interrupted.wait(60) != 0
    assert select.select([handle], [], [], 60)[0]
    os.close(handle)
    deadline = time.monotonic() + 10  # a killed JVM takes a moment to go
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []

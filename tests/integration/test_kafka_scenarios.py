# SPDX-License-Identifier: Apache-2.0
"""What Kafka's own tests check of throttled replication, with sidecars in place of Kafka's quota.

The newest Fetch version always; v3 and v12, which most other tests here use, where minutes are there.
"""

import re
from time import monotonic, sleep

import pytest

from tests.integration.moves import (
    BATCH_BYTES,
    MB,
    MESSAGE_BYTES,
    assert_identical,
    assert_keeps,
    assert_throttled,
    filled,
    lead_from,
    roles,
    throttle,
)
from tests.modes import every_mode
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import CORNERS, KraftCluster, Mode
from weir.lab.produce import append_to, fill, read_records
from weir.lab.settings import Route

pytestmark = pytest.mark.integration

RATE = 2 * MB
LAG_TIME_MAX_SECONDS = 2
LAG_TIME_MAX = {"replica.lag.time.max.ms": LAG_TIME_MAX_SECONDS * 1000}
CORNER_MODES = every_mode(lambda mode: mode in CORNERS, always=CORNERS[-1:])


@pytest.fixture(scope="module", params=CORNER_MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


def isr_of(cluster: Cluster, leader: int) -> set[int]:
    """The ISR of orders-0: as its leader logged it in ZooKeeper mode, where metadata tell it seconds later."""
    if isinstance(cluster, KraftCluster):
        ((_, state),) = cluster.admin.partitions(["orders"]).items()
        return set(state.in_sync_replicas) if state.leader == leader else set()  # else told by a broker cut off
    logged = cluster.brokers[leader].log.read_text()
    told: list[str] = re.findall(r"Partition orders-0 .*ISR updated to ([\d,]+)", logged)
    return set(map(int, told[-1].split(","))) if told else set()


def take_over(cluster: Cluster, old: int, new: int) -> None:
    """Make `new` the leader of orders-0 and the only one in its ISR, while nothing reaches `old`."""

    def leads() -> bool:
        try:
            append_to(cluster.places[new].direct_address, "orders", 0, [b"first"])
        except LabError:
            return False
        return True

    if isinstance(cluster, KraftCluster):  # the controller does it, as it does not hear of `old` any more
        cluster.wait_for("a new leader", leads, 40)
    else:
        lead_from(cluster, ["orders"], [new, old])
        cluster.wait_for("a new leader", leads, 40)
        cluster.wait_for("an ISR of one", lambda: isr_of(cluster, new) == {new}, 40)


def test_replica_is_throttled_out_of_the_isr_and_never_in_it(mode: Mode) -> None:
    """Twice the follower cannot be reached for a while. It catches up at the quota, and then follows at any rate."""
    tables = {"quota": {"replica_lag_time_max_ms": LAG_TIME_MAX_SECONDS * 1000}}
    with mode.cluster(2, sidecars=True, properties=LAG_TIME_MAX, sidecar_tables=tables) as cluster:
        leader = cluster.controller
        (follower,) = {1, 2} - {leader}
        topic = filled(cluster, "orders", [leader, follower], MB, partitions=1)
        sidecar = cluster.sidecars[leader]
        sidecar.put_throttle(throttle(topic, leader=RATE))
        for _ in range(2):
            cluster.kill_sidecar(follower)
            append_to(cluster.places[leader].direct_address, topic, 0, [bytes(10_240)] * 600)
            cluster.wait_for("an ISR of one", lambda: isr_of(cluster, leader) == {leader}, 40)
            with cluster.received_bytes(follower, [(topic, 0)]) as received:
                cluster.start_sidecar(follower)
                cluster.wait_for("an ISR of two", lambda: isr_of(cluster, leader) == {leader, follower}, 40)
            assert_keeps(received.series(), RATE, least=0.5)  # what it took in sync is paid back first
            sidecar.patch_throttle({"leader.replication.throttled.rate": RATE // 10})
            begun = monotonic()
            fill(cluster.bootstrap_servers, topic, {0: 4 * MB}, batch_bytes=BATCH_BYTES)  # acked by both
            assert monotonic() - begun < 12  # by the throttle: 20 s
            sidecar.patch_throttle({"leader.replication.throttled.rate": RATE})
        assert_identical(cluster, [topic], leader, follower)
        assert_throttled(cluster, leader, "leader")
        cluster.check_logs(allow={"Shrinking ISR"})


@pytest.mark.parametrize("mode", every_mode(lambda mode: mode in CORNERS))
def test_records_of_an_isolated_leader_go_when_it_is_back(mode: Mode) -> None:
    """Two logs have different records at the same offsets, from two leader epochs. In the end both are alike."""
    cut_off = Route.BOTH | Route.CONTROLLER
    routes = {1: Route.BOTH, 2: cut_off, 3: cut_off}
    rate = MB  # a busy machine, too, could do more
    table = throttle("orders", leader=rate, follower=2 * rate)
    fencing = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}  # in KRaft mode
    with mode.cluster(routes=routes, throttle=table, properties={**LAG_TIME_MAX, **fencing}) as cluster:
        _, old, new = roles(cluster)
        topic = filled(cluster, "orders", [old, new], 2 * MB, partitions=1)
        sleep(1)  # the follower hears the last high watermark
        cluster.kill_sidecar(old)
        take_over(cluster, old, new)
        lost, kept = (
            [b"%s %d" % (name, number) + bytes(10_000) for number in range(600)] for name in (b"lost", b"kept")
        )
        append_to(cluster.places[old].direct_address, topic, 0, lost[:100])
        append_to(cluster.places[new].direct_address, topic, 0, kept)
        with cluster.received_bytes(old, [(topic, 0)]) as received:
            cluster.start_sidecar(old)
            cluster.wait_for("an ISR of two", lambda: isr_of(cluster, new) == {new, old}, 30)
        assert received.series().worst_window()[0] <= 1.05 * rate + MESSAGE_BYTES
        assert_identical(cluster, [topic], new, old)
        lead_from(cluster, [topic], [old, new])
        values = [record.value for record in read_records(cluster.bootstrap_servers, topic, [0])]
        assert values[-len(kept) :] == kept
        assert not set(lost) & set(values)
        assert_throttled(cluster, new, "leader")
        cluster.check_logs(allow={"Shrinking ISR", "Truncating"})

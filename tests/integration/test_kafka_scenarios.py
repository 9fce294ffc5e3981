"""What Kafka's own tests check of throttled replication, with sidecars in place of Kafka's quota.

The newest Fetch version always; v3 and v12, which most other tests here use, where minutes are there.
"""

import re
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from tests.integration.moves import (
    BATCH_BYTES,
    MB,
    MESSAGE_BYTES,
    assert_identical,
    assert_keeps,
    assert_rate,
    assert_read_once,
    assert_throttled,
    filled,
    lead_from,
    moving,
    now,
    roles,
    throttle,
    wait_for_bytes,
)
from tests.modes import every_mode
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import CORNERS, KraftCluster, Mode
from weir.lab.produce import LiveProducer, append_to, fill, read_records
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


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    """Three brokers, both hops; of use to tests in which nothing fails."""
    with mode.cluster(sidecars=True) as cluster:
        yield cluster
        cluster.check_logs()


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


def test_old_segments_are_throttled(cluster: Cluster) -> None:
    """ReplicationQuotasTest.shouldThrottleOldSegments: what is moved lies in many closed segments."""
    topic, partition = "old", 0
    cluster.create_topic(topic, {partition: [1]}, {"segment.bytes": str(2**20)})
    fill(cluster.bootstrap_servers, topic, {partition: 12 * MB}, batch_bytes=BATCH_BYTES)
    assert len(cluster.segments(topic, partition, 1)) > 10
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2]) as received:
        pass
    assert_keeps(received.series(), RATE)
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")


def test_rest_of_a_move_is_free_when_the_throttle_is_removed(cluster: Cluster) -> None:
    topic = filled(cluster, "freed", [1], 40 * MB)
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2]) as received:
        wait_for_bytes(cluster, received, 4 * MB)
        assert received.series().mean_rate() < 1.2 * RATE
        cluster.sidecars[1].delete_throttle()
        assert cluster.wait_for(f"{topic} in sync", lambda: cluster.is_in_sync(topic), 30) < 12  # by the throttle: 18 s
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")


def test_move_goes_on_throttled_under_a_new_leader(cluster: Cluster) -> None:
    """The follower changes over to the new leader, whose sidecar has a budget of its own; no byte comes twice."""
    topic, size = filled(cluster, "elected", [1, 2], 24 * MB), 24 * MB
    cluster.create_topic("elected-live", {0: [1, 2]})
    sleep(1)  # the peer hears the last high watermark: levels below 0.11 truncate to it
    rates = {1: 2 * RATE, 2: RATE}
    for broker_id, rate in rates.items():
        cluster.sidecars[broker_id].put_throttle(throttle(topic, leader=rate))
    with (
        LiveProducer(cluster.bootstrap_servers, "elected-live", [0], rate=20) as producer,
        moving(cluster, [topic], [1, 2, 3]) as received,
    ):
        wait_for_bytes(cluster, received, size // 2)
        assert_rate(received.series(), *received.series().span, rates[1])
        lead_from(cluster, [topic], [2, 1, 3])
        sleep(1.5)  # the new leader's first second
        begin = now(received)
    series = received.series()
    assert_rate(series, begin, series.span[1], rates[2])
    for follower in (1, 3):
        assert assert_identical(cluster, [topic], 2, follower) == series.received
    assert producer.failed == 0
    assert_read_once(cluster, "elected-live", producer)
    for broker_id in rates:
        assert_throttled(cluster, broker_id, "leader")


def test_cancelled_move_leaves_nothing_and_can_begin_anew(cluster: Cluster) -> None:
    topic = filled(cluster, "cancelled", [1], 12 * MB, partitions=1)  # of several, some would be there already
    partitions = sorted(cluster.admin.partitions([topic]))
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with cluster.received_bytes(2, partitions) as received:
        cluster.reassign(dict.fromkeys(partitions, (1, 2)))
        wait_for_bytes(cluster, received, 4 * MB)
        cluster.admin.reassign(dict.fromkeys(partitions))
        homes = [cluster.brokers[2].data / f"{topic}-{partition}" for _, partition in partitions]
        cluster.wait_for("the end of the replicas", lambda: not any(home.exists() for home in homes), 30)
    assert {state.replicas for state in cluster.admin.partitions([topic]).values()} == {(1,)}
    with moving(cluster, [topic], [1, 2]) as received:
        pass
    assert_keeps(received.series(), RATE)
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")


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

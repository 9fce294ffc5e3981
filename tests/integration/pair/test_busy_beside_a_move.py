# SPDX-License-Identifier: Apache-2.0
"""Other traffic between the brokers of a throttled move: backlog without a throttle, live records, bursts in sync."""

from time import sleep

import pytest

from tests.integration.moves import MB, filled, now, rate_between, throttle, throttled_move, wait_for_bytes
from tests.integration.slow_network import slow_network
from weir.lab.cluster import Cluster
from weir.lab.produce import LiveProducer, fill
from weir.lab.received import ReceivedBytes

pytestmark = pytest.mark.integration

LEDGER_SECONDS = 1  # how long bytes count


def wait_for_rate(cluster: Cluster, received: ReceivedBytes, rate: float, seconds: float) -> float:
    """Wait until at least `rate` bytes come in a second that begins now or later; return how long it was to it (s)."""
    begin = now(received)
    found = begin

    def has_come() -> bool:
        nonlocal found
        series = received.series()
        while found + 1 <= series.times[-1]:
            if rate_between(series, found, found + 1) >= rate:
                return True
            found += 0.1
        return False

    cluster.wait_for(f"{rate:g} bytes/s", has_come, seconds)
    return found - begin


def test_move_has_its_part_beside_unthrottled_backlog(pair: Cluster) -> None:
    """60 partitions without a throttle want 1 MiB of each answer, and one may hold 10; the moved ones are 10 more.

    In Kafka's own rotation these would have a seventh of what the network carries, which is more than the quota. But an
    answer takes a third of a second here, and bytes on their way count in the window: 0.7 of the quota can be had, a
    busy machine gives 0.3, and grants that stand behind the backlog bring nothing.
    """
    rate, network_rate, backlog = MB, 30 * MB, 60 * 3 * MB
    topic = filled(pair, "beside-backlog", [1], 14 * MB, partitions=10)
    pair.create_topic("backlog", {key: [1] for key in range(60)})
    fill(pair.bootstrap_servers, "backlog", dict.fromkeys(range(60), backlog // 60))
    with (
        slow_network(pair, 2, 1, rate=network_rate),
        throttled_move(pair, {1: throttle(topic, leader=rate)}, topic, "backlog") as received,
    ):
        wait_for_bytes(pair, received["backlog"], 0)
        begin = now(received[topic])
        wait_for_bytes(pair, received["backlog"], round(0.8 * backlog))
        assert rate_between(received[topic].series(), begin, now(received[topic])) > 0.1 * rate


def test_large_batch_behind_small_ones_arrives(pair: Cluster) -> None:
    """A fetch finds live records each time, so the moved partition is never the first with data: its cap has to do."""
    topic, live = "beside-large", "live"
    pair.create_topic(topic, {0: [1]})
    pair.create_topic(live, {0: [1, 2]})
    fill(pair.bootstrap_servers, topic, {0: MB // 5}, message_bytes=1000, batch_bytes=1000)
    fill(pair.bootstrap_servers, topic, {0: 1}, message_bytes=900_000)
    with (
        slow_network(pair, 2, 1, delay=0.05),
        LiveProducer(pair.bootstrap_servers, live, [0], rate=100, acks=1),
        throttled_move(pair, {1: throttle(topic, leader=MB)}, topic) as received,
    ):
        wait_for_bytes(pair, received[topic], MB // 5)
        wait_for_bytes(pair, received[topic], 900_000, seconds=20)


def test_lowered_quota_leaves_no_debt_of_the_one_before(pair: Cluster) -> None:
    high, low = 5 * MB, MB // 4
    topic = filled(pair, "beside-lowered", [1], 40 * MB)
    pair.create_topic("in-sync-lowered", {key: [1, 2] for key in range(2)})
    with throttled_move(pair, {1: throttle(topic, "in-sync-lowered", leader=high)}, topic) as received:
        wait_for_bytes(pair, received[topic], high)
        fill(pair.bootstrap_servers, "in-sync-lowered", dict.fromkeys(range(2), 3 * high))  # far above the quota
        pair.sidecars[1].put_throttle(throttle(topic, "in-sync-lowered", leader=low))
        sleep(0.5)  # an answer that is on its way
        assert wait_for_bytes(pair, received[topic], received[topic].total + low // 2) < 8  # with the debt: 20 s


def test_burst_in_sync_stops_a_move_for_as_long_as_it_counts(pair: Cluster) -> None:
    rate = MB
    topic = filled(pair, "beside-burst", [1], 30 * MB)
    pair.create_topic("in-sync-burst", {key: [1, 2] for key in range(2)})
    with throttled_move(pair, {1: throttle(topic, "in-sync-burst", leader=rate)}, topic) as received:
        wait_for_bytes(pair, received[topic], 2 * rate)
        fill(pair.bootstrap_servers, "in-sync-burst", dict.fromkeys(range(2), 10 * rate))
        assert wait_for_rate(pair, received[topic], 0.5 * rate, 40) <= LEDGER_SECONDS + 2

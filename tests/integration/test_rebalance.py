# SPDX-License-Identifier: Apache-2.0
"""A plain rebalance: three brokers lead and follow each other, with one throttle on both sides of all."""

from collections.abc import Iterator
from contextlib import ExitStack
from time import sleep

import pytest

from tests.integration.moves import (
    MB,
    MESSAGE_BYTES,
    assert_identical,
    assert_throttled,
    clear,
    filled,
    now,
    rate_between,
    throttle,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RATE = MB
FETCHERS = 4
LED_BYTES = 15 * MB  # by each broker: all of it goes to both others
WARM_UP_SECONDS = 4.0
SECONDS = 16.0
LEAST_MEAN = 0.75  # x quota; six processes share the machine here. tests/quota/test_rebalance.py has the tight bound


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    with mode.cluster(3, sidecars=True, properties={"num.replica.fetchers": FETCHERS}) as cluster:
        yield cluster
        cluster.check_logs()


def test_every_broker_receives_its_rate(cluster: Cluster) -> None:
    brokers = cluster.broker_ids
    led = {
        one: filled(cluster, f"led-by-{one}", [one], LED_BYTES, partitions=12, batch_bytes=MESSAGE_BYTES)
        for one in brokers
    }
    for sidecar in cluster.sidecars.values():
        sidecar.put_throttle(throttle(*led.values(), leader=RATE, follower=RATE))
    cluster.assert_no_native_throttle()
    with ExitStack() as samplers:
        received = {
            one: samplers.enter_context(
                cluster.received_bytes(one, sorted(cluster.admin.partitions([led[o] for o in brokers if o != one])))
            )
            for one in brokers
        }
        cluster.reassign(
            {
                partition: [one, *[other for other in brokers if other != one]]
                for one, topic in led.items()
                for partition in cluster.admin.partitions([topic])
            }
        )
        sleep(WARM_UP_SECONDS)
        begin = now(received[1])
        sleep(SECONDS)
        series = {one: samples.series() for one, samples in received.items()}
        rates = {one: rate_between(each, begin, begin + SECONDS) / RATE for one, each in series.items()}
        worst = {one: each.worst_window()[0] / RATE for one, each in series.items()}
        print({one: (round(rates[one], 3), round(worst[one], 3)) for one in brokers})
        assert min(rates.values()) >= LEAST_MEAN
        assert max(worst.values()) <= 1.17 + 2 * FETCHERS * MESSAGE_BYTES / RATE
    for sidecar in cluster.sidecars.values():
        sidecar.delete_throttle()
    cluster.admin.wait_for_reassignments(60)
    assert_identical(cluster, [led[1]], 1, 2)
    assert_throttled(cluster, 1, "leader")
    assert_throttled(cluster, 2, "follower")
    clear(cluster)

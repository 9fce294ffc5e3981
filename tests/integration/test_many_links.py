# SPDX-License-Identifier: Apache-2.0
"""Many connections between two brokers share one quota, and its one batch more."""

from time import sleep

import pytest

from tests.integration.moves import MB, now, rate_between, throttle, throttled_move, wait_for_bytes
from weir.lab.modes import Mode
from weir.lab.produce import fill

pytestmark = pytest.mark.integration

LINKS = 20
RATE = MB
BATCH_BYTES = 900_500


def test_quota_and_one_batch_hold_for_all_links_together(mode: Mode) -> None:
    """Each link has probes to ask, and a leader may answer each with a batch."""
    with mode.cluster(2, sidecars=True, properties={"num.replica.fetchers": LINKS}) as cluster:
        topic, partitions = "orders", range(2 * LINKS)
        cluster.create_topic(topic, {key: [1] for key in partitions})
        fill(cluster.bootstrap_servers, topic, dict.fromkeys(partitions, 2 * MB), message_bytes=BATCH_BYTES - 500)
        with throttled_move(cluster, {1: throttle(topic, leader=RATE)}, topic) as received:
            wait_for_bytes(cluster, received[topic], 0)
            sleep(12)  # another round of probes comes after 10 s
            series = received[topic].series()
            begin, end = series.span[0], now(received[topic])
            assert series.worst_window()[0] <= 1.05 * RATE + 2 * BATCH_BYTES  # one of them was late on its way
            assert 0.4 * RATE <= rate_between(series, begin, end) <= 1.05 * RATE + 2 * BATCH_BYTES / (end - begin)
        cluster.check_logs()

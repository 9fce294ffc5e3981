# SPDX-License-Identifier: Apache-2.0
"""A throttled move of every kind of log through both hops, at every level from Fetch v3 on.

The levels below are in test_old_versions: their fetches never bring a batch that is larger than what was asked for.
"""

import pytest

from tests.integration.log_kinds import LARGE_BATCH_BYTES, PROPERTIES, create_log_kinds
from tests.integration.moves import (
    MB,
    assert_identical,
    assert_keeps,
    assert_read_once,
    assert_throttled,
    lead_from,
    moving,
    throttle,
)
from tests.modes import every_mode
from weir.lab.modes import Mode
from weir.lab.produce import LiveProducer

pytestmark = pytest.mark.integration

RATE = 4 * MB
TOPIC_BYTES = 6 * MB
LIVE_P99_SECONDS = 4.0
"""What waits for the quota waits for seconds, and times out in the end. Beside another test 0.7 s were seen."""


@pytest.mark.parametrize("mode", every_mode(lambda mode: mode.fetch_version >= 3))
def test_every_kind_of_log_moves_at_the_quota_and_arrives_whole(mode: Mode) -> None:
    """A live topic is replicated between the same brokers meanwhile, by the same fetches as the move."""
    # The moved replica stays as it came, so that its bytes can be counted and compared.
    no_cleaner = {2: {"log.cleaner.enable": False}}
    with mode.cluster(2, sidecars=True, properties=PROPERTIES, broker_properties=no_cleaner) as cluster:
        kinds = create_log_kinds(cluster, mode.level, [1], TOPIC_BYTES)
        cluster.create_topic("live", {0: [1, 2]})
        cluster.sidecars[1].put_throttle(throttle(*kinds.topics, leader=RATE))
        with (
            LiveProducer(cluster.bootstrap_servers, "live", [0], rate=30) as producer,
            moving(cluster, kinds.topics, [1, 2]) as received,
        ):
            pass
        assert_keeps(received.series(), RATE, batch_bytes=LARGE_BATCH_BYTES + 100)
        assert assert_identical(cluster, kinds.topics, 1, 2) == received.series().received
        assert_throttled(cluster, 1, "leader")
        assert producer.failed == 0
        assert producer.latency(0.99) < LIVE_P99_SECONDS
        assert_identical(cluster, ["live"], 1, 2)
        lead_from(cluster, [*kinds.topics, "live"], [2, 1])
        kinds.check_records(cluster)
        assert_read_once(cluster, "live", producer)
        cluster.check_logs()

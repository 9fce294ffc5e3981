# SPDX-License-Identifier: Apache-2.0
"""A topic is deleted and made anew: its partitions go and come in one fetch, under another id."""

import pytest

from tests.fakes.conversation import Log
from tests.quota.sessions import BATCH, MB, cluster
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS

pytestmark = pytest.mark.long

NEW_ID = bytes(range(50, 66))


def test_the_lag_of_the_new_one_outlives_the_old_one() -> None:
    made = cluster(MB, version=13, behind=2, in_sync=0)
    throttle = made.throttles[0]
    made.follower.run(1)
    throttle.topic_names.learn({NEW_ID: b"t"})
    made.leader.leader.logs |= {(NEW_ID, partition): Log([BATCH] * 500) for partition in range(2)}
    made.follower.offsets = {(NEW_ID, partition): 0 for partition in range(2)}
    made.follower.run(1)
    throttle.configure(ThrottleSettings(rate=0, replicas={"t": ALL_REPLICAS}))
    made.follower.run(20)
    assert sorted((row.topic, row.partition) for row in throttle.lag.rows()) == [(b"t", 0), (b"t", 1)]
    made.check()
    assert made.follower.full_fetches == 1

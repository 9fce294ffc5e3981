# SPDX-License-Identifier: Apache-2.0
"""When a leader is asked for true offsets and errors, in fetch sessions: not too late, and not sooner than needed."""

import struct

from tests.quota.sessions import BATCH, MB, cluster
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS

NOT_LEADER_OR_FOLLOWER = 6


def test_error_reaches_a_follower_that_omits_partitions_itself() -> None:
    """Kafka's own throttle on the follower does so: the answers in between are true for the others only."""
    made = cluster(0, behind=2)
    made.follower.run(12)
    moved = {key: offset for key, offset in made.follower.offsets.items() if key[0] == b"t"}
    made.leader.leader.logs[b"t", 0].error_code = NOT_LEADER_OR_FOLLOWER
    error, changed_at = struct.pack(">ih", 0, NOT_LEADER_OR_FOLLOWER), made.clock.now
    while not any(error in topic.headers for topic in made.follower.fetch()[1]):
        passed = made.clock.now - changed_at
        assert passed < 11
        if passed % 2 < 1:
            made.follower.offsets.update(moved)
        else:
            for key in moved:
                made.follower.offsets.pop(key, None)
    made.check()


def test_what_had_answers_until_it_fell_behind_needs_no_probe() -> None:
    """The first probe comes when these answers are some seconds old."""
    made = cluster(5 * MB, behind=1, batches=400)
    throttle = made.throttles[0]
    made.follower.run(20)
    assert made.follower.offsets[b"t", 0] == 400
    throttle.configure(ThrottleSettings(rate=0, replicas={"t": ALL_REPLICAS}))
    made.clock.move(throttle.settings.replica_lag_time_max_ms / 1000)
    made.leader.leader.logs[b"t", 0].extend([BATCH] * 400)
    asked_before = throttle.stats.offset_probes
    made.follower.run(1)  # one fetch in sync brings what it finds, and the replica is behind from then on
    left_at = made.follower.offsets[b"t", 0]
    made.follower.run(2)
    assert made.follower.offsets[b"t", 0] == left_at < 800
    assert throttle.stats.offset_probes == asked_before
    made.follower.run(3)
    assert throttle.stats.offset_probes == asked_before + 1

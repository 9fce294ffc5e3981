"""Both sides throttled, in fetch sessions: what one hop leaves out, the other must not wait for in vain."""

import struct

import pytest

from protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from quota.settings import ThrottleSettings
from quota.throttled_replicas import ALL_REPLICAS
from tests.quota.test_fetch_sessions import MB, cluster

NOT_LEADER_OR_FOLLOWER = 6


@pytest.mark.parametrize("version", [7, 13])
def test_the_last_partition_of_a_move_goes_on_after_a_pause(version: int) -> None:
    """In turn each hop has budget and leaves it out: neither may forget that it was wanted a moment ago."""
    made = cluster(0, 0, behind=1, version=version)
    made.follower.run(12)
    for throttle in made.throttles:
        throttle.configure(ThrottleSettings(rate=5 * MB, replicas={"t": ALL_REPLICAS}))
    made.follower.received.clear()
    made.follower.run(5)
    assert sum(size for _, size in made.follower.received) >= 0.9 * 4 * 5 * MB
    made.check()


def test_a_first_hop_that_gives_up_does_not_end_the_move() -> None:
    """It lets all pass from then on, and the second hop's session is not the follower's."""
    made = cluster(5 * MB, 5 * MB)
    made.follower.run(2)
    made.follower.upstream = made.hops[1]
    made.follower.received.clear()
    made.follower.run(5)
    assert made.follower.errors == [FETCH_SESSION_ID_NOT_FOUND]
    assert sum(size for _, size in made.follower.received) >= 0.9 * 5 * 5 * MB


@pytest.mark.parametrize("partition", [0, 1])
def test_an_error_behind_a_hop_at_rate_0_reaches_a_follower_that_fetches_in_turn(partition: int) -> None:
    """The first hop grants the two in turn and the second leaves both out: neither grant was an answer."""
    made = cluster(MB, 0, behind=2, in_sync=0)
    made.throttles[0].configure(ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}, order="round-robin"))
    made.follower.run(12)
    made.leader.leader.logs[b"t", partition].error_code = NOT_LEADER_OR_FOLLOWER
    error, changed_at = struct.pack(">ih", partition, NOT_LEADER_OR_FOLLOWER), made.clock.now
    while not any(error in topic.headers for topic in made.follower.fetch()[1]):
        assert made.clock.now - changed_at < 11
    made.check()

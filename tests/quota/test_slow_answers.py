"""Answers that take long, over a slow network or beside much that is not throttled: a share has to be larger there."""

import pytest

from quota.settings import ThrottleSettings
from quota.throttle import Throttle
from quota.throttled_replicas import ALL_REPLICAS
from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second

MB = 1_000_000
RATE = 5 * MB
SIZES = [2_000, 25_000, 9_000, 30_000, 14_000]


@pytest.mark.parametrize("sizes", [[10_300], SIZES], ids=["even", "uneven"])
@pytest.mark.parametrize(("round_trip", "least"), [(0.1, 0.85), (0.3, 0.75), (0.85, 0.5)])
def test_one_link_with_slow_answers_has_most_of_the_quota(round_trip: float, least: float, sizes: list[int]) -> None:
    """Bytes count in the window while they are on their way and for a second more: all of it cannot be had."""
    clock = MovedClock()
    logs = {(b"t", partition): Log(sizes * (40_000 // len(sizes))) for partition in range(5)}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    follower = Follower(dict.fromkeys(logs, 0))
    start = clock.now
    Conversation(clock, throttle.link(2), Leader(logs), follower, round_trip=round_trip).run(15.0)
    assert mean_rate(follower.received, start + 3, start + 15) >= least * RATE
    assert worst_second(follower.received) <= 1.04 * RATE + max(sizes)
    assert throttle.stats.cut_bytes <= 0.05 * RATE * 15

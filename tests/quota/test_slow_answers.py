# SPDX-License-Identifier: Apache-2.0
"""Answers that take long, over a slow network or beside much that is not throttled: a share has to be larger there."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
RATE = 5 * MB
SIZES = [2_000, 25_000, 9_000, 30_000, 14_000]


@pytest.mark.parametrize("sizes", [[10_300], SIZES], ids=["even", "uneven"])
@pytest.mark.parametrize(("round_trip", "least"), [(0.1, 0.93), (0.3, 0.88), (0.85, 0.86)])
def test_one_link_with_slow_answers_has_most_of_the_quota(round_trip: float, least: float, sizes: list[int]) -> None:
    """From 0.2 s on nothing is set aside before an answer begins. One fetch after the other, it then comes all at once.

    So a little less than the quota can be had: of answers of 0.3 s three fit in a second, and not all of a fourth.
    """
    clock = MovedClock()
    logs = {(b"t", partition): Log(sizes * (40_000 // len(sizes))) for partition in range(5)}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    follower = Follower(dict.fromkeys(logs, 0))
    start = clock.now
    Conversation(clock, throttle.link(2), Leader(logs), follower, round_trip=round_trip).run(15.0)
    assert mean_rate(follower.received, start + 3, start + 15) >= least * RATE
    assert worst_second(follower.received) <= 1.04 * RATE + max(sizes)
    assert throttle.stats.cut_bytes <= 0.05 * RATE * 15


@pytest.mark.parametrize(("way", "least"), [(0.1, 0.93), (0.3, 0.79), (0.5, 0.68)])
def test_distant_follower_takes_more_at_a_time(way: float, least: float) -> None:
    """It asks again after `way` seconds. What is on its way counts as well as the last second, so 1.04 / (1 + way) is
    the most; it had 0.50 and 0.30 of the quota when each fetch had 0.15 s of it at most.
    """
    clock = MovedClock()
    logs = {(b"t", partition): Log([10_300] * 40_000) for partition in range(5)}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    follower = Follower(dict.fromkeys(logs, 0))
    talk, start = Conversation(clock, throttle.link(2), Leader(logs), follower), clock.now
    while clock.now < start + 15:
        talk.exchange()
        clock.move(way)
    assert mean_rate(follower.received, start + 3, start + 15) >= least * RATE
    assert worst_second(follower.received) <= 1.04 * RATE


def test_nothing_is_set_aside_before_a_late_leader_answers() -> None:
    """All its answers begin after two seconds, so none of them ever came at once. Others have what it does not use."""
    clock = MovedClock()
    throttle = Throttle("follower", 2, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([10_300] * 40_000)})
    talk = Conversation(clock, throttle.link(1), leader, Follower(dict.fromkeys(leader.logs, 0)), round_trip=2.0)
    talk.run(10.0)
    assert isinstance(talk.next_decision(), Forward)
    assert throttle.ledger.waiting_links == 1
    assert throttle.ledger.reserved == 0

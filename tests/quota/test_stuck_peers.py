# SPDX-License-Identifier: Apache-2.0
"""Links that share one quota with followers that hang, their connections open."""

from collections.abc import Callable

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log, mean_rate, worst_second
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader, planned
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.figures import STUCK_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

RATE = 5_000_000
BATCH = 10_300
STUCK = 9  # a share each is all that the window holds


def follower(throttle: Throttle, clock: MovedClock, replica: int, version: int = 12) -> SessionFollower:
    """One of several followers, each with a connection and a partition of its own."""
    leader = SessionLeader(clock, Leader({(b"t", replica): Log([BATCH] * 40_000)}))
    return SessionFollower(clock, Hop(clock, throttle.link(replica), leader), {(b"t", replica): 0}, version, replica)


def ask_without_an_answer(one: SessionFollower, clock: MovedClock) -> None:
    """The fetch is forwarded, and its answer is never taken."""
    assert isinstance(one.upstream, Hop)
    request, held = one.request(), 0.0
    while isinstance(one.upstream.link.plan(request, held), Hold):
        clock.move(0.005)
        held += 0.005


@pytest.mark.long
@pytest.mark.parametrize("takes_its_last_answer", [True, False])
def test_followers_that_hang_keep_no_budget_from_the_others(takes_its_last_answer: bool) -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    hanging = [follower(throttle, clock, 10 + index) for index in range(STUCK)]
    for _ in range(40):
        for one in hanging:
            one.fetch()
    if not takes_its_last_answer:
        for one in hanging:
            ask_without_an_answer(one, clock)
    assert throttle.ledger.reserved > 0.4 * RATE
    other = follower(throttle, clock, 2)
    other.run(STUCK_SECONDS + 2)
    other.received.clear()
    start = clock.now
    other.run(20)  # one share more or less is 0.6 % of it
    assert 0.97 <= mean_rate(other.received, start, clock.now) / RATE <= 1.01
    assert worst_second(other.received) <= 1.04 * RATE + BATCH
    for link in list(throttle.links):
        link.close()
    assert throttle.ledger.reserved == 0


def begin_to_answer(one: SessionFollower, clock: MovedClock) -> Callable[[], None]:
    """The leader begins to answer a fetch. Returns what settles the answer, when all of it has come."""
    assert isinstance(one.upstream, Hop)
    link = one.upstream.link
    clock.move(0.2)  # until there is budget
    while not isinstance(decision := planned(clock, link, one.request()), Forward):
        clock.move(0.001)  # it was held for as long as it may be, so its follower asks again
    head, topics = one.upstream.upstream.respond(decision.request)
    link.answer_begins(0)
    return lambda: link.settle(topics, head)


def test_slow_leaders_take_little_from_fast_ones() -> None:
    """What they still have to send does not come in the next second: it was reserved until their answers had ended."""
    clock = MovedClock()
    throttle = Throttle("follower", 2, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    slow, fast = [follower(throttle, clock, 10 + index, 3) for index in range(6)], follower(throttle, clock, 30)
    for one in [*slow, fast] * 10:
        one.fetch()
    answers = [begin_to_answer(one, clock) for one in slow]
    clock.move(4)
    for settle in answers:
        settle()
    for one in slow:
        begin_to_answer(one, clock)
    clock.move(1)
    fast.received.clear()
    start = clock.now
    fast.run(3)
    assert mean_rate(fast.received, start, clock.now) >= 0.7 * RATE
    assert worst_second(fast.received) <= 1.04 * RATE + BATCH

# SPDX-License-Identifier: Apache-2.0
"""Pairs of what has tests of its own: topics beside backlog, links with unlike lists, kip73 over slow links."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from tests.quota.model.draw import many_links
from tests.quota.model.judge import judge
from tests.quota.model.scenario import MB
from weir.quota.settings import Order, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

BATCH = 10_300


@pytest.mark.long
@pytest.mark.parametrize(("version", "topics"), [(3, 200), (9, 600)])
def test_hundreds_of_moving_topics_have_quota_beside_backlog(version: int, topics: int) -> None:
    clock, rate, seconds = MovedClock(), 5 * MB, 6.0
    names = [b"moved-%d" % number for number in range(topics)]
    backlog = {(b"backlog", number): Log([BATCH] * 30_000) for number in range(30)}
    moved = {(name, 0): Log([BATCH] * 100) for name in names}
    throttled = {name.decode(): ALL_REPLICAS for name in names}
    link = Throttle("leader", 1, clock, ThrottleSettings(rate=rate, replicas=throttled)).link(2)
    logs = backlog | moved
    offsets = dict.fromkeys(logs, 0)
    start = clock.now
    upstream = SessionLeader(clock, Leader(logs), round_trip=0.05)
    SessionFollower(clock, Hop(clock, link, upstream), offsets, version).run(seconds)
    sizes = {key: offset * BATCH for key, offset in offsets.items()}
    others = [sizes[key] for key in backlog]
    assert 0.85 * rate * (clock.now - start) <= sum(sizes[key] for key in moved) <= rate * (clock.now - start) + BATCH
    assert min(others) > 0.5 * sum(others) / len(others)


@pytest.mark.long
@pytest.mark.parametrize(("version", "order"), [(6, "round-robin"), (12, "urgent-first")])
def test_many_links_of_unlike_lists_and_two_hops_keep_promise(version: int, order: Order) -> None:
    """`python -m bench.promise --links 200` does the same with hundreds."""
    outcome = judge(many_links(50, version, order, most_exchanges=300))
    assert not outcome.violations
    assert outcome.seconds > 0.7


@pytest.mark.parametrize("round_trip", [0.3, 0.85])
def test_slow_answers_cost_nothing_under_kip73(round_trip: float) -> None:
    """Nothing is reserved, so what is on its way keeps nobody; and one fetch is worth a second of quota at most."""
    clock, rate, seconds = MovedClock(), 5 * MB, 60.0
    logs = {(b"t", partition): Log([BATCH] * 8_000) for partition in range(5)}
    settings = ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}, policy="kip73")
    follower, start = Follower(dict.fromkeys(logs, 0)), clock.now
    link = Throttle("leader", 1, clock, settings).link(2)
    Conversation(clock, link, Leader(logs), follower, round_trip=round_trip).run(seconds)
    assert 0.9 <= mean_rate(follower.received, start, clock.now) / rate <= 1.1
    assert worst_second(follower.received) <= 4 * rate

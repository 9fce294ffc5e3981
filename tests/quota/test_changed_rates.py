# SPDX-License-Identifier: Apache-2.0
"""A quota that changes all the time: what went before is paid at the rates that are in force meanwhile."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.kafka.take_out import passed, take_out
from weir.quota.fetch.decisions import Answer, Forward
from weir.quota.scopes import Matching
from weir.quota.settings import QuotaSettings, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

pytestmark = pytest.mark.long

MB = 1_000_000
SECONDS = 60
STEP_SECONDS = 0.01
LISTED = ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS})
OF_ALL = QuotaSettings("first", MB, Matching())
SHARED = replace(OF_ALL, shared_for=2)


NAMES = ("first", "second")
CHANGES = {
    "the same rate": [LISTED],
    "by 1 %": [LISTED, replace(LISTED, rate=1_010_000)],
    "by half": [LISTED, replace(LISTED, rate=2 * MB)],
    "its samples": [LISTED, replace(LISTED, window_num=10)],
    "its name": [ThrottleSettings(quotas=(replace(OF_ALL, name=name),)) for name in NAMES],
    "its name, shared": [ThrottleSettings(quotas=(replace(SHARED, name=name),)) for name in NAMES],
    "its topics": [ThrottleSettings(quotas=(replace(OF_ALL, scope=Matching(topics=one)),)) for one in (None, ("t*",))],
    "removed and put back": [LISTED, ThrottleSettings(), LISTED],
    "its share": [ThrottleSettings(quotas=(SHARED,))],
}


def passed_and_allowed(batch: int, changes: Sequence[ThrottleSettings]) -> tuple[int, float]:
    """What a follower receives in SECONDS, and what the rates in force allow; each second, the next of `changes`.

    No rate is too low to pay for an offset probe's batch before the next one.
    """
    clock, settings, shares = MovedClock(), cycle(changes), cycle((MB, 2 * MB))
    throttle = Throttle("leader", 1, clock, next(settings))
    link, leader = throttle.link(2), Leader({(b"t", 0): Log([batch] * 1_000)})
    follower, asked_at, allowed = Follower({(b"t", 0): 0}), clock.now, 0.0
    request = follower.request()
    for step in range(round(SECONDS / STEP_SECONDS)):
        if step % 100 == 0:
            throttle.configure(next(settings))
            if not throttle.rules.is_throttling:
                throttle.configure(next(settings))
            throttle.rules.use_shares(dict.fromkeys(NAMES, next(shares)))
        allowed += min([quota.rate for quota in throttle.quotas if quota.rate is not None]) * STEP_SECONDS
        decision = link.plan(request, clock.now - asked_at)
        clock.move(STEP_SECONDS)
        if isinstance(decision, Forward):
            topics = take_out(leader.answer(decision.request), decision)
            link.settle(topics)
            follower.take(passed(topics), clock.now)
            request, asked_at = follower.request(), clock.now
        elif isinstance(decision, Answer):  # its follower asks again
            asked_at = clock.now
    return sum([size for _, size in follower.received]), allowed


@pytest.mark.parametrize("batch", [4 * MB, 10 * MB])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_change_each_second_forgives_no_debt(batch: int, changes: Sequence[ThrottleSettings]) -> None:
    size, allowed = passed_and_allowed(batch, changes)
    assert allowed - batch <= size <= 1.001 * allowed + batch


def test_change_of_policy_forgives_no_debt() -> None:
    """With larger batches KIP-73's samples would run empty, and each time let one through."""
    size, allowed = passed_and_allowed(4 * MB, [LISTED, replace(LISTED, policy="kip73")])
    assert size <= 1.001 * allowed + 4 * MB


def test_what_was_granted_is_taken_out_once_the_quota_is_0() -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, LISTED)
    link, leader = throttle.link(2), Leader({(b"t", 0): Log([10_000] * 1_000)})
    talk = Conversation(clock, link, leader, Follower({(b"t", 0): 0}))
    talk.run(2.0)
    decision = talk.next_decision()
    assert isinstance(decision, Forward)
    answer = leader.answer(decision.request)
    assert sum(seen.size for topic in answer for seen in topic.records) > 0
    throttle.configure(replace(LISTED, rate=0))
    assert passed(take_out(answer, decision)) == [topic._replace(records=[]) for topic in answer]


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_what_was_asked_for_before_a_quota_is_no_debt_of_it(side: SideName) -> None:
    """Else a move would stand still: for 40 s at 1 MB/s, where four links have an answer of 10 MB on its way."""
    clock = MovedClock()
    throttle = Throttle(side, 1, clock, replace(LISTED, rate=None))
    leader = Leader({(b"t", p): Log([10_000] * 20_000) for p in range(10)})
    talk = Conversation(clock, throttle.link(2), leader, Follower(dict.fromkeys(leader.logs, 0)))
    talk.run(0.1)
    decision = talk.next_decision()
    throttle.configure(LISTED)
    assert isinstance(decision, Forward)
    topics = leader.answer(decision.request)
    talk.link.settle(topics)
    assert talk.follower.take(topics, clock.now) >= 10 * MB
    talk.follower.received.clear()
    begin = clock.now
    talk.run(5.0)
    assert mean_rate(talk.follower.received, begin + 1, clock.now) >= 0.95 * MB
    assert worst_second(talk.follower.received) <= 1.05 * MB

# SPDX-License-Identifier: Apache-2.0
"""Several quotas on one side: a grant fits in all that its partition belongs to, and none holds up the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import (
    PARTITION_MAX_BYTES,
    Conversation,
    Follower,
    Leader,
    Log,
    mean_rate,
    requested,
    worst_second,
)
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.quota.fetch.plan import Action, observe, plan
from weir.quota.scopes import Matching, Recovering, Scope
from weir.quota.settings import Order, QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_000
TOPICS = (b"a", b"b", b"c")
SECONDS = 8.0


def quota(name: str, rate: int, topics: Iterable[bytes]) -> QuotaSettings:
    return QuotaSettings(name, rate, Matching(topics=tuple(topic.decode() for topic in topics)))


@dataclass(frozen=True)
class Limit:
    rate: int
    topics: frozenset[bytes]


LIMITS = st.lists(
    st.builds(Limit, st.sampled_from([0, MB // 5, MB, 3 * MB]), st.frozensets(st.sampled_from(TOPICS), min_size=1)),
    min_size=1,
    max_size=3,
)


def received(
    version: int, limits: Sequence[Limit], rate: int | None, order: str
) -> Mapping[bytes, list[tuple[float, int]]]:
    """(time, bytes) by topic; the configured quota covers topic c, and every topic has backlog without end."""
    clock = MovedClock()
    quotas = tuple(quota(f"limit-{number}", limit.rate, limit.topics) for number, limit in enumerate(limits))
    replicas = {"c": ALL_REPLICAS}
    settings = ThrottleSettings(rate=rate, replicas=replicas, quotas=quotas, order=order)  # type: ignore[arg-type]
    throttle = Throttle("leader", 1, clock, settings)
    logs = {(topic, partition): Log([BATCH] * 20_000) for topic in TOPICS for partition in range(2)}
    offsets = dict.fromkeys(logs, 0)
    link, leader = throttle.link(2), Leader(logs)
    got: dict[bytes, list[tuple[float, int]]] = {topic: [] for topic in TOPICS}
    before = dict(offsets)
    end = clock.now + SECONDS
    follower = SessionFollower(clock, Hop(clock, link, SessionLeader(clock, leader)), offsets, version)
    while clock.now < end:
        follower.fetch()
        clock.move(0.004)
        for key, offset in offsets.items():
            if offset > before[key]:
                got[key[0]].append((clock.now - 1000.0, (offset - before[key]) * BATCH))
                before[key] = offset
    link.close()
    assert all(one.ledger.reserved == 0 for one in throttle.quotas)
    return got


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([3, 6, 7, 12]),
    LIMITS,
    st.sampled_from([MB // 2, 2 * MB]),
    st.sampled_from(["urgent-first", "round-robin"]),
)
def test_every_quota_holds_and_each_topic_is_stopped_by_one(
    version: int, limits: list[Limit], rate: int, order: str
) -> None:
    got = received(version, limits, rate, order)
    in_force = [*limits, Limit(rate, frozenset([b"c"]))]
    full: set[bytes] = set()
    for limit in in_force:
        times = sorted(one for topic in limit.topics for one in got[topic])
        batches = 2 * BATCH if limit.rate else BATCH * 2 * len(TOPICS)  # at rate 0 its offset probes alone
        assert worst_second(times) <= 1.04 * limit.rate + batches
        if mean_rate(times, 1.0, SECONDS) >= 0.9 * limit.rate:
            full |= limit.topics
    limited = frozenset().union(*[limit.topics for limit in in_force])
    assert full >= limited


def test_quota_of_0_stops_its_own_topics_and_nothing_else() -> None:
    got = received(3, [Limit(0, frozenset([b"a"])), Limit(MB, frozenset([b"b"]))], 2 * MB, "urgent-first")
    assert sum(size for _, size in got[b"a"]) <= 2 * BATCH
    assert mean_rate(got[b"b"], 1.0, SECONDS) == pytest.approx(MB, rel=0.03)
    assert mean_rate(got[b"c"], 1.0, SECONDS) == pytest.approx(2 * MB, rel=0.03)


def test_added_quota_of_kafkas_policy_holds_too() -> None:
    clock = MovedClock()
    settings = ThrottleSettings(quotas=(quota("kafkas", MB, TOPICS),), policy="kip73")
    throttle = Throttle("leader", 1, clock, settings)
    leader = Leader({(topic, 0): Log([BATCH] * 20_000) for topic in TOPICS})
    talk = Conversation(clock, throttle.link(2), leader, Follower(dict.fromkeys(leader.logs, 0)))
    talk.run(30.0)
    assert mean_rate(talk.follower.received, 1010.0, 1030.0) == pytest.approx(MB, rel=0.15)


@pytest.mark.parametrize(("scope", "counts_in_sync"), [(Matching(), True), (Recovering(), False)])
def test_in_sync_bytes_are_counted_in_quotas_that_count_them(scope: Scope, counts_in_sync: bool) -> None:
    clock = MovedClock()
    quotas = (QuotaSettings("added", MB, scope),)
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"a": ALL_REPLICAS}, quotas=quotas))
    leader = Leader({(b"a", 0): Log([BATCH] * 10, told_high_watermark=0)})  # what it has is above its high watermark
    talk = Conversation(clock, throttle.link(2), leader, Follower({(b"a", 0): 0}))
    for _ in range(3):
        talk.exchange()
    assert talk.follower.offsets[b"a", 0] == 10
    assert throttle.ledger.room() < MB
    assert (throttle.quotas[1].ledger.room() < MB) == counts_in_sync


def test_replaced_quota_limits_as_the_one_in_its_place() -> None:
    """An answer may still be on its way that was granted by the policy before."""
    throttle = Throttle("leader", 1, MovedClock(), ThrottleSettings(rate=MB, replicas={"a": ALL_REPLICAS}))
    (before,) = throttle.quotas
    throttle.configure(ThrottleSettings(rate=MB, replicas={"a": ALL_REPLICAS}, policy="kip73"))
    assert throttle.quotas != (before,)
    assert before.limits
    throttle.configure(ThrottleSettings(replicas={"a": ALL_REPLICAS}, policy="kip73"))
    assert not before.limits
    throttle.configure(ThrottleSettings(rate=MB, replicas={"a": ALL_REPLICAS}, policy="kip73"))
    assert before.limits


@pytest.mark.long
def test_plan_without_a_commit_changes_nothing() -> None:
    """A dry run: the same view gives the same plan, and what follows is as if it had not been."""

    def answers(is_dry_run: bool) -> list[dict[tuple[bytes, int], tuple[int, int]]]:
        clock = MovedClock()
        quotas = (quota("added", MB // 2, TOPICS),)
        throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"a": ALL_REPLICAS}, quotas=quotas))
        leader = Leader({(topic, 0): Log([BATCH] * 1_000) for topic in TOPICS})
        talk = Conversation(clock, throttle.link(2), leader, Follower(dict.fromkeys(leader.logs, 0)))
        actions: set[Action] = set()
        for _ in range(200):
            if is_dry_run:
                view = observe(talk.link, talk.follower.request(), clock.now, 0.0)
                plans = [plan(view) for _ in range(3)]
                assert plans.count(plans[0]) == 3
                actions.add(plans[0].action)
            talk.exchange()
        assert not is_dry_run or Action.GRANT in actions
        return [requested(decision.request) for decision in talk.forwarded]

    assert answers(is_dry_run=True) == answers(is_dry_run=False)


@pytest.mark.long
@pytest.mark.parametrize("order", ["round-robin", "urgent-first"])
@pytest.mark.parametrize("version", [2, 3, 12])
def test_partition_of_two_quotas_has_a_part_of_both(order: Order, version: int) -> None:
    """Each quota was used up by its own partitions whenever there was enough of it."""
    clock, seconds, batch = MovedClock(), 30.0, PARTITION_MAX_BYTES if version == 2 else 100_000
    quotas = (quota("wide", 5 * batch, (b"a", b"b")), quota("narrow", 2 * batch, (b"b", b"c")))
    throttle = Throttle("leader", 1, clock, ThrottleSettings(quotas=quotas, order=order))
    logs = {(topic, 0): Log([batch] * 1_000) for topic in TOPICS}
    link, leader, offsets = throttle.link(2), Leader(logs), dict.fromkeys(logs, 0)
    SessionFollower(clock, Hop(clock, link, SessionLeader(clock, leader)), offsets, version).run(seconds)
    a, b, c = [offsets[topic, 0] for topic in TOPICS]
    assert b >= (0.4 * 2 * seconds if order == "round-robin" else 1)
    assert a + b >= 0.8 * 5 * seconds
    assert b + c >= 0.8 * 2 * seconds

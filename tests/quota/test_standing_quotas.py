# SPDX-License-Identifier: Apache-2.0
"""Quotas that need no list: of what a reassignment adds, of what recovers, and of links and topics by their names."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.metadata import NO_ID
from weir.quota.figures import CREDIT_SECONDS
from weir.quota.scopes import Ends, Matching, Reassigned, Recovering, Scope
from weir.quota.settings import Policy, QuotaSettings, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS
from weir.quota.topic_names import CLUSTER_METADATA_ID

MB = 1_000_000
BATCH = 10_000
RATE = MB // 2
TOPICS = (b"added", b"behind")
ADDING = {b"added": {0: frozenset({2})}}
BATCHES = 3_000
SECONDS = 5.0
UNBOUNDED = math.inf  # the whole log came: no quota here lets that through


class Moving:
    """Follower `replica` has backlog without end in both topics; partition 0 of `added` is being added to broker 2."""

    def __init__(
        self,
        *quotas: QuotaSettings,
        side: SideName = "leader",
        replica: int = 2,
        version: int = 3,
        others: ThrottleSettings | None = None,
    ) -> None:
        self.clock = MovedClock()
        broker = 1 if side == "leader" else replica
        self.throttle = Throttle(
            side, broker, self.clock, dataclasses.replace(others or ThrottleSettings(), quotas=quotas)
        )
        self.throttle.rules.set_adding_replicas(ADDING)
        leader = Leader({(topic, 0): Log([BATCH] * BATCHES) for topic in TOPICS})
        self.offsets = dict.fromkeys(leader.logs, 0)
        self.link = self.throttle.link(replica if side == "leader" else 1)
        hop = Hop(self.clock, self.link, SessionLeader(self.clock, leader))
        self.fetch = SessionFollower(self.clock, hop, self.offsets, version, replica_id=replica).fetch

    def rates(self, seconds: float = SECONDS) -> dict[bytes, float]:
        """Bytes/s of each topic; UNBOUNDED for one that has come whole."""
        begin, before = self.clock.now, dict(self.offsets)
        while self.clock.now < begin + seconds and min(self.offsets.values()) < BATCHES:
            self.fetch()
            self.clock.move(0.008)
        after = self.offsets
        return {
            topic: UNBOUNDED if after[topic, 0] == BATCHES else (after[topic, 0] - before[topic, 0]) * BATCH / seconds
            for topic in TOPICS
        }


def near(rate: float) -> object:
    return pytest.approx(rate, rel=0.05, abs=rate * CREDIT_SECONDS / SECONDS + 2 * BATCH / SECONDS)


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("version", [3, 12])
def test_reassignment_rate_holds_for_what_is_added_alone(version: int, side: SideName) -> None:
    rates = Moving(QuotaSettings("reassignment", RATE, Reassigned()), version=version, side=side).rates()
    assert rates[b"added"] == near(RATE)
    assert rates[b"behind"] == UNBOUNDED


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("version", [3, 12])
def test_recovery_rate_holds_for_what_is_behind_but_not_added(version: int, side: SideName) -> None:
    rates = Moving(QuotaSettings("recovery", RATE, Recovering()), version=version, side=side).rates()
    assert rates[b"behind"] == near(RATE)
    assert rates[b"added"] == UNBOUNDED


def test_recovery_and_reassignment_have_a_rate_each() -> None:
    quotas = QuotaSettings("recovery", RATE, Recovering()), QuotaSettings("reassignment", 2 * RATE, Reassigned())
    rates = Moving(*quotas).rates()
    assert rates == {b"behind": near(RATE), b"added": near(2 * RATE)}


def test_what_is_added_counts_as_recovery_until_it_is_told() -> None:
    moving = Moving(QuotaSettings("recovery", RATE, Recovering()))
    moving.throttle.rules.set_adding_replicas({})
    assert sum(moving.rates().values()) == near(RATE)
    moving.throttle.rules.set_adding_replicas(ADDING)
    assert moving.rates()[b"added"] == UNBOUNDED


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("version", [3, 12])
def test_what_appears_counts_as_added_until_the_cluster_is_asked(side: SideName, version: int) -> None:
    """A move begins between two questions, and the next one may get no answer for long: its backlog passed whole."""
    moving = Moving(QuotaSettings("reassignment", RATE, Reassigned()), side=side, version=version)
    rules, clock = moving.throttle.rules, moving.clock
    rules.set_adding_replicas({}, asked_at=clock.now)
    clock.move(0.5)
    assert sum(moving.rates().values()) == near(RATE)
    assert rules.untold()["reassignments"]
    rules.set_adding_replicas({}, asked_at=clock.now - SECONDS - 0.1)  # asked before it came
    assert sum(moving.rates().values()) == near(RATE)
    rules.set_adding_replicas(ADDING, asked_at=clock.now)
    assert not rules.untold()["reassignments"]
    rates = moving.rates()
    assert rates[b"added"] == near(RATE)
    assert rates[b"behind"] == UNBOUNDED


def test_not_all_made_up_topics_are_kept_without_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than are kept it is not known of any partition whether it is being added."""
    monkeypatch.setattr("weir.quota.side_quotas.MOST_PARTITIONS", 10)
    moving = Moving(QuotaSettings("reassignment", RATE, Reassigned()))
    rules, clock = moving.throttle.rules, moving.clock
    rules.set_adding_replicas({}, asked_at=clock.now)
    clock.move(0.5)
    for number in range(100):
        rules.appears(b"made up %d" % (number // 3), number, 2, clock.now)
        assert sum([len(one.partitions) for one in rules.facts.appeared.values()]) <= 10
    assert rules.untold()["reassignments"]
    assert sum(moving.rates().values()) == near(RATE)
    rules.set_adding_replicas({}, asked_at=clock.now)
    assert max(moving.rates().values()) == UNBOUNDED


def test_what_appears_under_its_min_isr_is_spared() -> None:
    moving = Moving(QuotaSettings("reassignment", RATE, Reassigned()))
    moving.throttle.rules.set_adding_replicas({}, asked_at=moving.clock.now)
    moving.throttle.set_under_min_isr(frozenset({(b"behind", 0)}))
    moving.clock.move(0.5)
    rates = moving.rates()
    assert rates[b"behind"] == UNBOUNDED
    assert rates[b"added"] == near(RATE)


def test_moves_told_long_ago_count_for_nothing_under_a_new_rate() -> None:
    moving = Moving()
    rules = moving.throttle.rules
    rules.set_adding_replicas({}, asked_at=moving.clock.now)
    moving.fetch()
    moving.throttle.configure(ThrottleSettings(quotas=(QuotaSettings("reassignment", RATE, Reassigned()),)))
    assert sum(moving.rates().values()) == near(RATE)
    rules.set_adding_replicas({}, asked_at=moving.clock.now)
    assert max(moving.rates().values()) == UNBOUNDED


def test_replica_of_another_follower_is_not_what_is_added() -> None:
    rates = Moving(QuotaSettings("reassignment", RATE, Reassigned()), replica=3).rates()
    assert min(rates.values()) == UNBOUNDED


@pytest.mark.parametrize("scope", [Recovering, Reassigned])
@pytest.mark.parametrize("spares", [True, False])
def test_under_min_isr_is_spared_unless_told_otherwise(
    scope: type[Recovering] | type[Reassigned], spares: bool
) -> None:
    topic = b"behind" if scope is Recovering else b"added"
    moving = Moving(QuotaSettings("standing", RATE, scope(spares)))
    assert moving.rates()[topic] == near(RATE)
    moving.throttle.set_under_min_isr(frozenset({(topic, 0)}))
    rate = moving.rates()[topic]
    assert rate == UNBOUNDED if spares else rate == near(RATE)


@pytest.mark.parametrize(
    ("scope", "slowed"),
    [
        (Matching(peers=frozenset({2})), {b"added", b"behind"}),
        (Matching(peers=frozenset({3})), set()),
        (Matching(racks=frozenset({"b"})), {b"added", b"behind"}),
        (Matching(racks=frozenset({"a"})), set()),
        (Matching(topics=("add*",)), {b"added"}),
        (Matching(peers=frozenset({2}), racks=frozenset({"a"})), set()),
        (Matching(racks=frozenset({"b"}), topics=("behind", "x")), {b"behind"}),
    ],
)
def test_scoped_quota_holds_for_its_links_and_topics_alone(scope: Scope, slowed: set[bytes]) -> None:
    moving = Moving(QuotaSettings("scoped", RATE, scope))
    moving.throttle.rules.set_racks({1: "a", 2: "b"})
    rates = moving.rates()
    if slowed:
        assert sum(rates[topic] for topic in slowed) == near(RATE)
    assert all(rates[topic] == UNBOUNDED for topic in set(TOPICS) - slowed)


def test_racks_that_are_not_known_yet_count_as_covered() -> None:
    moving = Moving(QuotaSettings("scoped", RATE, Matching(racks=frozenset({"a"}))))
    assert sum(moving.rates().values()) == near(RATE)
    moving.throttle.rules.set_racks({1: "a", 2: None})
    assert min(moving.rates().values()) == UNBOUNDED


def test_removed_quota_frees_all_and_a_new_rate_holds_at_once() -> None:
    moving = Moving(QuotaSettings("recovery", RATE, Recovering()))
    moving.rates(2.0)
    moving.throttle.configure(ThrottleSettings(quotas=(QuotaSettings("recovery", 2 * RATE, Recovering()),)))
    moving.rates(1.0)
    assert moving.rates()[b"behind"] == near(2 * RATE)
    moving.throttle.configure(ThrottleSettings())
    assert moving.rates()[b"behind"] == UNBOUNDED
    moving.link.close()
    assert all(quota.ledger.reserved == 0 for quota in moving.throttle.quotas)


SCOPES = st.one_of(
    st.builds(Reassigned, st.booleans()),
    st.builds(Recovering, st.booleans()),
    st.builds(
        Matching,
        st.sampled_from([None, frozenset({2}), frozenset({3})]),
        st.sampled_from([None, frozenset({"a"}), frozenset({"b"})]),
        st.sampled_from([None, ("a*",), ("behind",)]),
    ),
)
QUOTAS = st.lists(
    st.tuples(st.sampled_from([0, RATE, 2 * RATE]), SCOPES, st.sampled_from([False, False, True])), max_size=3
)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(
    QUOTAS,
    st.sampled_from([None, RATE]),
    st.sampled_from([3, 6, 12]),
    st.sampled_from(["leader", "follower"]),
    st.sampled_from([None, {(b"added", 0)}, {(b"behind", 0)}]),
    st.sampled_from(["strict", "kip73"]),
)
def test_any_quotas_together_hold_and_what_none_covers_is_free(
    drawn: list[tuple[int, Scope, bool]],
    listed: int | None,
    version: int,
    side: SideName,
    under: set[tuple[bytes, int]] | None,
    policy: Policy,
) -> None:
    """The oracle finds by the words of each scope what it covers, and the least rate that bounds each topic."""
    quotas = [QuotaSettings(f"quota-{number}", *one) for number, one in enumerate(drawn)]
    others = ThrottleSettings(rate=listed, replicas={"behind": ALL_REPLICAS}, policy=policy)
    moving = Moving(*quotas, side=side, version=version, others=others)
    moving.throttle.rules.set_racks({1: "a", 2: "b"})
    moving.throttle.set_under_min_isr(frozenset(under or ()))
    moving.rates(1.0)
    rates = moving.rates()
    bounds = [
        (one.rate, {t for t in TOPICS if covers(one.scope, t, side, under or set())})
        for one in quotas
        if not one.is_observed
    ]
    bounds += [] if listed is None else [(listed, {b"behind"})]
    slack = 1.04 if policy == "strict" else 1.3
    for rate, topics in bounds:
        if topics:
            assert (
                sum(rates[topic] for topic in topics)
                <= rate * slack + 3 * BATCH / SECONDS + rate * CREDIT_SECONDS / SECONDS
            )
    for topic in TOPICS:
        covering = [(rate, topics) for rate, topics in bounds if topic in topics]
        if not covering:
            assert rates[topic] == UNBOUNDED
        elif rates[topic] != UNBOUNDED:  # then a quota that covers it is full
            assert any(sum(rates[one] for one in topics) >= 0.7 * rate for rate, topics in covering)


def covers(scope: Scope, topic: bytes, side: SideName, under: set[tuple[bytes, int]]) -> bool:
    if isinstance(scope, Matching):
        other, rack = (2, "b") if side == "leader" else (1, "a")
        by_name = scope.topics is None or (topic == b"added") == (scope.topics == ("a*",))
        by_peer = scope.peers is None or other in scope.peers
        return by_name and by_peer and (scope.racks is None or rack in scope.racks)
    assert isinstance(scope, Reassigned | Recovering)
    if scope.spares_under_min_isr and (topic, 0) in under:
        return False
    return (topic == b"added") == isinstance(scope, Reassigned)


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("is_whole", [True, False])
def test_observed_quota_holds_nothing_and_counts_what_it_would(version: int, is_whole: bool) -> None:
    quota = QuotaSettings("recovery", RATE, Recovering(), is_observed=not is_whole)
    whole = ThrottleSettings(rate=0, replicas={"added": ALL_REPLICAS}, is_observed=True)
    moving = Moving(quota, version=version, others=whole if is_whole else None)
    free = Moving(version=version)
    assert moving.rates() == free.rates()
    stats = moving.throttle.stats
    assert stats.partitions_left_out == 0
    assert stats.would_leave_out["recovery"] > 10
    assert (stats.would_leave_out["configured"] > 10) == is_whole
    assert moving.throttle.quotas[1].measured.rate() > 2 * RATE


def test_observed_quota_never_reached_would_leave_out_nothing() -> None:
    moving = Moving(QuotaSettings("recovery", 1000 * MB * MB, Recovering(), is_observed=True))
    moving.rates()
    assert moving.throttle.stats.would_leave_out["recovery"] <= 1  # at the start there is no credit yet


def test_replica_in_sync_is_never_held_back_by_a_standing_quota() -> None:
    clock = MovedClock()
    quotas = (QuotaSettings("recovery", 0, Recovering()), QuotaSettings("all", 0, Matching()))
    throttle = Throttle("leader", 1, clock, ThrottleSettings(quotas=quotas))
    log = Log([BATCH] * 10, told_high_watermark=0)
    talk = Conversation(clock, throttle.link(2), Leader({(b"a", 0): log}), Follower({(b"a", 0): 0}))
    for _ in range(3):
        talk.exchange()
    assert talk.follower.offsets[b"a", 0] == 10
    assert mean_rate(talk.follower.received, 1000.0, clock.now) > 0


def test_waiting_topics_are_those_that_a_quota_holds_back() -> None:
    moving = Moving(QuotaSettings("recovery", 0, Recovering()))
    moving.rates(0.5)
    assert moving.throttle.waiting_topics() == {"behind"}
    moving.link.close()
    assert moving.throttle.waiting_topics() == set()


@pytest.mark.parametrize("scope", [Recovering(), Matching(peers=frozenset({2})), Matching(topics=("*",))])
def test_metadata_log_of_the_cluster_is_covered_by_no_quota(scope: Scope) -> None:
    """Whoever holds it back cuts a broker off from the cluster."""
    throttle = Throttle("leader", 1, MovedClock(), ThrottleSettings(quotas=(QuotaSettings("all", 0, scope),)))
    for name, topic_id in ((b"__cluster_metadata", NO_ID), (None, CLUSTER_METADATA_ID)):
        assert 0 not in throttle.rules.throttled_partitions(throttle.rules.coverage(name, topic_id, Ends(2, 2)))
    assert 0 in throttle.rules.throttled_partitions(throttle.rules.coverage(b"orders", NO_ID, Ends(2, 2)))


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 12])
def test_two_hops_with_unlike_standing_rates_keep_each_its_own(version: int) -> None:
    """The follower's sidecar bounds what recovers, the leader's what is added."""
    clock = MovedClock()
    leader = Leader({(topic, 0): Log([BATCH] * BATCHES) for topic in TOPICS})
    offsets = dict.fromkeys(leader.logs, 0)
    sides: list[tuple[SideName, int, QuotaSettings]] = [
        ("leader", 1, QuotaSettings("reassignment", 2 * RATE, Reassigned())),
        ("follower", 2, QuotaSettings("recovery", RATE, Recovering())),
    ]
    throttles = [Throttle(side, broker, clock, ThrottleSettings(quotas=(quota,))) for side, broker, quota in sides]
    for throttle in throttles:
        throttle.rules.set_adding_replicas(ADDING)
    ingress = Hop(clock, throttles[0].link(2), SessionLeader(clock, leader))
    egress = Hop(clock, throttles[1].link(1), ingress)
    follower = SessionFollower(clock, egress, offsets, version)
    begin = clock.now
    while clock.now < begin + 2 * SECONDS:
        follower.fetch()
        clock.move(0.008)
    seconds = clock.now - begin
    assert offsets[b"behind", 0] * BATCH / seconds == near(RATE)
    assert offsets[b"added", 0] * BATCH / seconds == near(2 * RATE)

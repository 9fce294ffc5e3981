# SPDX-License-Identifier: Apache-2.0
"""Hundreds of quotas and thousands of topics: what finding a topic's quotas costs, and when it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.protocol.hostile import Work
from weir.protocol.metadata import NO_ID
from weir.quota.budget.quota import Quota
from weir.quota.scopes import Ends, Matching, Recovering
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS
from weir.quota.topic_patterns import TopicPatterns

MB = 1_000_000
BATCH = 10_000
TOPICS = 300
MOST_IN_A_STEP = 10_000
"""Lines of code: about 1 ms."""


def names(count: int = TOPICS) -> list[bytes]:
    return [b"team-%03d-orders" % number for number in range(count)]


def by_prefix(number: int) -> Matching:
    return Matching(topics=(f"team-{number:03d}-*",))


def by_end(number: int) -> Matching:
    return Matching(topics=(f"*-{number:03d}-orders",))


def by_names(number: int) -> Matching:
    return Matching(topics=tuple(f"team-{number:03d}-{end}" for end in ("orders", "items", "customers")))


def of_other_followers(number: int) -> Matching:
    return Matching(peers=frozenset({3 + number}), topics=("team-*",))


def quotas_of(scope: Callable[[int], Matching], count: int) -> tuple[QuotaSettings, ...]:
    return tuple(QuotaSettings(f"q{number}", MB, scope(number)) for number in range(count))


def throttle_of(*quotas: QuotaSettings, rate: int | None = None) -> Throttle:
    return Throttle("leader", 1, MovedClock(), ThrottleSettings(rate, {"listed": ALL_REPLICAS}, quotas))


def covering(throttle: Throttle, topics: list[bytes]) -> Iterator[tuple[str, ...]]:
    for name in topics:
        coverage = throttle.rules.coverage(name, NO_ID, Ends(2, 2))
        yield tuple(quota.name for quota, covered in coverage if 0 in covered)


@pytest.mark.parametrize("scope", [by_prefix, by_names, of_other_followers])
def test_work_for_topics_hardly_grows_with_the_number_of_quotas(scope: Callable[[int], Matching]) -> None:
    few, many = [throttle_of(*quotas_of(scope, count)) for count in (10, 200)]
    found = [next(covering(one, [b"team-007-orders"])) for one in (few, many)]
    assert found[0] == found[1] == (() if scope is of_other_followers else ("q7",))
    of_few, of_many = [Work("quota").run(covering(one, names())).total for one in (few, many)]
    assert of_many <= 1.5 * of_few


def test_name_is_matched_once_as_long_as_patterns_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: Counter[str] = Counter()
    match = TopicPatterns._match

    def counted(patterns: TopicPatterns, name: str) -> set[int]:
        matched[name] += 1
        return match(patterns, name)

    monkeypatch.setattr(TopicPatterns, "_match", counted)
    quotas = quotas_of(by_end, 5)
    throttle = throttle_of(*quotas)
    elsewhere = replace(quotas[0], scope=replace(by_end(0), racks=frozenset({"a"})))
    for changed in (
        ThrottleSettings(quotas=quotas),
        ThrottleSettings(quotas=quotas, replicas={"team-000-orders": ALL_REPLICAS}, rate=MB),
        ThrottleSettings(quotas=quotas, is_observed=True),
        ThrottleSettings(quotas=(elsewhere, *quotas[1:])),
    ):
        throttle.configure(changed)
        throttle.rules.set_racks({2: str(changed.rate)})
        assert [*covering(throttle, names(7))][1] == ("q1",)
    assert matched == Counter([name.decode() for name in names(7)])
    throttle.configure(ThrottleSettings(quotas=quotas[1:]))
    assert [*covering(throttle, names(7))][:2] == [(), ("q1",)]
    assert set(matched.values()) == {2}


def behind(throttle: Throttle, topics: list[bytes]) -> Conversation:
    leader = Leader({(name, 0): Log([BATCH] * 100) for name in topics})
    assert isinstance(throttle.clock, MovedClock)
    return Conversation(throttle.clock, throttle.link(2), leader, Follower(dict.fromkeys(leader.logs, 0)))


def test_change_of_a_rate_classifies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = (*quotas_of(by_prefix, 20), QuotaSettings("recovery", MB, Recovering()))
    throttle = throttle_of(*quotas, rate=MB)
    talk = behind(throttle, names(40))
    talk.run(0.5)
    generation, waiting = throttle.rules.generation, talk.link.partitions.behind_count
    assert waiting == 40
    monkeypatch.setattr(throttle.rules, "coverage", None)  # nobody asks for it
    for rate in (2 * MB, 0, 3 * MB):
        changed = tuple(replace(one, rate=rate) for one in quotas)
        throttle.configure(replace(throttle.settings, rate=rate + 1, quotas=changed, order="round-robin"))
        talk.exchange()
        assert [quota.rate for quota in throttle.quotas] == [rate + 1, *[rate] * len(quotas)]
    assert throttle.rules.generation == generation
    assert throttle.rules.is_throttling


@pytest.mark.parametrize(
    "changed",
    [
        {"rate": None},
        {"replicas": {"other": ALL_REPLICAS}},
        {"quotas": ()},
        {"quotas": quotas_of(by_end, 1)},
        {"quotas": tuple(replace(one, is_observed=True) for one in quotas_of(by_prefix, 1))},
        {"quotas": tuple(replace(one, shared_for=2) for one in quotas_of(by_prefix, 1))},
        {"is_observed": True},
        {"policy": "kip73"},
    ],
    ids=str,
)
def test_change_of_what_is_held_back_has_all_classified_anew(changed: dict[str, object]) -> None:
    throttle = throttle_of(*quotas_of(by_prefix, 1), rate=MB)
    generation = throttle.rules.generation
    throttle.configure(replace(throttle.settings, **changed))  # type: ignore[arg-type]
    assert throttle.rules.generation == generation + 1


def test_topics_are_classified_in_steps_bounded_by_work() -> None:
    """Each of these patterns is looked at for each name: they begin with a wildcard."""
    throttle = throttle_of(*quotas_of(by_end, 200))
    talk = behind(throttle, names())
    partitions = talk.link.partitions
    taken_in = Work("quota").run(talk.link._take_in(talk.follower.request(), 1000.0))
    throttle.configure(ThrottleSettings(quotas=quotas_of(by_end, 199)))
    anew = Work("quota").run(partitions.classify_all(1000.0))
    assert max(taken_in.longest, anew.longest) <= MOST_IN_A_STEP
    assert anew.total > 5 * MOST_IN_A_STEP


def asked(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The quotas that one fetch asks for what it may have."""
    found: set[str] = set()
    for one in talk.link.throttle.quotas:

        def offer(*given: object, quota: Quota = one, make: Callable[..., object] = one.offer) -> object:
            found.add(quota.name)
            return make(*given)

        monkeypatch.setattr(one, "offer", offer)
    talk.next_decision()
    return found


def test_only_quotas_of_topics_that_wait_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = throttle_of(*quotas_of(by_prefix, 50), rate=MB)
    talk = behind(throttle, names(3))
    partitions = talk.link.partitions
    talk.exchange()
    assert {quota.name: count for quota, count in partitions.waited_for.items()} == {"q0": 1, "q1": 1, "q2": 1}
    talk.follower.offsets[b"team-001-orders", 0] = 100  # it has all
    talk.run(0.2)
    assert {quota.name for quota in partitions.waited_for} == {"q0", "q2"}
    quotas = (*quotas_of(by_prefix, 2), QuotaSettings("both", MB, by_end(0)))
    throttle.configure(ThrottleSettings(quotas=quotas))
    talk.exchange()
    assert {quota.name: count for quota, count in partitions.waited_for.items()} == {"q0": 1, "both": 1}
    assert asked(talk, monkeypatch) == {"q0", "both"}

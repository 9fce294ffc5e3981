# SPDX-License-Identifier: Apache-2.0
"""Quotas beside those of the listed replicas, and what the cluster says of partitions, drawn at random."""

from __future__ import annotations

from dataclasses import replace

from tests.quota.model.scenario import MB, RACKS, Chooser, Event, Happening, Scenario, Side
from weir.quota.scopes import Matching, Reassigned, Recovering, Scope
from weir.quota.settings import QuotaSettings

_HAPPENINGS: tuple[Happening, ...] = ("reassign", "under min ISR", "scoped quota")


def with_quotas(choose: Chooser, scenario: Scenario) -> Scenario:
    """The same scenario, in four of ten cases with other quotas than those of the lists."""
    if not choose.chance(40):
        return scenario
    behind = [(one.topic, one.number) for one in scenario.partitions if one.is_behind]
    adding = tuple(one for one in behind if choose.chance(40))
    under = tuple((one.topic, one.number) for one in scenario.partitions if choose.chance(8))
    events = [_event(choose, scenario.seconds) for _ in range(choose.pick((0, 1, 2, 5)))]
    return replace(
        scenario,
        leader=_side(choose, scenario, scenario.leader),
        follower=_side(choose, scenario, scenario.follower),
        adding=adding,
        under_min_isr=under,
        has_racks=choose.chance(80),
        told_after=choose.pick((0.0, 0.0, 0.4, 2.0)),
        events=tuple(sorted((*scenario.events, *events), key=lambda event: event.at)),
    )


def _side(choose: Chooser, scenario: Scenario, side: Side) -> Side:
    batch = max(max(one.pattern) for one in scenario.partitions)
    rates = (2 * batch, MB, 5 * batch, 5 * MB, batch, 20 * MB, 0)
    quotas: list[QuotaSettings] = []
    for number in range(choose.pick((1, 0, 1, 2, 3))):
        name, scope = _scope(choose, number)
        if all(name != one.name for one in quotas):
            quotas.append(QuotaSettings(name, choose.pick(rates), scope, is_observed=choose.chance(20)))
    if not choose.chance(60):
        side = replace(side, rate=None)  # the standing quotas alone
    return replace(side, quotas=tuple(quotas), is_observed=choose.chance(4))


def _scope(choose: Chooser, number: int) -> tuple[str, Scope]:
    kind = choose.pick(("reassignment", "recovery", "topics", "reassignment", "recovery", "peers", "racks"))
    if kind == "reassignment":
        return kind, Reassigned(choose.chance(75))
    if kind == "recovery":
        return kind, Recovering(choose.chance(75))
    topics = choose.pick((None, ("alpha",), ("*a",), ("be*", "gamma"), ("delta",), ("*",)))
    name = f"{kind} {number}"
    if kind == "topics":
        return name, Matching(topics=topics or ("alpha", "beta"))
    if kind == "peers":
        return name, Matching(peers=choose.pick((frozenset({1, 101}), frozenset({1, 2, 101, 102, 199}))), topics=topics)
    return name, Matching(racks=frozenset({choose.pick(RACKS)}), topics=topics)


def _event(choose: Chooser, seconds: float) -> Event:
    what = choose.pick(_HAPPENINGS)
    value = choose.pick((MB, 100_000, 20 * MB, 0, None)) if what == "scoped quota" else 0
    at = choose.integer(0, int(seconds * 800)) / 1000
    return Event(at, what, choose.integer(0, 1000), value, choose.integer(0, 1))

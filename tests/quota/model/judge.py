# SPDX-License-Identifier: Apache-2.0
"""A run with peers that break the rules is compared with the same run without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest

from tests.fakes.kafka.wire import MAX_WAIT_MS
from tests.quota.model.draw import draw
from tests.quota.model.run import Outcome, Run
from tests.quota.model.scenario import Scenario, Seeded

HONEST_SHARE = 2 / 3  # what honest followers keep of their rate, at least
_WORTH_COMPARING_SECONDS = 5.0
_WORTH_COMPARING_BATCHES = 20


def judge(scenario: Scenario, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play a scenario; where rogues join, without them first, and where quotas only observe, without these too."""
    observes = not scenario.rogues and _observes(scenario)
    if observes:
        scenario = replace(scenario, walks_all=True)  # else batches that only observed topics have are not known
    run = Run(scenario)
    run.world.trace = trace
    if not scenario.rogues:
        outcome = run.play()
        if not outcome.violations and observes:
            _compare_unobserved(run)
        return outcome
    alone = Run(replace(scenario, rogues=()))
    before = alone.play()
    if before.violations:
        return before
    scenario = replace(scenario, seconds=before.seconds, most_exchanges=100 * scenario.most_exchanges)
    run = Run(scenario)
    run.world.trace = trace
    outcome = run.play()
    if not all(sidecar.meter.is_strict for sidecar in run.sidecars):
        return outcome  # under kip73 there is no line: who asks for most has most
    enough = _WORTH_COMPARING_BATCHES * run.largest_batch
    if not outcome.violations and before.seconds >= _WORTH_COMPARING_SECONDS and alone.received >= enough:
        share = run.received / alone.received
        followers = run.followers_beside_rogues
        least = HONEST_SHARE * followers / (followers + 1)  # a rogue may have what any replica may have
        if share < least:
            share = _share_a_wait_later(scenario)
        outcome.figures["least share of honest followers beside rogues"] = share
        if share < least:
            run.world.violate(
                "honest peers", f"they got {run.received:,} bytes beside {scenario.rogues}, {alone.received:,} without"
            )
    return outcome


def _share_a_wait_later(scenario: Scenario) -> float:
    """What honest followers have received one fetch's wait after the end, as a part of what they have then without.

    Beside rogues their fetches come at other moments. Where a partition has just lost its quota, a link's whole
    bandwidth may pass between two such moments.
    """
    later = replace(scenario, seconds=scenario.seconds + MAX_WAIT_MS / 1000)
    beside, alone = Run(later), Run(replace(later, rogues=()))
    beside.play()
    alone.play()
    return beside.received / alone.received


def _observes(scenario: Scenario) -> bool:
    """Whether some quotas observe, and do so all the time."""
    sides = scenario.leader, scenario.follower
    some = any(side.is_observed or any(one.is_observed for one in side.quotas) for side in sides)
    return some and not any(event.what == "scoped quota" and event.value is None for event in scenario.events)


def _compare_unobserved(run: Run) -> None:
    """What observes changes nothing: every answer comes at its time, with the bytes that it would have without."""
    without = Run(replace(run.scenario, is_without_observed=True))
    without.play()
    for one, other in zip_longest(run.world.answers, without.world.answers):
        if one != other:
            run.world.violate("observed", f"(time, replica, bytes) of an answer is {one}, and without it {other}")
            return


def must_hold(seeds: range) -> None:
    """Each of these seeds' short runs keeps every promise; says which do not, and how to look at them."""
    broken = []
    for seed in seeds:
        violations = judge(draw(Seeded(seed))).violations
        if violations:
            broken.append(f"{violations[0]} (python -m bench.promise --seed {seed} --depth 1)")
    assert not broken, "\n".join(broken)

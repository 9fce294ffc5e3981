# SPDX-License-Identifier: Apache-2.0
"""The promise in configurations drawn at random: `python -m bench.promise --runs 100000`.

Each run is a model of followers, sidecars and leaders (tests/quota/model), drawn by its seed. Printed are the seeds of
the runs in which something did not hold, and what; `--seed N` tells one run line by line, and `--seed N --shrink` makes
it as small as it may be and still fails, and `--listed` leaves out all quotas but those of the listed replicas.
`--links 200` is one large run that is not drawn. `--many` draws runs of kinds (tests/quota/model/draw_many.py), and
`--kind` of one of them: many small partitions behind, rates that fall, slow brokers and others.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bench.table import progress, run
from tests.quota.model.describe import scenario_lines, shrink
from tests.quota.model.draw import draw, draw_listed, many_links
from tests.quota.model.draw_many import KINDS, Kind, draw_many
from tests.quota.model.draw_world import draw_world
from tests.quota.model.judge import judge
from tests.quota.model.judge_many import judge_many
from tests.quota.model.run import Outcome
from tests.quota.model.scenario import Scenario, Seeded
from weir.quota.settings import Order

RUNS = 4_000
RUNS_AT_A_TIME = 50
REPORT_SECONDS = 10.0
MOST_SHOWN = 200
MANY: tuple[tuple[int, Order], ...] = ((6, "round-robin"), (12, "urgent-first"))

Failure = tuple[int, str, str]
"""A seed, the promise that was broken, and how."""


def main() -> int:
    """Run them; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.promise", description="Hold the promise to random runs.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many ({RUNS})")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--depth", type=int, default=2, help="how long runs are (2; the unit tests have 1)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (2)")
    parser.add_argument("--world", action="store_true", help="only whole clusters, most of them with troubles")
    parser.add_argument("--many", action="store_true", help="runs of kinds, each with demands of its own")
    parser.add_argument("--kind", choices=KINDS, help="with --many: only this one")
    parser.add_argument("--seed", type=int, help="tell one run line by line")
    parser.add_argument("--listed", action="store_true", help="with --seed: no quotas but those of listed replicas")
    parser.add_argument("--shrink", action="store_true", help="with --seed: make it small first")
    parser.add_argument("--links", type=int, help="so many links with unlike lists and two hops, at v6 and v12")
    options = parser.parse_args()
    if options.links is not None:
        return _hold_many(options.links)
    draws_kinds = options.many or options.kind is not None
    if options.seed is not None and draws_kinds:
        return _tell_of_kind(options.seed, options.kind)
    if options.seed is not None:
        draws = draw_listed if options.listed else draw_world if options.world else draw
        return _tell(draws(Seeded(options.seed), options.depth), shrinks=options.shrink)
    play = (
        partial(_play_kind, kind=options.kind)
        if draws_kinds
        else partial(_play, depth=options.depth, is_world=options.world)
    )
    return _run_all(options.first, options.runs, options.processes, play)


def _hold_many(links: int) -> int:
    broken = 0
    for version, order in MANY:
        start = time.process_time()
        outcome = judge(many_links(links, version, order, 2_000))
        seconds = time.process_time() - start
        print(f"v{version}, {order}: {outcome.exchanges} fetches, {outcome.seconds:.1f} s, {seconds:.0f} s of CPU")
        for violation in outcome.violations[:10]:
            print(violation)
        broken += len(outcome.violations)
    return 1 if broken else 0


def _play(seed: int, depth: int, is_world: bool) -> Outcome:
    return judge((draw_world if is_world else draw)(Seeded(seed), depth))


def _play_kind(seed: int, kind: Kind | None) -> Outcome:
    return judge_many(draw_many(Seeded(seed), kind))


def _tell_of_kind(seed: int, kind: Kind | None) -> int:
    drawn = draw_many(Seeded(seed), kind)
    print(f"kind: {drawn.kind}, judged from {drawn.since:g} s on")
    return _show(drawn.scenario, judge_many(drawn, trace=print))


def _tell(scenario: Scenario, *, shrinks: bool) -> int:
    def broken(one: Scenario) -> set[str]:
        return {violation.promise for violation in judge(one).violations}

    if shrinks and (first := broken(scenario)):
        scenario = shrink(scenario, lambda one: bool(first & broken(one)))
    return _show(scenario, judge(scenario, trace=print))


def _show(scenario: Scenario, outcome: Outcome) -> int:
    print()
    for line in scenario_lines(scenario):
        print(line)
    print(f"\n{outcome.exchanges} fetches, {outcome.seconds:.1f} s, {outcome.figures}")
    for violation in outcome.violations[:10]:
        print(violation)
    return 1 if outcome.violations else 0


def _run_some(seeds: range, play: Callable[[int], Outcome]) -> tuple[list[Failure], Counter[str], dict[str, float]]:
    failures: list[Failure] = []
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    for seed in seeds:
        outcome = play(seed)
        failures += [(seed, one.promise, str(one)) for one in outcome.violations[:1]]
        counts += Counter(runs=1, fetches=outcome.exchanges, seconds=round(outcome.seconds))
        _keep_worst(worst, outcome.figures)
    return failures, counts, worst


def _collect_seldom() -> None:
    """A run makes few circles, so looking for garbage each 700 objects took an eighth of the time."""
    gc.freeze()
    gc.set_threshold(50_000)


def _keep_worst(worst: dict[str, float], figures: dict[str, float]) -> None:
    """Keep the least of what is named so, and the greatest of the rest."""
    for name, value in figures.items():
        worst[name] = (min if name.startswith("least") else max)(value, worst.get(name, value))


def _run_all(first: int, runs: int, processes: int, play: Callable[[int], Outcome]) -> int:
    start = shown_at = time.monotonic()
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    broken: Counter[str] = Counter()
    parts = [range(at, min(at + RUNS_AT_A_TIME, first + runs)) for at in range(first, first + runs, RUNS_AT_A_TIME)]
    with ProcessPoolExecutor(processes, initializer=_collect_seldom) as pool:
        for failures, counted, figures in pool.map(_run_some, parts, [play] * len(parts)):
            counts += counted
            _keep_worst(worst, figures)
            for seed, promise, text in failures:
                broken[promise] += 1
                if broken.total() <= MOST_SHOWN:
                    print(f"seed {seed}: {text}", flush=True)
            now = time.monotonic()
            if now - shown_at >= REPORT_SECONDS:
                shown_at = now
                done, rate = counts["runs"], counts["runs"] / (now - start)
                left = f"{rate:.0f} a second, {(runs - done) / rate:.0f} s left, {broken.total()} failed"
                print(f"{done:,} runs, {left}", flush=True)
    print(
        f"seeds {first} to {first + runs - 1}: {counts['fetches']:,} fetches in {counts['seconds']:,} s"
        f" of the model, {time.monotonic() - start:.0f} s of ours"
    )
    for name, value in sorted(worst.items()):
        print(f"{name}: {value:.2f}")
    for promise, count in broken.most_common():
        progress(f"missed: {promise}, in {count} runs")
    return 1 if broken else 0


if __name__ == "__main__":
    run(main)

# SPDX-License-Identifier: Apache-2.0
"""The world, drawn at random: slow ends, late leaders, whole clusters, rates that never rest."""

from __future__ import annotations

from dataclasses import replace

from tests.quota.model.scenario import MB, Chooser, Event, Happening, Partition, Scenario, Side

_HAPPENINGS: tuple[Happening, ...] = ("pause", "stop", "anew", "anew", "stop", "break", "elect")
_SLOW = (0, 0, 20_000, 50_000, 200_000, 0, 100_000)  # bytes/s of followers' ends; 0 is as fast as any
_LATE = (0.0, 0.0, 0.05, 0.3, 2.0, 0.0, 1.0)  # seconds


def with_world(choose: Chooser, scenario: Scenario, depth: int = 1) -> Scenario:
    """In one of ten cases a whole cluster instead of `scenario`; in two others the world is as it is."""
    if choose.chance(10):
        return _with_troubles(choose, _mesh(choose, depth)) if choose.chance(60) else _mesh(choose, depth)
    return _with_troubles(choose, scenario) if choose.chance(20) else scenario


def draw_world(choose: Chooser, depth: int = 1) -> Scenario:
    """A whole cluster, in most cases with troubles."""
    scenario = _mesh(choose, depth)
    return _with_troubles(choose, scenario) if choose.chance(75) else scenario


def _with_troubles(choose: Chooser, scenario: Scenario) -> Scenario:
    def some(options: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(choose.pick(options) for _ in range(choose.integer(1, 5))) if choose.chance(50) else ()

    events = [
        Event(
            choose.integer(0, int(scenario.seconds * 800)) / 1000,
            choose.pick(_HAPPENINGS),
            choose.integer(0, 1000),
            choose.integer(1, 4),  # seconds: below those after which a peer counts as stuck
            choose.integer(0, 1),
        )
        for _ in range(choose.pick((0, 2, 4, 8)))
    ]
    return replace(
        scenario,
        slow=some(_SLOW),
        late=some(_LATE),
        drift=choose.pick((0.0, 0.05, 0.3)),
        events=tuple(sorted((*scenario.events, *events), key=lambda event: event.at)),
        rogues=(),
        most_exchanges=2 * scenario.most_exchanges,
    )


def _mesh(choose: Chooser, depth: int) -> Scenario:
    """Every broker leads and follows every other, with quotas on both sides."""
    brokers = choose.pick((3, 3, 4, 5, 8))
    fetchers = choose.pick((1, 1, 2, 4)) if brokers < 5 else 1
    patterns = choose.pick(
        (((16_000,),), ((100_000,),), ((1_000, 30_000), (10_000,), (50_000,)), ((900_000,), (10_000,)))
    )
    live = choose.pick((0.0, 1.0, 0.3))
    partitions: list[Partition] = []
    for leader in range(brokers):
        for follower in range(brokers):
            for fetcher in range(fetchers if leader != follower else 0):
                for is_behind in (True, True, False) if live else (True, True):
                    pattern = choose.pick(patterns)
                    partitions.append(
                        Partition(
                            0 if is_behind else choose.pick((0, 2)),
                            len(partitions),
                            leader,
                            follower,
                            fetcher,
                            is_behind,
                            pattern,
                            min(20_000, 100 * MB * len(pattern) // sum(pattern)) if is_behind else 0,
                            live_every=0.0 if is_behind else live,
                        )
                    )
    rates = (MB, 2 * MB, 5 * MB, 10 * MB)
    leader_rate = choose.pick(rates)
    return Scenario(
        choose.pick((12, 3, 7, 17)),
        "both",
        Side(leader_rate, (0,), order=choose.pick(("round-robin", "urgent-first"))),
        Side(
            leader_rate if choose.chance(50) else choose.pick(rates),
            (0,),
            order=choose.pick(("round-robin", "urgent-first")),
        ),
        tuple(partitions),
        latency=choose.pick((0.0005, 0.005, 0.01)),
        scales=choose.pick(((1.0,), (1.0, 0.5), (1.0, 2.0, 0.3))),
        seconds=choose.pick((10.0, 20.0, 40.0)),
        most_exchanges=1_500 * depth,
    )

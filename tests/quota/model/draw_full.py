# SPDX-License-Identifier: Apache-2.0
"""Answers that others fill, drawn at random: beside partitions below their min ISR, or on links that take seconds."""

from __future__ import annotations

from tests.quota.model.scenario import MB, Chooser, Event, Partition, Scenario, Side
from weir.quota.settings import Order

_ORDERS: tuple[Order, ...] = ("urgent-first", "round-robin")
_VERSIONS = (3, 3, 4, 6, 7, 12, 17)  # from v3 on an answer as a whole has a limit


def with_full_answers(choose: Chooser, scenario: Scenario, depth: int = 1) -> Scenario:
    """In one of 25 cases a world whose answers are full instead of `scenario`."""
    if not choose.chance(4):
        return scenario
    return _below_min_isr(choose, depth) if choose.chance(50) else _slow(choose, depth)


def _below_min_isr(choose: Chooser, depth: int) -> Scenario:
    """Of many partitions that move, few are below their min ISR; small answers have no room for all that is granted."""
    becomes_round_robin = choose.chance(50)  # then links without such a partition have no less from then on
    moved = choose.integer(24, 40) if becomes_round_robin else choose.integer(5, 40)
    followers = 3 if becomes_round_robin else choose.pick((1, 1, 2))
    partitions = _moved_and_beside(
        moved, 9 if becomes_round_robin else choose.integer(9, 30), followers, choose.pick((100_000, 50_000))
    )
    limit = choose.pick((3 * MB, MB, 5 * MB, None))
    side = Side(choose.pick((2 * MB, MB, 4 * MB)), (0,), order="urgent-first", response_max_bytes=limit)
    return Scenario(
        choose.pick(_VERSIONS),
        "leader",
        side,
        Side(None, ()),
        partitions,
        (Event(choose.integer(1, 4), "order"),) if becomes_round_robin else (),
        under_min_isr=tuple(
            (0, number) for number in range(moved - (1 if becomes_round_robin else choose.integer(1, 3)), moved)
        ),
        latency=choose.pick((0.005, 0.01, 0.0005)),
        seconds=choose.pick((20.0, 30.0)),
        most_exchanges=600 * depth,
    )


def _slow(choose: Chooser, depth: int) -> Scenario:
    """An answer takes seconds, and less than half of it is a grant's."""
    partitions = _moved_and_beside(choose.integer(1, 6), choose.integer(12, 30), choose.pick((1, 1, 2)), 100_000)
    return Scenario(
        choose.pick(_VERSIONS),
        "leader",
        Side(choose.pick((MB, MB // 2, 2 * MB)), (0,), order=choose.pick(_ORDERS)),
        Side(None, ()),
        partitions,
        bandwidth=choose.pick((4 * MB, 2 * MB, 8 * MB)),
        latency=choose.pick((0.0005, 0.005)),
        seconds=80.0,
        most_exchanges=300 * depth,
    )


def _moved_and_beside(moved: int, beside: int, followers: int, batch: int) -> tuple[Partition, ...]:
    """For each follower `beside` partitions that nobody throttles, and together `moved` throttled ones."""
    partitions = [
        Partition(0, number, 0, number % followers, 0, True, (batch,), 40 * MB // batch) for number in range(moved)
    ]
    partitions += [
        Partition(3, number, 0, number % followers, 0, True, (100_000,), 20_000) for number in range(beside * followers)
    ]
    return tuple(partitions)

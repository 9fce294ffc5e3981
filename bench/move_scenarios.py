"""The throttled moves that bench.moves measures, and what each must reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from weir.quota.settings import SideName

By = Literal["strict", "kip73", "kafka"]

MESSAGE_BYTES = 10_240
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """One broker's quota on one side, in bytes/s."""

    side: SideName
    broker: int
    rate: int


@dataclass(frozen=True, slots=True)
class Move:
    """`partitions` partitions of one topic, led by `source`, that get a replica on `target`."""

    source: int
    target: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a scenario must reach: the mean as parts of the quota, the worst sliding second, and the cut bytes."""

    mean: tuple[float, float] = (0.98, 1.0)
    worst: float | None = 1.05  # x quota, and one batch on top
    cut: float = 0.02
    wire: tuple[float, float] | None = (0.98, 1.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One throttled move. `produced` is the part of the quota that producers add to replicas that are in sync."""

    name: str
    quotas: tuple[Quota, ...]
    moves: tuple[Move, ...]
    seconds: float
    by: By = "strict"
    compression: str | None = None
    batch_bytes: int = MESSAGE_BYTES
    produced: float = 0.0
    bounds: Bounds = Bounds()

    @property
    def bounding(self) -> Quota:
        """The quota that rules: the lowest."""
        return min(self.quotas, key=lambda quota: quota.rate)

    @property
    def total(self) -> int:
        """Bytes to move so that it takes about `seconds`."""
        return int(self.bounding.rate * self.seconds * (1 - self.produced))


ONE_TO_ONE = (Move(1, 2, 20),)


def scenarios(seconds: float) -> Iterator[Scenario]:
    """Every move, each planned to take about `seconds`."""
    for rate in (20 * MEGABYTE, 5 * MEGABYTE, MEGABYTE):
        for scenario in _plain(rate, seconds):
            yield scenario
            yield replace(
                scenario,
                name=f"{scenario.name}, lz4",
                compression="lz4",
                batch_bytes=50_000 if rate == MEGABYTE else 200_000,
            )
    for rate in (20 * MEGABYTE, 5 * MEGABYTE):
        bounds = _bounds(rate)
        name = f"{rate // MEGABYTE} MB/s"
        yield Scenario(f"follower {name}", (Quota("follower", 2, rate),), ONE_TO_ONE, seconds, bounds=bounds)
        other = Quota("follower", 2, rate * 2)
        yield Scenario(
            f"leader {name}, follower twice that", (Quota("leader", 1, rate), other), ONE_TO_ONE, seconds, bounds=bounds
        )
        other = Quota("leader", 1, rate * 2)
        yield Scenario(
            f"follower {name}, leader twice that",
            (other, Quota("follower", 2, rate)),
            ONE_TO_ONE,
            seconds,
            bounds=bounds,
        )
    yield from _test_plan(5 * MEGABYTE, seconds)
    for rate in (20 * MEGABYTE, 5 * MEGABYTE, MEGABYTE):
        name = f"{rate // MEGABYTE} MB/s"
        leader, follower = Quota("leader", 1, rate), Quota("follower", 2, rate)
        # Its samples cover 11 s: a shorter move says little.
        longer = max(seconds, 40.0)
        yield Scenario(f"kip73 {name}", (leader,), ONE_TO_ONE, longer, "kip73", bounds=_optimistic())
        yield Scenario(f"Kafka's own {name}", (leader, follower), ONE_TO_ONE, longer, "kafka", bounds=_nothing_asked())


def _plain(rate: int, seconds: float) -> Iterator[Scenario]:
    name = f"leader {rate // MEGABYTE} MB/s"
    yield Scenario(name, (Quota("leader", 1, rate),), ONE_TO_ONE, seconds, bounds=_bounds(rate))


def _test_plan(rate: int, seconds: float) -> Iterator[Scenario]:
    """KIP-73's test plan, 100 partitions with 2 replicas, each with and without produce at a third of the quota."""
    for produced in (0.0, 1 / 3):
        beside = ", produce" if produced else ""
        for name, quota, moves in (
            ("1 to 2", Quota("leader", 1, rate), (Move(1, 2, 100),)),
            ("1 to 2 and 3", Quota("leader", 1, rate), (Move(1, 2, 50), Move(1, 3, 50))),
            ("1 and 2 to 3", Quota("follower", 3, rate), (Move(1, 3, 50), Move(2, 3, 50))),
        ):
            yield Scenario(
                f"100 partitions, {name}{beside}", (quota,), moves, seconds, produced=produced, bounds=_bounds(rate)
            )


def _bounds(rate: int) -> Bounds:
    lowest = 0.96 if rate <= MEGABYTE else 0.98
    return Bounds(mean=(lowest, 1.0), cut=0.005 if rate >= 20 * MEGABYTE else 0.02)


def _optimistic() -> Bounds:
    return Bounds(mean=(0.5, 1.1), worst=None, cut=1.0, wire=None)


def _nothing_asked() -> Bounds:
    return Bounds(mean=(0.0, 99.0), worst=None, cut=1.0, wire=None)

# SPDX-License-Identifier: Apache-2.0
"""The throttled moves that bench.moves measures, and what each must reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from weir.quota.settings import Order, SideName

By = Literal["strict", "kip73", "kafka", "both"]
"""Who throttles: a sidecar's policy, Kafka's own throttle, or that one beside sidecars that keep to a part of it."""

MESSAGE_BYTES = 10_240
MEGABYTE = 1_000_000
RATES = (20 * MEGABYTE, 5 * MEGABYTE, MEGABYTE)


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
    """What a scenario must reach, as parts of the quota: the mean, what is on the wire, and the worst sliding second,
    to which one batch comes on top. `cut` is the part of the bytes that was cut.
    """

    mean: tuple[float, float] = (0.98, 1.0)
    worst: float | None = 1.05
    cut: float = 0.02
    wire: tuple[float, float] | None = (0.98, 1.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One throttled move. `produced` is the part of the quota that producers add to replicas that are in sync."""

    name: str
    quotas: tuple[Quota, ...]
    moves: tuple[Move, ...]
    seconds: float
    bounds: Bounds
    by: By = "strict"
    part: float = 1.0
    """The part of Kafka's rate to which sidecars keep beside it."""
    order: Order = "urgent-first"
    compression: str | None = None
    batch_bytes: int = MESSAGE_BYTES
    produced: float = 0.0

    @property
    def bounding(self) -> Quota:
        """The lowest quota, which decides how fast the move is."""
        return min(self.quotas, key=lambda quota: quota.rate)

    @property
    def total(self) -> int:
        """Bytes to move so that it takes about `seconds`."""
        return int(self.bounding.rate * self.part * self.seconds * (1 - self.produced))


ONE_TO_ONE = (Move(1, 2, 20),)


def scenarios(seconds: float, part: float) -> Iterator[Scenario]:
    """Every move, each planned to take about `seconds`."""
    for rate in RATES:
        plain = Scenario(f"leader {_name(rate)}", (Quota("leader", 1, rate),), ONE_TO_ONE, seconds, _bounds(rate))
        size = 50_000 if rate == MEGABYTE else 200_000
        yield plain
        yield replace(plain, name=f"{plain.name}, lz4", compression="lz4", batch_bytes=size)
        if rate == 5 * MEGABYTE:
            yield replace(plain, name=f"{plain.name}, round-robin", order="round-robin")
    for rate in RATES[:2]:
        for quotas, name in (
            ((Quota("follower", 2, rate),), "follower {}"),
            ((Quota("leader", 1, rate), Quota("follower", 2, rate * 2)), "leader {}, follower twice that"),
            ((Quota("leader", 1, rate * 2), Quota("follower", 2, rate)), "follower {}, leader twice that"),
        ):
            yield Scenario(name.format(_name(rate)), quotas, ONE_TO_ONE, seconds, _bounds(rate))
    yield from _test_plan(5 * MEGABYTE, seconds)
    for rate in RATES:
        both = (Quota("leader", 1, rate), Quota("follower", 2, rate))
        # Its samples cover 11 s: a shorter move says little.
        longer = max(seconds, 40.0)
        optimistic = Bounds(mean=(0.5, 1.1), worst=None, cut=1.0, wire=None)
        nothing_asked = Bounds(mean=(0.0, 99.0), worst=None, cut=1.0, wire=None)
        yield Scenario(f"kip73 {_name(rate)}", both[:1], ONE_TO_ONE, longer, optimistic, "kip73")
        yield Scenario(f"Kafka's own {_name(rate)}", both, ONE_TO_ONE, longer, nothing_asked, "kafka")
        beside = Bounds(mean=(0.98 * part, part), cut=1.0, wire=None)
        for quotas, side in ((both[:1], "leader"), (both[1:], "follower"), (both, "both sides")):
            name = f"{part:g} of Kafka's own {_name(rate)}, {side}"
            yield Scenario(name, quotas, ONE_TO_ONE, seconds, beside, "both", part)


def _test_plan(rate: int, seconds: float) -> Iterator[Scenario]:
    """KIP-73's test plan, 100 partitions with 2 replicas, each with and without produce at a third of the quota."""
    for produced, beside in ((0.0, ""), (1 / 3, ", produce")):
        for name, quota, moves in (
            ("1 to 2", Quota("leader", 1, rate), (Move(1, 2, 100),)),
            ("1 to 2 and 3", Quota("leader", 1, rate), (Move(1, 2, 50), Move(1, 3, 50))),
            ("1 and 2 to 3", Quota("follower", 3, rate), (Move(1, 3, 50), Move(2, 3, 50))),
        ):
            name = f"100 partitions, {name}{beside}"
            yield Scenario(name, (quota,), moves, seconds, _bounds(rate), produced=produced)


def _name(rate: int) -> str:
    return f"{rate // MEGABYTE} MB/s"


def _bounds(rate: int) -> Bounds:
    lowest = 0.96 if rate <= MEGABYTE else 0.98
    return Bounds(mean=(lowest, 1.0), cut=0.005 if rate >= 20 * MEGABYTE else 0.02)

# SPDX-License-Identifier: Apache-2.0
"""Proposes where the replicas of topics should be: rack-aware, balanced, and with the least movement from today's.

What holds of every proposal, the first first:

1. No partition has more or fewer replicas than before, and each is on one of the brokers that were given.
2. The replicas of a partition are spread over as many racks as there are, as evenly as the racks' sizes allow.
3. Each topic's replicas are spread over the brokers as evenly as that allows: without racks, or with racks of one size,
   no broker has two more than another.
4. As few replicas as possible move. Where there is a choice, small partitions move, to brokers that hold little of the
   other topics.
5. Of what moves, preferred leaders are spread as well.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from weir.planning.assignment import Brokers, Partition


class ImpossibleProposal(Exception):
    """No assignment can be proposed; the text says why, and what would do."""


def propose(
    current: Mapping[Partition, Brokers],
    brokers: Mapping[int, str | None],
    sizes: Mapping[Partition, int] | None = None,
) -> dict[Partition, Brokers]:
    """Return new replicas for all partitions of `current`, on `brokers` (id -> rack) alone.

    Either every broker has a rack, or racks do not count. `sizes` (bytes) are used to choose between equal moves.
    ImpossibleProposal where there are too few brokers, or where only some have a rack.
    """
    if None in brokers.values() and set(brokers.values()) != {None}:
        without = sorted(broker for broker, rack in brokers.items() if rack is None)
        raise ImpossibleProposal(
            f"not all brokers have a rack ({', '.join(map(str, without))} {'has' if len(without) == 1 else 'have'}"
            " none): give --disable-rack-aware to leave racks aside"
        )
    for partition, replicas in current.items():
        if len(replicas) > len(brokers):
            raise ImpossibleProposal(
                f"{partition} has {len(replicas)} replicas, and there are only {len(brokers)} brokers for them"
            )
    topics: dict[str, dict[Partition, Brokers]] = defaultdict(dict)
    for partition, replicas in sorted(current.items()):
        topics[partition.topic][partition] = replicas
    elsewhere: Counter[int] = Counter()  # replicas of the topics that were done before
    proposed: dict[Partition, Brokers] = {}
    for topic in sorted(topics):
        spread = _Spread(topics[topic], brokers, elsewhere, sizes or {})
        spread.place()
        spread.balance()
        spread.balance_leaders()
        proposed |= spread.result()
        elsewhere.update(spread.held)
    return proposed


class _Step(NamedTuple):
    """One replica's move from one broker to another; the last of `cost` and `size` decides between equal ones."""

    cost: int  # replicas that are moved by it and were not before; -1 where one returns to where it was
    size: int
    partition: Partition
    leaving: int
    entering: int


class _Spread:
    """The replicas of one topic while they are being placed."""

    def __init__(
        self,
        current: Mapping[Partition, Brokers],
        racks: Mapping[int, str | None],
        elsewhere: Mapping[int, int],
        sizes: Mapping[Partition, int],
    ) -> None:
        self._before = {partition: frozenset(replicas) for partition, replicas in current.items()}
        self._now = {partition: list(replicas) for partition, replicas in current.items()}
        self._racks = racks
        self._elsewhere = elsewhere
        self._sizes = sizes
        self._bounds = {count: _rack_bounds(racks.values(), count) for count in set(map(len, current.values()))}
        self._in_rack = {
            partition: Counter(racks[broker] for broker in replicas if broker in racks)
            for partition, replicas in current.items()
        }
        self._racks_can_differ = any(
            least < most for bounds in self._bounds.values() for least, most in bounds.values()
        )
        self._free_paths = True
        self._on: dict[int, set[Partition]] = {broker: set() for broker in racks}
        for partition, replicas in current.items():
            for broker in replicas:
                if broker in self._on:
                    self._on[broker].add(partition)

    @property
    def held(self) -> dict[int, int]:
        """The number of replicas by broker."""
        return {broker: len(partitions) for broker, partitions in self._on.items()}

    def result(self) -> dict[Partition, Brokers]:
        """The replicas as they are placed now."""
        return {partition: tuple(replicas) for partition, replicas in self._now.items()}

    def place(self) -> None:
        """Take replicas off brokers that were not given, and spread each partition over racks."""
        for partition, replicas in self._now.items():
            while (leaving := self._misplaced(partition)) is not None:
                entered = self._rack_to_enter(partition, leaving)
                free = (broker for broker in self._racks if broker not in replicas and self._racks[broker] in entered)
                self._move(partition, leaving, min(free, key=self._fullness))

    def balance(self) -> None:
        """Move replicas from the brokers with most of them to those with least, until no move makes it more even."""
        while (path := self._path()) is not None:
            for leaving, entering in path:
                step = self._step(leaving, entering)
                if step is None:  # two steps of one partition: its first has left the second no rack to go to
                    return
                self._move(step.partition, leaving, entering)

    def balance_leaders(self) -> None:
        """Spread the preferred leaders over the brokers, by another order in partitions that move anyway."""
        moved = [partition for partition, replicas in self._now.items() if self._before[partition] != set(replicas)]
        leaders = Counter(replicas[0] for replicas in self._now.values())
        better = True
        while better:
            better = False
            for partition in moved:
                replicas = self._now[partition]
                index = min(range(len(replicas)), key=lambda at: leaders[replicas[at]])
                if leaders[replicas[0]] - leaders[replicas[index]] >= 2:
                    leaders[replicas[0]] -= 1
                    leaders[replicas[index]] += 1
                    replicas[0], replicas[index] = replicas[index], replicas[0]
                    better = True

    # -- racks ---------------------------------------------------------------------------------------

    def _misplaced(self, partition: Partition) -> int | None:
        """Return a broker of the partition that has to give its replica up, None where all may stay."""
        replicas = self._now[partition]
        outside = [broker for broker in replicas if broker not in self._racks]
        if outside:
            return outside[0]
        bounds, in_rack = self._bounds[len(replicas)], self._in_rack[partition]
        crowded = [rack for rack, (_, most) in bounds.items() if in_rack[rack] > most]
        if not crowded and any(in_rack[rack] < least for rack, (least, _) in bounds.items()):
            crowded = [rack for rack, (least, _) in bounds.items() if in_rack[rack] > least]
        leaving = [broker for broker in replicas if self._racks[broker] in crowded]
        return max(leaving, key=self._fullness) if leaving else None

    def _rack_to_enter(self, partition: Partition, leaving: int) -> Collection[str | None]:
        bounds, in_rack = self._bounds[len(self._now[partition])], self._in_rack[partition].copy()
        if leaving in self._racks:
            in_rack[self._racks[leaving]] -= 1
        short = [rack for rack, (least, _) in bounds.items() if in_rack[rack] < least]
        return short or [rack for rack, (_, most) in bounds.items() if in_rack[rack] < most]

    def _fits_racks(self, partition: Partition, leaving: int, entering: int) -> bool:
        out, into = self._racks[leaving], self._racks[entering]
        if out == into:
            return True
        bounds, in_rack = self._bounds[len(self._now[partition])], self._in_rack[partition]
        return in_rack[out] > bounds[out][0] and in_rack[into] < bounds[into][1]

    # -- balance -------------------------------------------------------------------------------------

    def _path(self) -> list[tuple[int, int]] | None:
        """Return moves, (from, to) one after the other, from a broker to one with at least two replicas fewer."""
        direct = self._direct()
        if direct is not None and (direct.cost <= 0 or not self._free_paths):
            return [(direct.leaving, direct.entering)]
        # What has moved already can move again at no cost, so a way over other brokers may cost less than a direct one.
        # When there is no such way, there never is one again: each move costs as much as the last one, or more.
        path, cost = self._shortest()
        if direct is not None and cost >= direct.cost:
            self._free_paths = False
            return [(direct.leaving, direct.entering)]
        return path

    def _direct(self) -> _Step | None:
        """Return a step from one of the fullest brokers to one of the emptiest; None where each has to go over others.

        The emptiest come first: only to fill those is every move needed.
        """
        by_fullness = sorted(self._racks, key=self._fullness)
        for full in reversed(by_fullness):
            for _, alike in groupby(self._emptier(full, by_fullness), key=lambda broker: len(self._on[broker])):
                steps = [step for broker in alike if (step := self._step(full, broker))]
                if steps:
                    return min(steps, key=lambda step: step.cost)
        return None

    def _emptier(self, full: int, brokers: Iterable[int]) -> list[int]:
        return [broker for broker in brokers if len(self._on[broker]) <= len(self._on[full]) - 2]

    def _shortest(self) -> tuple[list[tuple[int, int]] | None, float]:
        """Find the moves from any full broker to an emptier one that cost least, and their cost; None, inf without any.

        The last one comes first: so each broker has room before it is given something.
        """
        steps: dict[int, dict[int, int]] = {broker: {} for broker in self._racks}
        for leaving in self._racks:
            for entering in self._racks:
                if leaving != entering and (step := self._step(leaving, entering)):
                    # Racks can make ways in a circle that cost less than nothing; no way is to go round and round.
                    steps[leaving][entering] = max(step.cost, 0)
        best: tuple[float, int, int, dict[int, int]] | None = None
        for full in self._racks:
            ends = self._emptier(full, self._racks)
            if not ends:
                continue
            costs, before = _costs_from(full, steps)
            end = min(ends, key=lambda broker: (costs[broker], len(self._on[broker])))
            if costs[end] < math.inf and (best is None or costs[end] < best[0]):
                best = costs[end], full, end, before
        if best is None:
            return None, math.inf
        cost, full, at, before = best
        path = []
        while at != full:
            path.append((before[at], at))
            at = before[at]
        return path, cost

    def _step(self, leaving: int, entering: int) -> _Step | None:
        """Return the best replica to move between two brokers, None where none can be."""
        if self._racks[leaving] != self._racks[entering] and not self._racks_can_differ:
            return None
        return min(self._steps(leaving, entering), default=None)

    def _steps(self, leaving: int, entering: int) -> Iterator[_Step]:
        for partition in self._on[leaving] - self._on[entering]:
            if self._fits_racks(partition, leaving, entering):
                before = self._before[partition]
                cost = (leaving in before) - (entering in before)
                yield _Step(cost, self._sizes.get(partition, 0), partition, leaving, entering)

    def _move(self, partition: Partition, leaving: int, entering: int) -> None:
        replicas = self._now[partition]
        replicas[replicas.index(leaving)] = entering
        if leaving in self._on:
            self._on[leaving].discard(partition)
            self._in_rack[partition][self._racks[leaving]] -= 1
        self._on[entering].add(partition)
        self._in_rack[partition][self._racks[entering]] += 1

    def _fullness(self, broker: int) -> tuple[int, int, int]:
        held = len(self._on[broker])
        return held, held + self._elsewhere.get(broker, 0), broker


def _rack_bounds(racks: Iterable[str | None], replicas: int) -> dict[str | None, tuple[int, int]]:
    """Return the fewest and the most of a partition's replicas in each rack, where they are spread as evenly as can be.

    A rack of one broker takes one replica at most, so a larger one may have to take more.
    """
    sizes = Counter(racks)
    level = 1
    while sum(min(size, level) for size in sizes.values()) < replicas:
        level += 1
    most = {rack: min(size, level) for rack, size in sizes.items()}
    if sum(most.values()) == replicas:
        return {rack: (count, count) for rack, count in most.items()}
    return {rack: (min(sizes[rack], level - 1), count) for rack, count in most.items()}


def _costs_from(start: int, steps: Mapping[int, Mapping[int, int]]) -> tuple[dict[int, float], dict[int, int]]:
    """Return the least cost of a way to each broker, and the broker before it on that way (Dijkstra's)."""
    costs: dict[int, float] = dict.fromkeys(steps, math.inf) | {start: 0}
    before: dict[int, int] = {}
    open_ = set(steps)
    while open_:
        nearest = min(open_, key=costs.__getitem__)
        open_.discard(nearest)
        for broker, cost in steps[nearest].items():
            if costs[nearest] + cost < costs[broker]:
                costs[broker], before[broker] = costs[nearest] + cost, nearest
    return costs, before

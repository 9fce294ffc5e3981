# SPDX-License-Identifier: Apache-2.0
"""How far a move is: the state of each partition, bytes that are left, time that is left, and who holds it up."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from weir.planning.assignment import Brokers, Partition, PartitionMove, Reassignment, Replica
from weir.planning.finish_by import Moving
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE

RATE_WINDOW_SECONDS: Final = 15.0
"""The seconds over which rates are means. Kafka's own throttle lets bytes through in bursts that are seconds apart."""

State = Literal["done", "moving", "elsewhere", "waiting", "gone"]
"""`elsewhere`: moving to other brokers than the plan's. `waiting`: not where the plan says, and not moving.

`gone`: its topic was deleted.
"""

LogState = Literal["done", "moving", "waiting", "missing"]
"""`missing`: the broker has no log of the replica, for it is yet to come or its log directory is offline."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition of a plan: where it is, and where the plan says."""

    state: State
    brokers: Brokers
    target: Brokers


def partition_statuses(
    plan: Mapping[Partition, Brokers],
    current: Mapping[Partition, Brokers],
    under_way: Mapping[Partition, Reassignment],
) -> dict[Partition, PartitionStatus]:
    """Return the status of each partition of a plan; `current` has no partitions of topics that were deleted."""
    return {
        partition: PartitionStatus(
            _state(target, current.get(partition), under_way.get(partition)), current.get(partition, ()), target
        )
        for partition, target in sorted(plan.items())
    }


def _state(target: Brokers, current: Brokers | None, move: Reassignment | None) -> State:
    if current is None:
        return "gone"
    if move is not None:
        return "moving" if frozenset(move.target) == frozenset(target) else "elsewhere"
    return "done" if current == target else "waiting"


def log_states(wanted: Mapping[Replica, str], logs: Mapping[Replica, Mapping[str, bool]]) -> dict[Replica, LogState]:
    """Return how far moves between log directories are; `logs` says of each path whether the log is still to come."""
    states: dict[Replica, LogState] = {}
    for replica, path in sorted(wanted.items()):
        found = logs.get(replica, {})
        if not found:
            states[replica] = "missing"
        elif path in found:
            states[replica] = "moving" if found[path] else "done"
        else:
            states[replica] = "waiting"
    return states


def needed_rates(
    moves: Mapping[Partition, PartitionMove], leaders: Mapping[Partition, int], growth: Mapping[Partition, float]
) -> dict[tuple[int, str], float]:
    """Return the bytes/s that producers' records take of each throttled rate, by (broker, setting).

    A new replica receives all that producers write to its partition. A leader sends it to all of its followers, and
    what it sends to those in sync counts too. Under a throttle that is not above this a move never ends.
    """
    needed: dict[tuple[int, str], float] = defaultdict(float)
    for partition, move in moves.items():
        grown = growth.get(partition, 0.0)
        if not move.destinations or grown <= 0:
            continue
        for broker in move.destinations:
            needed[broker, FOLLOWER_RATE] += grown
        needed[leaders[partition], LEADER_RATE] += grown * (len(move.brokers) - 1)
    return dict(needed)


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """What one broker receives: bytes left, bytes/s lately, and seconds left (None: it stands still)."""

    broker: int
    left: int
    rate: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is. `rate` (bytes/s) is None at the first reading; `slowest` is who holds it up."""

    copied: int
    total: int
    rate: float | None
    seconds_left: float | None
    slowest: BrokerProgress | None

    @property
    def left(self) -> int:
        """Bytes that new replicas are behind: SumReplicaLag, in bytes."""
        return self.total - self.copied


class ProgressMeter:
    """Works out rates and the time that is left. Give `measure` what was read of the move, now and then."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, dict[int, int]]] = deque()

    def measure(self, now: float, moving: Mapping[Partition, Moving]) -> Progress:
        """Return how far the move is. `moving` has all partitions of the plan, done or not, as read at `now` (s)."""
        copied: dict[int, int] = defaultdict(int)
        left: dict[int, int] = defaultdict(int)
        for one in moving.values():
            for broker, behind in one.left.items():
                copied[broker] += one.size - behind
                left[broker] += behind
        self._readings.append((now, copied))
        while len(self._readings) > 2 and now - self._readings[1][0] >= RATE_WINDOW_SECONDS:
            self._readings.popleft()
        then, before = self._readings[0]
        done, total = sum(copied.values()), sum(copied.values()) + sum(left.values())
        if now <= then:
            return Progress(done, total, None, None, None)
        arrived = {broker: max(0, copied[broker] - before.get(broker, 0)) for broker in copied}
        rates = {broker: bytes_ / (now - then) for broker, bytes_ in arrived.items()}
        brokers = [
            BrokerProgress(broker, behind, rates[broker], behind / rates[broker] if rates[broker] else None)
            for broker, behind in left.items()
            if behind
        ]
        slowest = max(brokers, key=_slowness, default=None)
        seconds = slowest.seconds_left if slowest is not None else 0.0 if moving else None
        return Progress(done, total, sum(arrived.values()) / (now - then), seconds, slowest)


def _slowness(progress: BrokerProgress) -> tuple[bool, float, int]:
    return progress.seconds_left is None, progress.seconds_left or 0.0, progress.left


def next_to_move(statuses: Mapping[Partition, PartitionStatus], at_once: int) -> list[Partition]:
    """Return the partitions to begin now, so that `at_once` move at most (0: no bound); in order, as KIP-1335 says."""
    waiting = [partition for partition, status in statuses.items() if status.state == "waiting"]
    if not at_once:
        return waiting
    moving = sum(status.state == "moving" for status in statuses.values())
    return waiting[: max(0, at_once - moving)]

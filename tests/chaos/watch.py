# SPDX-License-Identifier: Apache-2.0
"""What goes on all the while in a chaos run: moves, and sidecars' rates against their quotas."""

from __future__ import annotations

import http.client
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from types import TracebackType
from typing import Final, Self

from tests.chaos.faults import LIVE, MOVED
from tests.chaos.lanes import Target
from weir.control.cluster_admin import Partition, PartitionState
from weir.control.errors import ControlError
from weir.lab.admin import LabAdmin
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.segments import replica_size

_ADMIN_SECONDS: Final = 10.0  # of one request: longer than any sidecar is stopped
_POLL_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0  # between two moves
_REMOVAL_SECONDS: Final = 30.0  # a broker that is down hears nothing, and asks for nothing either
_SETTLING_SECONDS: Final = 2.0  # after a change of a throttle: the window of the last second must run out first
_LEAST_WINDOW_SECONDS: Final = 3.0
_BATCH_BYTES: Final = 210_000  # the largest batch of the topic that moves
_QUESTION_SECONDS: Final = 10.0
_IN_SYNC_RATE: Final = 15_000  # bytes/s to replicas of the moved topic that are in sync, to two followers
_STALL_SECONDS: Final = 60.0  # of produce, which then comes at once


class Background(ABC):
    """Works in a thread while it is a context."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the work, and wait for that; may be called again."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(3 * _ADMIN_SECONDS)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""


@dataclass(slots=True)
class Move:
    """A move of the topic to other brokers; wall clock seconds, `ended` is 0 while it goes on."""

    places: Mapping[Partition, tuple[int, ...]]
    removed: frozenset[int]
    begun: float
    ended: float = 0.0
    size: int = 0


def next_places(
    states: Mapping[Partition, PartitionState], broker_ids: Sequence[int], keep_leader: bool
) -> dict[Partition, tuple[int, ...]]:
    """Return the next replicas of each partition of two: one broker further round, so that one of the two is new.

    With `keep_leader` the other one goes, else whichever comes first: [1, 2] becomes [2, 3], [3, 1] and so on.
    """
    places: dict[Partition, tuple[int, ...]] = {}
    for partition, state in states.items():
        kept = state.leader if keep_leader and state.leader >= 0 else state.replicas[-1]
        (new,) = set(broker_ids) - set(state.replicas)
        places[partition] = (kept, new)
    return places


class Mover(Background):
    """Moves the topic round three brokers again and again.

    With a `gate` it holds that during each move, keeps each partition's leader, and waits until the replicas that were
    removed are gone. Without leader epochs in fetches (before KIP-320) one that has not heard yet that it is removed,
    and is added again, counts as in sync at once; then it hears, and has nothing.
    """

    def __init__(self, cluster: Cluster, gate: threading.Lock | None = None) -> None:
        super().__init__()
        self.moves: list[Move] = []
        self._cluster = cluster
        self._gate = gate

    @property
    def finished(self) -> list[Move]:
        """The moves that came to their end."""
        return [move for move in self.moves if move.ended]

    def end_last(self, seconds: float) -> None:
        """Wait for the end of the last move. Raises LabError."""
        self.stop()
        if self.moves and not self.moves[-1].ended:
            admin = self._cluster.admin
            self._cluster.wait_for("the end of the last move", lambda: not admin.reassignments(), seconds)
            self._finish(self.moves[-1])

    def _run(self) -> None:
        with LabAdmin(self._cluster.bootstrap_servers, timeout_seconds=_ADMIN_SECONDS) as admin:
            while not self._stop.wait(_PAUSE_SECONDS):
                with self._gate or nullcontext():
                    move = self._begin(admin)
                    if move and self._wait(admin):
                        self._finish(move)
                        self._wait_for_removal(move)

    def _begin(self, admin: LabAdmin) -> Move | None:
        move = None
        while not self._stop.is_set():
            try:
                if move is None:
                    states = admin.partitions([MOVED])
                    if any(len(state.replicas) != 2 for state in states.values()):
                        raise ControlError("Beginning a move", "the last one goes on")
                    places = next_places(states, self._cluster.broker_ids, self._gate is not None)
                    removed = {one for key, state in states.items() for one in set(state.replicas) - set(places[key])}
                    move = Move(places, frozenset(removed), time.time())
                    self.moves.append(move)  # before it is begun: the answer may be lost
                admin.reassign(move.places)
                return move
            except ControlError:
                self._stop.wait(_POLL_SECONDS)  # its controller may be down; the same move may be begun again
        return move

    def _wait(self, admin: LabAdmin) -> bool:
        while not self._stop.wait(0.3):
            try:
                if not admin.reassignments():
                    return True
            except ControlError:
                continue
        return False

    def _wait_for_removal(self, move: Move) -> None:
        deadline = time.monotonic() + _REMOVAL_SECONDS
        gone = [(*key, one) for key, replicas in move.places.items() for one in move.removed - {*replicas}]
        while self._gate is not None and time.monotonic() < deadline and not self._stop.wait(0.3):
            if not any(self._cluster.segments(*one) for one in gone):
                return

    def _finish(self, move: Move) -> None:
        brokers = self._cluster.brokers
        move.size = sum(replica_size(brokers[new].data, *partition) for partition, (_, new) in move.places.items())
        move.ended = time.time()


class ClusterWatch(Background):
    """Asks for the ISRs of the live topics once a second."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.stretches: list[float] = []
        """Seconds for which a live partition was under-replicated, one after the other."""
        self._cluster = cluster

    def _run(self) -> None:
        was_behind, last = False, time.monotonic()
        with LabAdmin(self._cluster.bootstrap_servers, timeout_seconds=_ADMIN_SECONDS) as admin:
            while not self._stop.wait(_POLL_SECONDS):
                try:
                    states = admin.partitions(LIVE).values()
                except ControlError:
                    continue
                is_behind = any(len(state.in_sync_replicas) < len(state.replicas) for state in states)
                now = time.monotonic()
                if is_behind and not was_behind:
                    self.stretches.append(0.0)
                if is_behind:
                    self.stretches[-1] += now - last
                was_behind, last = is_behind, now


@dataclass(frozen=True, slots=True)
class Reading:
    """A scrape of one side of a sidecar: when it was asked and had answered, the quota, and throttled bytes so far."""

    asked: float
    answered: float
    quota: float
    size: float


@dataclass(frozen=True, slots=True)
class Window:
    """What a side let through while its throttle stood still and nothing hit its sidecar."""

    broker_id: int
    side: str
    quota: float
    seconds: float
    size: float

    @property
    def ratio(self) -> float:
        """Bytes as part of what the quota gives in that time; 0 at a quota of 0, where only probes pass."""
        return self.size / (self.quota * self.seconds) if self.quota else 0.0

    @property
    def allowed(self) -> float:
        """Bytes that the promise allows, generously: a second and 5 % more, a batch for each probe of two links."""
        probes = 2 * (1 + self.seconds / _QUESTION_SECONDS) * _BATCH_BYTES
        return 1.05 * self.quota * (self.seconds + 1) + probes + _IN_SYNC_RATE * (self.seconds + _STALL_SECONDS)

    def __str__(self) -> str:
        return (
            f"sidecar {self.broker_id}, {self.side} side: {self.size:,.0f} bytes in {self.seconds:.1f} s at a quota of "
            f"{self.quota:,.0f}, at most {self.allowed:,.0f} are allowed"
        )


def window_of(broker_id: int, side: str, readings: Sequence[Reading]) -> Window | None:
    """Return of all windows from one reading to another the one with most, as part of what is allowed.

    None when none is long enough, or nothing was throttled.
    """
    if not readings or readings[0].quota == float("inf"):
        return None
    windows = (
        Window(broker_id, side, first.quota, last.answered - first.asked, last.size - first.size)
        for first, last in combinations(readings, 2)
        if last.answered - first.asked >= _LEAST_WINDOW_SECONDS
    )
    return max(windows, key=lambda window: window.size / window.allowed, default=None)


@dataclass(slots=True)
class _Stretch:
    changes: int = -1
    begun: float = 0.0
    readings: dict[str, list[Reading]] = field(default_factory=dict)


class SidecarWatch(Background):
    """Scrapes the sidecars once a second: rates while throttles stand still, what passed undecoded, memory."""

    def __init__(self, targets: Mapping[int, Target]) -> None:
        super().__init__()
        self.windows: list[Window] = []
        self.passed: dict[tuple[int, str], float] = {}
        self.peak_bytes = 0
        self._targets = targets
        self._stretches = {broker_id: _Stretch() for broker_id in targets}

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for target in self._targets.values():
                self._look_at(target)
        for broker_id in self._targets:
            self._close(broker_id)

    def _look_at(self, target: Target) -> None:
        stretch = self._stretches[target.broker_id]
        changes, table = target.changes, target.table
        asked = time.monotonic()
        if changes != stretch.changes:
            self._close(target.broker_id)
            stretch.changes, stretch.begun = changes, asked
        if target.lock.locked() or asked - stretch.begun < _SETTLING_SECONDS:
            return
        try:
            metrics = target.sidecar.metrics()
            self.peak_bytes = max(self.peak_bytes, target.sidecar.resident_bytes()[1])
        except (OSError, LabError, http.client.HTTPException, KeyError):
            return  # it was hit a moment ago
        answered = time.monotonic()
        for sample in metrics.samples("weir_passthrough_total"):
            if sample.value:
                self.passed[target.broker_id, sample.labels["reason"]] = sample.value
        if target.changes != changes or any(topic in LIVE for topic in table.get("topics", ())):
            return  # what is in sync counts and waits for nothing: with live topics the quota bounds little
        for side in ("leader", "follower"):
            quota = metrics.value("weir_quota_bytes_per_second", side=side)
            size = metrics.value("weir_replication_bytes_total", side=side, throttled="true")
            stretch.readings.setdefault(side, []).append(Reading(asked, answered, quota, size))

    def _close(self, broker_id: int) -> None:
        readings, self._stretches[broker_id].readings = self._stretches[broker_id].readings, {}
        found = [window_of(broker_id, side, some) for side, some in readings.items()]
        self.windows += [window for window in found if window is not None]

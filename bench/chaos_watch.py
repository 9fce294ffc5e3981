"""Watches a chaos run: moves that go on all the while, under-replication, leaders, and rates against quotas."""

from __future__ import annotations

import http.client
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from bench.chaos_faults import LIVE, MOVED, MOVED_PARTITIONS
from bench.chaos_lanes import Target
from control.cluster_admin import ClusterAdmin, Partition
from control.errors import ControlError
from lab.cluster import Cluster
from lab.errors import LabError
from lab.segments import replica_size

_ADMIN_SECONDS: Final = 10.0  # of one request: longer than any sidecar is stopped
_POLL_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0  # between two moves
SETTLING_SECONDS: Final = 2.0  # after a change of a throttle: the window of the last second must run out first
LEAST_WINDOW_SECONDS: Final = 5.0
BATCH_BYTES: Final = 210_000  # the largest batch of the topic that moves
_QUESTION_SECONDS: Final = 10.0
_IN_SYNC_RATE: Final = 15_000  # bytes/s to replicas of the moved topic that are in sync, to two followers
_STALL_SECONDS: Final = 60.0  # of produce, which then comes at once


class _Thread(ABC):
    """Works in a thread while it is a context."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

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
        self._thread.join(3 * _ADMIN_SECONDS)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""


@dataclass(slots=True)
class Move:
    """A move of the topic to other brokers; wall clock seconds, `ended` is 0 while it goes on."""

    replicas: tuple[int, ...]
    removed: frozenset[int]
    begun: float
    ended: float = 0.0
    size: int = 0


class Mover(_Thread):
    """Moves the topic round the brokers again and again: from [1, 2] to [2, 3], [3, 1] and so on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("chaos-moves")
        self.moves: list[Move] = []
        self._cluster = cluster

    @property
    def finished(self) -> list[Move]:
        """The moves that came to their end."""
        return [move for move in self.moves if move.ended]

    def end_last(self, seconds: float) -> None:
        """Wait for the end of the last move. Raises LabError."""
        self.stop()
        if self.moves and not self.moves[-1].ended:
            with ClusterAdmin(self._cluster.bootstrap_servers, timeout_seconds=_ADMIN_SECONDS) as admin:
                self._cluster.wait_for("the end of the last move", lambda: not admin.reassignments(), seconds)
            self._finish(self.moves[-1])

    def _run(self) -> None:
        ids = self._cluster.broker_ids
        with ClusterAdmin(self._cluster.bootstrap_servers, timeout_seconds=_ADMIN_SECONDS) as admin:
            at = 0
            while not self._stop.wait(_PAUSE_SECONDS):
                old = tuple(ids[(at + number) % len(ids)] for number in range(2))
                new = tuple(ids[(at + 1 + number) % len(ids)] for number in range(2))
                move = Move(new, frozenset(old) - frozenset(new), time.time())
                if self._begin(admin, move) and self._wait(admin):
                    self._finish(move)
                    at += 1

    def _begin(self, admin: ClusterAdmin, move: Move) -> bool:
        self.moves.append(move)  # before: it may begin though the answer is lost
        wanted = {Partition(MOVED, number): move.replicas for number in range(MOVED_PARTITIONS)}
        while not self._stop.is_set():
            try:
                admin.reassign(wanted)
                return True
            except ControlError:
                self._stop.wait(_POLL_SECONDS)  # its controller may be down; the same move may be begun again
        return False

    def _wait(self, admin: ClusterAdmin) -> bool:
        while not self._stop.wait(0.3):
            try:
                if not admin.reassignments():
                    return True
            except ControlError:
                continue
        return False

    def _finish(self, move: Move) -> None:
        added = self._cluster.brokers[move.replicas[-1]].data
        move.size = sum(replica_size(added, MOVED, number) for number in range(MOVED_PARTITIONS))
        move.ended = time.time()


class ClusterWatch(_Thread):
    """Asks for leaders and ISRs once a second."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("chaos-cluster")
        self.leaders: dict[Partition, list[tuple[float, int]]] = {}  # (wall clock, leader), oldest first
        self.under_replicated_seconds = 0.0  # of any live partition, as seen once a second
        self.longest_under_replicated = 0.0
        self.refused = 0
        self._cluster = cluster
        self._since: float | None = None

    def _run(self) -> None:
        with ClusterAdmin(self._cluster.bootstrap_servers, timeout_seconds=_ADMIN_SECONDS) as admin:
            last = time.monotonic()
            while not self._stop.wait(_POLL_SECONDS):
                try:
                    states = admin.partitions([*LIVE, MOVED])
                except ControlError:
                    self.refused += 1
                    continue
                now = time.monotonic()
                for partition, state in states.items():
                    known = self.leaders.setdefault(partition, [])
                    if not known or known[-1][1] != state.leader:
                        known.append((time.time(), state.leader))
                behind = any(
                    partition.topic in LIVE and len(state.in_sync_replicas) < len(state.replicas)
                    for partition, state in states.items()
                )
                self._note(behind, last, now)
                last = now

    def _note(self, behind: bool, last: float, now: float) -> None:
        if not behind:
            self._since = None
            return
        self._since = last if self._since is None else self._since
        self.under_replicated_seconds += now - last
        self.longest_under_replicated = max(self.longest_under_replicated, now - self._since)


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
        """Bytes as part of what the quota gives in that time; 0 at a quota of 0, where only questions pass."""
        return self.size / (self.quota * self.seconds) if self.quota else 0.0

    @property
    def allowed(self) -> float:
        """Bytes that the promise allows, generously: a second and 5 % more, a batch for each question of two links."""
        questions = 2 * (1 + self.seconds / _QUESTION_SECONDS) * BATCH_BYTES
        return 1.05 * self.quota * (self.seconds + 1) + questions + _IN_SYNC_RATE * (self.seconds + _STALL_SECONDS)


def window_of(broker_id: int, side: str, readings: Sequence[Reading]) -> Window | None:
    """Return what went through between the first reading and the last; None when that is too short or unthrottled."""
    if not readings or readings[0].quota == float("inf"):
        return None
    seconds = readings[-1].answered - readings[0].asked
    if seconds < LEAST_WINDOW_SECONDS:
        return None
    return Window(broker_id, side, readings[0].quota, seconds, readings[-1].size - readings[0].size)


@dataclass(slots=True)
class _Stretch:
    changes: int = -1
    begun: float = 0.0
    readings: dict[str, list[Reading]] = field(default_factory=dict)


class SidecarWatch(_Thread):
    """Scrapes the sidecars once a second: rates while throttles stand still, what passed undecoded, memory."""

    def __init__(self, targets: Mapping[int, Target]) -> None:
        super().__init__("chaos-sidecars")
        self.windows: list[Window] = []
        self.passed: dict[tuple[int, str], float] = {}
        self.peak_bytes = 0
        self._targets = targets
        self._stretches = {broker_id: _Stretch() for broker_id in targets}

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for target in self._targets.values():
                self._look_at(target)
        for broker_id, stretch in self._stretches.items():
            self._close(broker_id, stretch)

    def _look_at(self, target: Target) -> None:
        stretch = self._stretches[target.broker_id]
        changes, table = target.changes, target.table
        asked = time.monotonic()
        if changes != stretch.changes:
            self._close(target.broker_id, stretch)
            stretch.changes, stretch.begun = changes, asked
        if target.lock.locked() or asked - stretch.begun < SETTLING_SECONDS:
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

    def _close(self, broker_id: int, stretch: _Stretch) -> None:
        for side, readings in stretch.readings.items():
            if window := window_of(broker_id, side, readings):
                self.windows.append(window)
        stretch.readings = {}

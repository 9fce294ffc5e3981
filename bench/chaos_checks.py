"""What must hold when a chaos run is over: logs without complaints, replicas that are the same bytes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

from bench.chaos_faults import BROKER_KINDS, MOVED, Kind
from bench.chaos_lanes import Happened
from bench.chaos_watch import Move
from control.cluster_admin import Partition, PartitionState
from lab.broker_log import LogLine
from lab.cluster import Cluster
from lab.errors import LabError

LAG_SECONDS: Final = 30.0  # replica.lag.time.max.ms: who is silent for longer leaves the ISR
_GRACE_SECONDS: Final = 60.0  # for a returned broker to have caught up, and for leaders to tell
_SHRUNK: Final = re.compile(r"Partition (\S+)-(\d+) broker=(\d+)\] Shrinking ISR from .*")
_OUT_OF_SYNC: Final = re.compile(r"brokerId: (\d+)")
_TRUNCATED: Final = re.compile(r"partition[= ](\S+)-(\d+)\b.*Truncating to offset \d", re.IGNORECASE)
_STAMP: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{3}) ")
_EVENT: Final = re.compile(r"\blevel=(\w+) event=(\S+)")
_REFUSED: Final = "config_refused"


@dataclass(frozen=True, slots=True)
class History:
    """What was done to the cluster, and when (seconds of the wall clock)."""

    happened: Sequence[Happened] = ()
    moves: Sequence[Move] = ()
    leaders: Mapping[Partition, Sequence[tuple[float, int]]] = field(default_factory=dict)

    def was_down(self, broker_id: int, moment: float, before: float = 0.0, after: float = _GRACE_SECONDS) -> bool:
        """Return whether a broker was down, or had come back a moment ago."""
        return any(
            one.fault.kind in BROKER_KINDS
            and one.fault.target == broker_id
            and one.begun - before <= moment <= one.ended + after
            for one in self.happened
        )

    def any_was_down(self, moment: float, after: float = _GRACE_SECONDS) -> bool:
        """Return whether a broker, whichever, was down or had come back a moment ago: leaders change then."""
        return any(one.fault.kind in BROKER_KINDS and one.begun <= moment <= one.ended + after for one in self.happened)

    def was_removed(self, broker_id: int, moment: float) -> bool:
        """Return whether a broker's replicas of the moved topic were being taken from it."""
        return any(
            broker_id in move.removed and move.begun <= moment <= (move.ended or moment) + LAG_SECONDS
            for move in self.moves
        )

    def was_moved(self, moment: float) -> bool:
        """Return whether the topic was moving, or had come to its place a moment ago: leaders change then."""
        return any(move.begun <= moment <= (move.ended or moment) + LAG_SECONDS for move in self.moves)

    def was_hit(self, kind: Kind) -> int:
        """Return how often a fault of a kind was carried out."""
        return sum(one.fault.kind is kind for one in self.happened)


def stamp(line: str) -> float | None:
    """Return the moment of a line of a broker's log; None where it has none."""
    if (found := _STAMP.match(line)) is None:
        return None
    return time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) + int(found[2]) / 1000


def reason_for(line: LogLine, history: History) -> str | None:
    """Return why a bad sign in a broker's log is what the faults themselves cause; None where it is not.

    Only two signs can be. A replica leaves the ISR when its broker is down, and when it is being taken away. A log is
    cut back to where the new leader's begins when a leader changes: what was not acknowledged goes.
    """
    moment = stamp(line.text)
    if moment is None:
        return None
    if line.sign == "Shrinking ISR" and (shrunk := _SHRUNK.search(line.text)):
        gone = [int(broker_id) for broker_id in _OUT_OF_SYNC.findall(line.text)]
        if gone and all(history.was_down(broker_id, moment) for broker_id in gone):
            return "ISR without a broker that was down"
        if (
            gone
            and shrunk[1] == MOVED
            and all(history.was_down(broker_id, moment) or history.was_removed(broker_id, moment) for broker_id in gone)
        ):
            return "ISR without a replica that was taken away"
    if line.sign == "Truncating" and (cut := _TRUNCATED.search(line.text)):
        if history.any_was_down(moment):
            return "log cut back when a broker went"
        if cut[1] == MOVED and history.was_moved(moment):
            return "log cut back when the leader moved"
    return None


def broker_complaints(lines: Iterable[LogLine], history: History) -> tuple[list[str], Counter[str]]:
    """Return the bad signs in brokers' logs that nothing excuses, and how many each reason excused."""
    wrong: list[str] = []
    excused: Counter[str] = Counter()
    for line in lines:
        if reason := reason_for(line, history):
            excused[reason] += 1
        else:
            wrong.append(str(line))
    return wrong, excused


def sidecar_complaints(broker_id: int, log: Path, refused: int) -> tuple[list[str], Counter[str]]:
    """Return what a sidecar's log holds that it must not, and how often each warning stands in it.

    `refused` is how many broken files it was given: as many may be refused, at the level of an error.
    """
    wrong: list[str] = []
    warned: Counter[str] = Counter()
    for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
        found = _EVENT.search(line)
        level, event = (found[1], found[2]) if found else ("", "")
        if event == _REFUSED and refused:
            refused -= 1
        elif level in {"error", "critical"} or event == "protocol_error" or found is None:
            wrong.append(f"sidecar {broker_id}, {log}:{number}: {line}")
        elif level == "warning":
            warned[event] += 1
    return wrong, warned


def differing_replicas(cluster: Cluster, states: Mapping[Partition, PartitionState]) -> tuple[list[str], int]:
    """Compare all replicas byte for byte; returns a sentence for each pair that differs, and the bytes compared."""
    wrong: list[str] = []
    total = 0
    for partition, state in states.items():
        for first, second in combinations(state.replicas, 2):
            try:
                total += cluster.compare_segments(*partition, first, second)
            except LabError as error:
                wrong.append(f"brokers {first} and {second}: {error}")
    return wrong, total


def under_replicated(states: Mapping[Partition, PartitionState], but: Collection[str] = ()) -> list[str]:
    """Return the partitions of which a replica is not in sync, or which nobody leads."""
    return [
        f"{topic}-{number} has the ISR {list(state.in_sync_replicas)} of {list(state.replicas)}, leader {state.leader}"
        for (topic, number), state in states.items()
        if topic not in but and (state.leader < 0 or set(state.in_sync_replicas) != set(state.replicas))
    ]

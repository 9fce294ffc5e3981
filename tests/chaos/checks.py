# SPDX-License-Identifier: Apache-2.0
"""What must hold when a chaos run is over: logs without complaints, replicas that are the same bytes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.faults import BROKER_KINDS, MOVED
from tests.chaos.lanes import Happened
from tests.chaos.watch import Move
from weir.control.cluster_admin import Partition, PartitionState
from weir.lab.broker_log import LogLine
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError

LAG_SECONDS: Final = 30.0  # replica.lag.time.max.ms: who is silent for longer leaves the ISR
_GRACE_SECONDS: Final = 60.0  # after a leader's first moment, or a broker's return, until all is as before
_SHRUNK: Final = re.compile(r"Partition (\S+-\d+) broker=\d+\] Shrinking ISR from .*")
_OUT_OF_SYNC: Final = re.compile(r"brokerId: (\d+)")
_LEADER: Final = re.compile(
    r" Leader (\S+-\d+) .*?starts at leader epoch \d+ from offset (\d+) .*?high watermark (\d+)"
)
_PARTITION: Final = re.compile(r"\bpartition=(\S+-\d+)")
_OFFSET: Final = re.compile(r"\boffset=(\d+)")
_STAMP: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{3}) ")
_EVENT: Final = re.compile(r"\blevel=(\w+) event=(\S+)")


class Start(NamedTuple):
    """A leader's first moment (wall clock): the end of its log then, and the high watermark that it knew."""

    moment: float
    end: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class History:
    """What was done to the cluster and when (wall clock), and each partition's leaders."""

    happened: Sequence[Happened] = ()
    moves: Sequence[Move] = ()
    starts: Mapping[str, Sequence[Start]] = field(default_factory=dict)

    def was_down(self, broker_id: int, moment: float) -> bool:
        """Return whether a broker was down, or had come back a moment ago."""
        return any(
            one.fault.kind in BROKER_KINDS
            and one.fault.target == broker_id
            and one.begun <= moment <= one.ended + _GRACE_SECONDS
            for one in self.happened
        )

    def was_removed(self, broker_id: int, moment: float) -> bool:
        """Return whether a broker's replicas of the moved topic were being taken from it."""
        return any(
            broker_id in move.removed and move.begun <= moment <= (move.ended or moment) + LAG_SECONDS
            for move in self.moves
        )

    def leaders_before(self, partition: str, moment: float) -> list[Start]:
        """Return the leaders that a partition had got shortly before a moment."""
        starts = self.starts.get(partition, ())
        return [start for start in starts if start.moment - 1 <= moment <= start.moment + _GRACE_SECONDS]


def stamp(line: str) -> float | None:
    """Return the moment of a line of a broker's log; None where it has none."""
    if (found := _STAMP.match(line)) is None:
        return None
    return time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) + int(found[2]) / 1000


def leader_starts(lines: Iterable[str]) -> dict[str, list[Start]]:
    """Return each partition's leaders' first moments, as brokers' logs tell."""
    starts: dict[str, list[Start]] = {}
    for line in lines:
        if "starts at leader epoch" in line and (found := _LEADER.search(line)):
            starts.setdefault(found[1], []).append(Start(stamp(line) or 0.0, int(found[2]), int(found[3])))
    return starts


def reason_for(line: LogLine, history: History) -> str | None:
    """Return why a bad sign in a broker's log is what the faults themselves cause; None where it is not.

    - A replica leaves the ISR when its broker is down, and when it is being taken away.
    - A log is cut back to where a new leader's goes on; one below its own high watermark never is.
    - A new leader knows an older high watermark than others do; what is behind it is in its log all the same.
    """
    moment, named = stamp(line.text), _PARTITION.search(line.text)
    if moment is None:
        return None
    if line.sign == "Shrinking ISR":
        return _why_shrunk(line.text, moment, history)
    if line.sign == "Truncating" and named and "below high watermark" not in line.text:
        if history.leaders_before(named[1], moment):
            return "log cut back under a new leader"
        if history.was_down(int(line.log.stem.rpartition("-")[2]), moment):
            return "log cut back after a broker's return"
    if line.sign == "Non-monotonic" and named and len(offsets := _OFFSET.findall(line.text)) == 2:
        old, new = map(int, offsets)
        starts = history.leaders_before(named[1], moment)
        if any(start.high_watermark <= new and old <= start.end for start in starts):
            return "new leader with an older high watermark, and all of the log"
    return None


def _why_shrunk(text: str, moment: float, history: History) -> str | None:
    shrunk, gone = _SHRUNK.search(text), [int(broker_id) for broker_id in _OUT_OF_SYNC.findall(text)]
    if not shrunk or not gone:
        return None
    left = [broker_id for broker_id in gone if not history.was_down(broker_id, moment)]
    if not left:
        return "ISR without a broker that was down"
    if shrunk[1].startswith(f"{MOVED}-") and all(history.was_removed(broker_id, moment) for broker_id in left):
        return "ISR without a replica that was taken away"
    return None


def broker_complaints(lines: Iterable[LogLine], history: History) -> tuple[list[str], Counter[str]]:
    """Return the bad signs in brokers' logs that nothing excuses, and how many each reason excused."""
    reasons = [(line, reason_for(line, history)) for line in lines]
    return [str(line) for line, reason in reasons if not reason], Counter(reason for _, reason in reasons if reason)


def sidecar_complaints(broker_id: int, log: Path, refused: int) -> tuple[list[str], Counter[str]]:
    """Return what a sidecar's log holds that it must not, and how often each warning stands in it.

    `refused` is how many broken files it was given: as many may be refused, at the level of an error.
    """
    wrong: list[str] = []
    warned: Counter[str] = Counter()
    for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
        found = _EVENT.search(line)
        level, event = (found[1], found[2]) if found else ("", "")
        if event == "config_refused" and refused:
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


def under_replicated(states: Mapping[Partition, PartitionState]) -> list[str]:
    """Return the partitions of which a replica is not in sync, or which nobody leads."""
    return [
        f"{topic}-{number} has the ISR {list(state.in_sync_replicas)} of {list(state.replicas)}, leader {state.leader}"
        for (topic, number), state in states.items()
        if state.leader < 0 or set(state.in_sync_replicas) != set(state.replicas)
    ]

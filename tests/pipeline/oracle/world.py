# SPDX-License-Identifier: Apache-2.0
"""Random samples of three brokers over two hours around midnight, with what makes tables go wrong where it meets.

Sidecars restart, samples are lost, come twice or in part, lines are bad, leaders and quotas change, followers are away,
clocks step. Times have whole milliseconds, as the schema tells them.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.pipeline.exported import NOON, Sidecar, limit, link, partition, quota, write_lines
from tests.pipeline.oracle.spoiled import spoil
from weir.quota.settings import SideName
from weir.samples.schema import Line

FIRST = NOON.replace(hour=22, minute=50)
UNTIL = FIRST + timedelta(minutes=110)
HOUR = timedelta(hours=1)
MIDNIGHT = NOON.replace(hour=0) + timedelta(days=1)
BROKERS = (1, 2, 3)
SILENT = 4
"""A broker without a sidecar."""
SIDES: tuple[SideName, ...] = ("leader", "follower")


@dataclass(frozen=True, slots=True)
class _Partition:
    topic: str
    number: int
    is_throttled: bool
    replicas: tuple[int, ...]
    leaders: list[tuple[datetime, int]]
    """Since when each broker leads it, in order."""

    def led_by(self, begin: datetime, end: datetime) -> list[int]:
        """Its leaders between two times."""
        found = []
        for number, (since, leader) in enumerate(self.leaders):
            until = self.leaders[number + 1][0] if number + 1 < len(self.leaders) else UNTIL + HOUR
            if since < end and until > begin and leader not in found:
                found.append(leader)
        return found


@dataclass(slots=True)
class _View:
    """What one sidecar knows of a replica: behind since `lag` seconds ago, or in sync where that is 0.

    It was not told to be in sync for `most` seconds: more than these it cannot be behind.
    """

    is_throttled: bool
    lag: float = 0.0
    frozen: int = 0
    most: float = 0.0

    def go_on(self, numbers: random.Random, seconds: float) -> None:
        """Let some seconds pass."""
        chance = numbers.random()
        self.most = round(self.most + seconds, 3)
        if self.lag == 0:
            if chance < 0.07:
                self.lag = min(self.most, numbers.choice([0.5, 7.0, 25.0, 30.0, seconds, seconds + 12.5, 95.25]))
        elif chance < (0.06 if self.is_throttled else 0.25):
            self.lag = 0.0
        elif chance > 0.97:
            self.lag = numbers.choice([0.5, 3.25])
        else:
            self.lag = round(self.lag + seconds, 3)
        if self.frozen:
            self.frozen -= 1
        elif numbers.random() < 0.04:
            self.frozen = numbers.randrange(1, 6)

    def figures(self, numbers: random.Random) -> dict[str, Any] | None:
        """Return what a line tells; None where it was idle."""
        size = 0 if self.frozen else numbers.choice([0, numbers.randrange(1, 10**6)])
        throttled = numbers.randrange(10**6) if not self.frozen and self.is_throttled and numbers.random() < 0.5 else 0
        is_told = size or throttled or numbers.random() < 0.5
        if not is_told and (self.lag or numbers.random() < 0.5):
            return None
        lag = None if numbers.random() < 0.12 else (round(self.lag * 100), self.lag)
        if lag == (0, 0.0):
            self.most = 0.0
        return {"size": size, "throttled": throttled, "lag": lag}


@dataclass(slots=True)
class _Quota:
    rate: int
    policy: str = "strict"
    mode: str | None = None


@dataclass(slots=True)
class World:
    """The texts of files by the start of the hour in whose folder they lie; those of `late` come afterwards."""

    on_time: defaultdict[tuple[datetime, str], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    late: defaultdict[tuple[datetime, str], list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def write(self, folder: Path, *, late: bool) -> None:
        for (hour, name), texts in (self.late if late else self.on_time).items():
            path = folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}" / f"{name}{'-late' * late}.jsonl.gz"
            write_lines(path, b"".join(texts))


def world(seed: int, *, has_steps: bool = True) -> World:
    """Make one; without `has_steps` all clocks go on evenly."""
    numbers = random.Random(seed)
    made = World()
    partitions = list(_partitions(numbers))
    for broker_id in BROKERS:
        broker = _Broker(broker_id, partitions, numbers, has_steps)
        for ended, text in broker.samples():
            _export(made, f"broker-{broker_id}", ended, text, numbers)
    return made


def _export(made: World, name: str, ended: datetime, text: bytes, numbers: random.Random) -> None:
    """Put a sample into its file, or lose it, or a part of it, or put it there twice."""
    hour = (ended - timedelta(milliseconds=numbers.choice([0, 1]))).replace(minute=0, second=0, microsecond=0)
    if numbers.random() < 0.02:
        hour += numbers.choice([-1, 1]) * HOUR
    files = made.late if numbers.random() < 0.03 else made.on_time
    lines = text.splitlines(keepends=True)
    chance = numbers.random()
    if chance < 0.01:
        lines.pop()
    elif chance < 0.02:
        lines.pop(numbers.randrange(len(lines)))
    elif chance < 0.025:
        lines[numbers.randrange(len(lines))] = numbers.choice(lines)
    elif chance < 0.04:
        number = numbers.randrange(len(lines))
        lines[number] = spoil(lines[number], numbers)
    elif chance < 0.06:
        lines.append(spoil(numbers.choice(lines), numbers))
    files[hour, name].append(b"".join(lines))
    if numbers.random() < 0.03:
        again = lines if numbers.random() < 0.5 else numbers.sample(lines, numbers.randrange(1, len(lines) + 1))
        made.on_time[hour, numbers.choice([name, "again"])].append(b"".join(again))


def _partitions(numbers: random.Random) -> Iterator[_Partition]:
    for topic in ("t", "u"):
        for number in (0, 1, 999, 1000):
            replicas = tuple(numbers.sample([*BROKERS, SILENT], 3))
            leaders = [(FIRST - HOUR, replicas[0])]
            while numbers.random() < 0.5:
                since = leaders[-1][0] if len(leaders) > 1 else FIRST
                leaders.append((since + numbers.random() * timedelta(minutes=60), numbers.choice(replicas)))
            yield _Partition(topic, number, number in (0, 1000), replicas, leaders)


class _Broker:
    def __init__(self, broker_id: int, partitions: list[_Partition], numbers: random.Random, has_steps: bool) -> None:
        self.broker_id = broker_id
        self.partitions = partitions
        self.numbers = numbers
        self.has_steps = has_steps
        self.time = FIRST + timedelta(milliseconds=numbers.randrange(1000) * (broker_id - 1))
        self.starts = 0
        self.lost = 0
        self.long_gone = numbers.random() < 0.3
        self.seconds = numbers.choice([10.0, 30.0, 30.0])
        self._start()

    def _start(self) -> None:
        numbers = self.numbers
        self.starts += 1
        monotonic = numbers.randrange(10**6) / 1000
        self.sidecar = Sidecar(self.broker_id, self.time, f"start-{self.starts:02}", monotonic)
        self.views: dict[tuple[str, int, int, SideName], _View] = {}
        self.away: dict[int, float] = {}
        self.quotas: dict[tuple[SideName, str], _Quota] = {}
        for side in SIDES:
            self.quotas[side, f"{side}.replication.throttled.rate"] = _Quota(numbers.choice([0, 1000, 2500]))
            self.quotas[side, f"{side}.recovery.throttled.rate"] = _Quota(1500, "kip73")
            self.quotas[side, "zones"] = _Quota(500, mode=numbers.choice([None, "observe"]))
            self.quotas[side, "into/4"] = _Quota(700, mode="shared")
            for name in [key for key in self.quotas if numbers.random() < 0.25]:
                del self.quotas[name]

    def samples(self) -> Iterator[tuple[datetime, bytes]]:
        """Yield the samples that were not lost, with when they ended by the broker's clock."""
        numbers = self.numbers
        while self.time < UNTIL:
            is_last = numbers.random() < 0.012
            seconds = self._length(is_last)
            text = self._sample(seconds)
            if numbers.random() < 0.012:
                self.lost = numbers.randrange(1, 6)
            if self.lost:
                self.lost -= 1
            else:
                yield self.sidecar.now, text
            if is_last:
                self.time += timedelta(milliseconds=numbers.choice([0, 1500, 20_000, 70_000]))
                self._start()
            elif self.has_steps and numbers.random() < 0.004:
                self.sidecar.now += timedelta(milliseconds=numbers.choice([-3_600_000, -40_000, -1, 2500, 600_000]))

    def _length(self, is_last: bool) -> float:
        """Seldom until a minute is over, to the millisecond; 1.x s; or shorter, where it is the last of a process."""
        numbers = self.numbers
        if is_last:
            return numbers.choice([0.2, 0.001, 1.3, 17.0])
        if numbers.random() < 0.01:
            self.seconds = numbers.choice([10.0, 30.0, 2.5, 30.0])
        if numbers.random() < 0.02:
            return round(1 + numbers.random(), 3)
        now = self.sidecar.now
        rest = 60 - now.second - now.microsecond / 1e6
        if rest <= self.seconds and numbers.random() < 0.3:
            return round(rest, 3)
        return self.seconds

    def _sample(self, seconds: float) -> bytes:
        begin, self.time = self.time, self.time + timedelta(seconds=seconds)
        monotonic = self.sidecar.monotonic
        end = round(monotonic + seconds, 3)
        lines: list[Line] = []
        present = self._links(seconds, lines)
        for one in self.partitions:
            self._of_partition(one, begin, seconds, present, lines)
        for (side, name), of in list(self.quotas.items()):
            lines += self._of_quota(side, name, of, monotonic, end)
        lines += self._limits()
        text = self.sidecar.sample(*lines, seconds=seconds, clients=self._clients())
        self.sidecar.monotonic = round(self.sidecar.monotonic, 3)
        return text

    def _links(self, seconds: float, lines: list[Line]) -> set[int]:
        """Tell of all links, and return the followers that are there."""
        numbers, present = self.numbers, set()
        for peer in (*BROKERS, SILENT):
            if peer == self.broker_id:
                continue
            away = self.away.get(peer, 0.0)
            stays = 0.999 if self.long_gone and peer == SILENT else 0.85
            gone = numbers.random() < (stays if away else 0.02)
            if gone:
                # it may have come back and gone again in between
                back = away and numbers.random() < 0.05
                self.away[peer] = round(numbers.random() * seconds, 3) if back else round(away + seconds, 3)
            else:
                self.away[peer] = 0.0
                present.add(peer)
            if self.away[peer] < 3600:
                size, throttled = numbers.randrange(10**6), numbers.randrange(10**6)
                lines.append(
                    link(
                        0 if gone else size,
                        peer=peer,
                        throttled=0 if gone else throttled,
                        left_out=numbers.choice([0, 0, 0, 3]),
                        away=self.away[peer] or None,
                    )
                )
            if numbers.random() < 0.9:
                left_out = numbers.choice([0, 0, 0, 3])
                lines.append(link(numbers.randrange(10**6), peer=peer, side="follower", left_out=left_out))
        return present

    def _of_partition(
        self, one: _Partition, begin: datetime, seconds: float, present: set[int], lines: list[Line]
    ) -> None:
        """Tell of a partition with each peer. Those on the follower's side tell of one replica, and so of one lag."""
        if self.broker_id not in one.replicas:
            return
        gone_on: list[_View] = []
        for leader in one.led_by(begin, self.time):
            if leader == self.broker_id:
                followers = [replica for replica in one.replicas if replica != leader and replica in present]
                of: list[tuple[SideName, int]] = [("leader", follower) for follower in followers]
            else:
                of = [("follower", leader)]
            for side, peer in of:
                key = (one.topic, one.number, peer if side == "leader" else 0, side)
                view = self.views.setdefault(key, _View(one.is_throttled))
                if not any(view is other for other in gone_on):
                    view.go_on(self.numbers, seconds)
                    gone_on.append(view)
                figures = view.figures(self.numbers)
                if figures is not None:
                    lines.append(partition(one.topic, one.number, peer=peer, side=side, **figures))

    def _of_quota(self, side: SideName, name: str, of: _Quota, begin: float, end: float) -> Iterator[Line]:
        """Yield its line; or those before and after a change; and what goes or comes in mid-sample."""
        numbers = self.numbers
        chance = numbers.random()
        middle = round(begin + numbers.random() * (end - begin), 3)
        if chance > 0.02 or not begin < middle < end:
            yield _in_force(numbers, side, name, of, begin, end)
            return
        if chance < 0.003:
            yield _in_force(numbers, side, name, of, begin, middle)
            del self.quotas[side, name]
            return
        yield _in_force(numbers, side, name, of, begin, middle)
        if of.mode != "shared":
            changed = numbers.choice(["rate", "policy", "mode"])
            if changed == "rate":
                of.rate = numbers.choice([0, 1000, 2000, 3333])
            elif changed == "policy":
                of.policy = "kip73" if of.policy == "strict" else "strict"
            else:
                of.mode = None if of.mode else "observe"
        yield _in_force(numbers, side, name, of, middle, end)

    def _clients(self) -> tuple[int, int] | None:
        numbers = self.numbers
        return (
            None
            if numbers.random() < 0.2
            else (numbers.choice([0, numbers.randrange(10**6)]), numbers.randrange(10**9))
        )

    def _limits(self) -> Iterator[Line]:
        numbers = self.numbers
        for client_id in ("connector-s3-0", "connector-s3-1"):
            if numbers.random() < 0.4:
                records = numbers.choice([0, numbers.randrange(1, 10**4)])
                waited = numbers.choice([0.25, 1.0]) if not records or numbers.random() < 0.3 else 0.0
                allowed = numbers.choice([500.0, 1000.0, None])
                yield limit(client_id, records, most=min(records, 900), waited=waited, allowed=allowed)


def _in_force(numbers: random.Random, side: SideName, name: str, of: _Quota, begin: float, end: float) -> Line:
    rate = of.rate or 5
    sizes = [numbers.choice([0, numbers.randrange(int(1.3 * rate)), rate]) for _ in range(int(begin), math.ceil(end))]
    line = quota(of.rate, int(begin), sizes, begin, end, side, name=name, mode=of.mode)
    return replace(line, policy=of.policy)

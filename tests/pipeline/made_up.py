"""Two days' samples of two brokers around midnight, made up from a seed, with all that makes joining hours hard."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from tests.pipeline.exported import NOON, Sidecar, limit, link, partition, quota, write_lines
from weir.quota.settings import SideName
from weir.samples.schema import Line

FIRST = NOON.replace(hour=20, minute=35)
SECONDS = 30.0
PEERS = (3, 4)


@dataclass(slots=True)
class _Replica:
    """A replica of a partition: behind since `lag` seconds ago, or in sync where that is 0."""

    number: int
    topic: str
    peer: int
    is_throttled: bool
    lag: float = 0.0

    def line(self, numbers: random.Random, seconds: float, side: SideName) -> Line | None:
        """Go on for some seconds, and tell of it; None where it was idle."""
        chance = numbers.random()
        if self.lag == 0:
            self.lag = numbers.choice([0.5, 7.0, 25.0, 40.0]) if chance < 0.08 else 0.0
        elif chance < (0.02 if self.is_throttled else 0.25):
            self.lag = 0.0
        elif self.is_throttled or chance < 0.6:
            self.lag += seconds
        if numbers.random() < 0.15:
            return None
        size = numbers.choice([0, numbers.randrange(1, 10**6)])
        throttled = numbers.randrange(10**6) if self.is_throttled and numbers.random() < 0.5 else 0
        lag = None if numbers.random() < 0.1 else (round(self.lag * 100), self.lag)
        return partition(self.topic, self.number, size, peer=self.peer, side=side, throttled=throttled, lag=lag)


@dataclass(slots=True)
class MadeUp:
    """The texts of files by the start of the hour in whose folder they lie; those of `late` come afterwards."""

    on_time: defaultdict[datetime, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    late: defaultdict[datetime, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def write(self, folder: Path, *, late: bool) -> None:
        for hour, texts in (self.late if late else self.on_time).items():
            name = f"{'late' if late else 'on-time'}.jsonl.gz"
            write_lines(folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}" / name, b"".join(texts))


def made_up(seed: int, until: datetime, late_hour: datetime) -> MadeUp:
    """Make samples from FIRST until `until`; some of those in `late_hour` come late."""
    numbers = random.Random(seed)
    made = MadeUp()
    for broker_id in (1, 2):
        side: SideName = "leader" if broker_id == 1 else "follower"
        for ended, text in _of_broker(broker_id, side, until, numbers):
            # what ends with the hour may lie in the next folder, and what ended just before in this one
            hour = (ended + timedelta(milliseconds=numbers.choice([-1, 0]))).replace(minute=0, second=0, microsecond=0)
            is_late = hour == late_hour and numbers.random() < 0.1
            (made.late if is_late else made.on_time)[hour].append(text)
            if numbers.random() < 0.03:
                made.on_time[hour + timedelta(hours=numbers.choice([0, 1]))].append(text)
    made.on_time[late_hour].append(b"no sample\n")
    made.on_time[late_hour - timedelta(hours=1)].append(b'{"kind": 1}\n')
    return made


def _of_broker(
    broker_id: int, side: SideName, until: datetime, numbers: random.Random
) -> Iterator[tuple[datetime, bytes]]:
    """Yield the samples that were not lost, with when they ended. Some are not whole."""
    sidecar = Sidecar(broker_id, FIRST + timedelta(milliseconds=numbers.randrange(1000) * (broker_id - 1)))
    replicas = [
        _Replica(number, topic, peer, number < 2) for topic in ("t", "u") for number in range(4) for peer in PEERS
    ]
    away = dict.fromkeys(PEERS, 0.0)
    rate = 1000
    starts = 0
    while sidecar.now < until:
        if numbers.random() < 0.01:
            starts += 1
            sidecar = Sidecar(broker_id, sidecar.now, f"start-{starts}", numbers.randrange(10**6) / 1000)
        seconds = 0.7 if numbers.random() < 0.01 else SECONDS
        begin, end = sidecar.monotonic, sidecar.monotonic + seconds
        rate = numbers.choice([1000, 2000]) if numbers.random() < 0.03 else rate
        by_second = [numbers.randrange(2 * rate) for _ in range(int(begin), math.ceil(end))]
        lines: list[Line] = [quota(rate, int(begin), by_second, begin, end, side)]
        for peer in PEERS:
            gone = numbers.random() < (0.9 if away[peer] else 0.03)
            away[peer] = away[peer] + seconds if gone else 0.0
            lines.append(
                link(
                    numbers.randrange(10**6),
                    peer=peer,
                    side=side,
                    throttled=numbers.randrange(10**6),
                    left_out=numbers.choice([0, 0, 3]),
                    away=away[peer] or None,
                )
            )
        told = (replica.line(numbers, seconds, side) for replica in replicas)
        lines += [line for line in told if line is not None]
        if numbers.random() < 0.5:
            lines.append(limit("connector-s3-0", numbers.randrange(10**4), most=numbers.randrange(10**4), waited=0.3))
        text = sidecar.sample(*lines, seconds=seconds)
        if numbers.random() < 0.02:
            text = text[: text.rstrip().rindex(b"\n") + 1]
        if numbers.random() > 0.02:
            yield sidecar.now, text

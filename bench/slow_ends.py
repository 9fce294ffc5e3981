"""What followers that read slowly leave to others: `python -m bench.slow_ends`.

One leader's sidecar, a process of its own, with a quota of 1 MB/s. Behind it are followers that read as fast as they
can, others that read 20 KB/s, and others that read nothing for 3 s in 6. All are made up and have an endless backlog.
Measured is what the fast ones get of what the others leave, and the most that all of them have read in any second.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.count_cost import cpu_seconds
from bench.many_links import sidecar
from bench.many_links_peers import FIRST_REPLICA, Follower, worst_second
from bench.processes import running
from bench.table import Report, parser

QUOTA: Final = 1_000_000
SLOW_RATE: Final = 20_000
PAUSE_SECONDS: Final = 3.0
WARM_UP_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.05
LEAST_OF_THE_REST: Final = 0.95
MOST_IN_A_SECOND: Final = 1.04
LARGE_BATCH: Final = 100_000
SMALL_WINDOW: Final = 8_192
"""Bytes of a receive buffer that an end has which reads slowly: else it takes 64 KB at once, and reads them later."""

COLUMNS = {
    "fast": 0,
    "at 20 KB/s": 0,
    "with pauses": 0,
    "change": 0,
    "batch, KB": 0,
    "Fetch": 0,
    "fast, x the rest": 3,
    "all, x quota": 3,
    "worst second": 3,
    "of a core": 2,
}


class _Case(Struct, frozen=True):
    """How many followers of which kind, and the size of the leader's batches (bytes)."""

    fast: int
    slow: int
    pausing: int
    batch: int = 10_000
    become_fast: bool = False
    """Whether the slow ones read as fast as they can, all at once, for a second in five."""


CASES: Final = (
    _Case(2, 0, 0),
    _Case(1, 8, 0),
    _Case(1, 8, 0, LARGE_BATCH),
    _Case(1, 0, 1),
    _Case(1, 0, 1, LARGE_BATCH),
    _Case(1, 8, 0, become_fast=True),
    _Case(1, 8, 0, LARGE_BATCH, become_fast=True),
)


class _Figures(Struct):
    fast: float
    """What the fast followers got, as a part of what the others left."""
    mean: float
    worst: float
    core: float


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("bench.slow_ends", "Measure what followers that read slowly leave to others.")
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    options.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="which, by number (all)")
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    options.add_argument("--tree", type=Path, default=Path.cwd(), help="measure the sidecar of another checkout")
    chosen = options.parse_args()
    report = Report(chosen.json)
    found: list[tuple[str, _Case, _Figures]] = []

    def measured() -> Iterator[Sequence[object]]:
        for number, version in itertools.product(chosen.cases, chosen.versions):
            case = CASES[number]
            figures = _measure(chosen.tree, case, version, chosen.seconds)
            found.append((f"case {number}, v{version}", case, figures))
            change = "all fast for 1 s in 5" if case.become_fast else ""
            yield (
                *(case.fast, case.slow, case.pausing, change, case.batch // 1000, f"v{version}"),
                *(figures.fast, figures.mean, figures.worst, figures.core),
            )

    report.table(f"1 MB/s for all, {chosen.seconds:g} s each", COLUMNS, measured())
    for name, case, figures in found:
        report.bound(f"the fast ones of {name}, x the rest", figures.fast, least=LEAST_OF_THE_REST)
        most = MOST_IN_A_SECOND + case.batch / QUOTA
        report.bound(f"worst second of {name}, x quota", figures.worst, most=most)
    return report.status


def _measure(tree: Path, case: _Case, version: int, seconds: float) -> _Figures:
    leader = (sys.executable, "-c", "from bench.many_links_peers import serve; serve()", str(case.batch))
    with running(*leader) as serving:
        assert serving.stdout is not None
        with sidecar(tree, int(serving.stdout.readline()), QUOTA) as (port, process):
            watch = _Watch(port, case, version)
            watch.run(WARM_UP_SECONDS)
            before = cpu_seconds(process.pid)
            watch.forget()
            watch.run(seconds)
            core = (cpu_seconds(process.pid) - before) / seconds
            return watch.figures(seconds, core)


class _Watch:
    """The followers of one case, and what each has read."""

    def __init__(self, port: int, case: _Case, version: int) -> None:
        self.read: list[tuple[float, int, bool]] = []
        """When, how many bytes, and whether by a fast one."""
        self._case = case
        self._selector = selectors.EpollSelector()
        self._all: list[Follower] = []
        self._slow: list[Follower] = []
        self._pausing: list[Follower] = []
        self._start = time.monotonic()
        for number in range(case.fast + case.slow + case.pausing):
            follower = Follower(port, FIRST_REPLICA + number, version)
            self._all.append(follower)
            if number < case.fast:
                self._selector.register(follower.connection, selectors.EVENT_READ, follower)
            else:
                follower.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
                (self._slow if number < case.fast + case.slow else self._pausing).append(follower)

    def run(self, seconds: float) -> None:
        """Let all of them read for so long."""
        end = time.monotonic() + seconds
        ticks_at = time.monotonic()
        while (now := time.monotonic()) < end:
            for key, _ in self._selector.select(max(0.0, ticks_at - now)):
                now = time.monotonic()
                self.read.append((now, key.data.go_on(now), True))
            if now >= ticks_at:
                ticks_at += TICK_SECONDS
                self._tick(now)

    def forget(self) -> None:
        """Count from now on."""
        self.read.clear()
        for follower in self._all:
            follower.received.clear()

    def _tick(self, now: float) -> None:
        is_fast = self._case.become_fast and (now - self._start) % 5 < 1
        for follower in self._slow:
            self._take(follower, now, 2**20 if is_fast else round(SLOW_RATE * TICK_SECONDS))
        if (now - self._start) % (2 * PAUSE_SECONDS) < PAUSE_SECONDS:
            for follower in self._pausing:
                self._take(follower, now, 2**20)

    def _take(self, follower: Follower, now: float, most: int) -> None:
        """Read up to `most` bytes."""
        try:
            while most > 0:
                size = follower.go_on(now, most)
                most -= size
                self.read.append((now, size, False))
        except BlockingIOError:
            pass

    def figures(self, seconds: float, core: float) -> _Figures:
        """What was seen since `read` was cleared."""
        fast = sum(size for _, size, is_fast in self.read if is_fast)
        others = sum(size for _, size, is_fast in self.read if not is_fast)
        rest = QUOTA * seconds - others
        # of what was read some is not records, such as the entries of all partitions in v3
        records = sum(size for one in self._all for _, size in one.received) / max(1, fast + others)
        worst = worst_second([(at, size) for at, size, _ in self.read]) * min(1.0, records)
        return _Figures(fast / rest, (fast + others) / seconds / QUOTA, worst / QUOTA, core)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What exporting samples costs, and how long it keeps the event loop: `python -m bench.export`.

- Samples: 4,000 partitions, all with records in every fetch, over two links (Fetch v3), with and without samples being
  taken, in turn: what their fetches take longer, and what it takes to take a sample of them and to write it.
- Pauses: how long the event loop stands still while samples of 20,000 changed partitions are taken and written to
  files, and /metrics is scraped with 20,000 partitions.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from bench.peers import keys_of
from bench.plan import RATE, SHAPES, Fetches, State, fetches_of
from bench.table import Report, begin, parser, run
from weir.protocol.records import RecordsSeen
from weir.protocol.response_scanner import ScannedTopic
from weir.proxy.admin.exposition import Scrapes, render
from weir.proxy.admin.metrics import ProcessStats, families
from weir.proxy.config.tables import Export
from weir.proxy.export.exporter import Exporter, Sampled, new_exporter
from weir.proxy.export.sample import ExportStats
from weir.proxy.log import EventLog
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.fetch.link import ReplicaLink
from weir.quota.fetch.state import InFlight
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

INTERVAL_SECONDS = 10.0
LINKS = 2
FETCHES_PER_SECOND = 10  # of both links together, each of 2,000 partitions
TURN = 4  # fetches in a row, with or without samples
MOST_CPU = 2.0  # % of one core
MOST_PAUSE_MS = 2.0
MOST_CPU_OF_A_SAMPLE_MS = 10.0
TOPICS, PARTITIONS = 200, 100  # of the pauses
SHAPE = SHAPES[0]
ACTIVE = State("in sync, all with records", active=2_000)


def main() -> int:
    """Measure and print; 1 when exporting costs more than it may."""
    options = parser("export", "Measure what exporting samples costs.")
    options.add_argument("--rounds", type=int, default=5, help="intervals with and without samples (5)")
    chosen, report = begin(options)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_cpu(report, chosen.rounds, directory))
        asyncio.run(_pauses(report, chosen.rounds, directory))
    return report.status


async def _cpu(report: Report, rounds: int, directory: str) -> None:
    topics = list(dict.fromkeys(name for name, _ in keys_of(SHAPE.topics, SHAPE.partitions)))
    throttled = {topic.decode(): ALL_REPLICAS for topic in topics[::2]}
    links = [fetches_of(SHAPE, ACTIVE, throttled) for _ in range(LINKS)]
    throttles = [link.throttle for link in links]
    stats = ExportStats()
    fetches = round(FETCHES_PER_SECOND * INTERVAL_SECONDS)
    turns = fetches // TURN
    without, counting, taking = [], [], []
    exporter = _exporter(throttles, stats, directory)
    exporter.start()
    for _ in range(rounds):
        for _ in range(turns):
            counts = [throttle.stats.interval for throttle in throttles]
            for throttle in throttles:
                throttle.stats.interval = None
            without.append(_fetch(links, TURN))
            for throttle, kept in zip(throttles, counts, strict=True):
                throttle.stats.interval = kept
            counting.append(_fetch(links, TURN))
        for link in links:  # what is equal everywhere is compressed to nothing
            _count(link.link, topics, SHAPE.partitions, most=1_000_000)
        began = time.process_time()
        await _take(exporter, stats)
        taking.append(time.process_time() - began)
    await exporter.close()
    of_a_sample = statistics.median(taking)
    size = _bytes_in(directory) / (stats.written["file"] - 1)  # in the last one, at the close, nothing moved
    rows = [
        ("fetches of one interval, no samples", statistics.median(without) * turns * 1000),
        ("the same while samples are taken", statistics.median(counting) * turns * 1000),
        ("taking and writing one sample", of_a_sample * 1000),
    ]
    active = f"{LINKS * ACTIVE.active:,} active partitions, {fetches} fetches in {INTERVAL_SECONDS:g} s"
    report.table(f"{active}, medians", "what | CPU, ms .1", rows)
    report.say(f"\n{size / 1000:,.1f} KB of file a sample")
    more = statistics.median(after - before for before, after in zip(without, counting, strict=True))
    cost = more * turns + of_a_sample
    report.bound("CPU of taking and writing a sample, ms", of_a_sample * 1000, most=MOST_CPU_OF_A_SAMPLE_MS)
    report.bound("cost of exporting, % of one core", cost / INTERVAL_SECONDS * 100, most=MOST_CPU)


def _fetch(links: list[Fetches], count: int) -> float:
    """Seconds of CPU that `count` fetches take; what followers and leaders take is not counted."""
    return sum(sum(links[number % len(links)].next()) for number in range(count)) / 1000


def _count(link: ReplicaLink, topics: Iterable[bytes], partitions: int, *, most: int = 0) -> None:
    """Count bytes of every partition: random ones below `most`, or the same."""
    link.in_flight = InFlight()
    of_topics = []
    for topic in topics:
        sizes = [random.randrange(most) if most else 1000 for _ in range(partitions)]
        seen = [RecordsSeen(id_, size, size, 3 + (size >> 10)) for id_, size in enumerate(sizes)]
        of_topics.append(ScannedTopic(topic, b"", seen))
    link.settle(of_topics)


async def _take(exporter: Exporter, stats: ExportStats) -> None:
    """Take a sample, until it is written."""
    written = stats.written["file"]
    await exporter.take()
    while stats.written["file"] == written:  # noqa: ASYNC110 - a thread writes it
        await asyncio.sleep(0.001)


def _bytes_in(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*.gz"))


async def _pauses(report: Report, rounds: int, directory: str) -> None:
    throttle = Throttle("leader", 1, time.monotonic, ThrottleSettings(rate=RATE, replicas={"topic-0": ALL_REPLICAS}))
    side, stats = Side(throttle, RelayStats("leader"), EventLog()), ExportStats()
    exporter = _exporter([throttle], stats, directory)
    process = ProcessStats("bench", throttle.topic_names)
    exporter.start()
    gc.set_threshold(10_000)  # as the server does
    topics = [b"topic-%d" % topic for topic in range(TOPICS)]
    rows = []
    for _ in range(rounds):
        link = throttle.link(2)
        link.partitions.asker.fetched(time.monotonic())
        _count(link, topics, PARTITIONS)
        for topic in topics:
            lag = link.partitions.asker.topic(2, topic)
            for partition in range(PARTITIONS):
                lag.update(partition, 5, 10, time.monotonic())
        link.close()
        gc.collect()
        gc.freeze()
        moments: list[float] = []
        watcher = asyncio.create_task(_watch(moments))
        await asyncio.gather(_take(exporter, stats), _scrape(side, process))
        watcher.cancel()
        gaps = sorted(((after - before) * 1000 for before, after in pairwise(moments)), reverse=True)
        rows.append((sum(gaps), len(gaps), gaps[0], gaps[len(gaps) // 1000]))
    await exporter.close()
    columns = "took, ms | turns of the loop | longest pause, ms .2 | 99.9 % below, ms .2"
    report.table(f"A sample and a scrape at once, {TOPICS * PARTITIONS:,} partitions", columns, rows)
    longest = statistics.median(row[2] for row in rows)
    report.bound("longest pause of the event loop, ms, median of the rounds", longest, most=MOST_PAUSE_MS)


async def _watch(moments: list[float]) -> None:
    while True:
        moments.append(time.perf_counter())
        await asyncio.sleep(0)


async def _scrape(side: Side, process: ProcessStats) -> None:
    async def write(piece: bytes) -> None:
        """Take it as fast as it comes."""

    await Scrapes(lambda accept: render(families([side], process), accept)).write("", write)


def _exporter(throttles: list[Throttle], stats: ExportStats, directory: str) -> Exporter:
    config = Export(interval_seconds=600.0, directory=directory)
    return new_exporter(config, Sampled(broker_id=1, version="bench", throttles=throttles), stats, EventLog())


if __name__ == "__main__":
    run(main)

"""How fast the batch job builds tables: partition samples/s end to end at three sizes, and what it keeps in memory.

The samples are made up, from a seed: 80 s of brokers of which each tells of all its partitions every 10 s. With --check
the tables of one topic and all brokers are compared with sums that plain Python makes of the same files.
"""

from __future__ import annotations

import argparse
import functools
import gc
import gzip
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.table import Report, parser
from weir.cli.report import LAUNCH_SETTINGS
from weir.pipeline.build import DayReport, build
from weir.pipeline.open_tables import published, run_folders
from weir.pipeline.session import open_session
from weir.pipeline.tables import BROKER_RATES, MOVES, PARTITION_RATES, REPLICA_LAG, THROTTLE_ACCURACY, WINDOW_SECONDS
from weir.samples.schema import (
    AnyLine,
    IntervalLine,
    Line,
    LinkLine,
    PartitionColumns,
    PartitionLine,
    PartitionsLine,
    QuotaLine,
    by_partition,
    decode_line,
    encode_lines,
)

DAY: Final = date(2026, 11, 2)
NOON: Final = datetime(2026, 11, 2, 12, tzinfo=UTC)
INTERVAL: Final = 10
LEAST_ROWS_PER_SECOND: Final = 400_000
TOPIC_PARTITIONS: Final = 100
CHECKED_TOPIC: Final = "topic-0"


def generate(folder: Path, brokers: int, partitions: int, samples: int, seed: int) -> int:
    """Write a file for each broker with `samples` samples of `partitions` partitions, from noon on.

    Returns the number of partition samples.
    """
    _folder_of(folder, NOON).mkdir(parents=True)
    return sum(
        _generate_broker(folder, brokers, partitions, samples, seed, NOON, broker_id) for broker_id in range(brokers)
    )


def generate_by_processes(
    folder: Path, brokers: int, partitions: int, samples: int, seed: int, start: datetime = NOON
) -> int:
    """Do the same on every core; the samples are from the hour on that begins at `start`."""
    _folder_of(folder, start).mkdir(parents=True)
    write = functools.partial(_generate_broker, folder, brokers, partitions, samples, seed, start)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        return sum(processes.map(write, range(brokers), chunksize=10))


def _folder_of(folder: Path, hour: datetime) -> Path:
    return folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"


def _generate_broker(
    folder: Path, brokers: int, partitions: int, samples: int, seed: int, start: datetime, broker_id: int
) -> int:
    rows = 0
    numbers = random.Random((seed * 24 + start.hour) * 1_000_003 + broker_id)
    path = _folder_of(folder, start) / f"broker-{broker_id}-a-00000001-{samples}.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for sequence in range(1, samples + 1):
            file.write(encode_lines(_sample(broker_id, brokers, partitions, sequence, start, numbers)))
            rows += partitions
    return rows


def _bytes(peer: int, unthrottled: int, throttled: int) -> dict[str, Any]:
    """A link's bytes, as the leader's side tells them, without a cut tail."""
    return {
        "side": "leader",
        "peer": peer,
        "bytes_throttled": throttled,
        "bytes_unthrottled": unthrottled,
        "bytes_complete": unthrottled + throttled,
        "bytes_cut": 0,
    }


def _sample(
    broker_id: int, brokers: int, partitions: int, sequence: int, start: datetime, numbers: random.Random
) -> Iterator[Line]:
    begin = 1000.0 + (sequence - 1) * INTERVAL + broker_id / 1000
    ended = start + timedelta(seconds=sequence * INTERVAL)
    key: dict[str, Any] = {
        "broker_id": broker_id,
        "start_id": f"{start:%Y%m%dT%H%M%SZ}-0123abcd",
        "sequence": sequence,
        "begin_seconds": begin,
        "end_seconds": begin + INTERVAL,
        "end_utc": f"{ended:%Y-%m-%dT%H:%M:%S}.{broker_id % 1000:03}Z",
    }
    peers = [(broker_id + 1) % brokers, (broker_id + 2) % brokers]
    total = {peer: [0, 0] for peer in peers}
    topics: defaultdict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for number in range(partitions):
        peer = peers[number % len(peers)]
        topic, partition = divmod(broker_id * partitions + number, TOPIC_PARTITIONS)
        size = numbers.getrandbits(20)
        throttled = numbers.getrandbits(20) if number % 50 == 0 else 0
        total[peer][0] += size
        total[peer][1] += throttled
        lag = (size, sequence * INTERVAL * 1000) if throttled else (0, 0)
        topics[topic, peer].append((partition, throttled, size, size + throttled, 0, 0, 3, *lag))
    for (topic, peer), rows in topics.items():
        ids, *columns = zip(*rows, strict=True)
        figures = [column if any(column) else () for column in columns]
        told = PartitionColumns(**dict(zip(PartitionColumns.__struct_fields__, [ids, *figures], strict=True)))
        yield PartitionsLine(**key, side="leader", peer=peer, topic=f"topic-{topic}", block=0, columns=told)
    for peer, (size, throttled) in total.items():
        yield LinkLine(
            **key,
            **_bytes(peer, size, throttled),
            left_out=1,
            connections=1,
            partitions_behind=partitions // 50,
            fetches=20,
            fetches_held=1,
        )
    first = int(begin)
    by_second = tuple(numbers.getrandbits(22) for _ in range(first, first + INTERVAL + 1))
    yield QuotaLine(
        **key,
        side="leader",
        quota="leader.replication.throttled.rate",
        rate=2_000_000,
        policy="strict",
        in_force_from_seconds=begin,
        in_force_until_seconds=begin + INTERVAL,
        bytes=sum(by_second),
        first_second=first,
        bytes_by_second=by_second,
    )
    yield IntervalLine(
        **key, version="1", interval_seconds=float(INTERVAL), partitions=partitions, links=len(peers), quotas=1
    )


Sums = Counter[tuple[object, ...]]


def independent_sums(folder: Path) -> dict[str, Sums]:
    """Return what plain Python adds up, by table.

    The bytes of CHECKED_TOPIC's partitions, of all brokers and of all moves, those under each broker's quota, and the
    most messages that a replica lagged behind.
    """
    sums = {table.name: Sums() for table in (PARTITION_RATES, BROKER_RATES, THROTTLE_ACCURACY, MOVES, REPLICA_LAG)}
    for path in folder.rglob("*.jsonl.gz"):
        for text in gzip.decompress(path.read_bytes()).splitlines():
            for line in by_partition([decode_line(text)]):
                _add(line, sums)
    return sums


def _add(line: AnyLine, sums: dict[str, Sums]) -> None:
    match line:
        case QuotaLine():
            sums[THROTTLE_ACCURACY.name][line.broker_id,] += line.bytes
        case LinkLine():
            for window, start in _windows(line):
                key = (window, start, line.side, line.broker_id)
                sums[BROKER_RATES.name][*key, True] += line.bytes_throttled
                sums[BROKER_RATES.name][*key, False] += line.bytes_unthrottled
        case PartitionLine():
            size = line.bytes_throttled + line.bytes_unthrottled
            if line.topic == CHECKED_TOPIC:
                for window, start in _windows(line):
                    sums[PARTITION_RATES.name][window, start, line.side, line.partition] += size
            if line.lag_messages:
                replica = (line.topic, line.partition, line.peer)
                sums[MOVES.name][*replica, "bytes"] += size
                sums[MOVES.name][*replica, "bytes_throttled"] += line.bytes_throttled
                most = sums[REPLICA_LAG.name]
                most[replica] = max(most[replica], line.lag_messages)


def _windows(line: Line) -> Iterator[tuple[str, int]]:
    ended = int((datetime.fromisoformat(line.end_utc) - timedelta(microseconds=1)).timestamp())
    for window, seconds in WINDOW_SECONDS.items():
        yield window, ended // seconds * seconds


def table_sums(spark: SparkSession, tables: Path) -> dict[str, Sums]:
    """Return the same of the tables that the job wrote."""

    def table(name: str) -> DataFrame:
        runs = [run for folder, facts in published(tables).items() for run in run_folders(folder, facts, name)]
        return spark.read.parquet(*map(str, runs))

    start = F.unix_seconds("window_start")
    under_quota = F.round(F.col("mean_over_quota") * F.col("rate_bytes_per_second") * F.col("seconds")).cast("long")
    replica = ("topic", "partition", "replica")
    moved = F.inline(
        F.array(
            *(F.struct(F.lit(name).alias("of"), F.col(name).alias("bytes")) for name in ("bytes", "bytes_throttled"))
        )
    )
    found = {
        PARTITION_RATES.name: table(PARTITION_RATES.name)
        .where(F.col("topic") == CHECKED_TOPIC)
        .select("window", start, "side", "partition", "bytes"),
        BROKER_RATES.name: table(BROKER_RATES.name).select("window", start, "side", "broker_id", "throttled", "bytes"),
        THROTTLE_ACCURACY.name: table(THROTTLE_ACCURACY.name).groupBy("broker_id").agg(F.sum(under_quota)),
        MOVES.name: table(MOVES.name).select(*replica, moved),
        REPLICA_LAG.name: table(REPLICA_LAG.name).select(*replica, "max_lag_messages"),
    }
    return {name: Sums({tuple(row)[:-1]: row[-1] for row in frame.collect()}) for name, frame in found.items()}


def session(heap: str) -> SparkSession:
    """Return a session on local[2] whose JVM, driver and executor in one, has so much heap."""
    own = {
        "spark.driver.memory": heap,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    found = open_session("local[2]", LAUNCH_SETTINGS | own)
    found.sparkContext.setLogLevel("ERROR")
    return found


def _build(spark: SparkSession, folder: Path) -> tuple[float, DayReport]:
    began = time.perf_counter()
    (report,) = build(spark, str(folder / "samples"), str(folder / "tables"), DAY, DAY + timedelta(days=1))
    return time.perf_counter() - began, report


def _live_heap(spark: SparkSession) -> float:
    """MB that the JVM keeps when the garbage is gone, and what Spark gives back once it sees that it is garbage."""
    gc.collect()
    runtime: Any = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    runtime.gc()
    time.sleep(2)
    runtime.gc()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def _options() -> argparse.Namespace:
    options = parser("bench.spark_job", __doc__.partition("\n")[0])
    options.add_argument("--brokers", type=int, default=500)
    options.add_argument("--partitions", type=int, nargs="+", default=[250, 1000, 4000], help="of each broker, by size")
    options.add_argument("--samples", type=int, default=8, help="of each broker")
    options.add_argument("--seed", type=int, default=73)
    options.add_argument("--heap", default="4g", help="of the JVM")
    options.add_argument("--check", action="store_true", help="compare with sums made by plain Python")
    return options.parse_args()


def main() -> int:
    """Measure, and return 1 where a bound was missed."""
    asked = _options()
    report = Report(asked.json)
    spark = session(asked.heap)
    figures = []
    for partitions in asked.partitions:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = generate_by_processes(folder / "samples", asked.brokers, partitions, asked.samples, asked.seed)
            seconds, day = _build(spark, folder)
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
            figures.append((lines, seconds, lines / seconds, _live_heap(spark), rss, sum(day.rows.values())))
            if asked.check:
                wanted, found = independent_sums(folder / "samples"), table_sums(spark, folder / "tables")
                differing = sum(wanted[table] != found[table] for table in wanted)
                report.bound("tables that differ from plain Python's sums", differing, most=0)
    spark.stop()
    columns = {"partition samples": 0, "s": 1, "a second": 0, "live heap, MB": 0, "Python, MB": 0, "rows of tables": 0}
    report.table(f"{asked.brokers} brokers, {asked.samples} samples each, local[2]", columns, figures)
    lines, _, rate, *_ = figures[-1]  # the first warms the JVM up
    report.bound(f"partition samples a second, of {lines:,}", rate, least=LEAST_ROWS_PER_SECOND)
    return report.status


if __name__ == "__main__":
    sys.exit(main())

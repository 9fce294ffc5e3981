# SPDX-License-Identifier: Apache-2.0
"""Samples of many brokers, drawn from a seed: each tells of all its partitions every 10 s. And what they add up to."""

from __future__ import annotations

import functools
import gzip
import multiprocessing
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

from weir.pipeline.open_tables import published, table_folder
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
        topics[topic, peer].append((partition, throttled, size, size + throttled, 0, 3, *lag))
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


def table_sums(tables: Path) -> dict[str, Sums]:
    """Return the same of the tables that the job wrote."""
    replica, moved = (
        "topic, partition, replica",
        "unnest(['bytes', 'bytes_throttled']), unnest([bytes, bytes_throttled])",
    )
    start = '"window", epoch(window_start)::BIGINT, side'
    columns = {
        PARTITION_RATES.name: f"{start}, partition, bytes",
        BROKER_RATES.name: f"{start}, broker_id, throttled, bytes",
        THROTTLE_ACCURACY.name: "broker_id, round(mean_over_quota * rate_bytes_per_second * seconds)::BIGINT",
        MOVES.name: f"{replica}, {moved}",
        REPLICA_LAG.name: f"{replica}, max_lag_messages",
    }
    sums = {table: Sums() for table in columns}
    with duckdb.connect(":memory:") as connection:
        for table, of_table in columns.items():
            runs = [table_folder(folder, facts, table) for folder, facts in published(tables).items()]
            files = [str(file) for run in runs for file in run.rglob("*.parquet")]
            found = connection.read_parquet(files, hive_partitioning=True)
            told = found.filter(f"topic = '{CHECKED_TOPIC}'") if table == PARTITION_RATES.name else found
            for *key, size in told.project(of_table).fetchall():
                sums[table][tuple(key)] += size
    return sums

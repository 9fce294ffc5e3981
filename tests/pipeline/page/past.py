"""A made-up day in the tables, small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pipeline.tables import (
    BROKER_RATES,
    LIMITS,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    WINDOW_SECONDS,
    Table,
)
from tests.pipeline.parquet import START, Row, broker_rate, write

TABLES = (BROKER_RATES, PARTITION_RATES, THROTTLE_ACCURACY, MOVES, REPLICA_LAG)


class Past:
    """Tables of some days: rows are put in one by one, and written where the job writes those of their day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[tuple[str, datetime], list[Row]] = {}

    def put(self, table: Table, *rows: Row, day: datetime = START) -> None:
        self._rows.setdefault((table.name, day), []).extend(rows)

    def write(self) -> Path:
        """Write all tables; of those without rows, one as an empty day leaves it."""
        days = {day for _, day in self._rows} or {START}
        has_limits = any(name == LIMITS.name for name, _ in self._rows)
        for table in (*TABLES, LIMITS) if has_limits else TABLES:  # older tables have none of limits
            for day in days:
                rows = self._rows.get((table.name, day), [])
                write(self.folder, table, rows, f"date={day:%Y-%m-%d}/part-0.parquet")
        return self.folder


def partition_rate(
    partition: int,
    rate: float,
    start: datetime = START,
    *,
    topic: str = "orders",
    side: str = "leader",
    window: str = "minute",
) -> Row:
    return {
        "window_start": start.isoformat(),
        "window": window,
        "side": side,
        "topic": topic,
        "partition": partition,
        "mean_bytes_per_second": rate,
        "max_bytes_per_second": 2 * rate,
        "p95_bytes_per_second": rate,
        "bytes": int(rate * WINDOW_SECONDS[window]),
    }


def move(
    partition: int,
    start: datetime,
    end: datetime | None,
    size: int = 6000,
    *,
    topic: str = "orders",
    replica: int = 3,
    side: str = "follower",
    broker_id: int = 3,
) -> Row:
    """A move at 100 bytes/s, under a quota of 1 MB/s."""
    return {
        "topic": topic,
        "partition": partition,
        "replica": replica,
        "broker_id": broker_id,
        "side": side,
        "start": start.isoformat(),
        "end": None if end is None else end.isoformat(),
        "bytes": size,
        "bytes_throttled": size,
        "mean_bytes_per_second": 100.0,
        "quota_bytes_per_second": 1_000_000,
        "longest_stall_seconds": 1.5,
    }


def lag(
    partition: int, start: datetime, end: datetime | None, *, topic: str = "orders", stuck: Sequence[float] = ()
) -> Row:
    """A replica on broker 3, out of sync; `stuck` are the seconds of its stuck spans."""
    return {
        "topic": topic,
        "partition": partition,
        "replica": 3,
        "broker_id": 3,
        "side": "follower",
        "start": start.isoformat(),
        "end": None if end is None else end.isoformat(),
        "seconds_to_in_sync": None if end is None else (end - start).total_seconds(),
        "max_lag_messages": 1234,
        "max_lag_seconds": 60.0,
        "stuck_spans": len(stuck),
        "stuck_seconds": float(sum(stuck)),
    }


def quota(start: datetime, end: datetime, rate: int = 1000, *, mean: float | None = 0.5, **other: object) -> Row:
    """A leader's quota of broker 1; `other` are further columns."""
    row: Mapping[str, object] = {
        "quota_id": "leader.replication.throttled.rate",
        "broker_id": 1,
        "side": "leader",
        "rate_bytes_per_second": rate,
        "policy": "strict",
        "start": start.isoformat(),
        "end": end.isoformat(),
        "seconds": (end - start).total_seconds(),
        "mean_over_quota": mean,
        "worst_1s_over_quota": None if mean is None else 1.02,
        "worst_10s_over_quota": None if mean is None else 1.0,
        "seconds_over": 2.0,
        "seconds_left_out": 30.0,
        "bytes_left_out": 3000,
    }
    return {**row, **other}


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def broker_minutes(broker_id: int, side: str, *rates: tuple[float, float] | None, start: datetime = START) -> list[Row]:
    """Successive minutes, each a throttled and an unthrottled rate; None where nothing was sampled."""
    return [
        broker_rate(broker_id, side, rate, start + minutes(number), throttled=throttled)
        for number, both in enumerate(rates)
        if both is not None
        for throttled, rate in zip((True, False), both, strict=True)
    ]


def limited(client_id: str, records: int, start: datetime = START, *, waited: float = 0.5, **other: object) -> Row:
    """A minute of a sink task that may move 1,000 records/s."""
    row: Mapping[str, object] = {
        "window_start": start.isoformat(),
        "window": "minute",
        "client_id": client_id,
        "role": "sink",
        "connector": "s3",
        "task": 0,
        "entry": "connector-*",
        "limit_group": client_id,
        "record_rate_limit": 1000.0,
        "records": records,
        "mean_records_per_second": records / 60,
        "max_records_per_second": records // 50,
        "throttled_ratio": waited,
    }
    return {**row, **other}

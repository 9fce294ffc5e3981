# SPDX-License-Identifier: Apache-2.0
"""A made-up day in the tables, small enough to be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from tests.pipeline.parquet import START, Row, broker_rate, write
from weir.pipeline.tables import (
    ABSENCES,
    BEHIND_MINUTES,
    BROKER_RATES,
    BROKER_SAMPLES,
    CLIENT_RATES,
    COVERAGE,
    LIMITS,
    MOVES,
    PARTITION_RATES,
    POINTER,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
    WINDOW_SECONDS,
    Table,
)

TABLES = (
    *(BROKER_RATES, PARTITION_RATES, THROTTLE_ACCURACY, MOVES, REPLICA_LAG),
    *(COVERAGE, ABSENCES, THROTTLE_MINUTES, BEHIND_MINUTES, BROKER_SAMPLES),
)


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
        named = {name for name, _ in self._rows}
        for table in (*TABLES, *(of for of in (LIMITS, CLIENT_RATES) if of.name in named)):  # older tables lack these
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


def quota_minute(of: Row, start: datetime, size: int = 30_000, **other: object) -> Row:
    """A minute of a row of quotas, of which `other` are figures."""
    row: Mapping[str, object] = {
        **{name: of[name] for name in ("quota_id", "broker_id", "side", "start")},
        "window_start": start.isoformat(),
        "seconds": 60.0,
        "bytes": size,
        "worst_1s_over_quota": 0.5,
        "worst_10s_over_quota": 0.5,
        "seconds_over": 0.0,
        "seconds_left_out": 60.0,
        "bytes_left_out": 100,
    }
    return {**row, **other}


def behind_minute(of: Row, start: datetime, size: int = 6000, *, stall: tuple[float, datetime] | None = None) -> Row:
    """A minute of a move or a lag; `stall` is how many seconds nothing came, and until when: stuck above 30 s."""
    seconds = 0.0 if stall is None else stall[0]
    return {
        **{name: of[name] for name in ("topic", "partition", "replica", "broker_id", "side", "start")},
        "window_start": start.isoformat(),
        "bytes": size,
        "bytes_throttled": size,
        "max_lag_messages": size // 100,
        "longest_stall_seconds": seconds,
        "stall_end": None if stall is None else stall[1].isoformat(),
        "stuck_spans": int(seconds > 30),
        "stuck_seconds": seconds if seconds > 30 else 0.0,
    }


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


def broker_sample(start: datetime, seconds: float, *moved: int, broker_id: int = 1, side: str = "leader") -> Row:
    """A sample of `moved` bytes: throttled, and others."""
    times = {"start": start.isoformat(), "end": (start + timedelta(seconds=seconds)).isoformat()}
    return {"broker_id": broker_id, "side": side, **times, "bytes_throttled": moved[0], "bytes_unthrottled": moved[1]}


def coverage(start: datetime, *, broker_id: int = 1, missing: int = 0, quarantined: int = 0) -> Row:
    """A minute of whole samples."""
    figures = {"samples": 6, "seconds": 60.0, "missing": missing, "quarantined": quarantined}
    return {"broker_id": broker_id, "window_start": start.isoformat(), **figures}


def absence(replica: int, start: datetime, end: datetime | None, seen_minutes: float, *, broker_id: int = 1) -> Row:
    """Broker `replica` is away, and that is seen until so many minutes after START."""
    times = {"start": start, "end": end, "seen_until": START + minutes(seen_minutes)}
    shown = {name: None if moment is None else moment.isoformat() for name, moment in times.items()}
    return {"replica": replica, "broker_id": broker_id, **shown}


def publish(folder: Path, day: str, **facts: object) -> None:
    """Put a day's tables where a run of the job has them, and write the pointer to them."""
    for table in TABLES:
        rows = folder / table.name / f"date={day}"
        run = folder / f"date={day}" / "run" / table.name
        run.mkdir(parents=True)
        if rows.exists():
            rows.rename(run / "window=minute" if "window" in table.columns else run / "rows")
    (folder / f"date={day}" / POINTER).write_text(json.dumps({"run": "run", **facts}))


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


def client_minutes(broker_id: int, *rates: tuple[float, float], start: datetime = START) -> list[Row]:
    """Successive minutes, each with what clients read and wrote a second."""
    return [
        {
            "window_start": (start + minutes(number)).isoformat(),
            "broker_id": broker_id,
            "seconds": 60.0,
            "bytes_in": int(60 * written),
            "bytes_out": int(60 * read),
        }
        for number, (read, written) in enumerate(rates)
    ]

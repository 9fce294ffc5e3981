# SPDX-License-Identifier: Apache-2.0
"""Tables of a made-up past, written as the batch jobs write them: Parquet, in a folder by table."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from weir.pipeline.tables import BROKER_RATES, THROTTLE_ACCURACY, WINDOW_SECONDS, Table

START = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

Row = Mapping[str, object]


def write(path: Path, table: Table, rows: Sequence[Row], file: str = "part-0.parquet", **types: str) -> None:
    """Write rows to `path`/`table`/`file`; `types` are columns of another type than the table's."""
    target = path / table.name / file
    target.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: types.get(name, kind) for name, kind in table.columns.items() if not rows or name in rows[0]}
    definitions = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    places = ", ".join("?" for _ in columns)
    connection = _connection()
    connection.execute(f"CREATE OR REPLACE TABLE t ({definitions})")
    if rows:
        values = [row[name] for row in rows for name in columns]
        everything = ", ".join(f"({places})" for _ in rows)
        connection.execute(f"INSERT INTO t VALUES {everything}", values)  # noqa: S608 - a test's own columns
    connection.execute(f"COPY t TO '{target}' (FORMAT parquet)")


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for all tables: to open one takes 10 ms, of which an empty table needs 1."""
    return duckdb.connect(":memory:")


def broker_rate(
    broker_id: int,
    side: str,
    rate: float,
    start: datetime = START,
    *,
    window: str = "minute",
    throttled: bool = False,
) -> Row:
    return {
        "window_start": start.isoformat(),
        "window": window,
        "broker_id": broker_id,
        "side": side,
        "throttled": throttled,
        "mean_bytes_per_second": rate,
        "max_bytes_per_second": rate,
        "p95_bytes_per_second": rate,
        "bytes": int(rate * WINDOW_SECONDS[window]),
    }


def hours(broker_id: int, *rates: float, start: datetime = START) -> list[Row]:
    """Successive hours of a broker that leads for a third of `rates` (bytes in), with two followers for each."""
    return [
        broker_rate(broker_id, side, rate * 2 / 3, start + number * HOUR, window="hour")
        for number, rate in enumerate(rates)
        for side in ("leader", "follower")
    ]


def throttle(
    mean: float,
    worst: float,
    seconds: float = 60,
    *,
    broker_id: int = 1,
    policy: str = "strict",
    left_out_seconds: float | None = None,
    end: datetime = START,
) -> Row:
    """A throttle with this `mean` / quota while partitions were left out: all the time, and else nothing passed."""
    rate = 1_000_000
    starved = seconds if left_out_seconds is None else left_out_seconds
    return {
        "quota_id": "leader.replication.throttled.rate",
        "broker_id": broker_id,
        "side": "leader",
        "rate_bytes_per_second": rate,
        "policy": policy,
        "start": (end - timedelta(seconds=seconds)).isoformat(),
        "end": end.isoformat(),
        "seconds": seconds,
        "mean_over_quota": mean * starved / seconds,
        "worst_1s_over_quota": worst,
        "worst_10s_over_quota": worst,
        "seconds_over": 0.0,
        "seconds_left_out": starved,
        "bytes_left_out": max(0, round((1 - mean) * rate * starved)),
    }


def write_rates(path: Path, rows: Sequence[Row]) -> None:
    write(path, BROKER_RATES, rows)


def write_throttles(path: Path, rows: Sequence[Row]) -> None:
    write(path, THROTTLE_ACCURACY, rows)

# SPDX-License-Identifier: Apache-2.0
"""Exported samples, made by hand: as the sidecar encodes them, with values that are easy to add up."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from tests.samples.columns import in_columns
from weir.pipeline.duck import frame as duck
from weir.pipeline.duck.functions import TYPES
from weir.pipeline.engine import DUCKDB, SPARK, F, on
from weir.pipeline.tables import Table
from weir.quota.settings import SideName
from weir.samples.schema import IntervalLine, LimitLine, Line, LinkLine, PartitionLine, QuotaLine, encode_lines

DAY = date(2026, 11, 2)
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


class Sidecar:
    """One process: counts its samples and its monotonic clock on. `now` is the time of day, which a test may set."""

    def __init__(
        self, broker_id: int = 1, now: datetime = NOON, start_id: str = "a", monotonic: float = 1000.0
    ) -> None:
        self.broker_id = broker_id
        self.now = now
        self.start_id = start_id
        self.monotonic = monotonic
        self.sequence = 0

    def sample(self, *lines: Line, seconds: float = 10.0, clients: tuple[int, int] | None = None) -> bytes:
        """A whole sample of what happened in the next `seconds`; `lines` are made by the functions below.

        `clients` are the bytes in and out of clients.
        """
        self.sequence += 1
        begin, self.monotonic = self.monotonic, self.monotonic + seconds
        self.now += timedelta(seconds=seconds)
        key: dict[str, Any] = {
            "broker_id": self.broker_id,
            "start_id": self.start_id,
            "sequence": self.sequence,
            "begin_seconds": begin,
            "end_seconds": self.monotonic,
            "end_utc": f"{self.now:%Y-%m-%dT%H:%M:%S}.{self.now.microsecond // 1000:03}Z",
        }
        counts = {
            kind: sum(isinstance(line, kind) for line in lines)
            for kind in (PartitionLine, LinkLine, QuotaLine, LimitLine)
        }
        end = IntervalLine(
            **key,
            version="1",
            interval_seconds=10.0,
            partitions=counts[PartitionLine],
            links=counts[LinkLine],
            quotas=counts[QuotaLine],
            limits=counts[LimitLine],
            client_bytes_in=None if clients is None else clients[0],
            client_bytes_out=None if clients is None else clients[1],
        )
        return encode_lines([*in_columns(_with(line, key) for line in lines), end])


_NO_KEY: dict[str, Any] = {
    "broker_id": 0,
    "start_id": "",
    "sequence": 0,
    "begin_seconds": 0.0,
    "end_seconds": 0.0,
    "end_utc": "",
}


def partition(
    topic: str,
    number: int,
    size: int,
    *,
    peer: int = 2,
    side: SideName = "leader",
    throttled: int = 0,
    lag: tuple[int, float] | None = None,
) -> Line:
    """`size` bytes unthrottled and `throttled` throttled; `lag` is messages and seconds."""
    return PartitionLine(
        **_NO_KEY,
        **_bytes(side, peer, size, throttled),
        topic=topic,
        partition=number,
        batches=1,
        lag_messages=None if lag is None else lag[0],
        lag_seconds=None if lag is None else lag[1],
    )


def link(
    size: int,
    *,
    peer: int = 2,
    side: SideName = "leader",
    throttled: int = 0,
    left_out: int = 0,
    away: float | None = None,
) -> Line:
    return LinkLine(
        **_NO_KEY,
        **_bytes(side, peer, size, throttled),
        left_out=left_out,
        connections=int(away is None),
        away_seconds=away,
        partitions_behind=0,
        fetches=1,
        fetches_held=0,
    )


def quota(
    rate: int,
    first_second: int,
    by_second: Sequence[int],
    begin: float,
    end: float,
    side: SideName = "leader",
    *,
    name: str | None = None,
    mode: str | None = None,
) -> Line:
    return QuotaLine(
        **_NO_KEY,
        side=side,
        quota=f"{side}.replication.throttled.rate" if name is None else name,
        mode=mode,
        rate=rate,
        policy="strict",
        in_force_from_seconds=begin,
        in_force_until_seconds=end,
        bytes=sum(by_second),
        first_second=first_second,
        bytes_by_second=tuple(by_second),
    )


def limit(
    client_id: str, records: int, *, most: int = 0, waited: float = 0.0, allowed: float | None = 1000.0, task: int = 0
) -> Line:
    """A sink task of connector s3."""
    return LimitLine(
        **_NO_KEY,
        client_id=client_id,
        role="sink",
        connector="s3",
        task=task,
        entry="connector-*",
        limit_group=client_id,
        record_rate_limit=allowed,
        share=1.0,
        records=records,
        record_rate_avg=records / 10,
        record_rate_max=most,
        throttled_ratio=waited,
    )


def _bytes(side: SideName, peer: int, size: int, throttled: int) -> dict[str, Any]:
    return {
        "side": side,
        "peer": peer,
        "bytes_throttled": throttled,
        "bytes_unthrottled": size,
        "bytes_complete": size + throttled,
        "bytes_cut": 0,
    }


def _with(line: Line, key: dict[str, Any]) -> Line:
    return msgspec.structs.replace(line, **key)


def write_lines(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, compresslevel=1))


def rows(frame: DataFrame, *names: str, **equal: object) -> list[tuple[Any, ...]]:
    """The sorted rows of the columns `names` where the others are `equal`; times as text, in UTC."""
    with on(DUCKDB if isinstance(frame, duck.DataFrame) else SPARK):
        for name, value in equal.items():
            frame = frame.where(F.col(name) == F.lit(value))
        return sorted(unsorted_rows(frame, *names))


def unsorted_rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows of the columns `names`; times as text, in UTC."""
    kinds = dict(types_of(frame))
    shown = [F.col(name).cast("string").alias(name) if kinds[name] == "timestamp" else F.col(name) for name in names]
    found: Any = frame.select(*shown).collect()
    if isinstance(frame, duck.DataFrame):
        return [tuple(_spark_text(row[name], kinds[name]) for name in names) for row in found]
    return [tuple(row) for row in found]


def _spark_text(value: Any, kind: str) -> Any:
    """A time as Spark shows it: without DuckDB's zone."""
    return value.removesuffix("+00") if kind == "timestamp" and value is not None else value


def types(table: Table) -> list[tuple[str, str]]:
    """A table's columns as Spark tells them."""
    return [(name, {"long": "bigint"}.get(kind, kind)) for name, kind in table.columns.items()]


def types_of(frame: DataFrame) -> list[tuple[str, str]]:
    """A frame's columns as Spark tells them."""
    names = {kind: name for name, kind in TYPES.items()} | {"TIMESTAMP WITH TIME ZONE": "timestamp"}
    return [(name, names.get(kind, kind)) for name, kind in frame.dtypes]

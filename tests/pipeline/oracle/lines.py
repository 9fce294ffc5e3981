# SPDX-License-Identifier: Apache-2.0
"""Exported lines as docs/samples.md and docs/reports.md have them: what is bad and why, duplicates, whole samples."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from weir.samples.schema import (
    BLOCK,
    KINDS,
    SCHEMA_VERSION,
    AnyLine,
    IntervalLine,
    LimitLine,
    Line,
    LinkLine,
    PartitionLine,
    PartitionsLine,
    QuotaLine,
    by_partition,
    kind_of,
)

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
SHOWN = 1100
_BYTES = ("bytes_throttled", "bytes_unthrottled")
_OF_CLIENTS = ("client_bytes_in", "client_bytes_out")


@dataclass(slots=True)
class Sample:
    """What one key names: its good lines, each once and one for each partition, and how many there were."""

    broker_id: int
    start_id: str
    sequence: int
    begin: float
    end: float
    ended: datetime
    interval: IntervalLine | None = None
    lines: list[AnyLine] = field(default_factory=list)
    read: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def process(self) -> tuple[int, str]:
        return self.broker_id, self.start_id

    @property
    def is_whole(self) -> bool:
        if self.interval is None:
            return False
        wanted = {
            PartitionLine: self.interval.partitions,
            LinkLine: self.interval.links,
            QuotaLine: self.interval.quotas,
            LimitLine: self.interval.limits,
        }
        return all(sum(isinstance(line, kind) for line in self.lines) >= count for kind, count in wanted.items())

    def window(self, seconds: int) -> datetime:
        """The start of the window that the sample is in: of one that ends with a window, that window."""
        return floor(self.ended - MICROSECOND, seconds)

    def at(self, monotonic: float) -> datetime:
        """The time of day at a time of the monotonic clock, by where the sample ended on both."""
        return self.ended - timedelta(microseconds=round((self.end - monotonic) * 1e6))


@dataclass(slots=True)
class Day:
    """What a day's tables are made of. `bad` are reason, file and text of each bad line."""

    day: date
    whole: list[Sample] = field(default_factory=list)
    partial: list[Sample] = field(default_factory=list)
    bad: list[tuple[str, str, str]] = field(default_factory=list)

    def processes(self) -> dict[tuple[int, str], list[Sample]]:
        """The whole samples of each process, in order."""
        found: dict[tuple[int, str], list[Sample]] = {}
        for sample in sorted(self.whole, key=lambda sample: sample.sequence):
            found.setdefault(sample.process, []).append(sample)
        return found


def read_day(folder: Path, day: date) -> Day:
    """Read the lines of a day, of its folders and those of the hour before and after."""
    found = Day(day)
    samples: dict[tuple[int, str, int], tuple[Sample, dict[object, Line]]] = {}
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    for number in range(-1, 25):
        hour = midnight + number * HOUR
        for path in sorted((folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}").glob("*.jsonl*")):
            for text in _texts(path):
                line = _good(text)
                if isinstance(line, str):
                    if hour.date() == day:
                        found.bad.append((line, path.name, text.decode(errors="replace")))
                    continue
                if line is None:
                    continue
                ended = datetime.fromisoformat(line.end_utc)
                if (ended - MICROSECOND).date() != day:
                    continue
                key = (line.broker_id, line.start_id, line.sequence)
                begin = Sample(*key, line.begin_seconds, line.end_seconds, ended)
                sample, lines = samples.setdefault(key, (begin, {}))
                sample.read += 1
                lines.setdefault(_identity(line), line)
    for sample, lines in samples.values():
        for line in by_partition(lines.values()):  # type: ignore[arg-type]
            if isinstance(line, IntervalLine):
                sample.interval = line
            else:
                sample.lines.append(line)
        (found.whole if sample.is_whole else found.partial).append(sample)
    return found


def floor(time: datetime, seconds: int) -> datetime:
    """The begin of the window of so many seconds that a time is in."""
    return datetime.fromtimestamp(time.timestamp() // seconds * seconds, UTC)


def _texts(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    yield from (line for line in text.split(b"\n") if line.strip())


def _identity(line: Line) -> object:
    match line:
        case PartitionsLine():
            return "partitions", line.side, line.peer, line.topic, line.block
        case PartitionLine():
            return "partition", line.side, line.peer, line.topic, line.partition
        case LinkLine():
            return "link", line.side, line.peer
        case QuotaLine():
            return "quota", line.side, line.quota, line.in_force_from_seconds
        case LimitLine():
            return "limit", line.client_id
        case _:
            return "interval"


_KINDS = {kind_of(kind): kind for kind in KINDS}
_NEEDED = {
    kind: [field.name for field in msgspec.structs.fields(kind) if field.default is msgspec.NODEFAULT] for kind in KINDS
}


def _good(text: bytes) -> Line | str | None:
    """The line; why it is bad; or None where it is one that a reader of this version may leave alone."""
    try:
        value = json.loads(text)
    except ValueError:
        return "not_json"
    if not isinstance(value, dict):
        return "not_json"
    if value.get("min_reader", 1) > SCHEMA_VERSION:
        return "newer_schema"
    kind = _KINDS.get(str(value.get("kind")))
    if kind is None:
        return None if value.get("schema", 0) > SCHEMA_VERSION else "unknown_kind"
    if any(value.get(name) is None for name in _NEEDED[kind]):
        return "missing_field"
    if isinstance(value.get("columns"), dict):
        bad = _bad_columns(value, value["columns"])
        if bad is not None:
            return bad
    try:
        line = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return "wrong_type"
    if any((getattr(line, name, 0) or 0) < 0 for name in (*_BYTES, *_OF_CLIENTS, "bytes", "records")):
        return "negative_bytes"
    if any(isinstance(told, str) and len(told) > SHOWN for told in value.values()):
        return "too_long"
    try:
        datetime.fromisoformat(line.end_utc)
    except ValueError:
        return "bad_time"
    return "bad_time" if line.end_seconds <= line.begin_seconds else line


def _bad_columns(value: dict[str, Any], columns: dict[str, Any]) -> str | None:
    ids = columns.get("partition")
    if any(not isinstance(column, list) for column in columns.values()) or not isinstance(ids, list):
        return "wrong_type"
    if not ids or any(len(column) not in (0, len(ids)) for column in columns.values()):
        return "unlike_lengths"
    if any(None in column for name, column in columns.items() if not name.startswith("lag_")):
        return "null_value"
    if len(set(ids)) < len(ids):
        return "repeated_partition"
    if any(number // BLOCK != value["block"] for number in ids):
        return "wrong_block"
    if any(number < 0 for name in _BYTES for number in columns[name]):
        return "negative_bytes"
    return None

# SPDX-License-Identifier: Apache-2.0
"""Reading of exported lines: what is bad and why, duplicates, samples that are not whole."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import DAY, NOON, Sidecar, limit, link, partition, quota, rows
from weir.pipeline.days import Days
from weir.pipeline.lines import MAX_CHARACTERS, MAX_SECONDS, UNUSED, by_kind, by_partition, good_lines
from weir.pipeline.read import is_by_day, read_lines
from weir.pipeline.whole import processes, quarantine, samples, without_duplicates, without_partial
from weir.samples.schema import KINDS, SCHEMA_VERSION, Line, columns, kind_of


def test_topic_is_read_by_the_times_of_its_records(spark: SparkSession) -> None:
    """From an hour before the day to a day after it: a record may have waited. With the client's own properties."""
    reader = MagicMock()
    reader.option.return_value = reader.options.return_value = reader
    session = MagicMock()
    session.read.format.return_value = reader
    read_lines(session, "kafka://localhost:1/samples", Days.of(DAY), kafka={"security.protocol": "SSL"})
    options = dict(call.args for call in reader.option.call_args_list)
    assert options["startingTimestamp"] == str(int((NOON - timedelta(hours=13)).timestamp()) * 1000)
    assert options["endingTimestamp"] == str(int((NOON + timedelta(hours=36)).timestamp()) * 1000)
    reader.options.assert_called_once_with(**{"kafka.security.protocol": "SSL"})


@pytest.mark.parametrize("is_there", [True, False])
def test_folders_of_other_days_are_not_listed(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    """Only where no folder of the days is there must it be told whether folders are by day at all."""
    listed = []

    def matching(_session: object, source: str, pattern: str) -> list[str]:
        listed.append(pattern)
        return [f"{source}/{pattern}"] if is_there or pattern == "date=*" else []

    monkeypatch.setattr("weir.pipeline.read._matching", matching)
    assert is_by_day(MagicMock(), "/samples", Days.of(DAY))
    around = [
        f"date={DAY}/hour=*",
        f"date={DAY - timedelta(days=1)}/hour=23",
        f"date={DAY + timedelta(days=1)}/hour=00",
    ]
    assert listed == around + ([] if is_there else ["date=*"])


def test_docs_name_the_fields_of_which_no_table_is_made() -> None:
    page = (Path(__file__).parents[2] / "docs" / "samples.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"^No \[table\].*? is made of (.*?)\.\n\n", page, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", told)) == {name.removeprefix("columns.") for name in UNUSED}


NOT_KEPT = {*UNUSED, "schema", "min_reader", "end_utc"}


def _changed(**values: object) -> bytes:
    """A link's line with other values; `...` takes a field away."""
    return _with(Sidecar(), values, None, link(1))


def _in_columns(line: dict[str, object] | None = None, **columns: object) -> bytes:
    """A line of two partitions with other values, and other columns."""
    two = partition("t", 3, 1, lag=(1, 2.0)), partition("t", 4, 1)
    return _with(Sidecar(), line or {}, columns, *two)


def _with(sidecar: Sidecar, values: dict[str, object], columns: dict[str, object] | None = None, *told: Line) -> bytes:
    line: dict[str, Any] = json.loads(sidecar.sample(*(told or [partition("t", 0, 1)])).splitlines()[0])
    if columns:
        line["columns"] = _without_ellipsis(line["columns"] | columns)
    return json.dumps(_without_ellipsis(line | values)).encode()


def _without_ellipsis(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not ...}


NEWER = {"schema": SCHEMA_VERSION + 1, "min_reader": SCHEMA_VERSION + 1}
WRONG_TYPE = [_changed(bytes_throttled="many"), _in_columns(lag_ms="none"), _in_columns({"broker_id": 1.5})]
CUT = _in_columns().partition(b": [1, null]")[0]
NOT_JSON = [b"no JSON", _changed()[:-20], CUT, b"x" * 10_000_000]
_QUOTA = (
    _changed(kind="quota", quota="q", rate=1, policy="p", in_force_from_seconds=1.0, in_force_until_seconds=2.0)[:-1]
    + b', "bytes": 1, "first_second": 1, "bytes_by_second": [1]}'
)
BAD = {
    _changed(**NEWER): "newer_schema",
    _changed(kind="comet"): "unknown_kind",
    _changed(kind=...): "unknown_kind",
    _changed(peer=...): "missing_field",
    _changed(end_utc="yesterday"): "bad_time",
    _changed(end_utc="2026-11-02Z"): "bad_time",
    _changed(end_seconds=1000.0): "bad_time",
    _changed(bytes_throttled=-1): "negative_bytes",
    _in_columns({"topic": "x" * 10_000_000}): "too_long",
    _QUOTA[:-2] + b", 1" * MAX_SECONDS + b"]}": "too_long",
    json.dumps(json.loads(_QUOTA) | {"bytes": -1}).encode(): "negative_bytes",
    _with(Sidecar(), {"records": -1}, None, limit("connector-s3-0", 1)): "negative_bytes",
    _in_columns({"columns": None}): "missing_field",
    _in_columns(bytes_throttled=...): "missing_field",
    _in_columns(bytes_throttled=None): "missing_field",
    _in_columns(partition=[]): "unlike_lengths",
    _in_columns(lag_ms=[1]): "unlike_lengths",
    _in_columns(bytes_unthrottled=[1, 2, 3]): "unlike_lengths",
    _in_columns(bytes_unthrottled=[1, None]): "null_value",
    _in_columns(partition=[3, 3]): "repeated_partition",
    _in_columns(partition=[3, 1000]): "wrong_block",
    _in_columns({"block": 1}): "wrong_block",
    _in_columns(bytes_throttled=[0, -1]): "negative_bytes",
}


@pytest.mark.oldest_spark
def test_bad_lines_are_quarantined_with_reason_and_others_stay(frames: Frames) -> None:
    """What is no JSON is shown as it came, of other lines what was read. A newer line may have another form at all."""
    newer = _changed(**NEWER, bytes_throttled="many")
    good = Sidecar().sample(partition("t", 0, 1), link(1), quota(1, 1000, [1], 1000.0, 1001.0))
    parsed = frames.parsed(b"\n".join([*NOT_JSON, *WRONG_TYPE, newer, *BAD, b"", b"  ", good]))
    found = samples(good_lines(parsed))
    table = quarantine(parsed, found)
    as_they_came = [("not_json", text) for text in NOT_JSON] + [("wrong_type", text) for text in WRONG_TYPE]
    shown = [(reason, text.decode()[:MAX_CHARACTERS]) for reason, text in [*as_they_came, ("newer_schema", newer)]]
    shown += [(reason, _known(text)[:MAX_CHARACTERS]) for text, reason in BAD.items()]
    assert rows(table, "reason", "line", "lines") == sorted((*row, 1) for row in shown)
    assert rows(good_lines(parsed), "kind") == [("interval",), ("link",), ("partitions",), ("quota",)]
    assert all(file.endswith("0.jsonl.gz") for (file,) in rows(table, "file"))


def _known(text: bytes) -> str:
    """The fields of a line that are read, in the schema's order."""
    line = json.loads(text)
    order = dict.fromkeys(
        column.name.partition(".")[0] for kind in KINDS for column in columns(kind) if "." not in column.name
    )
    order["columns"] = None
    known = {name: line[name] for name in order if line.get(name) is not None and name not in UNUSED}
    if "columns" in known:
        known["columns"] = {
            name: value
            for name, value in known["columns"].items()
            if value is not None and f"columns.{name}" not in UNUSED
        }
    return json.dumps(known, separators=(",", ":"))


def test_line_at_the_bounds_is_read(frames: Frames) -> None:
    assert rows(frames.parsed(_in_columns({"topic": "x" * MAX_CHARACTERS})), "reason") == [(None,)]


def test_what_a_later_version_added_is_ignored(frames: Frames) -> None:
    """A field, a column, and a kind of line, which a reader of this version may leave alone."""
    later = {"schema": SCHEMA_VERSION + 1, "colour": "blue"}
    texts = [_changed(**later), _in_columns(later, colours=["red"]), _changed(kind="comet", **later)]
    lines = frames.parsed(b"\n".join(texts))
    assert rows(lines, "reason") == [(None,)] * 3
    assert rows(by_kind(good_lines(lines)).partitions, "kind") == [("partitions",)]


@pytest.mark.oldest_spark
def test_columns_give_a_row_for_each_partition(frames: Frames) -> None:
    told = [
        partition("t", 999, 1, lag=(3, 0.5)),
        partition("t", 1000, 0, throttled=7),
        partition("u", 5, 0, lag=(0, 0.0)),
    ]
    expected = [("t", 0, 999, 1, 0, 3, 500), ("t", 1, 1000, 0, 7, None, None), ("u", 0, 5, 0, 0, 0, 0)]
    figures = ("bytes_unthrottled", "bytes_throttled", "lag_messages", "lag_ms")
    lines = frames.good(Sidecar().sample(*told))
    assert rows(by_partition(by_kind(lines).partitions, *figures), "topic", "block", "partition", *figures) == expected


@pytest.mark.oldest_spark
@pytest.mark.parametrize("kind", KINDS, ids=kind_of)
def test_every_field_is_read_as_it_was_written(frames: Frames, kind: type[Any]) -> None:
    text = Sidecar().sample(
        partition("t", 0, 1, lag=(3, 0.5)), link(1), quota(1, 1000, [1, 2], 1000.0, 1001.5), limit("c", 7, waited=0.5)
    )
    (line,) = (json.loads(line) for line in text.splitlines() if json.loads(line)["kind"] == kind_of(kind))
    (row,) = frames.good(text).where(f"kind = '{kind_of(kind)}'").collect()
    read = [column.name for column in columns(kind) if column.name not in NOT_KEPT]
    told = row if isinstance(row, dict) else row.asDict(recursive=True)
    assert {name: _value(told, name) for name in read} == {name: _value(line, name) for name in read}


def _value(line: dict[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    return line[outer][inner] if inner else line[outer]


def test_duplicates_are_counted_once(frames: Frames) -> None:
    """One sample came in two files, and one line of it a third time."""
    text = Sidecar().sample(partition("t", 0, 1), partition("t", 0, 1, peer=3), link(1), link(0, side="follower"))
    lines = frames.good(text, text, text.splitlines()[0])
    assert rows(samples(lines), "whole", "twice", "lines") == [(True, True, 11)]
    assert len(rows(without_duplicates(lines), "kind")) == 5


def test_sample_without_all_its_lines_is_left_out(frames: Frames) -> None:
    """Of three samples one has no end and one has lost a line."""
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", number, 1), link(1)) for number in range(3)]
    no_end = b"\n".join(texts[0].splitlines()[:-1])
    no_link = b"\n".join(line for line in texts[1].splitlines() if b'"link"' not in line)
    parsed = frames.parsed(no_end, no_link, texts[2])
    found = samples(good_lines(parsed))
    assert rows(found, "sequence", "whole", "twice") == [(1, False, False), (2, False, False), (3, True, False)]
    assert rows(without_partial(good_lines(parsed), found), "sequence") == [(3,), (3,), (3,)]
    assert rows(quarantine(parsed, found), "reason", "line", "lines") == [
        ("partial_sample", f'{{"broker_id":1,"start_id":"a","sequence":{number}}}', 2) for number in (1, 2)
    ]


def test_sample_with_a_line_lost_and_one_doubled_is_not_whole(frames: Frames) -> None:
    lines = Sidecar().sample(partition("t", 0, 1000), partition("u", 0, 1000)).splitlines()
    doubled = b"\n".join([lines[0], lines[0], lines[2]])
    assert rows(samples(frames.good(doubled)), "whole", "twice", "lines") == [(False, True, 3)]


def test_gaps_in_the_sequence_are_missing_samples(frames: Frames) -> None:
    """Of one start 2 and 3 are missing; another start, which has but its fifth, misses none that can be known."""
    one, two = Sidecar(start_id="a"), Sidecar(start_id="b")
    texts = [one.sample() for _ in range(4)]
    two.sequence = 4
    found = processes(samples(frames.good(texts[0], texts[3], two.sample())))
    assert rows(found, "start_id", "samples", "missing") == [("a", 2, 2), ("b", 1, 0)]

"""Reading of exported lines: what is bad and why, duplicates, samples that are not whole."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from pipeline.read import (
    MAX_CHARACTERS,
    MAX_SECONDS,
    UNUSED,
    good_lines,
    missing_samples,
    quarantine,
    read_lines,
    samples,
    without_duplicates,
    without_partial,
)
from samples.schema import KINDS, SCHEMA_VERSION, columns, kind_of
from tests.pipeline.conftest import Frames
from tests.pipeline.exported import DAY, NOON, Sidecar, link, partition, quota, rows


def test_topic_is_read_to_its_end(spark: SparkSession) -> None:
    """A record may have the time of a day long after that of its samples."""
    reader = MagicMock()
    reader.option.return_value = reader
    session = MagicMock()
    session.read.format.return_value = reader
    read_lines(session, "kafka://localhost:1/samples", DAY)
    options = dict(call.args for call in reader.option.call_args_list)
    assert options["startingTimestamp"] == str(int((NOON - timedelta(hours=13)).timestamp()) * 1000)
    assert not [name for name in options if name.startswith("ending")]


NOT_KEPT = {*UNUSED, "schema", "end_utc"}


def _changed(**values: object) -> bytes:
    """A partition line with other values; `...` takes a field away."""
    line: dict[str, Any] = json.loads(Sidecar().sample(partition("t", 0, 1)).splitlines()[0])
    line |= values
    return json.dumps({name: value for name, value in line.items() if value is not ...}).encode()


NOT_JSON = [b"no JSON", _changed()[:-20], _changed(bytes_throttled="many"), b"x" * 10_000_000]
BAD = {
    _changed(schema=SCHEMA_VERSION + 1): "newer_schema",
    _changed(kind="comet"): "unknown_kind",
    _changed(kind=...): "unknown_kind",
    _changed(topic=...): "missing_field",
    _changed(end_utc="yesterday"): "bad_time",
    _changed(end_seconds=1000.0): "bad_time",
    _changed(bytes_throttled=-1): "negative_bytes",
    _changed(topic="x" * 10_000_000): "too_long",
    _changed(kind="quota", quota="q", rate=1, policy="p", in_force_from_seconds=1.0, in_force_until_seconds=2.0)[:-1]
    + b', "bytes": 1, "first_second": 1, "bytes_by_second": ['
    + b"1, " * MAX_SECONDS
    + b"1]}": "too_long",
}


def test_bad_lines_are_quarantined_with_their_reason_and_the_others_stay(frames: Frames) -> None:
    """What is no JSON is shown as it came, of other lines what was read. A newer line may have another form at all."""
    newer = _changed(schema=SCHEMA_VERSION + 1, bytes_throttled="many")
    good = Sidecar().sample(partition("t", 0, 1), link(1), quota(1, 1000, [1], 1000.0, 1001.0))
    parsed = frames.parsed(b"\n".join([*NOT_JSON, newer, *BAD, b"", b"  ", good]))
    found = samples(good_lines(parsed))
    table = quarantine(parsed, found)
    as_they_came = [("not_json", text) for text in NOT_JSON] + [("newer_schema", newer)]
    shown = [(reason, text.decode()[:MAX_CHARACTERS]) for reason, text in as_they_came]
    shown += [(reason, _known(text)[:MAX_CHARACTERS]) for text, reason in BAD.items()]
    assert rows(table, "reason", "line", "lines") == sorted((*row, 1) for row in shown)
    assert rows(good_lines(parsed), "kind") == [("interval",), ("link",), ("partition",), ("quota",)]
    assert all(file.endswith("0.jsonl.gz") for (file,) in rows(table, "file"))


def _known(text: bytes) -> str:
    """The fields of a line that are read, in the schema's order."""
    line = json.loads(text)
    order = dict.fromkeys(column.name for kind in KINDS for column in columns(kind))
    return json.dumps(
        {name: line[name] for name in order if line.get(name) is not None and name not in UNUSED}, separators=(",", ":")
    )


def test_line_at_the_bounds_is_read(frames: Frames) -> None:
    assert rows(frames.parsed(_changed(topic="x" * MAX_CHARACTERS)), "reason") == [(None,)]


def test_field_that_a_later_version_added_is_ignored(frames: Frames) -> None:
    assert rows(frames.parsed(_changed(colour="blue")), "reason") == [(None,)]


@pytest.mark.parametrize("kind", KINDS, ids=kind_of)
def test_every_field_is_read_as_it_was_written(frames: Frames, kind: type[Any]) -> None:
    text = Sidecar().sample(partition("t", 0, 1, lag=(3, 0.5)), link(1), quota(1, 1000, [1, 2], 1000.0, 1001.5))
    (line,) = (json.loads(line) for line in text.splitlines() if json.loads(line)["kind"] == kind_of(kind))
    (row,) = frames.good(text).where(f"kind = '{kind_of(kind)}'").collect()
    read = [column.name for column in columns(kind) if column.name not in NOT_KEPT]
    assert {name: row[name] for name in read} == {name: line[name] for name in read}


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


def test_gaps_in_the_sequence_are_missing_samples(frames: Frames) -> None:
    """Of one start 2 and 3 are missing; another start, which has but its fifth, misses none that can be known."""
    one, two = Sidecar(start_id="a"), Sidecar(start_id="b")
    texts = [one.sample() for _ in range(4)]
    two.sequence = 4
    assert rows(missing_samples(samples(frames.good(texts[0], texts[3], two.sample()))), "missing") == [(2,)]

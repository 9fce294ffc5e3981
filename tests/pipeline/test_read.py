"""Reading of exported lines: what is bad and why, duplicates, samples that are not whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.read import (
    MAX_LINE_BYTES,
    SHOWN_CHARACTERS,
    good_lines,
    missing_samples,
    quarantine,
    samples,
    without_duplicates,
    without_partial,
)
from quota.samples import KINDS, columns, kind_of
from tests.pipeline.conftest import Frames
from tests.pipeline.exported import Sidecar, link, partition, quota, rows


def _changed(**values: object) -> bytes:
    """A partition line with other values; `...` takes a field away."""
    line: dict[str, Any] = json.loads(Sidecar().sample(partition("t", 0, 1)).splitlines()[0])
    line |= values
    return json.dumps({name: value for name, value in line.items() if value is not ...}).encode()


BAD = {
    b"no JSON": "not_json",
    b"[" + _changed() + b"]": "not_json",
    _changed()[:-20]: "not_json",
    _changed(bytes_throttled="many"): "not_json",
    _changed(schema=2, bytes_throttled="many"): "newer_schema",
    _changed(schema=2): "newer_schema",
    _changed(kind="comet"): "unknown_kind",
    _changed(kind=...): "unknown_kind",
    _changed(topic=...): "missing_field",
    _changed(end_utc="yesterday"): "bad_time",
    _changed(end_seconds=1000.0): "bad_time",
    _changed(bytes_throttled=-1): "negative_bytes",
    _changed(topic="x" * 10_000_000): "too_long",
}


def test_bad_lines_are_quarantined_with_their_reason_and_the_others_stay(frames: Frames) -> None:
    good = Sidecar().sample(partition("t", 0, 1), link(1), quota(1, 1000, [1], 1000.0, 1001.0))
    parsed = frames.parsed(b"\n".join([*BAD, b"", b"  ", good]))
    found = samples(good_lines(parsed))
    table = quarantine(parsed, found)
    shown = [(reason, text.decode()[:SHOWN_CHARACTERS], 1) for text, reason in BAD.items()]
    assert rows(table, "reason", "line", "lines") == sorted(shown)
    assert rows(good_lines(parsed), "kind") == [("interval",), ("link",), ("partition",), ("quota",)]
    assert all(file.endswith("0.jsonl.gz") for (file,) in rows(table, "file"))


def test_line_at_the_bound_is_read(frames: Frames) -> None:
    bare = len(_changed(topic=""))
    assert rows(frames.parsed(_changed(topic="x" * (MAX_LINE_BYTES - bare))), "reason") == [(None,)]


def test_field_that_a_later_version_added_is_ignored(frames: Frames) -> None:
    assert rows(frames.parsed(_changed(colour="blue")), "reason") == [(None,)]


@pytest.mark.parametrize("kind", KINDS, ids=kind_of)
def test_every_field_is_read_as_it_was_written(frames: Frames, kind: type[Any]) -> None:
    text = Sidecar().sample(partition("t", 0, 1, lag=(3, 0.5)), link(1), quota(1, 1000, [1, 2], 1000.0, 1001.5))
    (line,) = (json.loads(line) for line in text.splitlines() if json.loads(line)["kind"] == kind_of(kind))
    (row,) = frames.good(text).where(f"kind = '{kind_of(kind)}'").collect()
    assert {column.name: row[column.name] for column in columns(kind)} == line


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

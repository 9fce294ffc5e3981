"""The schema of samples: what was once written stays readable, and the docs tell what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from samples.schema import (
    KINDS,
    SCHEMA_VERSION,
    IntervalLine,
    LinkLine,
    NewerSchema,
    PartitionLine,
    QuotaLine,
    columns,
    decode_line,
    encode_lines,
    kind_of,
)

KEY: dict[str, Any] = {
    "schema": 1,
    "broker_id": 1,
    "start_id": "20260131T235949Z-0badcafe",
    "sequence": 7,
    "begin_seconds": 60.0,
    "end_seconds": 70.0,
    "end_utc": "2026-01-31T23:59:59.123Z",
}
BYTES: dict[str, Any] = {
    "bytes_throttled": 100,
    "bytes_unthrottled": 20,
    "bytes_complete": 110,
    "bytes_cut": 10,
    "left_out": 3,
}

VERSION_1_KEY = (
    '"schema":1,"broker_id":1,"start_id":"20260131T235949Z-0badcafe","sequence":7,"begin_seconds":60.0,'
    '"end_seconds":70.0,"end_utc":"2026-01-31T23:59:59.123Z"'
)
VERSION_1_BYTES = '"bytes_throttled":100,"bytes_unthrottled":20,"bytes_complete":110,"bytes_cut":10,"left_out":3'
VERSION_1 = [
    (
        f'{{"kind":"partition",{VERSION_1_KEY},"side":"leader","peer":2,{VERSION_1_BYTES},"topic":"orders",'
        '"partition":5,"batches":2,"lag_messages":null,"lag_seconds":1.5}',
        PartitionLine(**KEY, side="leader", peer=2, **BYTES, topic="orders", partition=5, batches=2, lag_seconds=1.5),
    ),
    (
        f'{{"kind":"link",{VERSION_1_KEY},"side":"follower","peer":2,{VERSION_1_BYTES},"connections":1,'
        '"partitions_behind":4,"fetches":9,"fetches_held":8}',
        LinkLine(
            **KEY, side="follower", peer=2, **BYTES, connections=1, partitions_behind=4, fetches=9, fetches_held=8
        ),
    ),
    (
        f'{{"kind":"quota",{VERSION_1_KEY},"side":"leader","quota":"leader.replication.throttled.rate","rate":10,'
        '"policy":"strict","in_force_from_seconds":60.0,"in_force_until_seconds":61.5,"bytes":12,"first_second":60,'
        '"bytes_by_second":[10,2]}',
        QuotaLine(
            **KEY,
            side="leader",
            quota="leader.replication.throttled.rate",
            rate=10,
            policy="strict",
            in_force_from_seconds=60.0,
            in_force_until_seconds=61.5,
            bytes=12,
            first_second=60,
            bytes_by_second=(10, 2),
        ),
    ),
    (
        f'{{"kind":"interval",{VERSION_1_KEY},"version":"1.2.3","interval_seconds":10.0,"partitions":1,"links":1,'
        '"quotas":1}',
        IntervalLine(**KEY, version="1.2.3", interval_seconds=10.0, partitions=1, links=1, quotas=1),
    ),
]


@pytest.mark.parametrize(("text", "line"), VERSION_1)
def test_lines_of_version_1_stay_readable(text: str, line: PartitionLine) -> None:
    assert decode_line(text) == line


def test_lines_are_written_as_version_2_has_them() -> None:
    assert SCHEMA_VERSION == 2
    lines = [msgspec.structs.replace(line, schema=2) for _, line in VERSION_1]
    texts = [text.replace('"schema":1', '"schema":2') for text, _ in VERSION_1]
    texts[2] = texts[2].replace('"bytes_by_second":[10,2]', '"bytes_by_second":[10,2],"mode":null')
    assert encode_lines(lines).decode() == "".join(f"{text}\n" for text in texts)


def test_line_without_a_field_that_has_a_default_is_readable() -> None:
    text, line = VERSION_1[0]
    assert decode_line(text.replace(',"lag_seconds":1.5', "")) == msgspec.structs.replace(line, lag_seconds=None)


@pytest.mark.parametrize("change", [("", ""), ('"peer":2,', "")])
def test_line_of_a_newer_version_is_refused_as_such(change: tuple[str, str]) -> None:
    """Whether or not it would fit this one."""
    text = VERSION_1[0][0].replace('"schema":1', f'"schema":{SCHEMA_VERSION + 1}').replace(*change)
    with pytest.raises(NewerSchema, match=f"schema {SCHEMA_VERSION + 1}.* {SCHEMA_VERSION}"):
        decode_line(text)


@pytest.mark.parametrize("text", ["", "{}", VERSION_1[0][0].replace('"peer":2,', ""), VERSION_1[0][0][:-1]])
def test_text_that_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_line(text)


def test_docs_describe_every_column_as_the_schema_does() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "samples.md").read_text(encoding="utf-8")
    for line in KINDS:
        rows = [
            f"| `{column.name}` | {column.type}{' or null' if column.is_nullable else ''} | {column.description} |"
            for column in columns(line)
        ]
        assert f"## `{kind_of(line)}`" in docs
        section = docs.split(f"## `{kind_of(line)}`")[1].split("\n## ")[0]
        shared = docs.split("## Every line")[1].split("\n## ")[0]
        assert [row for row in rows if row not in section and row not in shared] == []
        assert section.count("\n| `") + shared.count("\n| `") == len(rows)
    assert f"version {SCHEMA_VERSION}" in docs

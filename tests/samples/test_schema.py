# SPDX-License-Identifier: Apache-2.0
"""The schema of samples: what is written can be read, and the docs tell it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weir.samples.schema import (
    KINDS,
    SCHEMA_VERSION,
    IntervalLine,
    LimitLine,
    LinkLine,
    NewerSchema,
    PartitionColumns,
    PartitionLine,
    PartitionsLine,
    QuotaLine,
    by_partition,
    columns,
    decode_line,
    encode_lines,
    kind_of,
)

KEY: dict[str, Any] = {
    "schema": 3,
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
}

LIMIT: dict[str, Any] = {
    "client_id": "connector-consumer-s3-0",
    "role": "sink",
    "entry": "connector-*",
    "limit_group": "connector-consumer-s3-0",
    "records": 9990,
    "record_rate_avg": 999.0,
    "record_rate_max": 1025,
    "throttled_ratio": 0.87,
    "share": 0.5,
    "connector": "s3",
    "task": 0,
    "record_rate_limit": 1000.0,
}

LINES_KEY = (
    '"schema":3,"min_reader":2,"broker_id":1,"start_id":"20260131T235949Z-0badcafe","sequence":7,"begin_seconds":60.0,'
    '"end_seconds":70.0,"end_utc":"2026-01-31T23:59:59.123Z"'
)
LINES_BYTES = '"bytes_throttled":100,"bytes_unthrottled":20,"bytes_complete":110,"bytes_cut":10'
LINES: list[tuple[str, Any]] = [
    (
        f'{{"kind":"link",{LINES_KEY},"side":"follower","peer":2,{LINES_BYTES},"left_out":3,"connections":1,'
        '"partitions_behind":4,"fetches":9,"fetches_held":8}',
        LinkLine(
            **KEY,
            side="follower",
            peer=2,
            **BYTES,
            left_out=3,
            connections=1,
            partitions_behind=4,
            fetches=9,
            fetches_held=8,
        ),
    ),
    (
        f'{{"kind":"quota",{LINES_KEY},"side":"leader","quota":"leader.replication.throttled.rate","rate":10,'
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
        f'{{"kind":"interval",{LINES_KEY},"version":"1.2.3","interval_seconds":10.0,"partitions":1,"links":1,'
        '"quotas":1}',
        IntervalLine(**KEY, version="1.2.3", interval_seconds=10.0, partitions=1, links=1, quotas=1),
    ),
]


@pytest.mark.parametrize(("text", "line"), LINES)
def test_line_without_fields_that_have_a_default_is_readable(text: str, line: Any) -> None:
    assert decode_line(text) == line


COLUMNS = PartitionColumns(
    partition=(5, 7),
    bytes_throttled=(100, 0),
    bytes_unthrottled=(20, 1),
    bytes_complete=(110, 1),
    bytes_cut=(10, 0),
    batches=(),
    lag_messages=(None, 4),
    lag_ms=(1500, None),
)


def test_lines_are_written_as_version_3_has_them() -> None:
    assert SCHEMA_VERSION == 3
    key, values = LINES_KEY, KEY
    lines: list[Any] = [
        PartitionsLine(**values, side="leader", peer=2, topic="orders", block=0, columns=COLUMNS),
        *(line for _, line in LINES),
    ]
    lines.insert(3, LimitLine(**values, **LIMIT))
    link, quota, end = (text for text, _ in LINES)
    texts = [
        f'{{"kind":"partitions",{key},"side":"leader","peer":2,"topic":"orders","block":0,"columns":'
        '{"partition":[5,7],"bytes_throttled":[100,0],"bytes_unthrottled":[20,1],"bytes_complete":[110,1],'
        '"bytes_cut":[10,0],"batches":[],"lag_messages":[null,4],"lag_ms":[1500,null]}}',
        link[:-1] + ',"away_seconds":null}',
        quota[:-1] + ',"mode":null}',
        f'{{"kind":"limit",{key},"client_id":"connector-consumer-s3-0","role":"sink","entry":"connector-*",'
        '"limit_group":"connector-consumer-s3-0","records":9990,"record_rate_avg":999.0,"record_rate_max":1025,'
        '"throttled_ratio":0.87,"share":0.5,"connector":"s3","task":0,"record_rate_limit":1000.0}',
        end[:-1] + ',"limits":0,"cluster_id":null,"client_bytes_in":null,"client_bytes_out":null}',
    ]
    assert encode_lines(lines).decode() == "".join(f"{text}\n" for text in texts)
    assert [decode_line(text) for text in texts] == lines


def test_columns_give_a_line_for_each_partition() -> None:
    columns = PartitionsLine(**KEY, side="leader", peer=2, topic="orders", block=0, columns=COLUMNS)
    link = LINES[0][1]
    shared: dict[str, Any] = {**KEY, "side": "leader", "peer": 2, "topic": "orders"}
    assert list(by_partition([columns, link])) == [
        PartitionLine(**shared, **BYTES, partition=5, batches=0, lag_seconds=1.5),
        PartitionLine(
            **shared,
            bytes_throttled=0,
            bytes_unthrottled=1,
            bytes_complete=1,
            bytes_cut=0,
            partition=7,
            batches=0,
            lag_messages=4,
        ),
        link,
    ]


def test_columns_of_unlike_lengths_are_refused() -> None:
    columns = msgspec.structs.replace(COLUMNS, bytes_cut=(3,))
    line = PartitionsLine(**KEY, side="leader", peer=2, topic="orders", block=0, columns=columns)
    with pytest.raises(ValueError, match="shorter"):
        list(line.rows())


NEWER = f'"schema":{SCHEMA_VERSION + 1},"min_reader"'


@pytest.mark.parametrize("change", [("", ""), ('"peer":2,', "")])
def test_line_only_newer_readers_understand_is_refused_as_such(change: tuple[str, str]) -> None:
    """Whether or not it would fit this one."""
    text = (
        LINES[0][0]
        .replace(f'"schema":{SCHEMA_VERSION},"min_reader":2', f"{NEWER}:{SCHEMA_VERSION + 1}")
        .replace(*change)
    )
    with pytest.raises(NewerSchema, match=f"schema {SCHEMA_VERSION + 1}.* {SCHEMA_VERSION}"):
        decode_line(text)


def test_line_of_a_newer_version_with_more_fields_is_read() -> None:
    text, line = LINES[0]
    newer = text.replace('"schema":3,"min_reader":2', f'{NEWER}:{SCHEMA_VERSION},"colour":"blue"')
    assert decode_line(newer) == msgspec.structs.replace(line, schema=SCHEMA_VERSION + 1, min_reader=SCHEMA_VERSION)


@pytest.mark.parametrize("text", ["", "{}", LINES[0][0].replace('"peer":2,', ""), LINES[0][0][:-1]])
def test_text_that_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_line(text)


def test_docs_describe_every_column_as_the_schema_does() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "samples.md").read_text(encoding="utf-8")
    sections = {section.partition("\n")[0]: section for section in docs.split("\n## ")[1:]}
    shared, carried = rows_of(sections["Every line"]), rows_of(sections["Bytes"])
    for line in KINDS:
        described = {
            column.name: f"{column.type}{' or null' if column.is_nullable else ''} | {column.description}"
            for column in columns(line)
        }
        rows = rows_of(sections[f"`{kind_of(line)}`"]) | shared
        if line is LinkLine:
            rows |= carried
        if line is PartitionsLine:
            rows |= {name: row for name, row in carried.items() if name in ("side", "peer")} | {
                f"columns.{name}": row.replace("int |", "list[int] |", 1)
                for name, row in carried.items()
                if name.startswith("bytes_")
            }
        assert rows == described
    assert f"version {SCHEMA_VERSION}" in docs


def rows_of(section: str) -> dict[str, str]:
    """The rows of a section's table, by the name of the column: its type and meaning."""
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE))

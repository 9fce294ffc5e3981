# SPDX-License-Identifier: Apache-2.0
"""Lines that are bad, one for each reason that docs/reports.md names."""

from __future__ import annotations

import json
import random
from typing import Any

_OF_ALL = (
    *("not_json", "no_object", "wrong_type", "newer_schema", "unknown_kind", "missing_field", "bad_time", "no_time"),
    *("negative_bytes", "too_long"),
)
_OF_COLUMNS = ("unlike_lengths", "null_value", "repeated_partition", "wrong_block", "negative", "null_columns")


def spoil(text: bytes, numbers: random.Random) -> bytes:
    """Return a line that cannot be read any more."""
    line: dict[str, Any] = json.loads(text)
    kind = str(line["kind"])
    how = numbers.choice(_OF_COLUMNS if kind == "partitions" and numbers.random() < 0.5 else _OF_ALL)
    if how == "not_json":
        return text[: numbers.randrange(1, len(text) - 2)] + b"\n"
    if how == "no_object":
        return b"[1]\n"
    if how in _OF_COLUMNS:
        _columns(line, how)
    elif how == "negative_bytes":
        if kind == "partitions":
            _columns(line, "negative")
        elif kind in ("partition", "link"):
            line["bytes_throttled"] = -1
        elif kind in ("quota", "limit"):
            line["bytes" if kind == "quota" else "records"] = -1
        else:
            line["client_bytes_out"] = -1
    elif how == "too_long":
        line["start_id"] = "x" * 3000
    else:
        changed: dict[str, dict[str, Any]] = {
            "wrong_type": {"broker_id": 1.5},
            "newer_schema": {"schema": 4, "min_reader": 4},
            "unknown_kind": {"kind": "comet"},
            "missing_field": {"start_id": None},
            "bad_time": {"end_utc": "yesterday"},
            "no_time": {"end_seconds": line["begin_seconds"]},
        }
        line |= changed[how]
    return json.dumps(line).encode() + b"\n"


def _columns(line: dict[str, Any], how: str) -> None:
    columns = line["columns"]
    count = len(columns["partition"])
    match how:
        case "unlike_lengths":
            columns["bytes_unthrottled"] = [1] * (count + 1)
        case "null_value":
            columns["bytes_unthrottled"] = [None] * count
        case "repeated_partition":
            line["columns"] = {name: list(column) * 2 for name, column in columns.items()}
        case "wrong_block":
            line["block"] += 1
        case "negative":
            columns["bytes_throttled"] = [-1] * count
        case _:
            line["columns"] = None

# SPDX-License-Identifier: Apache-2.0
"""What a job wrote, held against the oracle: in each table the same rows, floats to a part in a thousand million."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path, PurePath
from typing import Any

from tests.pipeline.oracle import accuracy, coverage, rates, spans
from tests.pipeline.oracle.lines import SHOWN, Day, read_day
from tests.pipeline.oracle.rates import Row
from tests.pipeline.oracle.world import BROKERS
from weir.pipeline.day_tables import QUARANTINE
from weir.pipeline.open_tables import OpenTables, published, table_folder
from weir.pipeline.tables import ALL_TABLES

TABLES: Mapping[str, Callable[[Day], Iterator[Row]]] = {
    function.__name__: function
    for function in (
        *(rates.partition_rates, rates.broker_rates, rates.broker_samples, rates.limits, rates.client_rates),
        *(accuracy.throttle_accuracy, accuracy.throttle_minutes),
        *(spans.moves, spans.replica_lag, spans.behind_minutes),
        *(coverage.coverage, coverage.absences, coverage.quarantine),
    )
}

_KEYS = (
    *("window_start", "window", "broker_id", "replica", "side", "throttled", "topic", "partition", "client_id"),
    *("quota_id", "start", "reason", "file", "line"),
)
_EACH = {"broker_samples": ("end",)}
_SHOWN = 3
_THOUSANDTHS = 0.000501


def differences(samples: Path, tables: Path, days: Sequence[date]) -> list[str]:
    """Return a text for each table and day that differs, with its first rows."""
    found = []
    written = _written(tables)
    for day in days:
        read = read_day(samples, day)
        for name, function in TABLES.items():
            rows = [_shown(row) for row in written[name] if row["date"] == day]
            wanted = [_shown(row) for row in function(read)]
            told = list(_compare(name, wanted, rows))
            if told:
                found.append("\n".join([f"{name} of {day}: {len(told)} of {len(wanted)} rows differ", *told[:_SHOWN]]))
    return found


def _written(tables: Path) -> dict[str, list[Row]]:
    found = {}
    with OpenTables(tables) as opened:
        for table in ALL_TABLES:
            opened.open(table, by_day=True)
            names = [*table.columns, "date"]
            columns = ", ".join(f'"{name}"' for name in names)
            query = f"SELECT {columns} FROM {table.name}"  # noqa: S608 - constants
            found[table.name] = [dict(zip(names, row, strict=True)) for row in opened.rows(query)]
        found[QUARANTINE] = []
        names = ["reason", "file", "line", "lines"]
        for folder, facts in published(tables).items():
            day = date.fromisoformat(folder.name.removeprefix("date="))
            files = list(map(str, table_folder(folder, facts, QUARANTINE).rglob("*.parquet")))
            query = "SELECT reason, file, line, lines FROM read_parquet($files)"
            for row in opened.rows(query, files=files) if files else []:
                found[QUARANTINE].append({**dict(zip(names, row, strict=True)), "date": day})
    return found


def _shown(row: Row) -> Row:
    """A row in a form that both have. Of a bad line what was read is shown: the same where it names what it is of."""
    found = {name: _naive(value) for name, value in row.items() if name != "date"}
    if "file" in found:
        found["file"] = found["file"] and PurePath(found["file"]).name
    if "line" in found and found["reason"] not in ("not_json", "wrong_type"):
        found["line"] = _key(found["line"])
    elif "line" in found:
        found["line"] = found["line"][:SHOWN]
    return found


def _naive(value: Any) -> Any:
    """Times as the tables have them, UTC without saying so."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


def _key(text: str) -> str:
    try:
        line = json.loads(text)
    except ValueError:
        return "cut"
    return "cut" if len(text) > SHOWN else str([line.get(name) for name in ("broker_id", "start_id", "sequence")])


def _compare(name: str, wanted: Iterable[Row], found: Iterable[Row]) -> Iterator[str]:
    columns = (*_KEYS, *_EACH.get(name, ()))
    by_key: defaultdict[tuple[Any, ...], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for number, rows in enumerate((wanted, found)):
        for row in rows:
            by_key[tuple(row.get(column) for column in columns)][number].append(row)
    for key, (ours, theirs) in sorted(by_key.items(), key=repr):
        if len(ours) != len(theirs):
            place = [value for value in key if value is not None]
            counts = f"{len(ours)} rows wanted, {len(theirs)} found"
            yield f"  {list(map(str, place))}: {counts} {_text((ours or theirs)[0])}"
            continue
        for one, other in zip(sorted(ours, key=repr), sorted(theirs, key=repr), strict=True):
            unlike = {
                column: (value, other.get(column))
                for column, value in one.items()
                if not _is_same(column, value, other.get(column))
            }
            if unlike:
                yield f"  {[str(value) for value in key if value is not None]}: wanted, found {_text(unlike)}"


def _is_same(column: str, one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        # rates are sums of rounded ones: a thousandth at most for each broker
        least = _THOUSANDTHS * len(BROKERS) if column.endswith("_per_second") else 1e-9
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=least)
    return one == other and (one is None or type(one) is type(other))


def _text(row: Row) -> str:
    return str(
        {name: str(value) if not isinstance(value, tuple) else tuple(map(str, value)) for name, value in row.items()}
    )

# SPDX-License-Identifier: Apache-2.0
"""A build with DuckDB, for clusters that one machine serves: it needs no Java, and no minute to begin."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb

from weir.pipeline.day_report import DayReport
from weir.pipeline.day_tables import QUARANTINE, day_tables
from weir.pipeline.days import Days, midnight
from weir.pipeline.duck.frame import DataFrame
from weir.pipeline.duck.read import is_by_day, read_lines
from weir.pipeline.engine import DUCKDB, on
from weir.pipeline.errors import BuildError
from weir.pipeline.lines import by_kind, of_days, parse
from weir.pipeline.one_day import BY_WINDOW, Day, build_day
from weir.pipeline.open_tables import connect
from weir.pipeline.runs import ORDER, LocalFiles, Runs, of_day
from weir.pipeline.tables import WINDOW_SECONDS
from weir.pipeline.whole import PARTIAL_SAMPLE, without_duplicates, without_partial

_PARQUET: Final = "FORMAT parquet, COMPRESSION zstd"


def build(
    source: Path, output: Path, first: date, until: date, *, allow_empty: bool = False, keep: timedelta | None = None
) -> Iterator[DayReport]:
    """Replace the tables of days as `weir.pipeline.build` does, from a folder of this machine into another."""
    days = Days.around(first, until)
    runs = Runs(LocalFiles(output))
    try:
        for together in days.each() if is_by_day(source) else [days]:
            yield from _build_together(source, output, runs, together, allow_empty)
        if keep is not None:
            runs.delete_before((midnight(days.until) - keep).date())
    except (duckdb.Error, OSError) as error:
        raise BuildError(f"the tables cannot be built: {str(error).splitlines()[0]}") from error


def _build_together(source: Path, output: Path, runs: Runs, days: Days, allow_empty: bool) -> list[DayReport]:
    with (
        tempfile.TemporaryDirectory(prefix="weir-build-") as spilled,
        on(DUCKDB),
        connect(temp_directory=spilled) as connection,
    ):
        lines, damaged = read_lines(connection, source, days)
        parsed: Any = _keep(parse(lines))  # type: ignore[arg-type]
        return [
            build_day(
                *(runs, day.first, of_days(parsed, day), damaged, allow_empty, _keep),
                partial(_write, output / of_day(day.first) / runs.run),
            )
            for day in days.each()
        ]


def _keep(frame: Any) -> Any:
    return frame.kept()


def _write(folder: Path, day: Day) -> dict[str, int]:
    lines = day.lines
    if day.report.quarantined.get(PARTIAL_SAMPLE):
        lines = without_partial(lines, day.found)
    if day.report.has_duplicates:
        lines = without_duplicates(lines)
    tables: Any = day_tables(by_kind(_keep(lines)), day.found, day.bad, _keep, 1)
    rows = {name: _write_table(folder / name, name, frame) for name, frame in tables.items()}
    return {name: count for name, count in rows.items() if name != QUARANTINE}


def _write_table(folder: Path, name: str, frame: DataFrame) -> int:
    """Write one file, or one for each kind of window; return the number of rows."""
    kept = frame.kept()
    there = kept.columns
    order = ", ".join(f'"{column}"' for column in ORDER if column in there) or "ALL"
    rows = 0
    for window in WINDOW_SECONDS if name in BY_WINDOW else (None,):
        of_window = kept if window is None else kept.where(f"\"window\" = '{window}'").drop("window")
        into = folder if window is None else folder / f"window={window}"
        into.mkdir(parents=True)
        file = str(into / "part-0.parquet").replace("'", "''")
        copied = f"COPY ({of_window.query} ORDER BY {order}) TO '{file}' ({_PARQUET})"
        rows += int(kept.connection.execute(copied).fetchone()[0])  # type: ignore[index]
    return rows

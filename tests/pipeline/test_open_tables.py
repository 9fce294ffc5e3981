# SPDX-License-Identifier: Apache-2.0
"""Which files are read, while jobs write tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.page.past import broker_minutes
from tests.pipeline.parquet import write
from weir.pipeline.open_tables import OpenTables, TablesError
from weir.pipeline.tables import BROKER_RATES, MOVES, POINTER

DAY = "date=2026-11-02"


def _run(tables: Path, run: str, rate: float) -> None:
    """Write a day as a run does, and have readers see it."""
    rows = broker_minutes(1, "leader", (rate, 0))
    write(tables / DAY / run, BROKER_RATES, rows)
    (tables / DAY / POINTER).write_text(json.dumps({"run": run}))


def _highest(opened: OpenTables) -> float:
    ((highest,),) = opened.rows("SELECT max(mean_bytes_per_second) FROM broker_rates")
    return float(highest)


def test_run_that_the_pointer_names_is_read_and_no_other(tmp_path: Path) -> None:
    _run(tmp_path, "b", 2)
    _run(tmp_path, "a", 1)
    with OpenTables(tmp_path) as opened:
        opened.open(BROKER_RATES, by_day=True)
        assert _highest(opened) == 1


def test_who_reads_while_a_day_is_replaced_reads_the_old_one(tmp_path: Path) -> None:
    _run(tmp_path, "a", 1)
    with OpenTables(tmp_path) as opened:
        _run(tmp_path, "b", 2)
        opened.open(BROKER_RATES)
        assert _highest(opened) == 1


def test_table_without_a_row_is_empty(tmp_path: Path) -> None:
    _run(tmp_path, "a", 1)
    with OpenTables(tmp_path) as opened:
        opened.open(MOVES, by_day=True)
        assert opened.rows('SELECT topic, start, "date" FROM moves') == []


def test_pointer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    _run(tmp_path, "a", 1)
    (tmp_path / DAY / POINTER).write_text("{")
    with pytest.raises(TablesError, match=f"{POINTER} cannot be read"):
        OpenTables(tmp_path)

"""Days that are built by hours: the same tables as of a day that is built at once."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.exported import NOON
from tests.pipeline.made_up import FIRST, made_up
from weir.pipeline.build import build
from weir.pipeline.day_tables import QUARANTINE
from weir.pipeline.open_tables import OpenTables, published, run_folders
from weir.pipeline.tables import ALL_TABLES

HOUR = timedelta(hours=1)
MIDNIGHT = NOON + timedelta(hours=12)


def _contents(tables: Path) -> dict[str, list[str]]:
    """All rows, as readers see them, sorted."""
    found = {}
    with OpenTables(tables) as opened:
        for table in ALL_TABLES:
            opened.open(table, by_day=True)
            names = ", ".join(f'"{name}"' for name in (*table.columns, "date"))
            found[table.name] = sorted(map(repr, opened.rows(f"SELECT {names} FROM {table.name}")))  # noqa: S608 - constants
        files = [
            str(file)
            for folder, facts in published(tables).items()
            for run in run_folders(folder, facts, QUARANTINE)
            for file in run.rglob("*.parquet")
        ]
        query = "SELECT reason, file, line, lines FROM read_parquet($files)"
        found[QUARANTINE] = sorted(map(repr, opened.rows(query, files=files)))
    return found


def _facts(tables: Path) -> list[dict[str, object]]:
    told = ("samples", "missing", "until", "clusters")
    return [{name: facts[name] for name in told} for facts in published(tables).values()]


@pytest.mark.parametrize("seed", [1])
def test_day_built_by_hours_is_that_built_at_once(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Four hours around midnight in any order, and one of them again, when samples of it have come late."""
    numbers = random.Random(seed)
    samples, by_hour, at_once = tmp_path / "samples", tmp_path / "by-hour", tmp_path / "at-once"
    first = FIRST.replace(minute=0)
    late = first + numbers.choice([1, 2]) * HOUR
    made = made_up(seed, MIDNIGHT + timedelta(minutes=25), late)
    made.write(samples, late=False)

    def run(tables: Path, since: datetime, until: datetime) -> None:
        for report in build(spark, str(samples), str(tables), since, until):
            assert not report.is_refused

    parts = [(first, first + HOUR), (first + HOUR, first + 3 * HOUR), (first + 3 * HOUR, MIDNIGHT + HOUR)]
    for part in numbers.sample(parts, len(parts)):
        run(by_hour, *part)
    made.write(samples, late=True)
    run(by_hour, late, late + HOUR)
    run(at_once, MIDNIGHT - timedelta(days=1), MIDNIGHT + timedelta(days=1))
    wanted, found = _contents(at_once), _contents(by_hour)
    for table, rows in wanted.items():
        assert rows, table
        assert found[table] == rows
    assert _facts(by_hour) == _facts(at_once)

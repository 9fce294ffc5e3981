# SPDX-License-Identifier: Apache-2.0
"""What is read for a page: its range, its columns, and what cannot be read."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.pipeline.page.past import TABLES, Past, broker_minutes, minutes, move, quota
from tests.pipeline.parquet import START, broker_rate, write
from weir.pipeline.open_tables import TablesError
from weir.pipeline.page.contents import Columns, Contents
from weir.pipeline.page.read import MOST_COLUMNS, columns_of, read_page
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import BROKER_RATES, MOVES, THROTTLE_ACCURACY


def _range(contents: Contents) -> tuple[datetime, datetime]:
    assert contents.columns is not None
    return contents.columns.since, contents.columns.until


@pytest.mark.long
def test_range_is_that_of_the_tables_where_none_is_asked_for(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1), (1, 1)))
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, window="hour"))
    folder = past.write()
    end = START + minutes(2)
    assert _range(read_page(folder, None, None, 9)) == (START, end)
    later = START + minutes(1)
    assert _range(read_page(folder, later, None, 9)) == (later, end)
    assert _range(read_page(folder, None, later, 9)) == (START, later)


@pytest.mark.long
def test_range_without_samples_is_empty_and_keeps_its_times(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    folder = past.write()
    far, day = START + timedelta(days=9), timedelta(days=1)
    for since, until, wanted in (
        (far, far + day, (far, far + day)),
        (far, None, (far, far + day)),
        (None, START - day, (START - 2 * day, START - day)),
    ):
        contents = read_page(folder, since, until, 9)
        assert contents.is_empty
        assert _range(contents) == wanted


@pytest.mark.long
def test_tables_without_rows_have_no_range(past: Past) -> None:
    folder = past.write()
    assert read_page(folder, None, None, 9) == Contents()
    assert _range(read_page(folder, START, None, 9)) == (START, START + timedelta(days=1))


@pytest.mark.long
def test_quotas_alone_have_a_range(past: Past) -> None:
    """A quota was in force, and nothing was fetched."""
    past.put(THROTTLE_ACCURACY, quota(START + minutes(1), START + minutes(4), mean=None))
    contents = read_page(past.write(), None, None, 9)
    assert _range(contents) == (START + minutes(1), START + minutes(4))
    assert (contents.accuracy.count, contents.brokers.count) == (1, 0)
    assert "The tables have no rows." not in page_of(contents, UTC)


@pytest.mark.parametrize(
    ("hours", "seconds", "count"),
    [(0.5, 60, 30), (1.6, 60, 96), (1.7, 120, 51), (24, 900, 96), (25, 1800, 50), (24 * 28, 43_200, 56)],
)
def test_columns_are_of_a_round_width(hours: float, seconds: int, count: int) -> None:
    columns = columns_of(START, START + timedelta(hours=hours))
    assert (columns.first, columns.seconds, columns.count) == (START, seconds, count)


def test_columns_cover_a_range_that_begins_and_ends_in_one() -> None:
    since, until = START + timedelta(minutes=7), START + timedelta(hours=23, minutes=53)
    assert columns_of(since, until) == Columns(since, until, START, 900, 96)


def test_columns_of_many_years_are_no_more() -> None:
    columns = columns_of(datetime(1990, 1, 1, tzinfo=UTC), START)
    assert columns.count <= MOST_COLUMNS
    assert columns.seconds % (7 * 86_400) == 0
    assert columns.first <= columns.since
    assert columns.first + timedelta(seconds=columns.seconds * columns.count) >= columns.until


@pytest.mark.long
def test_columns_are_no_narrower_than_the_windows_there_are(past: Past) -> None:
    past.put(BROKER_RATES, broker_rate(1, "leader", 60, window="hour"))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns == Columns(START, START + timedelta(hours=1), START, 3600, 1)
    assert contents.brokers.shown[0].unthrottled.means == (60,)


@pytest.mark.long
def test_only_the_files_of_days_in_the_range_are_read(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    folder = past.write()
    for table in TABLES:
        damaged = folder / table.name / "date=2026-10-01" / "part-0.parquet"
        damaged.parent.mkdir()
        damaged.write_text("no Parquet")
    assert read_page(folder, START, None, 9).brokers.count == 1
    with pytest.raises(TablesError, match="cannot be read"):
        read_page(folder, None, None, 9)


def test_missing_table_is_named(past: Past) -> None:
    past.put(MOVES, move(0, START, None))
    folder = past.write()
    shutil.rmtree(folder / MOVES.name)
    with pytest.raises(TablesError, match=r"has no table moves: no moves/\*\.parquet$"):
        read_page(folder, None, None, 9)


def test_table_that_is_half_written_is_said_in_one_line(past: Past) -> None:
    """A file that was cut, and one that a job has not finished."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    file = past.write() / BROKER_RATES.name / "date=2026-11-02" / "part-0.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(TablesError, match="broker_rates cannot be read: ") as raised:
        read_page(past.folder, None, None, 9)
    assert "\n" not in str(raised.value)
    unfinished = past.folder / BROKER_RATES.name / "_temporary"
    unfinished.mkdir()
    file.rename(unfinished / file.name)
    with pytest.raises(TablesError, match="has no table broker_rates"):
        read_page(past.folder, None, None, 9)


def test_folder_without_days_is_said(tmp_path: Path) -> None:
    for table in TABLES:
        write(tmp_path, table, [])
    with pytest.raises(TablesError, match=r"absences lacks date$"):
        read_page(tmp_path, START, None, 9)

"""Tables that a job replaces while somebody reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.history import read_history
from pipeline.open_tables import OpenTables, TablesError
from pipeline.page.read import read_page
from pipeline.tables import BROKER_RATES
from tests.pipeline.page.past import Past, broker_minutes
from tests.pipeline.parquet import START


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    past = Past(tmp_path)
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    return past.write()


def _begin_to_replace(tables: Path) -> None:
    """As the job does when it puts a day in its place."""
    marker = tables / "_weir" / f"ready-{START:%Y-%m-%d}"
    marker.parent.mkdir()
    marker.touch()


def _replace(tables: Path) -> None:
    file = next((tables / BROKER_RATES.name).rglob("*.parquet"))
    file.rename(file.with_name("part-1.parquet"))


def _read_page(tables: Path) -> object:
    return read_page(tables, None, None, 9)


def _read_history(tables: Path) -> object:
    return read_history(tables, replication_factor=3, last_seconds=60, policy="strict")


@pytest.mark.parametrize("read", [_read_page, _read_history])
def test_tables_that_are_being_replaced_are_not_mixed(tables: Path, read: Callable[[Path], object]) -> None:
    read(tables)
    _begin_to_replace(tables)
    with pytest.raises(TablesError, match=r"the tables of 2026-11-02 in .* are being replaced: wait"):
        read(tables)


@pytest.mark.parametrize(
    ("change", "sentence"), [(_begin_to_replace, "are being replaced: wait"), (_replace, "was replaced while it was")]
)
@pytest.mark.parametrize("asked_after", [False, True])
def test_tables_that_are_replaced_while_they_are_read_are_not_mixed(
    tables: Path, change: Callable[[Path], None], sentence: str, asked_after: bool
) -> None:
    """Be it before or after the last question, which may no longer find its file."""
    with pytest.raises(TablesError, match=sentence), OpenTables(tables) as opened:
        opened.open(BROKER_RATES)
        opened.rows("SELECT * FROM broker_rates")
        change(tables)
        if asked_after:
            opened.rows("SELECT * FROM broker_rates")

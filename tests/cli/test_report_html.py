# SPDX-License-Identifier: Apache-2.0
"""`weir report html`: the file that it writes, and what it says when it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commands import failing
from tests.pipeline.page.past import Past, broker_minutes, minutes, move
from tests.pipeline.parquet import START
from weir.cli.main import main
from weir.pipeline.tables import BROKER_RATES, MOVES


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    past = Past(tmp_path / "tables")
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1e6, 1e6), (2e6, 1e6)))
    past.put(MOVES, move(0, START, START + minutes(1)))
    return past.write()


def _html(tables: Path, *more: str) -> tuple[str, ...]:
    return ("report", "html", "--input", str(tables), "--output", str(tables.parent / "page.html"), *more)


@pytest.mark.long
def test_page_is_written_and_what_is_on_it_said(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tables.parent / "page.html"
    page.write_text("old")
    assert main(_html(tables)) == 0
    assert capsys.readouterr().out == (
        f"{page}: 1 broker, 0 partitions, 0 quotas, 1 move, 2026-11-02 00:00 UTC to 2026-11-02 00:02 UTC.\n"
    )
    assert "orders-0 on 3" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tables.parent.iterdir()) == ["page.html", "tables"]


@pytest.mark.long
def test_range_is_in_the_zone_of_the_page_or_in_its_own(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Berlin is an hour ahead: 01:01 there is 00:01 in UTC."""
    berlin = ("--timezone", "Europe/Berlin")
    for since, until in (("2026-11-02T01:01", "2026-11-03"), ("2026-11-02T00:01Z", "2026-11-03T00:00+01:00")):
        assert main(_html(tables, "--from", since, "--to", until, *berlin)) == 0
        assert capsys.readouterr().out.endswith(" 2026-11-02 01:01 CET to 2026-11-03 00:00 CET.\n")


@pytest.mark.long
def test_empty_range_is_a_page_too(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_html(tables, "--from", "2026-12-01", "--to", "2026-12-02")) == 0
    sentence = "Nothing was sampled from 2026-12-01 00:00 UTC to 2026-12-02 00:00 UTC."
    assert capsys.readouterr().out == f"{tables.parent / 'page.html'}: {sentence}\n"
    assert sentence in (tables.parent / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ("--timezone", "Mars/Base"),
            "--timezone: 'Mars/Base' is not a time zone: give it as in UTC or Europe/Berlin.",
        ),
        (("--timezone", "../x"), "--timezone: '../x' is not a time zone: give it as in UTC or Europe/Berlin."),
        (("--timezone", "Europe"), "--timezone: 'Europe' is not a time zone: give it as in UTC or Europe/Berlin."),
        (("--from", "soon"), "--from: 'soon' is not a time: give it as in 2026-11-02 or 2026-11-02T06:00."),
        (("--to", "0001-01-01"), "--to: '0001-01-01' is not in the years 1971 to 2999."),
        (("--to", "9998-12-31"), "--to: '9998-12-31' is not in the years 1971 to 2999."),
        (
            ("--from", "2026-11-03", "--to", "2026-11-03"),
            "--to: there is nothing from 2026-11-03 to before 2026-11-03.",
        ),
    ],
)
def test_option_of_another_form_is_wrong_usage(
    tables: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], sentence: str
) -> None:
    assert failing(capsys, *_html(tables, *more)) == (2, sentence)


@pytest.mark.long
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Niue"])
def test_longest_range_is_a_page(tables: Path, zone: str) -> None:
    for since, until in (("1971-01-01", "2999-12-31T23:59"), ("2999-12-31", None), (None, "1971-01-01")):
        given = [("--from", since)] * (since is not None) + [("--to", until)] * (until is not None)
        assert main(_html(tables, *(word for pair in given for word in pair if word), "--timezone", zone)) == 0


@pytest.mark.parametrize("top", ["0", "101", "all"])
def test_number_out_of_range_is_wrong_usage(tables: Path, capsys: pytest.CaptureFixture[str], top: str) -> None:
    status, sentence = failing(capsys, *_html(tables, "--top", top))
    assert status == 2
    assert sentence.startswith("Invalid value for '--top': ")


def test_folders_that_are_not_there_are_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert failing(capsys, *_html(missing)) == (2, f"--input: {missing} is no folder.")
    for output in (missing / "page.html", tmp_path):
        words = ("report", "html", "--input", str(tmp_path), "--output", str(output))
        assert failing(capsys, *words) == (2, f"--output: {output} is no file in a folder that exists.")


def test_folder_without_tables_fails_and_leaves_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    sentence = f"--input: {folder} has no table broker_rates: no broker_rates/*.parquet."
    assert failing(capsys, *_html(folder)) == (1, sentence)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.long
def test_page_that_cannot_be_written_is_said(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    page = tables.parent / "page.html"
    assert failing(capsys, *_html(tables)) == (1, f"{page} cannot be written: No space left on device.")


def test_without_duckdb_it_says_what_to_install(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    sentence = "--input: reading tables needs DuckDB: pip install 'kafka-weir[history]'."
    assert failing(capsys, *_html(tables)) == (1, sentence)

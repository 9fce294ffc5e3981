"""`weir report build` where it cannot do what was asked."""

from __future__ import annotations

import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import failing
from weir.cli.main import main

RANGE = ("--from", "2026-11-02", "--to", "2026-11-03")

needs_spark = pytest.mark.skipif(find_spec("pyspark") is None, reason="PySpark is not installed")


def _build(folder: Path, *more: str) -> tuple[str, ...]:
    return ("report", "build", "--input", str(folder / "samples"), "--output", str(folder / "tables"), *more)


def test_report_without_pyspark_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("weir.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("weir.pipeline", raising=False)  # the package holds what was imported from it, too
    for name in ("pyspark", "py4j", "py4j.protocol"):
        monkeypatch.setitem(sys.modules, name, None)
    status, sentence = failing(capsys, *_build(tmp_path, *RANGE))
    assert status == 1
    assert sentence.startswith("building tables needs PySpark (p")
    assert sentence.endswith("is not installed): pip install 'kafka-weir[pipeline]'.")


@needs_spark
@pytest.mark.parametrize("until", ["2026-11-02", "2026-11-01"])
def test_range_without_a_day_is_wrong_usage_before_spark_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, until: str
) -> None:
    started: list[str] = []
    monkeypatch.setattr("weir.cli.report._session", started.append)
    assert failing(capsys, *_build(tmp_path, "--from", "2026-11-02", "--to", until)) == (
        2,
        f"--to: there is nothing from 2026-11-02 to before {until}.",
    )
    assert started == []


@needs_spark
def test_report_of_no_day_is_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert failing(capsys, *_build(tmp_path, "--from", "yesterday", "--to", "2026-11-03")) == (
        2,
        "'yesterday' is not a day or an hour: give it in UTC, as 2026-11-02 or 2026-11-02T13.",
    )


@needs_spark
def test_keep_of_another_form_is_wrong_usage_before_spark_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, sentence = failing(capsys, *_build(tmp_path, *RANGE, "--keep", "long"))
    assert status == 2
    assert sentence.startswith("--keep: ")


@needs_spark
@pytest.mark.parametrize(("more", "status"), [((), 1), (("--allow-empty",), 0)])
def test_day_of_which_nothing_arrived_is_told_by_the_exit_status(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more: tuple[str, ...],
    status: int,
) -> None:
    from weir.pipeline.day_report import DayReport

    monkeypatch.setattr("weir.cli.report._session", lambda _: None)
    monkeypatch.setattr("weir.pipeline.build.build", lambda *_, **__: iter([DayReport(date(2026, 11, 2), silent=[3])]))
    monkeypatch.setattr("weir.pipeline.build.stop", lambda _: None)
    assert main(_build(tmp_path, *RANGE, *more)) == status
    said = capsys.readouterr()
    assert said.out == "2026-11-02: no samples; the tables of this day are empty, nothing came from broker 3\n"
    assert ("weir: no whole sample arrived of 2026-11-02: " in said.err) is bool(status)

"""`weir report build` where it cannot do what was asked."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import failing

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

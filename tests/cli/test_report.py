"""`weir report build` where it cannot do what was asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import failing
from weir.cli.main import main
from weir.cli.report import _is_small

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
    monkeypatch.setattr("weir.cli.report.start_spark", started.append)
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

    monkeypatch.setattr("weir.cli.report.start_spark", lambda *_: None)
    monkeypatch.setattr("weir.pipeline.build.build", lambda *_, **__: iter([DayReport(date(2026, 11, 2), silent=[3])]))
    monkeypatch.setattr("weir.pipeline.build.stop", lambda _: None)
    assert main(_build(tmp_path, *RANGE, *more)) == status
    said = capsys.readouterr()
    assert said.out == "2026-11-02: no samples; the tables of this day are empty, nothing came from broker 3\n"
    assert ("weir: no whole sample arrived of 2026-11-02: " in said.err) is bool(status)


@pytest.mark.parametrize(("size", "is_small"), [(0, True), (8_000_000, True), (8_000_001, False)])
def test_few_samples_of_the_days_are_small(tmp_path: Path, size: int, is_small: bool) -> None:
    """A file of another day does not count, and of what is no folder here nothing is known."""
    for day, length in (("2026-11-02", size), ("2026-12-24", 9_000_000)):
        file = tmp_path / f"date={day}" / "hour=12" / "one.jsonl.gz"
        file.parent.mkdir(parents=True)
        with file.open("wb") as written:
            written.truncate(length)
    days = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    assert _is_small(str(tmp_path), *days) is is_small
    assert not _is_small("kafka://host:1/topic", *days)


@needs_spark
def test_client_properties_of_a_topic_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def built(*_: object, **options: object) -> Iterator[object]:
        given.append(options["kafka"])
        return iter(())

    monkeypatch.setattr("weir.cli.report.start_spark", lambda *_: None)
    monkeypatch.setattr("weir.pipeline.build.build", built)
    monkeypatch.setattr("weir.pipeline.build.stop", lambda _: None)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism = PLAIN\n")
    assert main(_build(tmp_path, *RANGE, "--command-config", str(file))) == 0
    assert given == [{"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}]

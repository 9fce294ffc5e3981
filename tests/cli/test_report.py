# SPDX-License-Identifier: Apache-2.0
"""`weir report build` where it cannot do what was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import failing
from weir.cli.main import main
from weir.pipeline.day_report import DayReport

RANGE = ("--from", "2026-11-02", "--to", "2026-11-03")

needs_spark = pytest.mark.skipif(find_spec("pyspark") is None, reason="PySpark is not installed")


def _build(folder: Path, *more: str, engine: str = "spark") -> tuple[str, ...]:
    of = ("--input", str(folder / "samples"), "--output", str(folder / "tables"), "--engine", engine)
    return ("report", "build", *of, *more)


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
def test_keep_of_another_form_is_wrong_usage_before_any_spark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, sentence = failing(capsys, *_build(tmp_path, *RANGE, "--keep", "long"))
    assert status == 2
    assert sentence.startswith("--keep: ")


@needs_spark
@pytest.mark.parametrize(("more", "status"), [((), 1), (("--allow-empty",), 0)])
def test_day_of_which_nothing_arrived_is_told_by_exit_status(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more: tuple[str, ...],
    status: int,
) -> None:
    monkeypatch.setattr("weir.cli.report.start_spark", lambda *_: None)
    monkeypatch.setattr("weir.pipeline.build.build", lambda *_, **__: iter([DayReport(date(2026, 11, 2), silent=[3])]))
    monkeypatch.setattr("weir.pipeline.build.stop", lambda _: None)
    assert main(_build(tmp_path, *RANGE, *more)) == status
    said = capsys.readouterr()
    assert said.out == "2026-11-02: no samples; the tables of this day are empty, nothing came from broker 3\n"
    assert ("weir: no whole sample arrived of 2026-11-02: " in said.err) is bool(status)


@pytest.mark.parametrize(
    ("size", "source", "engine", "more", "chosen"),
    [
        (1000, "samples", "auto", (), "duckdb"),
        (1001, "samples", "auto", (), "spark"),
        (1000, "nowhere", "auto", (), "spark"),
        (1000, "samples", "auto", ("--master", "local[2]"), "spark"),
        (1000, "kafka://host:1/topic", "auto", (), "spark"),
        (1000, "samples", "spark", (), "spark"),
        (1001, "samples", "duckdb", (), "duckdb"),
        (1000, "kafka://host:1/topic", "duckdb", (), "--engine: DuckDB builds from a folder of this machine into "),
        (1000, "samples", "comet", (), "--engine: 'comet' is none of auto, duckdb, spark."),
    ],
)
@needs_spark
def test_small_days_of_this_machine_are_duckdbs(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: int,
    source: str,
    engine: str,
    more: tuple[str, ...],
    chosen: str,
) -> None:
    """A file of another day does not count."""
    for day, length in (("2026-11-02", size), ("2026-12-24", 9_000_000)):
        file = tmp_path / "samples" / f"date={day}" / "hour=12" / "one.jsonl.gz"
        file.parent.mkdir(parents=True)
        with file.open("wb") as written:
            written.truncate(length)
    started: list[str] = []

    def of(name: str) -> Callable[..., Iterator[DayReport]]:
        def built(*_: object, **__: object) -> Iterator[DayReport]:
            started.append(name)
            yield DayReport(date(2026, 11, 2), 1)

        return built

    monkeypatch.setattr("weir.cli.report.MOST_BYTES", 1000)
    monkeypatch.setattr("weir.cli.report.start_spark", lambda *_: None)
    monkeypatch.setattr("weir.pipeline.build.stop", lambda _: None)
    monkeypatch.setattr("weir.pipeline.build.build", of("spark"))
    monkeypatch.setattr("weir.pipeline.duck.build.build", of("duckdb"))
    where = source if "://" in source else str(tmp_path / source)
    status = main(("report", "build", "--input", where, "--output", str(tmp_path), "--engine", engine, *RANGE, *more))
    assert (status, started) == ((0, [chosen]) if chosen in ("duckdb", "spark") else (2, []))
    assert status == 0 or chosen in capsys.readouterr().err


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

# SPDX-License-Identifier: Apache-2.0
"""The job as a whole: days replaced, runs that are killed or meet another, and input that is not as it should be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.pipeline.exported import DAY, NOON, Sidecar, link, partition, quota, rows, write_lines
from tests.pipeline.job import Job
from tests.pipeline.light import JOBS, tables_of_day
from weir.pipeline.build import build
from weir.pipeline.day_report import DayReport, nothing_came
from weir.pipeline.day_tables import QUARANTINE, TABLES
from weir.pipeline.days import Days, parse_hour
from weir.pipeline.duck.read import read_lines
from weir.pipeline.engine import DUCKDB, SPARK
from weir.pipeline.errors import BuildError
from weir.pipeline.open_tables import connect
from weir.pipeline.runs import LocalFiles, Runs
from weir.pipeline.session import FILE_TASKS, SHUFFLE_TASKS, as_set
from weir.pipeline.storage import HadoopFiles, Output
from weir.pipeline.tables import MOVES

NEXT_DAY = DAY + timedelta(days=1)
HOUR = timedelta(hours=1)


def _sample(sidecar: Sidecar, size: int) -> bytes:
    begin = sidecar.monotonic
    return sidecar.sample(partition("t", 0, size), link(size), quota(100, int(begin), [5] * 10, begin, begin + 10.0))


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    spark = request.getfixturevalue("spark") if getattr(request, "param", SPARK) == SPARK else None
    with connect() as connection:
        yield Job(spark, tmp_path, connection)


@pytest.fixture
def light_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job, of few tables."""
    _make_light(monkeypatch)
    return job


def _make_light(patch: pytest.MonkeyPatch) -> None:
    for place in JOBS:
        patch.setattr(place, tables_of_day)


@pytest.mark.parametrize(("rows_of_a_task", "tasks"), [(1_000_000, None), (1, 5)])
@pytest.mark.parametrize("job", [SPARK], indirect=True)
def test_tables_of_a_day_have_as_many_tasks_as_their_rows_need(
    light_job: Job, monkeypatch: pytest.MonkeyPatch, rows_of_a_task: int, tasks: int | None
) -> None:
    """As many as there are cores for few rows; and afterwards the session is as it was."""
    settings = light_job.spark.conf
    monkeypatch.setattr("weir.pipeline.build.ROWS_OF_A_PLACE", rows_of_a_task)
    write, seen = Output.write, {}

    def written(self: Output, table: str, *of: Any, **more: Any) -> None:
        seen[table] = [settings.get(name, None) for name in (SHUFFLE_TASKS, FILE_TASKS)]
        write(self, table, *of, **more)

    monkeypatch.setattr(Output, "write", written)
    sidecar = Sidecar()
    light_job.export(b"".join(_sample(sidecar, 100) for _ in range(5)))
    with as_set(light_job.spark, {SHUFFLE_TASKS: 16}):
        settings.unset(FILE_TASKS)
        assert light_job.run()[0].samples == 5
        assert (settings.get(SHUFFLE_TASKS), settings.get(FILE_TASKS, None)) == ("16", None)
    cores = light_job.spark.sparkContext.defaultParallelism
    assert seen[MOVES.name] == ([str(tasks), None] if tasks else [str(cores)] * 2)


@pytest.mark.parametrize("job", [pytest.param(DUCKDB, marks=pytest.mark.long), SPARK], indirect=True)
def test_rerun_of_a_range_gives_the_same_tables(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both days, then each alone: a day's tables are those of its samples, and other days stay.

    On Spark both days have few tables first, then one of them all, twice. A sample of 12:59:55 lies in the folder of
    13:00. Before the last run it comes again, late, in a file of its own, and counts once. Afterwards Spark's session
    is as it was.
    """
    settings = job.settings()
    sidecar = Sidecar(now=NOON + timedelta(minutes=59, seconds=45))
    text = _sample(sidecar, 100)
    job.export(text + b"bad\n", hour=13)
    sidecar.now += timedelta(days=1)
    job.export(_sample(sidecar, 200), day=NEXT_DAY)
    if job.is_on_spark:
        with monkeypatch.context() as few:
            _make_light(few)
            both = job.run(days=2)
        assert [of.samples for of in both] == [1, 1]
        (first,) = job.run()
    else:
        first, second = job.run(days=2)
        assert second.samples == 1
    assert first == DayReport(
        DAY,
        1,
        0,
        False,
        1,
        False,
        {"partition_rates": 2, "broker_rates": 4, "throttle_accuracy": 1, "throttle_minutes": 1, "moves": 0}
        | {"replica_lag": 0, "behind_minutes": 0, "broker_samples": 2, "limits": 0, "client_rates": 0}
        | {"coverage": 1, "absences": 0},
        {"not_json": 1},
        brokers=[1],
    )
    before = job.contents(), job.contents(NEXT_DAY)
    assert [row[-1] for row in before[0]["partition_rates"]] == [100, 100]
    assert [row[-1] for row in before[1]["partition_rates"]] == [200, 200]
    _assert_files(job.tables / f"date={DAY}" / job.current())
    assert not job.is_on_spark or {f"weir: {DAY} {table}" for table in TABLES} <= job.descriptions()
    if not job.is_on_spark:
        job.run(NEXT_DAY)
        assert (job.contents(), job.contents(NEXT_DAY)) == before
    job.export(text, "late", hour=12)
    assert job.run() == [replace(first, has_duplicates=True)]
    assert (job.contents(), job.contents(NEXT_DAY)) == before
    assert sorted(path.name for path in job.tables.iterdir()) == [f"date={DAY}", f"date={NEXT_DAY}"]
    assert job.settings() == settings


def _assert_files(folder: Path) -> None:
    """Each table is a file or two, with times that have statistics."""
    assert max(len(list((folder / table).rglob("*.parquet"))) for table in TABLES) == 2
    with duckdb.connect(":memory:") as connection:
        (file,) = (folder / "coverage").glob("*.parquet")
        query = "SELECT compression, stats_min_value FROM parquet_metadata(?) WHERE path_in_schema = 'window_start'"
        ((codec, least),) = connection.execute(query, [str(file)]).fetchall()
        (file,) = (folder / "broker_samples").glob("*.parquet")
        sides = connection.read_parquet(str(file)).project("side").fetchall()
    assert sides == sorted(sides)
    assert codec == "ZSTD"
    assert least.startswith("2026-11-02 12:59:00")


def test_day_ends_at_midnight_utc_whatever_the_samples_folder(light_job: Job, elsewhere: None) -> None:
    sidecar = Sidecar(now=NOON.replace(hour=23, minute=59, second=45))
    light_job.export(_sample(sidecar, 1) + _sample(sidecar, 2), hour=23)  # 23:59:55, and 00:00:05 of the next day
    light_job.export(_sample(Sidecar(2, NOON.replace(hour=23, minute=59, second=50)), 3), day=NEXT_DAY, hour=0)
    one, two = light_job.run(days=2)
    assert (one.samples, two.samples) == (2, 1)
    assert [row[-1] for row in light_job.contents(NEXT_DAY)["partition_rates"]] == [2, 2]


def test_empty_range_says_so_and_writes_empty_tables(job: Job) -> None:
    job.export(_sample(Sidecar(), 1))
    far = DAY + timedelta(days=9)
    (report,) = job.run(far)
    assert report.sentence() == "2026-11-11: no samples; the tables of this day are empty"
    assert job.contents(far) == {table: [] for table in TABLES}


def test_brokers_that_sent_nothing_are_named_as_are_empty_days(light_job: Job) -> None:
    """Broker 2 was there the day before, and on the day after nobody was."""
    sidecars = [Sidecar(broker_id) for broker_id in (1, 2)]
    light_job.export(b"".join(_sample(sidecar, 1) for sidecar in sidecars))
    sidecars[0].now += timedelta(days=1)
    light_job.export(_sample(sidecars[0], 1), day=NEXT_DAY)
    reports = light_job.run(days=3)
    assert [(report.brokers, report.silent) for report in reports] == [([1, 2], []), ([1], [2]), ([], [1])]
    assert ", nothing came from broker 2" in reports[1].sentence()
    assert reports[2].sentence().endswith("the tables of this day are empty, nothing came from broker 1")
    assert nothing_came(reports[:2]) is None
    assert (nothing_came(reports) or "").startswith(
        "no whole sample arrived of 2026-11-04: sidecars export some at all"
    )


def test_days_that_are_older_than_what_is_kept_are_deleted(light_job: Job) -> None:
    light_job.export(_sample(Sidecar(), 1))
    for back in (1, 2, 3):
        (light_job.tables / f"date={DAY - timedelta(days=back)}" / "run").mkdir(parents=True)
    light_job.run(keep=timedelta(days=2))
    days = sorted(path.name for path in light_job.tables.iterdir())
    assert days == [f"date={DAY - timedelta(days=1)}", f"date={DAY}"]


@pytest.mark.oldest_spark
def test_file_that_was_cut_short_gives_what_is_whole(light_job: Job) -> None:
    """Two gzip members, a sample each; the second is cut, and so is its sample. A file beside it is no gzip at all."""
    sidecar = Sidecar()
    members = [gzip.compress(_sample(sidecar, 100)), gzip.compress(_sample(sidecar, 200))]
    cut = light_job.export(b"", "cut")
    cut.write_bytes(members[0] + members[1][:-30])
    no_gzip = light_job.export(b"", "none")
    no_gzip.write_bytes(_sample(sidecar, 300))
    light_job.export(_sample(sidecar, 400), "whole")
    (report,) = light_job.run()
    assert report.samples == 2
    assert report.damaged == [f"file://{cut}", f"file://{no_gzip}"]
    assert report.sentence().endswith(
        f"file://{cut} is damaged and was read in part, file://{no_gzip} is damaged and was read in part"
    )
    assert [row[-1] for row in light_job.contents()["partition_rates"]] == [500, 500]
    assert rows(light_job.table(QUARANTINE), "reason", "file") == [
        ("damaged_file", f"file://{cut}"),
        ("damaged_file", f"file://{no_gzip}"),
        ("partial_sample", None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("job", [DUCKDB], indirect=True)
def test_numbers_without_measure_fail_no_build(job: Job) -> None:
    lines = [
        *Sidecar(2**40).sample(partition("t", 0, 2**53), link(2**53)).splitlines(),
        *Sidecar(1).sample(quota(2**53, 2**53, [2**49] * 9, -1e12, 1e12), link(1)).splitlines(),
        *Sidecar(4).sample(partition("t", 0, 2**62, throttled=2**62)).splitlines(),
        *Sidecar(2, monotonic=9e11).sample(partition("t", 0, 1, lag=(2**53, 9e12)), link(1)).splitlines(),
        *Sidecar(3).sample(quota(1, 1000, [1], -9e12, 1010.0), partition("t", 2**50, 1)).splitlines(),
    ]
    job.export(b"\n".join(lines))
    (report,) = job.run()
    assert report.quarantined["wrong_type"] == 2


def test_unfinished_file_is_not_read(light_job: Job) -> None:
    path = light_job.export(_sample(Sidecar(), 1))
    path.rename(path.with_name(".one.tmp"))
    (report,) = light_job.run()
    assert report.samples == 0


@pytest.mark.oldest_spark
def test_input_that_is_not_there_is_named(job: Job) -> None:
    with pytest.raises(BuildError, match=r"there is no .*samples"):
        job.run()


@pytest.mark.oldest_spark
@pytest.mark.parametrize("job", [SPARK], indirect=True)
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("kafka://localhost:1", "is not of the form kafka://host:port/topic"),
        ("kafka://localhost:1/t", "cannot be read: .*kafka"),
        ("comet://x/y", "cannot be read: .*comet"),
    ],
)
def test_input_that_cannot_be_read_is_named(job: Job, source: str, sentence: str) -> None:
    with pytest.raises(BuildError, match=sentence):
        list(build(job.spark, source, str(job.tables), DAY, NEXT_DAY))


def test_range_without_a_day_is_refused(job: Job) -> None:
    with pytest.raises(BuildError, match="there is nothing from 2026-11-02 to before 2026-11-02"):
        job.run(days=0)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-31", "2026-11-2", "2026-11-02T24", "2026-11-02T05:30"])
def test_time_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="is not a day or an hour"):
        parse_hour(text)


@pytest.mark.oldest_spark
def test_killed_run_changes_nothing_and_a_later_one_clears_up(light_job: Job) -> None:
    """Killed just before it would have published, it leaves a folder that readers do not look into."""
    sidecar = Sidecar()
    light_job.export(_sample(sidecar, 100))
    light_job.run()
    before = light_job.contents()
    light_job.export(_sample(sidecar, 200), "late")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Runs, "publish", _killed)
        patched.setattr(HadoopFiles, "delete", lambda *_: None)
        patched.setattr(LocalFiles, "delete", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            light_job.run()
    assert light_job.contents() == before
    assert len(light_job.runs()) == 2
    light_job.run()
    assert [row[-1] for row in light_job.contents()["partition_rates"]] == [300, 300]
    later = light_job.output(lambda: datetime.now(UTC) + timedelta(days=2))
    with later.day(DAY):
        for _ in range(2):  # what the pointer before named stays
            later.publish(DAY, {})
    assert light_job.runs() == []  # the killed one and those before it are gone; the later one wrote nothing


def test_tables_of_the_run_before_stay_for_those_who_read_them(light_job: Job) -> None:
    light_job.export(_sample(Sidecar(), 100))
    runs = []
    for _ in range(3):
        light_job.run()
        runs.append(light_job.current())
    assert sorted(path.name for path in light_job.runs()) == sorted(runs[1:])


def test_run_that_fails_leaves_nothing(light_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    light_job.export(_sample(Sidecar(), 100))
    monkeypatch.setattr(Runs, "publish", _killed)
    with pytest.raises(KeyboardInterrupt):
        light_job.run()
    assert [path for path in light_job.tables.rglob("*") if path.is_file()] == []


def test_tables_of_samples_are_not_replaced_by_empty_ones(light_job: Job) -> None:
    """The samples have expired, or no line of them can be read: the day is refused unless that is wanted."""
    file = light_job.export(_sample(Sidecar(), 100))
    light_job.run()
    before = light_job.contents()
    for text in (b"", b"no sample\n"):
        write_lines(file, text)
        (report,) = light_job.run()
        assert report.is_refused
        assert "its tables stay as they were (--allow-empty replaces them)" in report.sentence()
        assert light_job.contents() == before
    (report,) = light_job.run(allow_empty=True)
    assert (report.is_refused, light_job.contents()["partition_rates"]) == (False, [])


@pytest.mark.oldest_spark
def test_hour_of_samples_is_not_replaced_by_an_empty_one(light_job: Job) -> None:
    """The samples of one hour have expired: the day stays as it was, though others have come."""
    sidecars = [Sidecar(now=NOON.replace(hour=hour), start_id=f"{hour}") for hour in (12, 13)]
    files = [light_job.export(_sample(sidecar, 1), hour=sidecar.now.hour) for sidecar in sidecars]
    light_job.run()
    files[1].unlink()
    (report,) = light_job.run()
    assert (report.is_refused, report.lost_hours) == (True, [13])
    assert "1 samples, none is left of the hours from 13:00, so its tables stay as they were" in report.sentence()
    assert light_job.facts()["samples"] == 2
    (report,) = light_job.run(allow_empty=True)
    assert (report.is_refused, light_job.facts()["samples"]) == (False, 1)


def test_range_of_hours_builds_the_days_that_it_lies_in(light_job: Job) -> None:
    """From 23:00 to 01:00: both days, all of them."""
    for day in (DAY, NEXT_DAY):
        light_job.export(_sample(Sidecar(now=NOON + (day - DAY)), 7), day=day)
    evening = NOON.replace(hour=23)
    reports = light_job.build(evening, evening + 2 * HOUR)
    assert [(report.day, report.samples) for report in reports] == [(DAY, 1), (NEXT_DAY, 1)]
    assert [report.day for report in light_job.build(evening, evening + HOUR)] == [DAY]


def test_run_does_not_replace_what_one_that_began_later_made(light_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs end before one that began first, and have read a sample more."""
    light_job.export(_sample(Sidecar(), 1))
    publish = Runs.publish
    first: list[str] = []

    def late(output: Runs, *of: Any) -> None:
        if not first:
            first.append(output.run)
            light_job.export(_sample(Sidecar(2), 2), "late")
            light_job.run()
            light_job.run()
        publish(output, *of)

    monkeypatch.setattr(Runs, "publish", late)
    light_job.run()
    assert light_job.facts()["samples"] == 2
    assert len(light_job.runs()) == 2
    assert first[0] not in [path.name for path in light_job.runs()]


def test_folders_of_other_days_are_not_read(light_job: Job) -> None:
    """A file of another day that cannot be read fails that day alone."""
    light_job.export(_sample(Sidecar(), 100))
    unreadable = light_job.export(b"", day=DAY + timedelta(days=2))
    unreadable.unlink()
    unreadable.mkdir()
    assert [report.samples for report in light_job.run()] == [1]


def test_days_in_no_folders_are_read_once(light_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar()
    texts = [_sample(sidecar, 1)]
    sidecar.now += timedelta(days=1)
    texts.append(_sample(sidecar, 2))
    write_lines(light_job.samples / "all.jsonl.gz", b"".join(texts))
    read, asked = read_lines, []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[2])
        return read(*arguments)

    monkeypatch.setattr("weir.pipeline.duck.build.read_lines", counted)
    assert [report.samples for report in light_job.run(days=2)] == [1, 1]
    assert asked == [Days(DAY, DAY + timedelta(days=2))]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt

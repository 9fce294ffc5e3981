"""The job as a whole: days replaced, runs that are killed or meet another, and input that is not as it should be."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline import storage
from pipeline.build import QUARANTINE, TABLES, DayReport, build, parse_day
from pipeline.errors import BuildError
from pipeline.read import Lines
from pipeline.storage import DEAD_AFTER_SECONDS, SETTLE_SECONDS, Output, _started
from tests.pipeline.exported import DAY, NOON, Sidecar, link, partition, quota, rows, write_lines

NEXT_DAY = DAY + timedelta(days=1)


def _sample(sidecar: Sidecar, size: int) -> bytes:
    begin = sidecar.monotonic
    return sidecar.sample(partition("t", 0, size), link(size), quota(100, int(begin), [5] * 10, begin, begin + 10.0))


class Job:
    """A folder of samples, one of tables, and the job between them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.samples = folder / "samples"
        self.tables = folder / "tables"

    def export(self, text: bytes, name: str = "one", day: date = DAY, hour: int = 12) -> Path:
        path = self.samples / f"date={day}" / f"hour={hour:02}" / f"{name}.jsonl.gz"
        write_lines(path, text)
        return path

    def run(self, first: date = DAY, days: int = 1) -> list[DayReport]:
        return list(build(self.spark, str(self.samples), str(self.tables), first, first + timedelta(days=days)))

    def run_killed(self, step: str, killed: Callable[..., None]) -> None:
        """Run until `killed`, which stands for this step of Output, ends it; the next run finds what it left."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Output, step, killed)
            with pytest.raises(KeyboardInterrupt):
                self.run()
        self.run(NEXT_DAY)

    def contents(self, day: date = DAY) -> dict[str, list[Any]]:
        """All rows of a day's tables, sorted; quarantined files without their folder."""
        found = {}
        for table in TABLES:
            frame = self.spark.read.parquet(str(self.tables / table / f"date={day}"))
            found[table] = rows(frame, *(name for name in frame.columns if name != "file"))
        return found

    def lock(self, **owner: object) -> Path:
        path = self.tables / "_weir" / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(owner))
        path.with_name(".lock.crc").unlink(missing_ok=True)  # Hadoop's, of the lock that was there
        return path


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


@pytest.fixture
def light_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose tables, all but partition_rates, hold nothing but the number of lines.

    For tests of how tables are written, whatever is in them: Spark plans the real ones for seconds.
    """

    def counted(lines: Lines, *_: object) -> DataFrame:
        return lines.partitions.agg(F.count("*").alias("lines"))

    for made in ("broker_rates", "throttle_accuracy", "limits", "replicas_behind", "behind_spans"):
        monkeypatch.setattr(f"pipeline.build.{made}", counted)
    for made in ("moves", "replica_lag"):
        monkeypatch.setattr(f"pipeline.build.{made}", lambda spans: spans)
    return job


def test_rerun_of_a_range_gives_the_same_tables(job: Job) -> None:
    """Both days, then each alone: a day's tables are those of its samples, and other days stay."""
    sidecar = Sidecar()
    job.export(_sample(sidecar, 100) + b"bad\n")
    sidecar.now += timedelta(days=1)
    job.export(_sample(sidecar, 200), day=NEXT_DAY)
    first, second = job.run(days=2)
    assert first == DayReport(
        DAY,
        1,
        0,
        False,
        {"partition_rates": 2, "broker_rates": 4, "throttle_accuracy": 1, "moves": 0, "replica_lag": 0, "limits": 0},
        {"not_json": 1},
    )
    assert second.samples == 1
    before = job.contents(), job.contents(NEXT_DAY)
    assert [row[-1] for row in before[0]["partition_rates"]] == [100, 100]
    job.run(NEXT_DAY)
    assert job.run() == [first]
    assert (job.contents(), job.contents(NEXT_DAY)) == before
    assert sorted(path.name for path in job.tables.iterdir()) == sorted(["_weir", *TABLES])
    assert list((job.tables / "_weir").glob("[!.]*")) == []


def test_late_and_repeated_samples_are_counted_once(job: Job) -> None:
    """A sample of 12:59:55 lies in the folder of 13:00, and comes again, late, in a file of its own."""
    sidecar = Sidecar(now=NOON + timedelta(minutes=59, seconds=45))
    text = _sample(sidecar, 100)
    job.export(text, hour=13)
    (first,) = job.run()
    before = job.contents()
    job.export(text, "late", hour=12)
    (second,) = job.run()
    assert (first.has_duplicates, second.has_duplicates) == (False, True)
    assert job.contents() == before


def test_day_ends_at_midnight_utc_whatever_folder_a_sample_lies_in(job: Job, elsewhere: None) -> None:
    sidecar = Sidecar(now=NOON.replace(hour=23, minute=59, second=45))
    job.export(_sample(sidecar, 1) + _sample(sidecar, 2), hour=23)  # 23:59:55, and 00:00:05 of the next day
    one, two = job.run(days=2)
    assert (one.samples, two.samples) == (1, 1)
    assert [row[-1] for row in job.contents(NEXT_DAY)["partition_rates"]] == [2, 2]


def test_empty_range_says_so_and_writes_empty_tables(job: Job) -> None:
    job.export(_sample(Sidecar(), 1))
    far = DAY + timedelta(days=9)
    (report,) = job.run(far)
    assert report.sentence() == "2026-11-11: no samples; the tables of this day are empty"
    assert job.contents(far) == {table: [] for table in TABLES}


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
    assert rows(light_job.spark.read.parquet(str(light_job.tables / QUARANTINE)), "reason", "file") == [
        ("damaged_file", f"file://{cut}"),
        ("damaged_file", f"file://{no_gzip}"),
        ("partial_sample", None),
    ]


def test_unfinished_file_is_not_read(light_job: Job) -> None:
    path = light_job.export(_sample(Sidecar(), 1))
    path.rename(path.with_name(".one.tmp"))
    (report,) = light_job.run()
    assert report.samples == 0


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere", "there is no .*nowhere"),
        ("kafka://localhost:1", "is not of the form kafka://host:port/topic"),
        ("kafka://localhost:1/t", "cannot be read: .*kafka"),
        ("comet://x/y", "cannot be read: .*comet"),
    ],
)
def test_input_that_cannot_be_read_is_named(job: Job, tmp_path: Path, source: str, sentence: str) -> None:
    path = source if "://" in source else str(tmp_path / source)
    with pytest.raises(BuildError, match=sentence):
        list(build(job.spark, path, str(job.tables), DAY, NEXT_DAY))


def test_range_without_a_day_is_refused(job: Job) -> None:
    with pytest.raises(BuildError, match="there is no day from 2026-11-02 to before 2026-11-02"):
        job.run(days=0)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-31", "2026-11-02T05"])
def test_day_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="is not a day"):
        parse_day(text)


def test_run_killed_while_tables_are_moved_is_carried_on_by_the_next(light_job: Job) -> None:
    """The next run is of another day, and yet it finishes the tables of the killed run."""
    sidecar = Sidecar()
    light_job.export(_sample(sidecar, 100))
    light_job.run()
    light_job.export(_sample(sidecar, 200), "late")
    replace, left = Output._replace, iter([1, 1, 0])

    def killed(self: Output, staged: Any, target: Any) -> None:
        if not next(left):
            raise KeyboardInterrupt
        replace(self, staged, target)

    light_job.run_killed("_replace", killed)
    carried_on = light_job.contents()
    assert [row[-1] for row in carried_on["partition_rates"]] == [300, 300]
    light_job.run()
    assert light_job.contents() == carried_on


def test_run_killed_in_the_middle_of_a_folder_is_carried_on_by_the_next(light_job: Job) -> None:
    """A store of objects renames a folder file by file: neither what was moved nor what was left may be lost."""
    light_job.export(_sample(Sidecar(), 100))
    light_job.run()
    before = light_job.contents()

    def killed(self: Output, staged: Any, target: Any) -> None:
        place = Path(target.toUri().getPath())
        shutil.rmtree(place)
        place.mkdir()
        for file in Path(staged.toUri().getPath()).glob("part-*"):
            file.rename(place / file.name)
        raise KeyboardInterrupt

    light_job.run_killed("_replace", killed)
    assert light_job.contents() == before
    assert (light_job.tables / TABLES[0] / f"date={DAY}" / "_SUCCESS").exists()


def test_marker_that_was_not_written_to_its_end_moves_nothing(light_job: Job) -> None:
    light_job.export(_sample(Sidecar(), 100))
    light_job.run()
    before = light_job.contents()
    work = light_job.tables / "_weir"
    (work / "staging" / TABLES[0] / f"date={DAY}").mkdir(parents=True)
    (work / "staging" / TABLES[0] / f"date={DAY}" / "part-0").touch()
    (work / f"ready-{DAY}").touch()
    light_job.run(NEXT_DAY)
    assert light_job.contents() == before
    assert list(work.glob("[!.]*")) == []


def test_run_killed_before_all_tables_are_there_changes_nothing(light_job: Job) -> None:
    sidecar = Sidecar()
    light_job.export(_sample(sidecar, 100))
    light_job.run()
    before = light_job.contents()
    light_job.export(_sample(sidecar, 200), "late")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    light_job.run_killed("commit", killed)
    assert light_job.contents() == before


def test_table_that_another_run_is_writing_is_refused(job: Job) -> None:
    """By a process of this machine that lives, however long it was silent, or by one elsewhere that was heard of."""
    job.export(_sample(Sidecar(), 100))
    pid = os.getppid()
    for started in ({}, {"started": _started(pid)}):
        lock = job.lock(host=socket.gethostname(), pid=pid, **started)
        long_ago = time.time() - 2 * DEAD_AFTER_SECONDS
        os.utime(lock, (long_ago, long_ago))
        with pytest.raises(BuildError, match=f"another run is writing .*: process {pid} on"):
            job.run()
    job.lock(host="elsewhere", pid=7)
    with pytest.raises(BuildError, match=r"process 7 on elsewhere, which gave a sign of life [0-9] s ago"):
        job.run()


def test_lock_of_a_killed_run_is_taken_over(light_job: Job) -> None:
    """It names a process of this machine that is gone, or one elsewhere that has been silent for long.

    Another process of this machine may have its number. The lines that the first had kept are deleted.
    """
    light_job.export(_sample(Sidecar(), 100))
    left = light_job.lock(host=socket.gethostname(), pid=2**22 + 1).parent / "kept-lines-once"  # more than Linux gives
    left.mkdir()
    assert light_job.run()[0].samples == 1
    assert not left.exists()
    light_job.lock(host=socket.gethostname(), pid=os.getppid(), started="0 another-boot")
    assert light_job.run()[0].samples == 1
    lock = light_job.lock(host="elsewhere", pid=7)
    long_ago = time.time() - 2 * DEAD_AFTER_SECONDS
    os.utime(lock, (long_ago, long_ago))
    assert light_job.run()[0].samples == 1
    assert not lock.exists()


def test_silence_is_measured_by_the_clock_of_the_file_system(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of this machine is ahead by an hour; of what was looked at nothing is left."""
    job.lock(host="elsewhere", pid=7)
    an_hour_ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: an_hour_ahead)
    with pytest.raises(BuildError, match="process 7 on elsewhere"):
        job.run()
    assert [path.name for path in (job.tables / "_weir").glob("[!.]*")] == ["lock"]


def test_run_that_another_has_taken_over_moves_no_tables(light_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was silent for too long: the lock is the other's, and stays."""
    light_job.export(_sample(Sidecar(), 100))
    light_job.run()
    before = light_job.contents()
    light_job.export(_sample(Sidecar(), 200), "late")
    stage = Output.stage

    def taken_over(self: Output, table: str, day: date, frame: DataFrame) -> int:
        light_job.lock(host="elsewhere", pid=7, run="another")
        return stage(self, table, day, frame)

    monkeypatch.setattr(Output, "stage", taken_over)
    with pytest.raises(BuildError, match="another run has taken over"):
        light_job.run()
    assert light_job.contents() == before
    assert json.loads((light_job.tables / "_weir" / "lock").read_text())["run"] == "another"


def test_of_two_that_create_the_lock_one_writes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a store of objects, where both succeed: who finds the other's name in it is refused."""
    settled = []

    def both(seconds: float) -> None:
        settled.append(seconds)
        job.lock(host="elsewhere", pid=7, run="another")

    monkeypatch.setattr(storage, "_CREATE_EXCLUSIVELY", frozenset({"hdfs"}))
    monkeypatch.setattr(storage, "sleep", both)
    with pytest.raises(BuildError, match="another run is writing"):
        job.run()
    assert settled == [SETTLE_SECONDS]
    assert json.loads((job.tables / "_weir" / "lock").read_text())["run"] == "another"

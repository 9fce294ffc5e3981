# SPDX-License-Identifier: Apache-2.0
"""Samples in files: whole or not there, within the bound, and never in the way of anything."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.clock import MovedClock
from tests.proxy.exporting import START_ID, counted, sample, until
from tests.sample_files import finished_files, lines_in, unfinished_files
from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.admin.troubles import troubles
from weir.proxy.export import files as export_files
from weir.proxy.export.files import MOST_WAITING, FileSink, Folder
from weir.proxy.export.sample import ExportStats, Sample
from weir.proxy.log import EventLog
from weir.quota.topic_names import TopicNames

HOUR = "date=2026-01-31/hour=23"


def folder(
    directory: Path,
    clock: MovedClock | None = None,
    start_id: str = START_ID,
    broker_id: int = 1,
    max_disk_bytes: int = 1_000_000,
    rotate_bytes: int = 100_000,
) -> Folder:
    return Folder(directory, broker_id, start_id, max_disk_bytes, 300.0, rotate_bytes, clock or MovedClock())


def sequences(directory: Path) -> list[int]:
    return [line.sequence for line in lines_in(directory)]


def names(files: list[Path]) -> list[str]:
    return [f"{file.parent.parent.name}/{file.parent.name}/{file.name}" for file in files]


def test_file_is_hidden_until_it_is_finished(tmp_path: Path) -> None:
    """Without a sample there is none, and it is not for everybody."""
    written = folder(tmp_path)
    written.finish()
    assert list(tmp_path.iterdir()) == []
    written.write(sample(1))
    written.write(sample(2))
    assert finished_files(tmp_path) == []
    assert names(unfinished_files(tmp_path)) == [f"{HOUR}/.broker-1-{START_ID}-00000001.tmp"]
    written.finish()
    assert names(finished_files(tmp_path)) == [f"{HOUR}/broker-1-{START_ID}-00000001-2.jsonl.gz"]
    assert [file.stat().st_mode & 0o007 for file in finished_files(tmp_path)] == [0]
    assert unfinished_files(tmp_path) == []
    assert sequences(tmp_path) == [1, 2]


def test_leftover_that_is_no_file_of_ours_is_left_as_it_is(tmp_path: Path) -> None:
    """Whoever may write into the directory has no file outside of it cut, and keeps no sidecar from its start."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    hour = tmp_path / "samples" / HOUR
    hour.mkdir(parents=True)
    (hour / ".broker-1-a-00000001.tmp").symlink_to(precious)
    (hour / ".broker-1-b-00000001.tmp").hardlink_to(precious)
    os.mkfifo(hour / ".broker-1-c-00000001.tmp")
    written = folder(tmp_path / "samples")
    written.recover()
    written.write(sample(1))
    written.finish()
    assert precious.read_text() == "kept"
    assert len(finished_files(tmp_path / "samples")) == 1


def test_file_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), len(finished_files(tmp_path))))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    written = folder(tmp_path)
    written.write(sample(1))
    written.finish()
    hour = tmp_path / HOUR
    assert synced == [
        (str(hour / f".broker-1-{START_ID}-00000001.tmp"), 0),
        *((str(parent), 1) for parent in (hour, hour.parent, tmp_path)),
    ]


ENDS = [(0, 0), (299, 0), (300, 400), (301, 2_900), (302, 0), (3_590, 0), (3_600, 0)]  # seconds, padding


def test_file_is_finished_by_time_by_size_and_by_the_hour(tmp_path: Path) -> None:
    clock = MovedClock()
    written = folder(tmp_path, clock, rotate_bytes=3_500)
    for sequence, (seconds, padding) in enumerate(ENDS, 1):
        clock.now = 1000.0 + seconds
        written.write(sample(sequence, seconds, padding))
    written.finish()
    next_hour = "date=2026-02-01/hour=00"
    assert names(finished_files(tmp_path)) == [
        f"{HOUR}/broker-1-{START_ID}-00000001-2.jsonl.gz",
        f"{HOUR}/broker-1-{START_ID}-00000003-1.jsonl.gz",
        f"{HOUR}/broker-1-{START_ID}-00000004-2.jsonl.gz",
        f"{HOUR}/broker-1-{START_ID}-00000006-1.jsonl.gz",
        f"{next_hour}/broker-1-{START_ID}-00000007-1.jsonl.gz",
    ]
    assert sequences(tmp_path) == list(range(1, 8))


def test_oldest_files_go_before_the_bound_and_are_counted(tmp_path: Path) -> None:
    other = folder(tmp_path, broker_id=11)
    other.write(sample(1))
    other.finish()
    foreign = tmp_path / HOUR / "broker-1-notes.txt"
    foreign.write_bytes(b"x" * 30_000)
    written = folder(tmp_path, max_disk_bytes=20_000, rotate_bytes=6_000)
    for sequence in range(1, 41):
        written.write(sample(sequence, sequence * 90, padding=1_000))
        own = [*finished_files(tmp_path), *unfinished_files(tmp_path)]
        total = sum(file.stat().st_size for file in own if "broker-1-" in file.name)
        assert total == written.size <= 20_000
    written.finish()
    kept = [line.sequence for line in lines_in(tmp_path) if line.start_id == START_ID and line.sequence > 1]
    assert kept == list(range(written.dropped + 1, 41))
    assert written.dropped > 10
    assert foreign.exists()
    assert [file for file in finished_files(tmp_path) if "broker-11-" in file.name]


def test_emptied_folders_are_removed(tmp_path: Path) -> None:
    written = folder(tmp_path, max_disk_bytes=4_000, rotate_bytes=2_000)
    for hour in range(8):
        written.write(sample(hour + 1, hour * 3600, padding=1_000))
    assert len(list(tmp_path.glob("date=*/hour=*"))) <= 4
    assert not (tmp_path / HOUR).parent.exists()


def test_files_that_were_collected_are_not_counted_as_dropped(tmp_path: Path) -> None:
    written = folder(tmp_path, max_disk_bytes=4_000, rotate_bytes=2_000)
    for sequence in range(1, 9):
        written.write(sample(sequence, padding=1_000))
        for file in finished_files(tmp_path):
            file.unlink()
    assert written.dropped == 0
    assert written.size <= 4_000


def test_bound_counts_the_files_of_earlier_starts(tmp_path: Path) -> None:
    earlier = folder(tmp_path, start_id="20260130T000000Z-00000000")
    earlier.write(sample(1, padding=2_000))
    earlier.write(sample(2))
    earlier.finish()
    written = folder(tmp_path, max_disk_bytes=3_500, rotate_bytes=1_700)
    written.write(sample(1, 10, padding=1_500))
    assert written.dropped == 2
    assert finished_files(tmp_path) == []


def test_sample_larger_than_the_bound_is_refused(tmp_path: Path) -> None:
    written = folder(tmp_path, max_disk_bytes=2_000, rotate_bytes=1_000)
    with pytest.raises(OSError, match="more than the bound leaves"):
        written.write(sample(1, padding=20_000))
    written.write(sample(2))
    written.finish()
    assert sequences(tmp_path) == [2]


@contextmanager
def most_file_bytes(size: int) -> Iterator[None]:
    """Writes beyond `size` fail, after what still fits: a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_loses_the_sample_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    written = folder(tmp_path)
    written.write(sample(1))
    (file,) = unfinished_files(tmp_path)
    whole = file.stat().st_size
    with most_file_bytes(whole + 100), pytest.raises(OSError, match="File too large"):
        written.write(sample(2, padding=2_000))
    assert file.stat().st_size == whole
    written.write(sample(3))
    assert file.stat().st_size == written.size
    written.finish()
    assert sequences(tmp_path) == [1, 3]


def test_part_of_a_sample_not_taken_away_is_cut_off_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = folder(tmp_path)
    written.write(sample(1))
    (file,) = unfinished_files(tmp_path)

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, most_file_bytes(file.stat().st_size + 100):
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="File too large"):
            written.write(sample(2, padding=2_000))
    written.write(sample(3))
    written.finish()
    assert sequences(tmp_path) == [1, 3]
    assert len(finished_files(tmp_path)) == 2


def test_unfinishable_file_is_finished_with_a_later_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = folder(tmp_path)
    written.write(sample(1))

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            written.finish()
    assert finished_files(tmp_path) == []
    written.write(sample(2))
    written.finish()
    assert sequences(tmp_path) == [1, 2]


def leave_unfinished(directory: Path, tail: bytes) -> Path:
    """What a killed process leaves: a file without a lock, with two samples and `tail`."""
    left = folder(directory, start_id="20260130T000000Z-00000000")
    left.write(sample(1))
    left.write(sample(2))
    left._abandon()
    (file,) = unfinished_files(directory)
    with file.open("ab") as opened:
        opened.write(tail)
    return file


@pytest.mark.parametrize("tail", [b"", gzip.compress(b"x" * 500, mtime=0)[:-9], b"\x1f", b"no gzip at all", bytes(100)])
def test_file_of_a_killed_process_ends_at_its_last_whole_sample(tmp_path: Path, tail: bytes) -> None:
    leave_unfinished(tmp_path, tail)
    folder(tmp_path).recover()
    assert sequences(tmp_path) == [1, 2]
    assert names(finished_files(tmp_path)) == [f"{HOUR}/broker-1-20260130T000000Z-00000000-00000001-2.jsonl.gz"]


def test_unfinished_file_without_a_whole_sample_is_removed(tmp_path: Path) -> None:
    file = leave_unfinished(tmp_path, b"")
    os.truncate(file, 10)
    folder(tmp_path).recover()
    assert finished_files(tmp_path) == unfinished_files(tmp_path) == []


def test_unfinished_file_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    """A restarted sidecar may begin while the old one still drains."""
    file = leave_unfinished(tmp_path, b"")
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        folder(tmp_path).recover()
        assert unfinished_files(tmp_path) == [file]
    folder(tmp_path).recover()
    assert unfinished_files(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from tests.proxy.exporting import sample
from tests.proxy.test_export_files import folder
written = folder(Path(sys.argv[1]))
for sequence in range(1, 1_000_000):
    written.write(sample(sequence, padding=3_000))
    print(sequence, flush=True)
"""


def test_killed_writer_loses_at_most_the_sample_under_way(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "20\n":
                break
        process.send_signal(signal.SIGKILL)
        told = max([20, *map(int, process.stdout.read().split())])
    folder(tmp_path, start_id="20260201T000000Z-00000000").recover()
    found = sequences(tmp_path)
    assert found in (list(range(1, told + 1)), list(range(1, told + 2)))


# The sink


def sink_of(written: Folder) -> tuple[FileSink, ExportStats]:
    stats = ExportStats()
    return FileSink(written, stats, EventLog()), stats


async def test_sink_close_writes_what_was_offered_and_finishes_file(tmp_path: Path) -> None:
    sink, stats = sink_of(folder(tmp_path))
    for sequence in (1, 2, 3):
        sink.offer(sample(sequence))
    await sink.close(5)
    assert sequences(tmp_path) == [1, 2, 3]
    assert counted(stats) == {"file": 3}


async def test_sink_counts_what_the_file_system_refuses_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "date=2026-01-31").write_text("a file where a folder should be")
    sink, stats = sink_of(folder(tmp_path))
    sink.offer(sample(1))
    await until(lambda: stats.dropped["file", "write_failed"])
    assert stats.lost == {"file": "Not a directory"}
    (tmp_path / "date=2026-01-31").unlink()
    sink.offer(sample(2))
    await sink.close(5)
    assert counted(stats) == {"file": 1, ("file", "write_failed"): 1}
    assert stats.lost == {}
    assert sequences(tmp_path) == [2]
    assert "samples_not_written" in caplog.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("to mount a small disk takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


async def test_full_disk_is_told_until_there_is_room(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(60_000))
    sink, stats = sink_of(folder(small_disk))
    sink.offer(sample(1, padding=20_000))
    await until(lambda: stats.lost)
    process = ProcessStats("1", TopicNames(lambda: 0.0), export=stats)
    told = {"samples_lost": "samples are lost (file): No space left on device"}
    assert troubles(process, captures=False) == told
    (small_disk / "other").unlink()
    sink.offer(sample(2))
    await sink.close(5)
    assert troubles(process, captures=False) == {}


async def test_sink_counts_the_samples_of_files_that_had_to_go(tmp_path: Path) -> None:
    sink, stats = sink_of(folder(tmp_path, max_disk_bytes=4_000, rotate_bytes=2_000))
    for sequence in range(1, 9):
        sink.offer(sample(sequence, padding=1_000))
        await until(lambda: sink._waiting == 0)
    await sink.close(5)
    kept = sequences(tmp_path)
    assert counted(stats) == {"file": 8, ("file", "disk_bound"): 8 - len(kept)}
    assert 0 < len(kept) < 8


async def test_sink_on_a_disk_that_hangs_drops_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(self: Folder, taken: Sample) -> None:
        answers.wait()

    monkeypatch.setattr(export_files.Folder, "write", hang)
    sink, stats = sink_of(folder(tmp_path))
    for sequence in range(MOST_WAITING + 2):
        sink.offer(sample(sequence))
    assert counted(stats) == {("file", "busy"): 2}
    sink.count_failed()
    await sink.close(0.05)
    assert counted(stats) == {("file", "busy"): 2, ("file", "failed"): 1, ("file", "closed"): MOST_WAITING}
    answers.set()
    await asyncio.sleep(0)


async def test_sink_finishes_at_once_what_an_earlier_process_left(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, b"")
    sink, _ = sink_of(folder(tmp_path))
    await until(lambda: finished_files(tmp_path))
    await sink.close(5)
    assert sequences(tmp_path) == [1, 2]

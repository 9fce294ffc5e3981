"""Moves and replica lag, worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import DAY, NOON, Sidecar, partition, quota, rows, types
from weir.pipeline.accuracy import quotas_in_force
from weir.pipeline.behind import (
    ROW,
    behind_by_minute,
    behind_minutes,
    behind_spans,
    moves,
    rates_in_force,
    replica_lag,
    with_lag,
)
from weir.pipeline.behind_rows import rows_that_count
from weir.pipeline.days import Days
from weir.pipeline.read import Lines, by_kind, good_lines, of_days
from weir.pipeline.tables import BEHIND_MINUTES, MOVES, REPLICA_LAG
from weir.samples.schema import Line

MOVE = (
    "start",
    "end",
    "bytes",
    "bytes_throttled",
    "mean_bytes_per_second",
    "quota_bytes_per_second",
    "longest_stall_seconds",
)


def _by_minute(lines: Lines) -> DataFrame:
    rows = rows_that_count(lines, lambda frame: frame)
    return behind_by_minute(rows, lines.ends, rates_in_force(quotas_in_force(lines)))


def _spans(lines: Lines) -> DataFrame:
    return behind_spans(_by_minute(lines))


def _four_hours(numbers: random.Random) -> Iterator[bytes]:
    """Six samples an hour of 60 replicas, most of them in sync, so that many are for an hour, or but for its edges."""
    sidecar = Sidecar()
    behind: dict[int, float] = {}
    for _ in range(24):
        told = []
        for number in range(60):
            chance = numbers.random()
            if chance < (0.5 if number in behind else 0.1):
                behind[number] = numbers.choice([5.0, 20.0, 20.0, 40.0])
            else:
                behind.pop(number, None)
            lag = None if numbers.random() < 0.1 else (1, behind[number]) if number in behind else (0, 0.0)
            throttled = numbers.choice([0, 0, 0, 0, 0, 0, 700])
            if numbers.random() < 0.9:
                told.append(partition("t", number, numbers.randrange(100), throttled=throttled, lag=lag))
        yield sidecar.sample(*told, seconds=600)


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_that_are_left_out_change_no_span(frames: Frames, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """All rows make the same spans as those of stretches of an hour."""
    monkeypatch.setattr("weir.pipeline.behind_rows.SAMPLES", 6)
    lines = frames.lines(b"".join(_four_hours(random.Random(seed))))
    size = F.col("bytes_throttled") + F.col("bytes_unthrottled")
    figures = with_lag(lines.partitions, "bytes_throttled", "bytes_unthrottled", "lag_messages")
    every = figures.withColumn("bytes", size).where(F.col("lag_seconds").isNotNull() | (size > 0)).select(*ROW)
    rates = rates_in_force(quotas_in_force(lines))
    wanted = moves(behind_spans(behind_by_minute(every, lines.ends, rates)))
    found = moves(_spans(lines))
    kept = found.collect()
    assert len(kept) > 20
    assert sorted(map(repr, kept)) == sorted(map(repr, wanted.collect()))


def test_move_from_behind_to_caught_up(frames: Frames) -> None:
    """Behind since 12:00:04; 600 bytes, none in the next two samples (one has no line), then the last 400.

    It moved from 1004 to 1040 on the monotonic clock: 1000 bytes in 36 s. Between 1010 and 1030 nothing came.
    The second partition is in sync all the time, the third was behind for a moment, unthrottled: neither is a move.
    """
    sidecar = Sidecar()
    steady = partition("t", 1, 50, lag=(0, 0.0))
    texts = [
        sidecar.sample(
            partition("t", 0, 0, throttled=600, lag=(9, 6.0)),
            partition("t", 2, 1, lag=(1, 0.5)),
            quota(60, 1000, [60] * 10, 1000.0, 1010.0),
            steady,
        ),
        sidecar.sample(partition("t", 0, 0, left_out=5, lag=(9, 16.0)), partition("t", 2, 1, lag=(0, 0.0)), steady),
        sidecar.sample(steady),
        sidecar.sample(
            partition("t", 0, 100, throttled=300, lag=(0, 0.0)),
            quota(80, 1030, [30] * 10, 1030.0, 1040.0),
            steady,
            quota(7, 1030, [30] * 10, 1031.0, 1040.0, name="zones"),
        ),
        sidecar.sample(partition("t", 0, 70, lag=(0, 0.0)), steady),
    ]
    table = moves(_spans(frames.lines(*texts)))
    assert table.dtypes == types(MOVES)
    assert rows(table, "topic", "partition", "replica", "broker_id", "side", *MOVE) == [
        (
            *("t", 0, 2, 1, "leader"),
            *("2026-11-02 12:00:04", "2026-11-02 12:00:40", 1000, 900, pytest.approx(1000 / 36), 80, 20.0),
        )
    ]


def test_move_whose_bytes_came_when_it_caught_up(frames: Frames) -> None:
    """Behind for 10 s without a byte; what was throttled came in the sample in which it caught up, of the next hour.

    The second partition is never behind: what is listed as throttled is no move by that.
    """
    sidecar = Sidecar(now=NOON + timedelta(minutes=59, seconds=50))
    other = partition("t", 1, 0, throttled=7, lag=(0, 0.0))
    texts = [
        sidecar.sample(partition("t", 0, 0, left_out=1, lag=(5, 10.0)), other),
        sidecar.sample(partition("t", 0, 0, throttled=300, lag=(0, 0.0)), other),
    ]
    spans = _spans(frames.lines(*texts))
    assert rows(moves(spans), *MOVE) == [("2026-11-02 12:59:50", "2026-11-02 13:00:10", 300, 300, 15.0, None, 10.0)]


def test_move_that_did_not_end_and_second_one(frames: Frames) -> None:
    """As the follower sees it: caught up after 10 s, behind again, and no sample tells that this ended."""
    sidecar = Sidecar(3)
    texts = [
        sidecar.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0), side="follower", peer=1)),
        sidecar.sample(partition("t", 0, 0, throttled=200, lag=(0, 0.0), side="follower", peer=1)),
        sidecar.sample(partition("t", 0, 0, throttled=400, lag=(5, 5.0), side="follower", peer=1)),
        sidecar.sample(partition("t", 0, 0, left_out=1, lag=(7, 15.0), side="follower", peer=1)),
    ]
    assert rows(moves(_spans(frames.lines(*texts))), "replica", "side", *MOVE) == [
        (3, "follower", "2026-11-02 12:00:00", "2026-11-02 12:00:20", 300, 300, 15.0, None, 0.0),
        (3, "follower", "2026-11-02 12:00:25", None, 400, 400, pytest.approx(400 / 15), None, 10.0),
    ]


def test_replica_out_of_sync_and_stuck(frames: Frames) -> None:
    """Behind since 12:00:00, with bytes in the first 10 s and the last 10 of 100 s: stuck for 80 s, one span.

    The second partition caught up after 25 s of lag, too soon to be out of sync; the third is stuck to the end.
    """
    sidecar = Sidecar()
    texts = [
        sidecar.sample(
            partition("t", 0, 10, lag=(5, 10.0)),
            partition("t", 1, 10, lag=(5, 25.0)),
            partition("t", 2, 10, lag=(5, 10.0)),
        ),
        *(
            sidecar.sample(
                partition("t", 0, 0, left_out=1, lag=(number, 10.0 * number)),
                *[partition("t", 1, 10, lag=(0, 0.0))][: 1 if number == 2 else 0],
                partition("t", 2, 0, left_out=1, lag=(number, 10.0 * number)),
            )
            for number in range(2, 10)
        ),
        sidecar.sample(partition("t", 0, 10, lag=(0, 0.0))),
    ]
    table = replica_lag(_spans(frames.lines(*texts)))
    assert table.dtypes == types(REPLICA_LAG)
    assert rows(
        table,
        *("partition", "replica", "start", "end", "seconds_to_in_sync"),
        *("max_lag_messages", "max_lag_seconds", "stuck_spans", "stuck_seconds"),
    ) == [
        (0, 2, "2026-11-02 12:00:00", "2026-11-02 12:01:40", 100.0, 9, 90.0, 1, 80.0),
        (2, 2, "2026-11-02 12:00:00", None, None, 9, 90.0, 1, 80.0),
    ]


def test_replica_that_was_away_was_stuck_meanwhile(frames: Frames) -> None:
    """Its broker is away from 12:00:20 to 12:01:20, in which no line tells of it; 500 bytes come in the next 10 s.

    Behind since 12:00:15: 600 bytes in 85 s. Nothing came for 65 s until the sample that begins at 12:01:20.
    """
    sidecar = Sidecar()
    texts = [
        *(sidecar.sample(partition("t", 0, 10, lag=(0, 0.0))) for _ in range(2)),
        *(sidecar.sample() for _ in range(6)),
        sidecar.sample(partition("t", 0, 500, lag=(100, 75.0))),
        sidecar.sample(partition("t", 0, 100, lag=(0, 0.0))),
    ]
    spans = _spans(frames.lines(*texts))
    assert rows(moves(spans), *MOVE) == [
        ("2026-11-02 12:00:15", "2026-11-02 12:01:40", 600, 0, pytest.approx(600 / 85), None, 65.0)
    ]
    assert rows(replica_lag(spans), "stuck_spans", "stuck_seconds") == [(1, 65.0)]


def test_move_goes_on_where_the_leader_changes(frames: Frames) -> None:
    """As the follower sees it: behind since 12:00:00. Broker 1 leads until 12:00:15, and then broker 2."""
    sidecar = Sidecar(3)

    def told(size: int, peer: int, lag: float) -> Line:
        return partition("t", 0, 0, throttled=size, lag=(int(lag), lag), side="follower", peer=peer)

    texts = [
        sidecar.sample(told(100, 1, 10.0)),
        sidecar.sample(told(200, 1, 20.0), told(400, 2, 20.0)),
        sidecar.sample(told(800, 2, 30.0)),
        sidecar.sample(told(1600, 2, 0.0), told(3200, 1, 0.0)),
        sidecar.sample(told(5000, 1, 0.0)),
    ]
    spans = _spans(frames.lines(*texts))
    assert rows(moves(spans), "replica", "start", "end", "bytes", "longest_stall_seconds") == [
        (3, "2026-11-02 12:00:00", "2026-11-02 12:00:40", 6300, 0.0)
    ]


def test_restart_of_the_sidecar_ends_a_span(frames: Frames) -> None:
    """The new process counts from 1 again and does not know since when: its span is one of its own."""
    before, after = Sidecar(start_id="a"), Sidecar(start_id="b", monotonic=5.0)
    after.now = before.now
    texts = [
        before.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0))),
        after.sample(partition("t", 0, 0, throttled=100, lag=(3, 10.0))),
    ]
    assert rows(moves(_spans(frames.lines(*texts))), "bytes", "end") == [(100, None), (100, None)]


def test_move_over_midnight_is_two_spans_that_add_up(frames: Frames) -> None:
    """Behind since 23:59:45. The sample that ends at 00:00:05 is the next day's, and knows since when."""
    sidecar = Sidecar(now=NOON.replace(hour=23, minute=59, second=45))
    parsed = frames.parsed(
        sidecar.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0))),
        sidecar.sample(partition("t", 0, 0, throttled=200, lag=(3, 20.0))),
        sidecar.sample(partition("t", 0, 0, throttled=300, lag=(0, 0.0))),
    )
    first, second = (by_kind(good_lines(of_days(parsed, Days.of(DAY + timedelta(days=days))))) for days in (0, 1))
    assert rows(moves(_spans(first)), "start", "end", "bytes") == [("2026-11-02 23:59:45", None, 100)]
    assert rows(moves(_spans(second)), "start", "end", "bytes") == [("2026-11-02 23:59:45", "2026-11-03 00:00:15", 500)]


def test_samples_that_are_missing_are_no_stall(frames: Frames) -> None:
    """Bytes before and after 30 samples that are lost: nothing is known of them. A sample without a line is known."""
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", 0, 0, throttled=100, lag=(9, 10.0)))]
    for _ in range(30):
        sidecar.sample()
    texts += [sidecar.sample(), sidecar.sample(partition("t", 0, 0, throttled=100, lag=(5, 330.0)))]
    spans = _spans(frames.lines(b"".join(texts)))
    assert rows(spans, "longest_stall_seconds", "stuck_spans", "stuck_seconds", "bytes") == [(10.0, 0, 0.0, 200)]


def test_samples_that_are_missing_before_a_move_are_no_stall(frames: Frames) -> None:
    """In sync at 12:00:10, and behind since 12:00:15. Samples are missing from 12:00:20 to 12:01:00.

    Of the 55 s until the sample that brings bytes begins, 15 were sampled: 5 before the others, and 10 behind them.
    """
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", 0, 7, lag=(0, 0.0))), sidecar.sample()]
    for _ in range(4):
        sidecar.sample()
    texts += [sidecar.sample(), sidecar.sample(partition("t", 0, 0, throttled=500, lag=(9, 65.0)))]
    spans = _spans(frames.lines(b"".join(texts)))
    assert rows(spans, "start", "seconds", "longest_stall_seconds", "stuck_spans", "stuck_seconds") == [
        ("2026-11-02 12:00:15", 25.0, 15.0, 0, 0.0)
    ]


def test_stall_of_30_s_is_not_longer_than_that(frames: Frames) -> None:
    """Samples of 7.7 s, 0.1 s and 29.9 s: as binary fractions, three of these sums are more than 30."""
    sidecar = Sidecar(monotonic=0.1)
    texts = []
    for _ in range(50):
        texts += [sidecar.sample(partition("t", 0, 5, lag=(9, sidecar.monotonic + 7.7)), seconds=7.7)]
        texts += [sidecar.sample(seconds=0.1), sidecar.sample(seconds=29.9)]
    assert rows(_spans(frames.lines(b"".join(texts))), "longest_stall_seconds", "stuck_spans") == [(30.0, 0)]


def test_step_of_the_clock_stretches_no_time_to_in_sync(frames: Frames) -> None:
    """The clock is put back by an hour in a move of 50 s."""
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", 0, 5, lag=(9, 40.0)))]
    sidecar.now -= timedelta(hours=1)
    texts.append(sidecar.sample(partition("t", 0, 5, lag=(0, 0.0))))
    table = replica_lag(_spans(frames.lines(b"".join(texts))))
    assert rows(table, "start", "end", "seconds_to_in_sync") == [("2026-11-02 11:59:30", "2026-11-02 11:00:20", 50.0)]


def test_bytes_of_samples_that_do_not_know_the_lag_count(frames: Frames) -> None:
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(9, 10.0)))]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=1000)) for _ in range(4)]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(0, 0.0)))]
    spans = _spans(frames.lines(b"".join(texts)))
    assert rows(spans, "longest_stall_seconds", "bytes", "end") == [(0.0, 6000, "2026-11-02 12:01:00")]


def test_bytes_count_of_samples_before_the_lag_was_known(frames: Frames) -> None:
    """A sidecar that was started in mid-move: what it tells first of the lag was so 25 s before, too."""
    sidecar = Sidecar()
    texts = [sidecar.sample(partition("t", 0, 0, throttled=1000)) for _ in range(4)]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(9, 25.0)))]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(0, 0.0)))]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=1000))]
    spans = _spans(frames.lines(b"".join(texts)))
    assert rows(spans, "start", "longest_stall_seconds", "bytes", "end") == [
        ("2026-11-02 12:00:25", 0.0, 4000, "2026-11-02 12:01:00")
    ]


def test_move_whose_last_sample_ends_at_midnight_ends_then(frames: Frames) -> None:
    sidecar = Sidecar(now=NOON.replace(hour=23, minute=59, second=40))
    parsed = frames.parsed(
        sidecar.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0)))
        + sidecar.sample(partition("t", 0, 0, throttled=200, lag=(0, 0.0)))
    )
    lines = by_kind(good_lines(of_days(parsed, Days.of(DAY))))
    assert rows(moves(_spans(lines)), "end", "bytes") == [("2026-11-03 00:00:00", 300)]


def test_minutes_of_a_move_add_up_to_it(frames: Frames) -> None:
    """Behind since 12:00:40. Bytes until 12:00:50, a stall until 12:01:40, and bytes until it has caught up.

    A replica that was behind for a moment, unthrottled, has no row: it did not move.
    """
    sidecar = Sidecar(now=NOON + timedelta(seconds=40))
    other = partition("t", 2, 1, lag=(1, 0.5))
    texts = [sidecar.sample(partition("t", 0, 0, throttled=600, lag=(9, 10.0)), other)]
    texts += [sidecar.sample(partition("t", 0, 0, left_out=5, lag=(20, 10.0 * n))) for n in range(2, 7)]
    texts += [sidecar.sample(partition("t", 0, 100, throttled=250, lag=(8, 70.0)))]
    texts += [sidecar.sample(partition("t", 0, 0, throttled=50, lag=(0, 0.0)))]
    lines = frames.lines(*texts)
    by_minute = _by_minute(lines)
    spans = behind_spans(by_minute)
    table = behind_minutes(by_minute, spans)
    assert table.dtypes == types(BEHIND_MINUTES)
    place = ("t", 0, 2, 1, "leader", "2026-11-02 12:00:40")
    assert rows(table, *BEHIND_MINUTES.columns) == [
        ("2026-11-02 12:00:00", *place, 600, 600, 20, 0.0, None, 0, 0.0),  # nothing stalled, so nothing ended
        ("2026-11-02 12:01:00", *place, 400, 300, 20, 50.0, "2026-11-02 12:01:40", 1, 50.0),
    ]
    assert rows(moves(spans), "start", "bytes", "bytes_throttled") == [("2026-11-02 12:00:40", 1000, 900)]
    assert rows(replica_lag(spans), "stuck_spans", "stuck_seconds") == [(1, 50.0)]

# SPDX-License-Identifier: Apache-2.0
"""Moves and replica lag, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import DAY, NOON, Sidecar, partition, quota, rows, types, types_of, unsorted_rows
from weir.pipeline.accuracy import quotas_in_force
from weir.pipeline.behind import behind_by_minute, behind_minutes, behind_spans, moves, rates_in_force, replica_lag
from weir.pipeline.behind_rows import rows_that_count
from weir.pipeline.days import Days
from weir.pipeline.engine import DUCKDB, on
from weir.pipeline.lines import Lines, by_kind, good_lines, of_days
from weir.pipeline.open_tables import connect
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


World = Callable[[int], Iterable[bytes]]
WORLDS: dict[int, World] = {}
"""What a broker told, by its id: what is made of one broker's samples depends on no other's."""


def _told(broker_id: int) -> Callable[[World], World]:
    """Have this broker's samples among those of which the tables are made that tests share."""

    def tell(world: World) -> World:
        assert broker_id not in WORLDS
        WORLDS[broker_id] = world
        return world

    return tell


class Tables:
    """The spans of all WORLDS, and the tables that are made of them: planned and built once."""

    def __init__(self, lines: Lines) -> None:
        by_minute = _kept(_by_minute(lines))
        spans = _kept(behind_spans(by_minute))
        frames = {
            "spans": spans,
            MOVES.name: moves(spans),
            REPLICA_LAG.name: replica_lag(spans),
            BEHIND_MINUTES.name: behind_minutes(by_minute, spans),
        }
        for table in (MOVES, REPLICA_LAG, BEHIND_MINUTES):
            assert types_of(frames[table.name]) == types(table)
        self._rows = {
            name: [dict(zip(frame.columns, row, strict=True)) for row in unsorted_rows(frame, *frame.columns)]
            for name, frame in frames.items()
        }

    def rows(self, name: str, broker_id: int, *columns: str) -> list[tuple[Any, ...]]:
        found = [row for row in self._rows[name] if row["broker_id"] == broker_id]
        return sorted(tuple(row[column] for column in columns) for row in found)


def _kept(frame: Any) -> Any:
    return frame.kept()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    with on(DUCKDB), connect() as connection:
        frames = Frames(tmp_path_factory.mktemp("worlds"), connection)
        text = b"".join(text for broker_id, world in WORLDS.items() for text in world(broker_id))
        yield Tables(frames.lines(text))


@_told(1)
def _stalled_and_caught_up(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    steady = partition("t", 1, 50, lag=(0, 0.0))
    yield sidecar.sample(
        partition("t", 0, 0, throttled=600, lag=(9, 6.0)),
        partition("t", 2, 1, lag=(1, 0.5)),
        quota(60, 1000, [60] * 10, 1000.0, 1010.0),
        steady,
    )
    yield sidecar.sample(partition("t", 0, 0, lag=(9, 16.0)), partition("t", 2, 1, lag=(0, 0.0)), steady)
    yield sidecar.sample(steady)
    yield sidecar.sample(
        partition("t", 0, 100, throttled=300, lag=(0, 0.0)),
        quota(80, 1030, [30] * 10, 1030.0, 1040.0),
        steady,
        quota(7, 1030, [30] * 10, 1031.0, 1040.0, name="zones"),
    )
    yield sidecar.sample(partition("t", 0, 70, lag=(0, 0.0)), steady)


def test_move_from_behind_to_caught_up(tables: Tables) -> None:
    """Behind since 12:00:04; 600 bytes, none in the next two samples (one has no line), then the last 400.

    It moved from 1004 to 1040 on the monotonic clock: 1000 bytes in 36 s. Between 1010 and 1030 nothing came.
    The second partition is in sync all the time, the third was behind for a moment, unthrottled: neither is a move.
    """
    assert tables.rows("moves", 1, "topic", "partition", "replica", "broker_id", "side", *MOVE) == [
        (
            *("t", 0, 2, 1, "leader"),
            *("2026-11-02 12:00:04", "2026-11-02 12:00:40", 1000, 900, pytest.approx(1000 / 36), 80, 20.0),
        )
    ]


@_told(2)
def _all_came_at_once(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id, now=NOON + timedelta(minutes=59, seconds=50))
    other = partition("t", 1, 0, throttled=7, lag=(0, 0.0))
    yield sidecar.sample(partition("t", 0, 0, lag=(5, 10.0)), other)
    yield sidecar.sample(partition("t", 0, 0, throttled=300, lag=(0, 0.0)), other)


def test_move_whose_bytes_came_when_it_caught_up(tables: Tables) -> None:
    """Behind for 10 s without a byte; what was throttled came in the sample in which it caught up, of the next hour.

    The second partition is never behind: what is listed as throttled is no move by that.
    """
    assert tables.rows("moves", 2, *MOVE) == [
        ("2026-11-02 12:59:50", "2026-11-02 13:00:10", 300, 300, 15.0, None, 10.0)
    ]


@_told(3)
def _caught_up_and_behind_again(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    for size, lag in ((100, (5, 10.0)), (200, (0, 0.0)), (400, (5, 5.0))):
        yield sidecar.sample(partition("t", 0, 0, throttled=size, lag=lag, side="follower", peer=1))
    yield sidecar.sample(partition("t", 0, 0, lag=(7, 15.0), side="follower", peer=1))


def test_move_that_did_not_end_and_second_one(tables: Tables) -> None:
    """As the follower sees it: caught up after 10 s, behind again, and no sample tells that this ended."""
    assert tables.rows("moves", 3, "replica", "side", *MOVE) == [
        (3, "follower", "2026-11-02 12:00:00", "2026-11-02 12:00:20", 300, 300, 15.0, None, 0.0),
        (3, "follower", "2026-11-02 12:00:25", None, 400, 400, pytest.approx(400 / 15), None, 10.0),
    ]


@_told(4)
def _stuck(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    yield sidecar.sample(
        partition("t", 0, 10, lag=(5, 10.0)),
        partition("t", 1, 10, lag=(5, 25.0)),
        partition("t", 2, 10, lag=(5, 10.0)),
    )
    for number in range(2, 10):
        yield sidecar.sample(
            partition("t", 0, 0, lag=(number, 10.0 * number)),
            *[partition("t", 1, 10, lag=(0, 0.0))][: 1 if number == 2 else 0],
            partition("t", 2, 0, lag=(number, 10.0 * number)),
        )
    yield sidecar.sample(partition("t", 0, 10, lag=(0, 0.0)))


def test_replica_out_of_sync_and_stuck(tables: Tables) -> None:
    """Behind since 12:00:00, with bytes in the first 10 s and the last 10 of 100 s: stuck for 80 s, one span.

    The second partition caught up after 25 s of lag, too soon to be out of sync; the third is stuck to the end.
    """
    assert tables.rows(
        *("replica_lag", 4, "partition", "replica", "start", "end", "seconds_to_in_sync"),
        *("max_lag_messages", "max_lag_seconds", "stuck_spans", "stuck_seconds"),
    ) == [
        (0, 2, "2026-11-02 12:00:00", "2026-11-02 12:01:40", 100.0, 9, 90.0, 1, 80.0),
        (2, 2, "2026-11-02 12:00:00", None, None, 9, 90.0, 1, 80.0),
    ]


@_told(5)
def _away(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    for _ in range(2):
        yield sidecar.sample(partition("t", 0, 10, lag=(0, 0.0)))
    for _ in range(6):
        yield sidecar.sample()
    yield sidecar.sample(partition("t", 0, 500, lag=(100, 75.0)))
    yield sidecar.sample(partition("t", 0, 100, lag=(0, 0.0)))


def test_replica_that_was_away_was_stuck_meanwhile(tables: Tables) -> None:
    """Its broker is away from 12:00:20 to 12:01:20, in which no line tells of it; 500 bytes come in the next 10 s.

    Behind since 12:00:15: 600 bytes in 85 s. Nothing came for 65 s until the sample that begins at 12:01:20.
    """
    assert tables.rows("moves", 5, *MOVE) == [
        ("2026-11-02 12:00:15", "2026-11-02 12:01:40", 600, 0, pytest.approx(600 / 85), None, 65.0)
    ]
    assert tables.rows("replica_lag", 5, "stuck_spans", "stuck_seconds") == [(1, 65.0)]


@_told(6)
def _led_anew(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)

    def told(size: int, peer: int, lag: float) -> Line:
        return partition("t", 0, 0, throttled=size, lag=(int(lag), lag), side="follower", peer=peer)

    yield sidecar.sample(told(100, 1, 10.0))
    yield sidecar.sample(told(200, 1, 20.0), told(400, 2, 20.0))
    yield sidecar.sample(told(800, 2, 30.0))
    yield sidecar.sample(told(1600, 2, 0.0), told(3200, 1, 0.0))
    yield sidecar.sample(told(5000, 1, 0.0))


def test_move_goes_on_where_the_leader_changes(tables: Tables) -> None:
    """As the follower sees it: behind since 12:00:00. Broker 1 leads until 12:00:15, and then broker 2."""
    assert tables.rows("moves", 6, "replica", "start", "end", "bytes", "longest_stall_seconds") == [
        (6, "2026-11-02 12:00:00", "2026-11-02 12:00:40", 6300, 0.0)
    ]


@_told(7)
def _restarted(broker_id: int) -> Iterator[bytes]:
    before, after = Sidecar(broker_id, start_id="a"), Sidecar(broker_id, start_id="b", monotonic=5.0)
    yield before.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0)))
    yield after.sample(partition("t", 0, 0, throttled=100, lag=(3, 10.0)))


def test_restart_of_the_sidecar_ends_a_span(tables: Tables) -> None:
    """The new process counts from 1 again and does not know since when: its span is one of its own."""
    assert tables.rows("moves", 7, "bytes", "end") == [(100, None), (100, None)]


@_told(8)
def _lost_samples(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    yield sidecar.sample(partition("t", 0, 0, throttled=100, lag=(9, 10.0)))
    for _ in range(30):
        sidecar.sample()
    yield sidecar.sample()
    yield sidecar.sample(partition("t", 0, 0, throttled=100, lag=(5, 330.0)))


def test_samples_that_are_missing_are_no_stall(tables: Tables) -> None:
    """Bytes before and after 30 samples that are lost: nothing is known of them. A sample without a line is known."""
    assert tables.rows("spans", 8, "longest_stall_seconds", "stuck_spans", "stuck_seconds", "bytes") == [
        (10.0, 0, 0.0, 200)
    ]


@_told(9)
def _lost_samples_before(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    yield sidecar.sample(partition("t", 0, 7, lag=(0, 0.0)))
    yield sidecar.sample()
    for _ in range(4):
        sidecar.sample()
    yield sidecar.sample()
    yield sidecar.sample(partition("t", 0, 0, throttled=500, lag=(9, 65.0)))


def test_samples_that_are_missing_before_a_move_are_no_stall(tables: Tables) -> None:
    """In sync at 12:00:10, and behind since 12:00:15. Samples are missing from 12:00:20 to 12:01:00.

    Of the 55 s until the sample that brings bytes begins, 15 were sampled: 5 before the others, and 10 behind them.
    """
    assert tables.rows("spans", 9, "start", "seconds", "longest_stall_seconds", "stuck_spans", "stuck_seconds") == [
        ("2026-11-02 12:00:15", 25.0, 15.0, 0, 0.0)
    ]


@_told(10)
def _stalls_of_30_s(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id, monotonic=0.1)
    for _ in range(50):
        yield sidecar.sample(partition("t", 0, 5, lag=(9, sidecar.monotonic + 7.7)), seconds=7.7)
        yield sidecar.sample(seconds=0.1)
        yield sidecar.sample(seconds=29.9)


def test_stall_of_30_s_is_not_longer_than_that(tables: Tables) -> None:
    """Samples of 7.7 s, 0.1 s and 29.9 s: as binary fractions, three of these sums are more than 30."""
    assert tables.rows("spans", 10, "longest_stall_seconds", "stuck_spans") == [(30.0, 0)]


@_told(11)
def _clock_put_back(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    yield sidecar.sample(partition("t", 0, 5, lag=(9, 40.0)))
    sidecar.now -= timedelta(hours=1)
    yield sidecar.sample(partition("t", 0, 5, lag=(0, 0.0)))


def test_step_of_the_clock_stretches_no_time_to_in_sync(tables: Tables) -> None:
    """The clock is put back by an hour in a move of 50 s."""
    assert tables.rows("replica_lag", 11, "start", "end", "seconds_to_in_sync") == [
        ("2026-11-02 11:59:30", "2026-11-02 11:00:20", 50.0)
    ]


@_told(12)
def _lag_not_known_for_a_while(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    yield sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(9, 10.0)))
    for _ in range(4):
        yield sidecar.sample(partition("t", 0, 0, throttled=1000))
    yield sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(0, 0.0)))


def test_bytes_of_samples_that_do_not_know_the_lag_count(tables: Tables) -> None:
    assert tables.rows("spans", 12, "longest_stall_seconds", "bytes", "end") == [(0.0, 6000, "2026-11-02 12:01:00")]


@_told(13)
def _lag_not_known_at_first(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id)
    for _ in range(4):
        yield sidecar.sample(partition("t", 0, 0, throttled=1000))
    yield sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(9, 25.0)))
    yield sidecar.sample(partition("t", 0, 0, throttled=1000, lag=(0, 0.0)))
    yield sidecar.sample(partition("t", 0, 0, throttled=1000))


def test_bytes_count_of_samples_before_the_lag_was_known(tables: Tables) -> None:
    """A sidecar that was started in mid-move: what it tells first of the lag was so 25 s before, too."""
    assert tables.rows("spans", 13, "start", "longest_stall_seconds", "bytes", "end") == [
        ("2026-11-02 12:00:25", 0.0, 4000, "2026-11-02 12:01:00")
    ]


@_told(14)
def _stalled_for_50_s(broker_id: int) -> Iterator[bytes]:
    sidecar = Sidecar(broker_id, now=NOON + timedelta(seconds=40))
    yield sidecar.sample(partition("t", 0, 0, throttled=600, lag=(9, 10.0)), partition("t", 2, 1, lag=(1, 0.5)))
    for number in range(2, 7):
        yield sidecar.sample(partition("t", 0, 0, lag=(20, 10.0 * number)))
    yield sidecar.sample(partition("t", 0, 100, throttled=250, lag=(8, 70.0)))
    yield sidecar.sample(partition("t", 0, 0, throttled=50, lag=(0, 0.0)))


def test_minutes_of_a_move_add_up_to_it(tables: Tables) -> None:
    """Behind since 12:00:40. Bytes until 12:00:50, a stall until 12:01:40, and bytes until it has caught up.

    A replica that was behind for a moment, unthrottled, has no row: it did not move.
    """
    place = ("t", 0, 2, 14, "leader", "2026-11-02 12:00:40")
    assert tables.rows("behind_minutes", 14, *BEHIND_MINUTES.columns) == [
        ("2026-11-02 12:00:00", *place, 600, 600, 20, 0.0, None, 0, 0.0),  # nothing stalled, so nothing ended
        ("2026-11-02 12:01:00", *place, 400, 300, 20, 50.0, "2026-11-02 12:01:40", 1, 50.0),
    ]
    assert tables.rows("moves", 14, "start", "bytes", "bytes_throttled") == [("2026-11-02 12:00:40", 1000, 900)]
    assert tables.rows("replica_lag", 14, "stuck_spans", "stuck_seconds") == [(1, 50.0)]


def test_move_over_midnight_is_two_spans_that_add_up(frames: Frames) -> None:
    """Behind since 23:59:45. The sample that ends at 00:00:05 is the next day's, and knows since when.

    At another broker the last sample ends at midnight: so does the move, and the next day knows nothing of it.
    """
    over, up_to = (
        Sidecar(number, now=NOON.replace(hour=23, minute=59, second=second)) for number, second in ((1, 45), (2, 40))
    )
    parsed = frames.parsed(
        over.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0))),
        over.sample(partition("t", 0, 0, throttled=200, lag=(3, 20.0))),
        over.sample(partition("t", 0, 0, throttled=300, lag=(0, 0.0))),
        up_to.sample(partition("t", 0, 0, throttled=100, lag=(5, 10.0)))
        + up_to.sample(partition("t", 0, 0, throttled=200, lag=(0, 0.0))),
    )
    first, second = (by_kind(good_lines(of_days(parsed, Days.of(DAY + timedelta(days=days))))) for days in (0, 1))
    assert sorted(unsorted_rows(moves(_spans(first)), "broker_id", "start", "end", "bytes")) == [
        (1, "2026-11-02 23:59:45", None, 100),
        (2, "2026-11-02 23:59:40", "2026-11-03 00:00:00", 300),
    ]
    assert rows(moves(_spans(second)), "broker_id", "start", "end", "bytes") == [
        (1, "2026-11-02 23:59:45", "2026-11-03 00:00:15", 500)
    ]

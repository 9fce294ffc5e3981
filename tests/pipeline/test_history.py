# SPDX-License-Identifier: Apache-2.0
"""What a planner is told from the tables, and what it is told when they cannot tell."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.parquet import (
    HOUR,
    MINUTE,
    START,
    broker_rate,
    hours,
    throttle,
    write,
    write_rates,
    write_throttles,
)
from weir.pipeline.history import Accuracy, Busiest, History, read_history
from weir.pipeline.open_tables import TablesError
from weir.pipeline.tables import BROKER_RATES, COVERAGE
from weir.planning.arithmetic import DAY, Growth

MB = 1_000_000


def read(path: Path, **options: Any) -> History:
    defaults: dict[str, Any] = {"replication_factor": 3, "last_seconds": 28 * DAY, "policy": "strict"}
    return read_history(path, **(defaults | options))


def about(value: float) -> Any:
    return pytest.approx(value)


def two_sides(broker_id: int, leader: float, follower: float, start: datetime = START) -> list[Any]:
    return [broker_rate(broker_id, "leader", leader, start), broker_rate(broker_id, "follower", follower, start)]


@pytest.mark.long
def test_bytes_in_are_of_the_busiest_brokers_busiest_minute(tmp_path: Path) -> None:
    """R = 3: what a leader sends went out twice, and what a follower receives came in once."""
    rows = [*two_sides(1, 10, 20), *two_sides(2, 6, 20), *two_sides(2, 40, 10, START + MINUTE)]
    write_rates(tmp_path, rows)
    seen = read(tmp_path)
    assert seen.busiest == Busiest(2, START + MINUTE, "minute", 30)
    assert (seen.since, seen.until, seen.brokers) == (START, START + 2 * MINUTE, 2)
    assert read(tmp_path, broker=1).busiest == Busiest(1, START, "minute", 25)
    assert read(tmp_path, broker=1).brokers == 2
    assert read(tmp_path, replication_factor=2).busiest == Busiest(2, START + MINUTE, "minute", 50)


def test_side_that_one_broker_lacks_is_made_up_for_it_alone(tmp_path: Path) -> None:
    """R = 3. Broker 2 has rows of its leader's side alone: 60 went out twice, and what it leads is a third of IN."""
    write_rates(tmp_path, [*two_sides(1, 10, 20), broker_rate(2, "leader", 60)])
    assert read(tmp_path).busiest == Busiest(2, START, "minute", 90)
    assert read(tmp_path, broker=2).busiest == Busiest(2, START, "minute", 90)
    assert read(tmp_path, broker=1).busiest == Busiest(1, START, "minute", 25)


def test_bytes_of_throttled_replicas_are_no_bytes_in(tmp_path: Path) -> None:
    write_rates(tmp_path, [*two_sides(1, 10, 20), broker_rate(1, "follower", 90, throttled=True)])
    seen = read(tmp_path)
    assert seen.busiest == Busiest(1, START, "minute", 25)
    assert seen.throttled_share == 0.75


def test_nothing_but_throttled_replicas_tells_no_bytes_in(tmp_path: Path) -> None:
    write_rates(tmp_path, [broker_rate(1, "follower", 90, throttled=True)])
    assert read(tmp_path).busiest is None


def test_minutes_of_throttled_bytes_alone_have_no_busiest(tmp_path: Path) -> None:
    """The job writes a row of other replicas, too, with a rate of 0."""
    write_rates(tmp_path, [broker_rate(1, "follower", 90, throttled=True), broker_rate(1, "follower", 0)])
    assert read(tmp_path).busiest is None


def test_night_has_a_busiest_window_of_its_own(tmp_path: Path) -> None:
    """START is midnight: hour 5 is the last one of the night, and hour 6 is not."""
    write_rates(tmp_path, hours(1, 10, 20, 10, 10, 10, 30, 60))
    found = read(tmp_path)
    assert found.busiest == Busiest(1, START + 6 * HOUR, "hour", 60)
    assert found.busiest_by_night == Busiest(1, START + 5 * HOUR, "hour", 30)


def test_hours_do_where_there_are_no_minutes(tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, 30, 60, 45))
    assert read(tmp_path).busiest == Busiest(1, START + HOUR, "hour", 60)


def test_minutes_and_hours_are_never_mixed(tmp_path: Path) -> None:
    """Bytes in by minutes, what takes days by hours: the same bytes stand in both."""
    write_rates(tmp_path, [*hours(1, *[30] * 48), *two_sides(1, 80, 40, START + 47 * HOUR)])
    seen = read(tmp_path, retention_seconds=DAY)
    assert seen.busiest == Busiest(1, START + 47 * HOUR, "minute", 80)
    assert seen.growth == Growth(about(1.0), DAY)
    assert seen.log_size == about(30 * DAY)


def test_only_the_last_of_the_history_is_looked_at(tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, 60, 30, 45))
    write_throttles(tmp_path, [throttle(0.5, 2.0), throttle(0.9, 1.1, end=START + 3 * HOUR)])
    seen = read(tmp_path, last_seconds=7200)
    assert seen.busiest == Busiest(1, START + 2 * HOUR, "hour", 45)
    assert (seen.since, seen.until) == (START + HOUR, START + 3 * HOUR)
    assert seen.accuracy == Accuracy(1, 60, about(0.9), 1.1)


def test_growth_is_that_of_the_brokers_together(tmp_path: Path) -> None:
    write_rates(tmp_path, [*hours(1, *[30] * 24, *[60] * 24), *hours(2, *[30] * 48)])
    assert read(tmp_path).growth == Growth(about(1.5), DAY)
    assert read(tmp_path, broker=1).growth == Growth(about(2.0), DAY)


def test_growth_is_week_on_week_where_there_are_two(tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, *[99] * 24, *[10] * 168, *[12] * 168))
    assert read(tmp_path).growth == Growth(about(1.2), 7 * DAY)


@pytest.mark.parametrize("missing", [2, 3])
@pytest.mark.parametrize("day", [0, 1])
def test_growth_needs_nine_tenths_of_both_days(tmp_path: Path, missing: int, day: int) -> None:
    rows = hours(1, *[10] * 48)
    gap = 2 * 24 * day  # a row for each side
    write_rates(tmp_path, rows[:gap] + rows[gap + 2 * missing :])
    assert (read(tmp_path).growth is not None) is (missing == 2)


def test_broker_that_was_sampled_later_than_others_is_no_growth(tmp_path: Path) -> None:
    """Sidecars came to brokers 2 and 3 a day after broker 1."""
    later = [hours(broker, *[30] * 24, start=START + timedelta(days=1)) for broker in (2, 3)]
    write_rates(tmp_path, [*hours(1, *[20] * 48), *later[0], *later[1]])
    assert read(tmp_path).growth == Growth(about(1.0), DAY)


def test_growth_is_not_known_from_a_day(tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, *[30] * 24))
    assert read(tmp_path).growth is None


@pytest.mark.long
def test_log_size_is_what_a_broker_received_in_the_retention(tmp_path: Path) -> None:
    write_rates(tmp_path, [*hours(1, *[900] * 5, *[30] * 10), *hours(2, *[900] * 5, *[60] * 10)])
    assert read(tmp_path, retention_seconds=36_000).log_size == about(45 * 36_000)
    assert read(tmp_path, retention_seconds=36_000, broker=2).log_size == about(60 * 36_000)
    assert read(tmp_path).log_size is None


def test_partly_sampled_brokers_do_not_make_logs_smaller(tmp_path: Path) -> None:
    """A broker that was sampled for a part of the retention is left aside."""
    write_rates(tmp_path, [*hours(1, *[30] * 48), *hours(2, *[30] * 4, start=START + 44 * HOUR)])
    assert read(tmp_path, retention_seconds=2 * DAY).log_size == about(30 * 2 * DAY)
    with pytest.raises(TablesError, match=r"knows 4 of the 48 h of the retention$"):
        read(tmp_path, retention_seconds=2 * DAY, broker=2)


def test_hours_count_for_as_long_as_they_were_sampled(tmp_path: Path) -> None:
    """Broker 2 has a row in each of two hours, of which a sample of 0.2 s ended in the second one."""
    write_rates(tmp_path, [*hours(1, 30, 30), *hours(2, 90, 90)])
    figures = {"samples": 1, "missing": 0, "quarantined": 0}
    seconds = ((1, START, 3600.0), (1, START + HOUR, 3600.0), (2, START, 3600.0), (2, START + HOUR, 0.2))
    covered = [
        {"broker_id": broker_id, "window_start": start.isoformat(), "seconds": sampled, **figures}
        for broker_id, start, sampled in seconds
    ]
    write(tmp_path, COVERAGE, covered)
    assert read(tmp_path, retention_seconds=7200).log_size == about(30 * 7200)


def test_log_size_of_a_longer_retention_than_seen_is_unknown(tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, *[30] * 10))
    with pytest.raises(TablesError, match=r"knows 10 of the 12 h of the retention$"):
        read(tmp_path, retention_seconds=12 * 3600)


def test_accuracy_is_that_of_throttles_that_left_something_out(tmp_path: Path) -> None:
    """A mean by seconds. Other policies, other brokers, and throttles with nothing to do or a stuck one say nothing."""
    write_rates(tmp_path, [*two_sides(1, 10, 20), *two_sides(2, 10, 20)])
    write_throttles(
        tmp_path,
        [
            throttle(0.9, 1.1, 300),
            throttle(0.5, 1.0, 100),
            throttle(0.1, 9.0, policy="kip73"),
            throttle(0.1, 9.0, left_out_seconds=0),
            throttle(0.0, 9.0),
            throttle(0.7, 1.4, 400, broker_id=2),
        ],
    )
    assert read(tmp_path, broker=1).accuracy == Accuracy(2, 400, about(0.8), 1.1)
    assert read(tmp_path).accuracy == Accuracy(3, 800, about(0.75), 1.4)
    assert read(tmp_path, policy="kip73").accuracy == Accuracy(1, 60, about(0.1), 9.0)


def test_time_with_nothing_left_out_says_nothing_of_accuracy(tmp_path: Path) -> None:
    """A quota for a day with a move of an hour at 0.9 of it, and one that was kept to the byte."""
    write_rates(tmp_path, two_sides(1, 10, 20))
    write_throttles(tmp_path, [throttle(0.9, 1.1, DAY, left_out_seconds=3600), throttle(1.0, 1.0, 3600)])
    assert read(tmp_path).accuracy == Accuracy(2, 7200, about(0.95), 1.1)


@pytest.mark.parametrize("throttles", [[], [throttle(0.9, 1.1, left_out_seconds=0)]])
def test_accuracy_is_not_known_without_such_a_throttle(tmp_path: Path, throttles: list[Any]) -> None:
    write_rates(tmp_path, two_sides(1, 10, 20))
    if throttles:
        write_throttles(tmp_path, throttles)
    assert read(tmp_path).accuracy is None


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_times_are_utc_in_either_way_that_spark_writes_them(tmp_path: Path, kind: str) -> None:
    write(tmp_path, BROKER_RATES, two_sides(1, 10, 20), window_start=kind)
    assert read(tmp_path).since == START


def test_folders_by_column_are_read_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    """As Spark's partitionBy writes them: the column is in the folder's name."""
    for window, file in (("hour", "window=hour/a.parquet"), ("minute", "_temporary/window=minute/b.parquet")):
        row = dict(broker_rate(1, "leader", 10, window=window))
        del row["window"]
        write(tmp_path, BROKER_RATES, [row], file)
    seen = read(tmp_path).busiest
    assert seen is not None
    assert seen.window == "hour"


def test_several_files_are_one_table(tmp_path: Path) -> None:
    for number in range(3):
        start = START + number * timedelta(minutes=1)
        write(tmp_path, BROKER_RATES, [broker_rate(number, "leader", 10, start)], f"part-{number}.parquet")
    assert read(tmp_path).brokers == 3


def test_no_table_is_said(tmp_path: Path) -> None:
    write_throttles(tmp_path, [throttle(0.9, 1.1)])
    with pytest.raises(TablesError, match=r"has no table broker_rates"):
        read(tmp_path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    row = {name: value for name, value in broker_rate(1, "leader", 10).items() if name not in ("side", "bytes")}
    write(tmp_path, BROKER_RATES, [row])
    with pytest.raises(TablesError, match=r"broker_rates lacks side, bytes$"):
        read(tmp_path)


@pytest.mark.parametrize("damage", ["no Parquet", "text for a time"])
def test_damaged_tables_are_said_in_one_line(tmp_path: Path, damage: str) -> None:
    if damage == "no Parquet":
        file = tmp_path / "broker_rates" / "part-0.parquet"
        file.parent.mkdir()
        file.write_text("no Parquet\n" * 10)
    else:
        write(tmp_path, BROKER_RATES, two_sides(1, 10, 20), window_start="string")
    with pytest.raises(TablesError, match=r"cannot be read: ") as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


def test_windows_of_another_kind_tell_nothing(tmp_path: Path) -> None:
    write_rates(tmp_path, [dict(broker_rate(1, "leader", 10)) | {"window": "day"}])
    with pytest.raises(TablesError, match="no rows by minute or hour"):
        read(tmp_path)


def test_unknown_broker_is_told_which_are_known(tmp_path: Path) -> None:
    write_rates(tmp_path, [*two_sides(1, 10, 20), *two_sides(4, 10, 20)])
    with pytest.raises(TablesError, match=r"nothing of broker 3, only of 1, 4$"):
        read(tmp_path, broker=3)


def test_of_many_known_brokers_the_first_are_told(tmp_path: Path) -> None:
    write_rates(tmp_path, [rate for broker_id in range(30) for rate in two_sides(broker_id, 10, 20)])
    with pytest.raises(TablesError, match=r"only of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more$"):
        read(tmp_path, broker=99)


def test_replication_factor_of_one_leaves_no_trace(tmp_path: Path) -> None:
    write_rates(tmp_path, two_sides(1, 10, 20))
    with pytest.raises(TablesError, match="replication factor of 1"):
        read(tmp_path, replication_factor=1)


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(TablesError, match=r"pip install 'kafka-weir\[history\]'$"):
        read(tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""Rates of brokers and partitions by column, worked out by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pipeline.page.past import Past, broker_minutes, broker_sample, client_minutes, minutes, partition_rate, quota
from tests.pipeline.parquet import HOUR, MINUTE, START, broker_rate
from weir.pipeline.page.contents import BrokerClients, BrokerSide, PartitionBytes, Replication
from weir.pipeline.page.read import read_page
from weir.pipeline.tables import (
    BROKER_RATES,
    BROKER_SAMPLES,
    CLIENT_RATES,
    PARTITION_RATES,
    THROTTLE_ACCURACY,
    WINDOW_SECONDS,
)

pytestmark = pytest.mark.long


def test_broker_has_a_mean_and_a_peak_for_each_column_and_gaps(past: Past) -> None:
    """Two minutes a column: the third has one sampled minute, the fourth none."""
    rates = [(10, 1), (20, 3), (30, 5), (30, 5), None, (8, 2), None, None, *[(0, 0)] * 92]
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *rates))
    (side,) = read_page(past.write(), None, None, 9).brokers.shown
    assert (side.broker_id, side.side) == (1, "leader")
    assert side.throttled.means[:5] == (15, 30, 8, None, 0)
    assert side.throttled.peaks[:5] == (20, 30, 8, None, 0)
    assert side.unthrottled.means[:5] == (2, 5, 2, None, 0)
    assert (side.throttled.size, side.throttled.highest) == (60 * 98, 30)
    assert side.throttled.mean == 98 / 97


def test_brokers_with_most_bytes_are_in_order_leader_first(past: Past) -> None:
    for broker_id, rate in ((1, 10.0), (2, 30.0), (3, 20.0)):
        past.put(BROKER_RATES, *broker_minutes(broker_id, "follower", (rate, 0)))
        past.put(BROKER_RATES, *broker_minutes(broker_id, "leader", (rate, 1)))
    brokers = read_page(past.write(), None, None, 2).brokers
    assert [(side.broker_id, side.side) for side in brokers.shown] == [
        (2, "leader"),
        (2, "follower"),
        (3, "leader"),
        (3, "follower"),
    ]
    assert (brokers.count, brokers.size, brokers.throttled_size) == (3, 60 * 63, 60 * 60)


def test_bytes_throttled_on_the_side_that_saw_fewer_count(past: Past) -> None:
    """They count as throttled among the bytes of the side that saw more."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (10, 1)))
    past.put(BROKER_RATES, *broker_minutes(2, "follower", (0, 12)))
    brokers = read_page(past.write(), None, None, 9).brokers
    assert (brokers.size, brokers.throttled_size) == (60 * 12, 60 * 10)


def test_quota_of_a_column_is_the_last_in_force_in_it(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1, 0)] * 4))
    past.put(
        THROTTLE_ACCURACY,
        quota(START + minutes(1), START + minutes(1.5), 1000),
        quota(START + minutes(1.5), START + minutes(2.5), 2000),
        quota(START, START + minutes(4), 7000, broker_id=2),
    )
    (side,) = read_page(past.write(), None, None, 9).brokers.shown
    assert side.quotas == (None, 2000, 2000, None)


def test_long_range_is_read_by_hours(past: Past) -> None:
    """Minutes and hours tell of the same bytes: they are never added up."""
    for hour in range(97):
        start = START + timedelta(hours=hour)
        past.put(BROKER_RATES, broker_rate(1, "leader", 100 + hour, start, window="hour"))
        past.put(PARTITION_RATES, partition_rate(0, 100 + hour, start, window="hour"))
    past.put(BROKER_RATES, broker_rate(1, "leader", 5, START + timedelta(hours=96, minutes=59)))
    past.put(BROKER_RATES, broker_rate(1, "leader", 5, START))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns is not None
    assert (contents.columns.seconds, contents.columns.count) == (7200, 49)
    assert contents.brokers.shown[0].unthrottled.means[:2] == (100.5, 102.5)
    assert contents.partitions.shown[0].means[:2] == (100.5, 102.5)


def test_ends_of_a_range_within_an_hour_are_read_by_minutes(past: Past) -> None:
    """From 18:30 on day 1 to 18:30 on day 6, as days are in India: 10 bytes/s, and 1000 in the half hours outside."""
    days, count = timedelta(days=1), 6
    since = START + timedelta(hours=18, minutes=30)
    until = since + (count - 1) * days
    for day in (START + number * days for number in range(count)):
        for hour in range(24):
            start = day + timedelta(hours=hour)
            is_cut = start < since < start + HOUR or start < until < start + HOUR
            past.put(BROKER_RATES, broker_rate(1, "leader", 505 if is_cut else 10, start, window="hour"), day=day)
            past.put(PARTITION_RATES, partition_rate(0, 505 if is_cut else 10, start, window="hour"), day=day)
            if is_cut:
                for minute in (start + number * MINUTE for number in range(60)):
                    rate = 10 if since <= minute < until else 1000
                    past.put(BROKER_RATES, broker_rate(1, "leader", rate, minute), day=day)
                    past.put(PARTITION_RATES, partition_rate(0, rate, minute), day=day)
    contents = read_page(past.write(), since, until, 9)
    assert contents.columns is not None
    assert (contents.columns.seconds, contents.columns.count) == (7200, 61)
    seen = contents.brokers.shown[0].unthrottled
    assert (seen.size, seen.mean, seen.highest) == (10 * 5 * 86_400, 10, 10)
    assert seen.means == contents.partitions.shown[0].means == (10,) * 61


def test_hour_that_is_read_in_part_counts_for_as_long(past: Past) -> None:
    """100 bytes/s in the last half of the first hour, and 10 in the second one: 40 in the column of both."""
    past.put(BROKER_RATES, *(broker_rate(1, "leader", 100, START + minutes(30 + number)) for number in range(30)))
    past.put(BROKER_RATES, broker_rate(1, "leader", 70, START, window="hour"))
    for hour in range(1, 97):
        past.put(BROKER_RATES, broker_rate(1, "leader", 10, START + hour * HOUR, window="hour"))
    past.put(BROKER_RATES, broker_rate(1, "leader", 10, START + 96 * HOUR + minutes(59)))
    seen = read_page(past.write(), START + minutes(30), None, 9).brokers.shown[0].unthrottled
    assert seen.means[:2] == (40, 10)


@pytest.mark.parametrize("window", ["minute", "hour"])
def test_range_within_one_window_has_that_window(past: Past, window: str) -> None:
    past.put(BROKER_RATES, broker_rate(1, "leader", 10, window=window))
    second = timedelta(seconds=1)
    folder = past.write()
    seen = read_page(folder, START + 10 * second, START + 20 * second, 9)
    assert seen.brokers.shown[0].unthrottled.means == (10,)
    seconds = WINDOW_SECONDS[window] * second
    assert read_page(folder, START + seconds, START + 2 * seconds, 9).is_empty
    assert read_page(folder, START - seconds, START, 9).is_empty


def test_partition_is_told_by_the_side_that_saw_more(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 0), None, (1, 0), (1, 0)))
    past.put(
        PARTITION_RATES,
        partition_rate(0, 10),
        partition_rate(0, 20, START + minutes(2)),
        partition_rate(0, 25, side="follower"),
        partition_rate(1, 7, side="follower"),
        partition_rate(0, 8, topic="other"),
    )
    partitions = read_page(past.write(), None, None, 2).partitions
    assert partitions.shown == (
        PartitionBytes("orders", 0, "leader", 1800, 40, (10, None, 20, 0)),
        PartitionBytes("other", 0, "leader", 480, 16, (8, None, 0, 0)),
    )
    assert (partitions.count, partitions.size) == (3, 1800 + 480 + 420)


def test_side_without_throttled_replicas_is_all_others(past: Past) -> None:
    past.put(BROKER_RATES, broker_rate(1, "leader", 6))
    (side,) = read_page(past.write(), None, None, 9).brokers.shown
    assert side == BrokerSide(
        1, "leader", Replication(0, 0, 0, (None,), (None,)), Replication(360, 6, 6, (6,), (6,)), (None,)
    )


def test_clients_have_a_mean_for_each_column_and_gaps(past: Past) -> None:
    """Two minutes a column. Brokers that no client passed, or that are not shown, have none."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(9, 0)] * 100))
    past.put(BROKER_RATES, *broker_minutes(2, "leader", *[(5, 0)] * 100))
    past.put(BROKER_RATES, *broker_minutes(3, "leader", *[(1, 0)] * 100))
    short = {**client_minutes(1, (10, 0), start=START + minutes(2))[0], "seconds": 20.0}
    past.put(CLIENT_RATES, *client_minutes(1, (40, 10), (20, 0)), short, *client_minutes(2, *[(0, 0)] * 9))
    past.put(CLIENT_RATES, *client_minutes(3, (7, 7)))
    (of,) = read_page(past.write(), None, None, 2).brokers.clients
    assert (of.broker_id, of.read[:3], of.written[:3]) == (1, (30, 30, None), (5, 0, None))
    assert len(of.read) == len(of.written) == 50


def test_columns_below_a_minute_have_the_rate_of_their_minute(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5), (5, 5)))
    past.put(BROKER_SAMPLES, *(broker_sample(START + minutes(number / 2), 30, 0, 50) for number in range(3)))
    past.put(CLIENT_RATES, *client_minutes(1, (30, 20), (40, 10)))
    assert read_page(past.write(), None, None, 9).brokers.clients == (BrokerClients(1, (30, 30, 40), (20, 20, 10)),)

# SPDX-License-Identifier: Apache-2.0
"""Short ranges, which are drawn by sample."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest

from tests.pipeline.page.past import Past, broker_minutes, broker_sample, minutes, partition_rate
from tests.pipeline.parquet import START, broker_rate
from weir.pipeline.page.contents import Contents
from weir.pipeline.page.read import read_page
from weir.pipeline.page.timeline import Timeline
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import BROKER_RATES, BROKER_SAMPLES, PARTITION_RATES

SECOND = timedelta(seconds=1)


def _width(contents: Contents) -> tuple[int, int]:
    assert contents.columns is not None
    return contents.columns.seconds, contents.columns.count


@pytest.mark.long
def test_short_range_has_a_column_for_each_sample(past: Past) -> None:
    """Two minutes of samples of 10 s, which begin 5 s before the first minute. Two are lost, and one has nothing."""
    moved = [(100, 10)] * 4 + [None, None] + [(0, 0)] + [(300, 0)] * 5
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5), (5, 5)))
    begin = START - 5 * SECOND
    for number, both in enumerate(moved):
        if both is not None:
            past.put(BROKER_SAMPLES, broker_sample(begin + 10 * number * SECOND, 10, *both))
            past.put(BROKER_SAMPLES, broker_sample(begin + 10 * number * SECOND, 10, 0, 0, side="follower"))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns is not None
    assert (contents.columns.since, contents.columns.until) == (begin, START + 115 * SECOND)
    assert _width(contents) == (10, 13)
    (side,) = contents.brokers.shown
    assert side.side == "leader"  # the other had no connection at any time
    assert side.throttled.means == (10, 10, 10, 10, 10, None, 0, 15, 30, 30, 30, 30, 30)
    assert side.throttled.peaks == (10, 10, 10, 10, 10, None, 0, 30, 30, 30, 30, 30, 30)
    assert (side.throttled.size, side.throttled.mean, side.throttled.highest) == (1900, 19, 30)
    assert (contents.brokers.size, contents.brokers.throttled_size, side.unthrottled.size) == (1940, 1900, 40)


@pytest.mark.long
def test_samples_that_the_range_cuts_count_for_their_part(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5)))
    past.put(BROKER_SAMPLES, *(broker_sample(START + number * 10 * SECOND, 10, 1000, 0) for number in range(6)))
    contents = read_page(past.write(), START + 5 * SECOND, START + 35 * SECOND, 9)
    assert contents.brokers.shown[0].throttled.size == 3000
    assert contents.brokers.shown[0].throttled.means == (100,) * 4


@pytest.mark.long
def test_partitions_of_a_short_range_are_drawn_by_minute(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5), (5, 5)))
    past.put(BROKER_SAMPLES, *(broker_sample(START + number * 10 * SECOND, 10, 0, 50) for number in range(12)))
    past.put(PARTITION_RATES, partition_rate(0, 30), partition_rate(0, 10, START + minutes(1)))
    contents = read_page(past.write(), None, None, 9)
    assert contents.partitions.shown[0].means == (30, 10)
    page = page_of(contents, UTC)
    assert "in columns of 10 s" in page
    assert "on the side that saw more of them. In columns of 1 min." in page
    assert "2026-11-02 00:01:50 UTC: throttled 0 B/s" in page


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "sample", "wanted"),
    [
        *((2, 10.0, (10, 12)), (2, 2.0, (2, 60)), (3, 0.4, (2, 90)), (20, 10.0, (15, 80)), (47, 10.0, (30, 94))),
        *((49, 10.0, (60, 49)), (20, 300.0, (60, 20))),
    ],
)
def test_columns_are_no_narrower_than_samples(past: Past, length: int, sample: float, wanted: tuple[int, int]) -> None:
    past.put(BROKER_RATES, broker_rate(1, "leader", 5), broker_rate(1, "leader", 5, START + minutes(length - 1)))
    count = round(length * 60 / sample)
    past.put(BROKER_SAMPLES, broker_sample(START, sample, 1, 1))
    past.put(BROKER_SAMPLES, broker_sample(START + (count - 1) * sample * SECOND, sample, 1, 1))
    assert _width(read_page(past.write(), None, None, 9)) == wanted


@pytest.mark.long
def test_range_with_a_day_without_samples_is_drawn_by_minute(past: Past) -> None:
    """One day's tables have minutes alone, and no samples."""
    day = timedelta(days=1)
    midnight = START + day
    past.put(BROKER_RATES, broker_rate(1, "leader", 5, midnight - minutes(1)))
    past.put(BROKER_RATES, broker_rate(1, "leader", 5, midnight), day=midnight)
    past.put(BROKER_SAMPLES, broker_sample(midnight, 10, 1, 1), day=midnight)
    contents = read_page(past.write(), None, None, 9)
    assert _width(contents) == (60, 2)


@pytest.mark.long
def test_marks_of_a_short_range_have_seconds(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5)))
    past.put(BROKER_SAMPLES, *(broker_sample(START + number * 10 * SECOND, 10, 0, 50) for number in range(6)))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns is not None
    texts = [tick.text for tick in Timeline(contents.columns, UTC).ticks()]
    assert texts == ["2 Nov", "00:00:10", "00:00:20", "00:00:30", "00:00:40", "00:00:50"]


@pytest.mark.long
def test_first_sample_begun_before_its_minute_leaves_no_gap(past: Past) -> None:
    """A partition's chart has a figure from its first minute on."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5)))
    past.put(BROKER_SAMPLES, *(broker_sample(START + (number * 10 - 5) * SECOND, 10, 0, 50) for number in range(6)))
    past.put(PARTITION_RATES, partition_rate(0, 30))
    assert read_page(past.write(), None, None, 9).partitions.shown[0].means == (30,)

# SPDX-License-Identifier: Apache-2.0
"""Rates of small frames, worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import NOON, Sidecar, link, partition, rows, types, types_of
from weir.pipeline.engine import SPARK
from weir.pipeline.rates import broker_rates, client_rates, partition_rates
from weir.pipeline.tables import BROKER_RATES, CLIENT_RATES, PARTITION_RATES

RATES = ("mean_bytes_per_second", "max_bytes_per_second", "p95_bytes_per_second", "bytes")


def test_partition_rates_count_idle_samples_and_add_up_peers(frames: Frames) -> None:
    """12:00:10 and :20 with bytes to two followers, :30 without a line: 3000 bytes in 30 s."""
    sidecar = Sidecar()
    lines = frames.lines(
        sidecar.sample(partition("t", 0, 500), partition("t", 0, 500, peer=3)),
        sidecar.sample(partition("t", 0, 1000, throttled=1000), partition("t", 1, 7)),
        sidecar.sample(),
    )
    table = partition_rates(lines)
    assert types_of(table) == types(PARTITION_RATES)
    noon = "2026-11-02 12:00:00"
    assert rows(table, "window", "window_start", "side", "topic", "partition", *RATES) == [
        ("hour", noon, "leader", "t", 0, 100.0, 200.0, 200.0, 3000),
        ("hour", noon, "leader", "t", 1, 0.233, 0.7, 0.7, 7),
        ("minute", noon, "leader", "t", 0, 100.0, 200.0, 200.0, 3000),
        ("minute", noon, "leader", "t", 1, 0.233, 0.7, 0.7, 7),
    ]


@pytest.mark.parametrize("frames", [SPARK], indirect=True)
def test_rows_are_sorted_in_as_many_places_as_were_asked_for(frames: Frames, spark: SparkSession) -> None:
    """Spark would put places of few bytes together, and a day's rows would be sorted in as many parts as cores."""
    adaptive = "spark.sql.adaptive.enabled"
    before = str(spark.conf.get(adaptive))
    spark.conf.set(adaptive, "true")
    try:
        lines = frames.lines(Sidecar().sample(partition("t", 0, 500)))
        assert partition_rates(lines, places=5).rdd.getNumPartitions() == 5
    finally:
        spark.conf.set(adaptive, before)


def test_p95_is_the_nearest_rank_among_idle_samples_too(frames: Frames) -> None:
    """40 samples: two may be above. Of partition 0 the third highest is 80; partition 1 has but two that are not 0."""
    sidecar = Sidecar()
    texts = [
        sidecar.sample(*(partition("t", 0, size), partition("t", 1, size)) if size > 80 else [partition("t", 0, size)])
        for size in (100, 90, 80, *range(1, 38))
    ]
    table = partition_rates(frames.lines(b"".join(texts)))
    assert rows(table, "partition", "max_bytes_per_second", "p95_bytes_per_second", window="hour") == [
        (0, 10.0, 8.0),
        (1, 10.0, 0.0),
    ]


def test_partition_rates_of_several_brokers(frames: Frames) -> None:
    """Followers fetch side by side, so their peaks add up; leaders follow upon each other, so the highest counts."""
    one, two = Sidecar(1), Sidecar(2)
    lines = frames.lines(
        one.sample(partition("t", 0, 100), partition("t", 0, 300, side="follower", peer=9)),
        one.sample(partition("t", 0, 100, side="follower", peer=9)),
        two.sample(partition("t", 0, 200, side="follower", peer=9)),
        two.sample(partition("t", 0, 400), partition("t", 0, 200, side="follower", peer=9)),
    )
    assert rows(partition_rates(lines), "side", *RATES, window="minute") == [
        ("follower", 40.0, 50.0, 50.0, 800),  # 20 + 20, 30 + 20
        ("leader", 25.0, 40.0, 40.0, 500),  # 5 + 20, then the higher of 10 and 40
    ]


def test_broker_rates_keep_throttled_apart(frames: Frames) -> None:
    sidecar = Sidecar()
    lines = frames.lines(
        sidecar.sample(link(100, throttled=50), link(100, peer=3), link(10, side="follower")),
        sidecar.sample(link(0, throttled=150), link(0, peer=3), link(10, side="follower")),
    )
    table = broker_rates(lines)
    assert types_of(table) == types(BROKER_RATES)
    assert rows(table, "broker_id", "side", "throttled", *RATES, window="minute") == [
        (1, "follower", False, 1.0, 1.0, 1.0, 20),
        (1, "follower", True, 0.0, 0.0, 0.0, 0),
        (1, "leader", False, 10.0, 20.0, 20.0, 200),
        (1, "leader", True, 10.0, 15.0, 15.0, 200),
    ]


@pytest.mark.parametrize(
    "midnight", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)], ids=["spring", "autumn"]
)
def test_hours_around_a_change_of_daylight_saving_are_apart(
    frames: Frames, elsewhere: None, midnight: datetime
) -> None:
    """Where the clocks change at 01:00 UTC, hours of UTC stay hours: none is missing, none has two."""
    sidecar = Sidecar()
    texts = []
    for hour in range(4):
        sidecar.now = midnight + timedelta(hours=hour)
        texts.append(sidecar.sample(partition("t", 0, 10 * (hour + 1))))
    table = partition_rates(frames.lines(b"".join(texts)))
    assert rows(table, "window_start", "bytes", window="hour") == [
        (f"{midnight:%Y-%m-%d} 0{hour}:00:00", 10 * (hour + 1)) for hour in range(4)
    ]


def test_restarted_sidecar_counts_from_one_again(frames: Frames) -> None:
    """The same numbers of another start are other samples; its monotonic clock may have begun again as well."""
    before, after = Sidecar(start_id="a"), Sidecar(start_id="b", now=NOON + timedelta(seconds=20), monotonic=3.0)
    lines = frames.lines(before.sample(partition("t", 0, 100)), after.sample(partition("t", 0, 300)))
    assert rows(partition_rates(lines), *RATES, window="minute") == [(20.0, 30.0, 30.0, 400)]


def test_step_of_the_clock_moves_a_sample_and_stretches_none(frames: Frames) -> None:
    """The clock is put back by an hour between two samples: each still has 10 s."""
    sidecar = Sidecar()
    first = sidecar.sample(partition("t", 0, 100))
    sidecar.now -= timedelta(hours=1)
    lines = frames.lines(first, sidecar.sample(partition("t", 0, 200)))
    assert rows(partition_rates(lines), "window_start", "mean_bytes_per_second", window="hour") == [
        ("2026-11-02 11:00:00", 20.0),
        ("2026-11-02 12:00:00", 10.0),
    ]


def test_hot_topic_beside_idle_ones(frames: Frames) -> None:
    """One topic has nearly all lines: each of its partitions has its own sum."""
    sidecar = Sidecar()
    hot = [partition("hot", number, number) for number in range(500)]
    lines = frames.lines(*(sidecar.sample(*hot, partition("cold", 0, 1)) for _ in range(6)))
    table = partition_rates(lines)
    assert rows(table, "partition", "bytes", topic="hot", window="hour") == [(n, 6 * n) for n in range(500)]
    assert rows(table, "partition", "bytes", topic="cold", window="hour") == [(0, 6)]


def test_hour_with_two_leaders_has_no_mean_above_its_highest(frames: Frames) -> None:
    """1000 bytes/s throughout. The first leader ends after ten minutes, and the second one begins then."""
    first, second = Sidecar(1), Sidecar(2, now=NOON + timedelta(minutes=10))
    texts = [first.sample(partition("t", 0, 60_000), seconds=60.0) for _ in range(10)]
    texts += [second.sample(partition("t", 0, 60_000), seconds=60.0) for _ in range(50)]
    table = partition_rates(frames.lines(b"".join(texts)))
    assert rows(table, *RATES, window="hour") == [(1000.0, 1000.0, 1000.0, 3_600_000)]


def test_highest_rate_is_that_of_a_second_at_least(frames: Frames) -> None:
    """The last sample of a process may have 0.2 s, in which a second's worth of a quota may pass."""
    sidecar = Sidecar()
    lines = frames.lines(
        sidecar.sample(partition("t", 0, 10_000)), sidecar.sample(partition("t", 0, 1000), seconds=0.2)
    )
    assert rows(partition_rates(lines), "max_bytes_per_second", window="minute") == [(1000.0,)]


def test_sample_that_ends_with_a_window_belongs_to_it(frames: Frames) -> None:
    lines = frames.lines(Sidecar().sample(partition("t", 0, 60), seconds=60.0))
    assert rows(partition_rates(lines), "window_start", window="minute") == [("2026-11-02 12:00:00",)]


def test_client_rates_are_of_the_samples_that_tell_of_clients(frames: Frames) -> None:
    """The sidecar of 12:00:20 is an older one, or no client passes it; that of 12:01 had none that moved anything."""
    sidecar = Sidecar()
    texts = [sidecar.sample(clients=clients) for clients in ((100, 3000), None, (50, 0), None, None, None, (0, 0))]
    table = client_rates(frames.lines(b"".join(texts)))
    assert types_of(table) == types(CLIENT_RATES)
    assert rows(table, "window_start", "broker_id", "seconds", "bytes_in", "bytes_out") == [
        ("2026-11-02 12:00:00", 1, 20.0, 150, 3000),
        ("2026-11-02 12:01:00", 1, 10.0, 0, 0),
    ]

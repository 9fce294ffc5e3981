# SPDX-License-Identifier: Apache-2.0
"""How exactly quotas were kept, worked out by hand."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import NOON, Sidecar, link, quota, rows, types, types_of
from weir.pipeline.accuracy import minutes_in_force, quotas_in_force, throttle_accuracy, throttle_minutes
from weir.pipeline.lines import Lines
from weir.pipeline.tables import THROTTLE_ACCURACY, THROTTLE_MINUTES

FIGURES = (
    "rate_bytes_per_second",
    "start",
    "end",
    "seconds",
    "mean_over_quota",
    "worst_1s_over_quota",
    "worst_10s_over_quota",
    "seconds_over",
    "seconds_left_out",
    "bytes_left_out",
)


def _minutes(lines: Lines) -> DataFrame:
    return minutes_in_force(quotas_in_force(lines))


def test_span_goes_on_over_samples_and_its_cut_second_is_one(frames: Frames) -> None:
    """Quota 100 from 12:00:00 for 20 s. The samples meet at 1010.5: the second 1010 has 60 + 60 bytes.

    Bytes are 100 x 10, 120, then 50 x 9: 1570 in 20 s. The worst 10 s are seconds 1001 to 1010, 1020 bytes. Only in the
    second sample (9.5 s, 510 bytes) something was left out: 950 - 510.
    """
    sidecar = Sidecar()
    lines = frames.lines(
        sidecar.sample(quota(100, 1000, [100] * 10 + [60], 1000.0, 1010.5), link(0), seconds=10.5),
        sidecar.sample(quota(100, 1010, [60] + [50] * 9, 1010.5, 1020.0), link(0, left_out=3), seconds=9.5),
    )
    table = throttle_accuracy(_minutes(lines))
    assert types_of(table) == types(THROTTLE_ACCURACY)
    assert rows(table, "quota_id", "broker_id", "side", "policy", *FIGURES) == [
        (
            *("leader.replication.throttled.rate", 1, "leader", "strict", 100),
            *("2026-11-02 12:00:00", "2026-11-02 12:00:20", 20.0, 1570 / 2000, 1.2, 1.02, 1.0, 9.5, 440),
        )
    ]


def test_other_rate_or_a_gap_begins_another_span(frames: Frames) -> None:
    """100 for 4 s, then 200 for 6 s and on through the next sample; a lost sample ends that."""
    sidecar = Sidecar()
    first = sidecar.sample(
        quota(100, 1000, [10] * 4, 1000.0, 1004.0), quota(200, 1004, [400] + [20] * 5, 1004.0, 1010.0)
    )
    second = sidecar.sample(quota(200, 1010, [20] * 10, 1010.0, 1020.0))
    sidecar.sample()
    fourth = sidecar.sample(quota(200, 1030, [0] * 10, 1030.0, 1040.0))
    table = throttle_accuracy(_minutes(frames.lines(first, second, fourth)))
    assert rows(table, "start", "seconds", *FIGURES[4:]) == [
        ("2026-11-02 12:00:00", 4.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0),
        ("2026-11-02 12:00:04", 16.0, 700 / 3200, 2.0, 580 / 2000, 1.0, 0.0, 0),
        ("2026-11-02 12:00:30", 10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0),
    ]


def test_quota_counts_alone_and_only_where_its_rate_is_a_bound(frames: Frames) -> None:
    """Each quota of a side counts for itself; one that observes or is shared is no bound."""
    lines = frames.lines(
        Sidecar().sample(
            quota(100, 1000, [10] * 10, 1000.0, 1010.0),
            quota(50, 1000, [20] * 10, 1000.0, 1010.0, name="leader.recovery.throttled.rate"),
            quota(50, 1000, [90] * 10, 1000.0, 1010.0, name="zones", mode="observe"),
            quota(50, 1000, [5] * 10, 1000.0, 1010.0, name="into/3", mode="shared"),
        )
    )
    assert sorted(rows(throttle_accuracy(_minutes(lines)), "quota_id", "mean_over_quota")) == [
        ("leader.recovery.throttled.rate", 0.4),
        ("leader.replication.throttled.rate", 0.1),
    ]


def test_quota_of_zero_has_no_ratio(frames: Frames) -> None:
    lines = frames.lines(Sidecar().sample(quota(0, 1000, [5] + [0] * 9, 1000.0, 1010.0)))
    assert rows(throttle_accuracy(_minutes(lines)), "mean_over_quota", "worst_1s_over_quota", "seconds_over") == [
        (None, None, 1.0)
    ]


def test_minutes_of_a_quota_add_up_to_its_span(frames: Frames) -> None:
    """Quota 100 from 12:00:50 on. The second that both samples tell of, 60 + 60 bytes, is one of the later minute.

    So is the worst 10 s, which ends with it. In the first minute 1000 bytes passed in 10 whole seconds and 60 in a
    half one.
    """
    sidecar = Sidecar(now=NOON + timedelta(seconds=49.5))
    lines = frames.lines(
        sidecar.sample(quota(100, 1000, [100] * 10 + [60], 1000.0, 1010.5), link(0, left_out=3), seconds=10.5),
        sidecar.sample(quota(100, 1010, [60] + [50] * 9, 1010.5, 1020.0), link(0, left_out=3), seconds=9.5),
        sidecar.sample(quota(100, 1020, [50] * 10, 1020.0, 1030.0), link(0)),
    )
    table = throttle_minutes(_minutes(lines))
    assert types_of(table) == types(THROTTLE_MINUTES)
    of = ("leader.replication.throttled.rate", 1, "leader", "2026-11-02 12:00:49.5")
    assert rows(table, *THROTTLE_MINUTES.columns) == [
        ("2026-11-02 12:00:00", *of, 10.5, 1060, 1.0, 1.0, 0.0, 10.5, -10),
        ("2026-11-02 12:01:00", *of, 19.5, 1010, 1.2, 1.02, 1.0, 9.5, 440),
    ]
    figures = ("start", "seconds", "worst_1s_over_quota", "worst_10s_over_quota", "seconds_over", "bytes_left_out")
    assert rows(throttle_accuracy(_minutes(lines)), *figures) == [("2026-11-02 12:00:49.5", 30.0, 1.2, 1.02, 1.0, 430)]

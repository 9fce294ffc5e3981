# SPDX-License-Identifier: Apache-2.0
"""What limited clients did, in small frames that were worked out by hand."""

from __future__ import annotations

from datetime import timedelta

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import NOON, Sidecar, limit, rows, types, types_of
from weir.pipeline.limits import limits
from weir.pipeline.tables import LIMITS

FIGURES = ("records", "mean_records_per_second", "max_records_per_second", "throttled_ratio")


def test_limits_by_minute_and_hour_over_all_brokers(frames: Frames) -> None:
    """A client at two brokers, idle in the last sample of one; and another, of a later minute and a changed limit."""
    one, two = Sidecar(1), Sidecar(2)
    texts = [
        one.sample(limit("a", 5000, most=600, waited=0.5)),
        one.sample(limit("a", 4000, most=400, waited=0.25)),
        one.sample(),
        two.sample(limit("a", 600, most=700, waited=0.1, allowed=500.0), seconds=30.0),
    ]
    one.now = NOON + timedelta(minutes=5)
    later = [one.sample(limit("b", 70, most=10, allowed=None, task=3), limit("a", 0, waited=1.0))]
    table = limits(frames.lines(*texts, *later))
    assert types_of(table) == types(LIMITS)
    noon, five = "2026-11-02 12:00:00", "2026-11-02 12:05:00"
    assert rows(table, "window", "window_start", "client_id", *FIGURES) == [
        ("hour", noon, "a", 9600, 9000 / 40 + 20, 700, 0.4375),  # (5 + 2.5 + 0 + 10) of 40 s at the first broker
        ("hour", noon, "b", 70, 70 / 40, 10, 0.0),
        ("minute", noon, "a", 9600, 300.0 + 20.0, 700, 0.25),
        ("minute", five, "a", 0, 0.0, 0, 1.0),
        ("minute", five, "b", 70, 7.0, 10, 0.0),
    ]
    names = ("client_id", "role", "connector", "task", "entry", "limit_group", "record_rate_limit")
    assert rows(table, *names, window="hour") == [
        ("a", "sink", "s3", 0, "connector-*", "a", 1000.0),
        ("b", "sink", "s3", 3, "connector-*", "b", None),
    ]

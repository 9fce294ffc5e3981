# SPDX-License-Identifier: Apache-2.0
"""Rows of replicas that are left out, as no span is made of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import Sidecar, partition
from weir.pipeline.accuracy import quotas_in_force
from weir.pipeline.behind import ROW, behind_by_minute, behind_spans, moves, rates_in_force, with_lag
from weir.pipeline.behind_rows import rows_that_count
from weir.pipeline.engine import F


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
    counted = rows_that_count(lines, lambda frame: frame)
    found = moves(behind_spans(behind_by_minute(counted, lines.ends, rates)))
    kept = found.collect()
    assert len(kept) > 20
    assert sorted(map(repr, kept)) == sorted(map(repr, wanted.collect()))

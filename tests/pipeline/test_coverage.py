# SPDX-License-Identifier: Apache-2.0
"""What was sampled, and who was away, worked out by hand."""

from __future__ import annotations

from tests.pipeline.conftest import Frames
from tests.pipeline.exported import Sidecar, link, rows, types, types_of
from weir.pipeline.coverage import absences, coverage_by_minute, links_of_leaders
from weir.pipeline.lines import by_kind, good_lines
from weir.pipeline.rates import broker_samples
from weir.pipeline.tables import ABSENCES, BROKER_SAMPLES, COVERAGE
from weir.pipeline.whole import samples


def test_coverage_counts_samples_and_what_each_minute_lacks(frames: Frames) -> None:
    """12:00:10 to 12:01:00 lie in the first minute, the last of them without its end. Two of the second are lost."""
    sidecar = Sidecar()
    texts = [sidecar.sample(link(1)) for _ in range(6)]
    texts[5] = texts[5].splitlines()[0] + b"\n"
    sidecar.sample()
    sidecar.sample()
    texts.append(sidecar.sample(seconds=0.5))
    table = coverage_by_minute(samples(frames.good(b"".join(texts))))
    assert types_of(table) == types(COVERAGE)
    assert rows(table, *COVERAGE.columns) == [
        (1, "2026-11-02 12:00:00", 5, 50.0, 0, 1),
        (1, "2026-11-02 12:01:00", 1, 0.5, 2, 0),
    ]


def test_follower_without_a_connection_is_away_until_it_fetches(frames: Frames) -> None:
    """Broker 2 is away from 12:00:05 to 12:00:30, and broker 3 from 12:00:20 on, for good."""
    sidecar = Sidecar()
    lines = by_kind(
        good_lines(
            frames.parsed(
                sidecar.sample(link(1, away=5.0), link(1, peer=3))
                + sidecar.sample(link(0, away=15.0), link(1, peer=3))
                + sidecar.sample(link(1), link(0, peer=3, away=10.0))
                + sidecar.sample(link(1), link(0, peer=3, away=20.0))
            )
        )
    )
    table = absences(links_of_leaders(lines))
    assert types_of(table) == types(ABSENCES)
    assert rows(table, *ABSENCES.columns) == [
        (2, 1, "2026-11-02 12:00:05", "2026-11-02 12:00:30", "2026-11-02 12:00:30"),
        (3, 1, "2026-11-02 12:00:20", None, "2026-11-02 12:00:40"),
    ]


def test_each_sample_has_what_a_broker_moved_on_both_sides(frames: Frames) -> None:
    """Two peers of the leader's side, and then no connection at all."""
    sidecar = Sidecar()
    first = sidecar.sample(link(1, throttled=20), link(2, throttled=30, peer=3), link(5, side="follower"))
    table = broker_samples(frames.lines(first, sidecar.sample(seconds=0.5)))
    assert types_of(table) == types(BROKER_SAMPLES)
    times = ("2026-11-02 12:00:00", "2026-11-02 12:00:10"), ("2026-11-02 12:00:10", "2026-11-02 12:00:10.5")
    assert rows(table, *BROKER_SAMPLES.columns) == [
        (1, "follower", *times[0], 0, 5),
        (1, "follower", *times[1], 0, 0),
        (1, "leader", *times[0], 50, 3),
        (1, "leader", *times[1], 0, 0),
    ]

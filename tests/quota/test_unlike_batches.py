# SPDX-License-Identifier: Apache-2.0
"""Followers of one leader whose logs have batches of unlike sizes: each has as many bytes, and the quota is used."""

from collections import Counter

import pytest

from tests.quota.model.run import Run
from tests.quota.model.scenario import MB, Partition, Scenario, Side

SECONDS = 40.0


def received(patterns: list[tuple[int, ...]], rate: int) -> Counter[int]:
    """What each follower has after a while (bytes), if nothing was broken. Each has one partition: batches by turns."""
    partitions = tuple(
        Partition(
            number, 0, 0, number, 0, is_behind=True, pattern=pattern, count=round(2 * rate * SECONDS / min(pattern))
        )
        for number, pattern in enumerate(patterns)
    )
    leader, follower = Side(rate, tuple(range(len(patterns)))), Side(None, ())
    run = Run(Scenario(12, "leader", leader, follower, partitions, seconds=SECONDS, most_exchanges=10_000))
    assert not run.play().violations
    found: Counter[int] = Counter()
    for _, replica, size in run.world.answers:
        found[replica] += size
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("patterns", "rate", "least"),
    [
        ([(900_000,), (10_000,)], MB, 0.98),
        ([(700_000, 900_000), (8_000, 12_000)], MB, 0.98),
        ([(700_000, 900_000), (10_000,)], 5 * MB, 0.98),
        ([(600_000,), (10_000,), (10_000,)], MB, 0.98),
        ([(300_000, 400_000), (8_000, 12_000), (10_000,), (900_000,)], MB, 0.98),
        ([(700_000, 750_000), (600_000,), (400_000,), (10_000,)], MB, 0.98),
    ],
)
def test_each_follower_has_as_many_bytes_as_others(patterns: list[tuple[int, ...]], rate: int, least: float) -> None:
    """A batch cannot be split, so its follower's next turn comes later."""
    found = received(patterns, rate)
    assert len(found) == len(patterns)
    assert max(found.values()) - min(found.values()) <= 2 * max(map(max, patterns))
    assert found.total() >= least * rate * SECONDS

# SPDX-License-Identifier: Apache-2.0
"""A broker that reads slowly for one follower: what is granted there takes nothing from others until it comes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.quota.model.run import FIRST_FOLLOWER, Run
from tests.quota.model.scenario import Partition, Scenario, Side
from tests.quota.model.world import START

RATE = 5_000_000
BATCH = 10_300
FAST_SECONDS = 0.002  # that the broker takes for an answer to others


def means(seconds: float, connections: list[int], slow: int, read_seconds: float) -> list[float]:
    """What each follower gets from 3 s on, in parts of the quota. `connections` are theirs, each of 5 partitions.

    For the follower `slow` the broker reads for `read_seconds`. What the model promises is held, a second's quota too.
    """
    places = [(follower, fetcher) for follower, count in enumerate(connections) for fetcher in range(count)]
    batches = int(RATE * seconds / BATCH)
    partitions = [
        Partition(0, number, 0, *place, is_behind=True, pattern=(BATCH,), count=batches)
        for number, place in enumerate(place for place in places for _ in range(5))
    ]
    run = Run(
        Scenario(
            version=3,
            hops="leader",
            leader=Side(RATE, (0,)),
            follower=Side(None, ()),
            partitions=tuple(partitions),
            bandwidth=200_000_000,
            seconds=seconds,
            most_exchanges=1_000_000,
        )
    )
    (leader,) = run.leaders

    def next_lateness(replica_id: int) -> float:
        return read_seconds if replica_id == FIRST_FOLLOWER + slow else FAST_SECONDS

    leader.next_lateness = next_lateness  # type: ignore[method-assign]
    assert run.play().violations == []
    received = Counter[int]()
    for at, replica_id, size in run.world.answers:
        received[replica_id] += size if at > START + 3 else 0
    return [received[FIRST_FOLLOWER + one] / RATE / (seconds - 3) for one in range(len(connections))]


@pytest.mark.parametrize("read_seconds", [0.25, 0.4, 0.85])
def test_a_slow_broker_takes_nothing_from_other_followers(read_seconds: float) -> None:
    """It was 0.92 of the quota in all, and the slow one had 0.13 of it: bytes were set aside while the broker read."""
    used = means(15.0, [1, 1, 1], 0, read_seconds)
    assert sum(used) >= 0.98
    assert used[0] >= 0.28


@pytest.mark.long
def test_replica_with_slow_answers_has_no_more_than_a_fast_one() -> None:
    """A fetch may be granted 0.9 s of quota there, and a turn counts 0.12 s. What others wait for is left to them."""
    fast, slow = means(20.0, [1, 5], 1, 0.9)
    assert slow <= 1.05 * fast
    assert slow + fast >= 0.7

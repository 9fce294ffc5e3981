# SPDX-License-Identifier: Apache-2.0
"""Thousands of small partitions behind, as after a broker's return: the quota is used, however little each one has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import mean_rate, worst_second
from tests.fakes.kafka.leader import Leader
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader, Upstream
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
SIDES: dict[str, tuple[SideName, ...]] = {
    "leader": ("leader",),
    "both": ("leader", "follower"),
}
UNLIKE = tuple(500 + 99_500 * (number * 7919 % 1000) // 1000 for number in range(1000))
"""Bytes of one batch of a partition each: 0.5 to 100 KB."""


class Catch:
    """A follower that is behind with all of `logs`, at `rate` bytes/s on each of `sides`, until it has them all."""

    def __init__(self, logs: dict[Key, Log], sides: Sequence[SideName], rate: int, version: int) -> None:
        self.clock = clock = MovedClock()
        self.size = sum([log.ends[-1] for log in logs.values()])
        self.leader = Leader(logs)
        # An answer that has thousands of entries takes both ends some time.
        upstream: Upstream = SessionLeader(clock, self.leader, round_trip=0.02)
        replicas = dict.fromkeys({topic.decode() for topic, _ in logs}, ALL_REPLICAS)
        for side in sides:
            throttle = Throttle(side, 1, clock, ThrottleSettings(rate=rate, replicas=replicas))
            upstream = Hop(clock, throttle.link(2 if side == "leader" else 1), upstream)
        self.follower = SessionFollower(clock, upstream, dict.fromkeys(logs, 0), version)
        self.rate = rate

    def used(self) -> float:
        """Run until nothing is behind. Returns the part of the quota that was used.

        Neither the first half second counts, nor the last answer, which has what is left.
        """
        received = self.follower.received
        begun, ideal = self.clock.now, self.size / self.rate
        while sum([size for _, size in received]) < self.size and self.clock.now < begun + 2 * ideal + 1:
            self.follower.run(0.1)
        since = min([at for at, _ in received if at >= begun + 0.5])
        return mean_rate(received, since, received[-2][0]) / self.rate


def topics(count: int, *sizes: int) -> dict[Key, Log]:
    """So many topics of one partition with batches of `sizes`."""
    return {(b"t%05d" % number, 0): Log(sizes) for number in range(count)}


def partitions(count: int, sizes: Sequence[int]) -> dict[Key, Log]:
    """One topic of so many partitions, each with one batch: its size is the next of `sizes`, which go round."""
    return {(b"t", number): Log([size]) for number, size in enumerate(islice(cycle(sizes), count))}


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("sides", SIDES)
def test_many_topics_of_unknown_sizes_use_the_quota(sides: str, version: int) -> None:
    catch = Catch(topics(400, 10_000, 10_000, 10_000), SIDES[sides], 3 * MB, version)
    assert catch.used() >= 0.97
    assert worst_second(catch.follower.received) <= 1.04 * catch.rate + 30_000


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("sides", SIDES)
def test_many_partitions_of_unlike_sizes_use_the_quota(sides: str, version: int) -> None:
    catch = Catch(partitions(400, UNLIKE), SIDES[sides], 3 * MB, version)
    assert catch.used() >= (0.95 if sides == "both" else 0.97)  # two hops wait for each other, whatever they grant
    assert worst_second(catch.follower.received) <= 1.04 * catch.rate + 100_000


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("sides", SIDES)
def test_20000_partitions_with_one_small_batch_use_the_quota(sides: str, version: int) -> None:
    catch = Catch(partitions(20_000, [300]), SIDES[sides], 2 * MB, version)
    assert catch.used() >= 0.97
    assert worst_second(catch.follower.received) <= 1.04 * catch.rate + 300

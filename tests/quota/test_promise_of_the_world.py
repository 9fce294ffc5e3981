# SPDX-License-Identifier: Apache-2.0
"""What is promised holds in whole clusters with slow ends, late leaders and the like, and in what was broken once."""

import pytest

from tests.quota.model.draw_world import draw_world
from tests.quota.model.judge import judge
from tests.quota.model.scenario import MB, Partition, Scenario, Seeded, Side


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_promise_of_a_drawn_cluster_holds(seed: int) -> None:
    assert not judge(draw_world(Seeded(seed))).violations, f"python -m bench.promise --world --seed {seed} --depth 1"


@pytest.mark.long
def test_promise_of_large_batches_beside_a_slow_follower_holds() -> None:
    """What trickled to it kept the window from ever being empty, which a batch larger than the window waited for."""
    behind = [Partition(0, number, 0, number % 2, 0, True, (900_000,), 200) for number in range(4)]
    leader = Side(500_000, (0,), order="round-robin")
    scenario = Scenario(
        3, "leader", leader, leader, tuple(behind), slow=(20_000, 0), seconds=40.0, most_exchanges=1_000
    )
    assert not judge(scenario).violations


def test_promise_of_few_answers_without_records_holds() -> None:
    """A hop answered each whole fetch with an offset probe, once an earlier hop had asked for offsets in one."""
    side = Side(5 * MB, (0,), order="round-robin")
    large = (900_000,)
    partitions = (
        Partition(0, 11, 0, 4, 0, False, large),
        Partition(0, 13, 1, 0, 0, True, large, 13),
        Partition(0, 15, 1, 2, 0, True, large, 1),
        Partition(0, 16, 1, 2, 0, True, large, 6),
        Partition(2, 17, 1, 2, 0, False, (10_000,), live_every=1.0),
    )
    scenario = Scenario(17, "both", side, side, partitions, scales=(1.0, 0.5), seconds=20.0, most_exchanges=2_000)
    assert not [one for one in judge(scenario).violations if one.promise == "no spinning"]

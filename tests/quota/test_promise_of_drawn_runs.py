# SPDX-License-Identifier: Apache-2.0
"""Runs that were drawn and missed. What was wrong was the throttle, or what the model asked of it."""

import pytest

from tests.quota.model.judge import must_hold

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "seed",
    [
        370_002_135,  # a topic made anew has the name, and so the standing, of one that was empty
        380_001_949,
        390_001_684,  # bytes that waited for 0.7 s go all the same
        600_000_398,  # when a rate falls, what passed before fills the window
        600_001_245,
    ],
)
def test_what_no_throttle_can_keep_is_not_asked(seed: int) -> None:
    must_hold(range(seed, seed + 1))


@pytest.mark.parametrize("seed", [380_001_932, 390_002_800])
def test_nobody_starves(seed: int) -> None:
    """A link lost its place while its follower paid for another leader's batch; turns had another quota's rate."""
    must_hold(range(seed, seed + 1))


def test_follower_that_is_fast_again_waits_for_room() -> None:
    """It was slow no longer in the midst of an answer, and the rest of that went whether or not the window had room."""
    must_hold(range(600_002_343, 600_002_344))


@pytest.mark.parametrize("seed", [150_000_725, 340_002_353])
def test_what_an_answer_brought_beyond_its_grant_is_a_part_of_a_turn(seed: int) -> None:
    """Without it partitions of large batches had as many turns as others: records in sync waited, and some starved."""
    must_hold(range(seed, seed + 1))

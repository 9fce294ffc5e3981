"""What is promised holds in runs drawn at random: seeds 200 to 399."""

import pytest

from tests.quota.model.judge import must_hold

FIRST, SEEDS = 200, 200


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 50))
def test_promise_of_a_random_run_holds(first: int) -> None:
    must_hold(range(first, first + 50))

"""What is promised holds in runs drawn at random: a few as a unit test, and many beside the real brokers."""

import pytest

from tests.quota.model.judge import must_hold

pytestmark = pytest.mark.long

AT_A_TIME = 50


@pytest.mark.parametrize("first", range(0, 150, AT_A_TIME))
def test_promise_of_a_random_run_holds(first: int) -> None:
    must_hold(range(first, first + AT_A_TIME))


@pytest.mark.integration
@pytest.mark.parametrize("first", range(150, 550, AT_A_TIME))
def test_promise_of_many_random_runs_holds(first: int) -> None:
    must_hold(range(first, first + AT_A_TIME))

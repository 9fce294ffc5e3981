# SPDX-License-Identifier: Apache-2.0
"""What is promised holds in runs drawn at random."""

import pytest

from tests.quota.model.judge import must_hold

pytestmark = pytest.mark.long

AT_A_TIME = 50


@pytest.mark.parametrize("first", range(0, 550, AT_A_TIME))
def test_promise_of_a_random_run_holds(first: int) -> None:
    must_hold(range(first, first + AT_A_TIME))

# SPDX-License-Identifier: Apache-2.0
"""The `kip73` policy, with ReplicationQuotaManagerTest's scenarios."""

import math

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.budget.kip73 import Kip73Quota
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Ask, Offer
from weir.quota.budget.simple_rate import SimpleRate

_ASK = Ask("link", 2, 0, is_urgent=False, is_live=False, answer_seconds=0.0)


class Budget:
    """A quota, and what its bytes are sampled in."""

    def __init__(
        self, clock: MovedClock, rate: int | None, window_num: int = 11, window_size_seconds: float = 1.0
    ) -> None:
        self.clock = clock
        self.measured = SimpleRate(clock, window_num, window_size_seconds)
        self.ledger = StrictLedger(clock, rate)
        line = BudgetQueue(clock)
        self._quota = Kip73Quota("one", self.ledger, self.measured, line)

    def is_exceeded(self) -> bool:
        return self._quota.is_exceeded(self.clock())

    def offer(self) -> Offer:
        return self._quota.offer(_ASK, self.clock())


def new_budget(
    clock: MovedClock, rate: int | None, window_num: int = 11, window_size_seconds: float = 1.0
) -> tuple[Budget, SimpleRate]:
    budget = Budget(clock, rate, window_num, window_size_seconds)
    return budget, budget.measured


def test_quota_exceeded_is_back_below_the_bound_as_time_passes() -> None:
    """ReplicationQuotaManagerTest.shouldExceedQuotaThenReturnBackBelowBoundAsTimePasses: 100 B/s, 10 samples of 1 s."""
    clock = MovedClock(0.0)
    budget, measured = new_budget(clock, 100, window_num=10, window_size_seconds=1)
    assert not budget.is_exceeded()

    clock.move(1.5)
    measured.record(1)
    assert not budget.is_exceeded()
    measured.record(149)
    assert not budget.is_exceeded()  # 150 B in 1.5 s: exactly the quota
    measured.record(1)
    assert measured.rate() == 151 / 1.5
    assert budget.is_exceeded()

    clock.move(0.5)
    assert not budget.is_exceeded()
    assert measured.rate() == 151 / 2

    clock.move(0.5)
    measured.record(99)
    assert measured.rate() == 250 / 2.5
    assert not budget.is_exceeded()
    measured.record(1)
    assert budget.is_exceeded()
    assert measured.rate() == 251 / 2.5

    clock.move(2.0)
    assert not budget.is_exceeded()
    assert measured.rate() == 251 / 4.5


def test_quota_of_none_is_never_exceeded_and_still_records() -> None:
    clock = MovedClock(10.0)
    budget, measured = new_budget(clock, None)
    measured.record(10**12)
    assert not budget.is_exceeded()
    assert measured.rate() == 10**12
    assert budget.offer().ready == clock()
    assert budget.offer().spend == math.inf


def test_quota_of_zero_is_exceeded_before_anything_was_recorded() -> None:
    clock = MovedClock(10.0)
    budget, _ = new_budget(clock, 0)
    assert budget.is_exceeded()
    assert budget.offer().ready == clock() + 1.0


def test_quota_of_zero_begins_samples_that_a_later_quota_finds() -> None:
    clock = MovedClock(0.0)
    budget, measured = new_budget(clock, 0)
    assert budget.is_exceeded()
    clock.move(4.0)
    budget.ledger.set_rate(100)
    measured.record(400)
    assert not budget.is_exceeded()
    measured.record(1)
    assert budget.is_exceeded()


def test_set_rate_changes_the_answer_and_keeps_the_record() -> None:
    budget, measured = new_budget(MovedClock(0.0), 100)
    measured.record(150)
    assert budget.is_exceeded()
    budget.ledger.set_rate(150)
    assert not budget.is_exceeded()
    budget.ledger.set_rate(149)
    assert budget.is_exceeded()
    budget.ledger.set_rate(None)
    assert not budget.is_exceeded()


def test_retry_at_within_the_limits_is_when_the_rate_is_back() -> None:
    clock = MovedClock(0.0)
    budget, measured = new_budget(clock, 100)
    measured.record(150)
    clock.move(1.0)
    assert budget.offer().ready == 1.5
    clock.now = 1.499
    assert budget.is_exceeded()
    clock.now = 1.5
    assert not budget.is_exceeded()


def test_retry_at_while_exceeded_is_a_tenth_to_a_second_away() -> None:
    clock = MovedClock(5.0)
    budget, measured = new_budget(clock, 100)
    measured.record(10_000)
    assert budget.offer().ready == 6.0
    clock.move(99.99)
    budget, measured = new_budget(clock, 100)
    measured.record(101)
    assert budget.offer().ready == pytest.approx(clock() + 1.0, abs=0.011)
    clock.move(1.0)
    assert budget.offer().ready == pytest.approx(clock() + 0.1)


def test_quota_a_response_at_a_time_averages_to_the_quota() -> None:
    """Ten minutes of 10 KB responses whenever the rate allows: the mean is Kafka's 0.5 to 1.1 x, and never more."""
    clock = MovedClock(0.0)
    budget, measured = new_budget(clock, 5_000)
    passed = 0
    while clock() < 600:
        if budget.is_exceeded():
            clock.now = budget.offer().ready
        else:
            measured.record(10_000)
            passed += 10_000
            clock.move(0.005)
    assert 0.5 * 5_000 < passed / 600 < 1.1 * 5_000

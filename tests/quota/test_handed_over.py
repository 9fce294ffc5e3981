# SPDX-License-Identifier: Apache-2.0
"""What quotas owe goes to the ledgers of another process: together both keep to one quota."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.simple_rate import SimpleRate

RATE = 1000


def test_debt_goes_to_the_other_ledger_and_is_paid_once() -> None:
    clock = MovedClock()
    old, new = StrictLedger(clock, RATE), StrictLedger(clock, RATE)
    old.book(0, 4000)
    clock.move(1.0)
    new.take_over(old.hand_over())
    assert new.credit() == pytest.approx(-3000, abs=1)
    clock.move(1.0)
    assert new.credit() == pytest.approx(-2000, abs=1)
    assert old.credit() == pytest.approx(0, abs=1)  # the other one earns


def test_credit_that_was_earned_beside_the_other_ledger_is_lost() -> None:
    clock = MovedClock()
    old, new = StrictLedger(clock, RATE), StrictLedger(clock, RATE)
    clock.move(10.0)
    new.take_over(old.hand_over())
    assert new.credit() == pytest.approx(250, abs=1)


def test_bytes_of_the_last_second_stay_in_the_window() -> None:
    clock = MovedClock()
    old, new = StrictLedger(clock, RATE), StrictLedger(clock, RATE)
    old.book(0, 600)
    old.charge(100)
    clock.move(0.5)
    new.take_over(old.hand_over())
    assert new.room() == pytest.approx(1040 - 700, abs=1)
    assert new.sent_exempt == 100
    clock.move(0.51)
    assert new.room() == pytest.approx(1040, abs=1)


def test_what_is_settled_after_the_hand_over_follows() -> None:
    """An answer was under way: 500 bytes were reserved for it, and it brought a batch of 2,000."""
    clock = MovedClock()
    old, new = StrictLedger(clock, RATE), StrictLedger(clock, RATE)
    clock.move(1.0)
    old.book(500)
    new.take_over(old.hand_over())
    assert new.credit() == pytest.approx(-250, abs=1)
    old.book(-500, 2000)
    new.take_over(old.hand_over())
    assert new.credit() == pytest.approx(-1750, abs=1)
    assert new.room() == pytest.approx(1040 - 2000, abs=1)


def test_hand_over_that_was_in_vain_leaves_the_ledger_as_it_was() -> None:
    clock = MovedClock()
    ledger = StrictLedger(clock, RATE)
    ledger.book(0, 4000)
    ledger.charge(500)
    before = ledger.credit(), ledger.room()
    state = ledger.hand_over()
    ledger.take_over(state)
    assert (ledger.credit(), ledger.room()) == before
    clock.move(1.0)
    assert ledger.credit() == pytest.approx(before[0] + RATE, abs=1)


def test_samples_of_a_rate_go_along() -> None:
    clock = MovedClock()
    old, new = SimpleRate(clock), SimpleRate(clock)
    old.record(1100)
    clock.move(1.5)
    new.record(1100)
    both = SimpleRate(clock)
    both.take_over(old.hand_over())
    both.take_over(new.hand_over())
    assert both.rate() == pytest.approx(2200 / 1.5)
    assert not old.hand_over()

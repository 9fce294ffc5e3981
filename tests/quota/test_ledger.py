# SPDX-License-Identifier: Apache-2.0
"""The sliding ledger: room, credit, debt and refunds, in a clock moved by hand."""

import math

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.budget.ledger import Account, LinkAccounts, StrictLedger
from weir.quota.figures import CREDIT_SECONDS, EXPECTED_SECONDS

RATE = 1000


def full_ledger(clock: MovedClock) -> StrictLedger:
    ledger = StrictLedger(clock, RATE)
    clock.move(1.0)
    return ledger


def settle(ledger: StrictLedger, reserved: int, used: int) -> None:
    """An answer comes, and its follower asks again at once."""
    ledger.book(used - reserved)
    ledger.book(-used, used)


def test_credit_starts_empty_and_gathers_at_the_rate() -> None:
    clock = MovedClock()
    ledger = StrictLedger(clock, RATE)
    assert ledger.credit() < 1
    clock.move(0.1)
    assert ledger.credit() == pytest.approx(100, abs=1)
    clock.move(60)
    assert ledger.credit() == pytest.approx(RATE * CREDIT_SECONDS, abs=1)


def test_a_second_of_quota_is_saved_while_answers_are_late() -> None:
    """What is granted to them comes at any time, and takes its credit then."""
    clock = MovedClock()
    ledger = StrictLedger(clock, RATE)
    ledger.lend("a", 0.1)
    clock.move(2.0)
    assert ledger.credit() == pytest.approx(1000, abs=1)
    ledger.book(800)
    settle(ledger, 800, 800)
    clock.move(0.5)
    assert ledger.credit() == pytest.approx(700, abs=1)
    clock.move(EXPECTED_SECONDS)  # nothing was lent meanwhile, so no more is saved
    assert ledger.credit() == pytest.approx(700, abs=1)


def test_links_of_late_answers_share_what_is_lent_evenly() -> None:
    """So one whose leader is slow leaves the others theirs, however long it keeps its own."""
    ledger = StrictLedger(clock := MovedClock(), RATE)
    assert ledger.lend("slow", 0.2) == 200
    assert ledger.lend("fast", 0.2) == 100
    clock.move(0.6 * EXPECTED_SECONDS)
    assert ledger.lend("fast", 0.2) == 100
    clock.move(0.6 * EXPECTED_SECONDS)
    assert ledger.lend("fast", 0.2) == 200


def test_debt_of_an_oversized_batch_stays_until_paid_back() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.book(100)
    settle(ledger, 100, 5000)
    assert ledger.credit() == pytest.approx(250 - 5000, abs=1)
    assert ledger.credit_at(0) == pytest.approx(clock.now + 4.75, abs=0.01)
    clock.move(2.0)  # the bytes have left the window, the debt has not gone with them
    assert ledger.room() == pytest.approx(1.04 * RATE, abs=1)
    assert ledger.credit() == pytest.approx(-2750, abs=1)


def test_debt_of_in_sync_bytes_is_bounded_by_one_window() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    for _ in range(10):
        ledger.charge(100 * RATE)
    assert ledger.credit() == pytest.approx(-RATE, abs=1)
    assert ledger.room() == pytest.approx(1040 - 1000 * RATE, abs=1)


def test_charge_does_not_forgive_a_deeper_debt() -> None:
    ledger = full_ledger(MovedClock())
    settle(ledger, 0, 5000)
    ledger.charge(1)
    assert ledger.credit() == pytest.approx(250 - 5000, abs=1)


def test_refund_never_lifts_credit_above_the_most() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.book(200)
    assert ledger.credit() == pytest.approx(50, abs=1)
    clock.move(1.0)
    settle(ledger, 200, 0)
    assert ledger.credit() <= RATE * CREDIT_SECONDS + 1
    assert ledger.reserved == 0


def test_room_counts_the_reserved_and_the_last_seconds_bytes() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.book(300)
    assert ledger.room() == pytest.approx(740, abs=1)
    settle(ledger, 300, 200)
    assert ledger.room() == pytest.approx(840, abs=1)
    clock.move(0.99)
    assert ledger.room() == pytest.approx(840, abs=1)
    assert ledger.room_at(1000) == pytest.approx(clock.now + 0.01, abs=0.002)
    clock.move(0.02)
    assert ledger.room() == pytest.approx(1040, abs=1)


def test_what_no_quota_could_stop_takes_room() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.charge(300)
    clock.move(0.5)
    ledger.charge(200)
    assert ledger.room() == pytest.approx(1040 - 500, abs=1)
    assert ledger.room_at(1040 - 200) == pytest.approx(clock.now + 0.5, abs=0.002)
    clock.move(0.51)
    assert ledger.room() == pytest.approx(1040 - 200, abs=1)


def test_room_is_kept_for_a_slow_link_up_to_half_the_window() -> None:
    """It is kept for what the link takes next."""
    ledger = full_ledger(MovedClock())
    account = Account(ledger, math.inf)
    account.reserve(900)
    account.let_arrive(100, 300)  # 800 of it are held back, and 300 of these go as soon as there is room
    assert (account.held_back, ledger.due) == (800, 300)
    assert ledger.room_for_due() == pytest.approx(940, abs=1)
    assert ledger.room() == pytest.approx(640, abs=1)
    account.let_arrive(100, 800)
    assert ledger.room() == pytest.approx(940 - 520, abs=1)
    account.close()
    assert (ledger.due, ledger.reserved) == (0, 0)


def test_credit_gathered_while_nobody_wanted_it_is_no_ones() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    assert ledger.credit() > 0
    ledger.want()
    assert ledger.credit() == pytest.approx(0, abs=1)
    clock.move(0.1)
    settle(ledger, 0, 1)
    ledger.want()
    assert ledger.credit() == pytest.approx(100, abs=2)  # busy: it stays
    settle(ledger, 0, 5000)
    clock.move(1.01)
    ledger.want()
    assert ledger.credit() == pytest.approx(-3890, abs=5)  # a debt stays


def test_credit_that_gathered_while_it_was_wanted_stays() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.want()
    clock.move(0.1)
    ledger.want()
    assert ledger.credit() == pytest.approx(100, abs=2)
    clock.move(1.01)
    ledger.want(is_waited_for=True)
    assert ledger.credit() == pytest.approx(250, abs=2)
    clock.move(1.01)
    ledger.want()
    assert ledger.credit() == pytest.approx(0, abs=1)


def test_rate_zero_never_has_credit_or_room() -> None:
    clock = MovedClock()
    ledger = StrictLedger(clock, 0)
    clock.move(100)
    assert ledger.credit_at(1) == ledger.room_at(1) == float("inf")


def test_set_rate_caps_the_credit_saved_under_a_higher_one() -> None:
    ledger = full_ledger(MovedClock())
    ledger.set_rate(100)
    assert ledger.credit() == pytest.approx(25, abs=1)


def test_rate_of_0_for_a_moment_takes_no_credit_and_earns_none() -> None:
    """A rate that is turned off and on again each 0.2 s would hardly ever gather a share."""
    clock = MovedClock()
    ledger = full_ledger(clock)
    saved = ledger.credit()
    ledger.set_rate(0)
    clock.move(0.2)
    ledger.set_rate(RATE)
    assert ledger.credit() == saved > 0


@pytest.mark.parametrize("rate", [RATE // 10, 10 * RATE, 0])
def test_debt_of_a_batch_is_paid_at_a_new_rate_never_forgiven(rate: int) -> None:
    ledger = full_ledger(MovedClock())
    settle(ledger, 0, 50 * RATE)
    owed = ledger.credit()
    ledger.set_rate(rate)
    ledger.set_rate(None)
    ledger.set_rate(RATE)
    assert ledger.credit() == owed


def test_exempt_bytes_owe_a_second_of_a_lowered_quota_at_most() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.charge(50 * RATE)
    settle(ledger, 0, 2 * RATE)
    ledger.set_rate(RATE // 10)
    assert ledger.credit() == pytest.approx(-2 * RATE - RATE // 10, abs=1)
    clock.move(1.0)
    assert ledger.credit() == pytest.approx(-2 * RATE, abs=1)


def test_debt_is_paid_while_records_in_sync_take_all_of_the_quota() -> None:
    """Else they would keep it, and after a change to a lower rate it would be paid at that one."""
    clock = MovedClock()
    ledger = full_ledger(clock)
    settle(ledger, 0, 2 * RATE)
    for _ in range(300):
        ledger.charge(3 * RATE // 100)
        clock.move(0.01)
    ledger.set_rate(RATE // 50)
    assert ledger.credit() == pytest.approx(-RATE // 50, abs=1)


@pytest.mark.parametrize("times_quota", [10, 50])
def test_burst_in_sync_leaves_nothing_two_seconds_later(times_quota: int) -> None:
    """A second after the burst has left the window, its room and credit are there again."""
    clock = MovedClock()
    ledger = full_ledger(clock)
    for _ in range(100):
        ledger.charge(times_quota * RATE // 100)
        clock.move(0.01)
    burst_left_the_window = clock.now + 1.0
    while ledger.room() < 0.5 * RATE or ledger.credit() < 0:
        clock.move(0.01)
    assert clock.now <= burst_left_the_window + 1.0


def test_account_gives_back_all_that_it_holds_when_it_is_closed() -> None:
    ledger = full_ledger(MovedClock())
    account = Account(ledger, math.inf)
    account.reserve(300)
    account.hand_over(280)
    account.confirm(30)
    account.reserve(20)
    assert (account.counted, ledger.reserved) == (270, 270)
    account.close()
    assert (account.counted, ledger.reserved) == (0, 0)
    assert ledger.room() == pytest.approx(1040 - 300, abs=1)  # it may have been sent


def test_answer_that_never_came_counts_as_sent() -> None:
    clock = MovedClock()
    ledger = full_ledger(clock)
    ledger.book(2 * RATE)
    ledger.book(-2 * RATE, 2 * RATE)
    assert ledger.credit() == pytest.approx(250 - 2 * RATE, abs=1)
    assert ledger.room() == pytest.approx(-0.96 * RATE, abs=1)
    assert not ledger.reserved


@pytest.mark.parametrize("comes_empty", [True, False])
def test_arrived_bytes_of_an_answer_are_taken_off_it_alone(comes_empty: bool) -> None:
    """60 KB in sync arrive, the broker hangs, and what is reserved counts as sent: the next answer is whole."""
    clock = MovedClock()
    ledger, accounts = StrictLedger(clock, RATE), LinkAccounts()
    accounts.reserve({ledger: 100_000})
    accounts.arrive(60_000)
    accounts.count_as_sent()
    credit = ledger.credit()
    accounts.hand_over({} if comes_empty else {ledger: 100_000})
    assert ledger.credit() - credit == (60_000 if comes_empty else -40_000)  # what comes as late counts once more
    accounts.confirm()
    clock.move(5.0)
    accounts.reserve({ledger: 100_000})
    accounts.hand_over({ledger: 100_000})
    assert ledger.reserved == 100_000


def test_credit_of_a_link_that_waited_for_a_long_answer_is_kept() -> None:
    """An answer of seconds is no time in which nobody wants budget: else the next fetch would find no credit."""
    clock = MovedClock()
    ledger = StrictLedger(clock, RATE)
    ledger.want()
    clock.move(5.0)
    ledger.keep_wanted()
    clock.move(0.5)
    ledger.want()
    assert ledger.credit() == pytest.approx(250, abs=1)
    clock.move(5.0)
    ledger.want()
    assert ledger.credit() == pytest.approx(0, abs=1)

# SPDX-License-Identifier: Apache-2.0
"""A follower that takes seconds for an answer, beside others: what it does not carry is there for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.fakes.kafka.take_out import passed, take_out
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.budget.ledger import Account, LinkAccounts, StrictLedger
from weir.quota.budget.quota import Ask, Part
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.link import ReplicaLink
from weir.quota.figures import LEAST_BYTES, STUCK_SECONDS
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

RATE = 1_000_000
BATCH = 10_000
LIMIT = 1_040_000


def asked(side: SideName = "leader") -> tuple[MovedClock, Throttle, ReplicaLink, Sequence[ScannedTopic], int]:
    """A throttle, a link with a grant, what the leader answers to it, and what is reserved for it."""
    clock = MovedClock()
    throttle = Throttle(side, 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([BATCH] * 10_000)})
    talk = Conversation(clock, throttle.link(2), leader, Follower({(b"t", 0): 0}))
    talk.run(2.0)
    decision = talk.next_decision()
    assert isinstance(decision, Forward)
    answer = leader.answer(decision.request)
    account = talk.link.accounts.account(throttle.ledger)
    assert account is not None
    return clock, throttle, talk.link, answer, account.reserved


def test_held_back_bytes_take_nothing_of_window_and_credit() -> None:
    ledger = StrictLedger(clock := MovedClock(), RATE)
    clock.move(0.2)
    ledger.want(is_waited_for=True)
    account = Account(ledger, inf)
    credit = ledger.credit()
    account.reserve(100_000)
    account.let_arrive(8_000)
    assert (ledger.reserved, account.counted, account.held_back) == (8_000, 8_000, 92_000)
    assert ledger.credit() == pytest.approx(credit - 8_000)
    account.let_arrive(16_000)
    account.hand_over(50_000)
    assert ledger.reserved == 16_000
    account.confirm(40_000)
    assert ledger.reserved == 10_000
    assert ledger.credit() == pytest.approx(credit - 50_000)
    account.close()
    assert (ledger.reserved, account.held_back, ledger.waiting_links) == (0, 0, 0)


def test_closing_counts_only_what_was_not_held_back() -> None:
    ledger = StrictLedger(MovedClock(), RATE)
    account = Account(ledger, inf)
    account.reserve(100_000)
    account.let_arrive(8_000)
    credit = ledger.credit()
    account.close()
    assert ledger.room() == pytest.approx(LIMIT - 8_000, abs=1)
    assert ledger.credit() == pytest.approx(credit)


def test_answer_passing_in_parts_takes_as_much_as_one_at_once() -> None:
    """The relay may send 20 KB; when these have arrived, 20 KB more."""
    clock, throttle, link, answer, reserved = asked()
    ledger = throttle.ledger
    room, credit = ledger.room(), ledger.credit()
    assert link.let_pass(0, 0, 20_000, 0.0) == 20_000
    assert ledger.reserved == 20_000
    assert ledger.room() == pytest.approx(room + reserved - 20_000)
    assert ledger.credit() == pytest.approx(min(0.25 * RATE, credit + reserved) - 20_000, abs=1)
    arrived = 0
    while arrived < reserved:
        arrived += 20_000
        link.let_pass(20_000, 0, 20_000, 0.0)
    assert ledger.reserved == 0, "what has arrived is no longer reserved"
    assert ledger.room() <= LIMIT - reserved
    link.settle(answer)
    clock.move(1.1)
    assert ledger.room() == pytest.approx(LIMIT, abs=1)


def test_no_more_passes_than_window_room_unless_it_has_waited() -> None:
    _, throttle, link, _, _ = asked()
    ledger = throttle.ledger
    assert link.let_pass(0, 0, 8_000, 0.0) == 8_000
    other = Account(ledger, inf)
    other.reserve(int(ledger.room()) - 5_000)
    assert link.let_pass(0, 8_000, 20_000, 0.0) == 5_000
    assert link.let_pass(0, 13_000, 20_000, 0.6) == 0
    assert link.let_pass(0, 13_000, 20_000, 0.7) == LEAST_BYTES


def test_many_links_that_hold_back_send_half_the_quota_at_most() -> None:
    """That is what they may send where the window has no room."""
    ledger = StrictLedger(MovedClock(), RATE)
    many = [LinkAccounts() for _ in range(500)]
    for one in many:
        one._of(ledger).reserve(50_000)
        one.let_arrive(0)
    assert 500 * LEAST_BYTES / many[0].longest_wait() == RATE / 2


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_answer_has_arrived_when_the_follower_asks_again(side: SideName) -> None:
    """A broker that appends 0.1 s late has two answers in its next second, so both have to fit in one window."""
    clock, throttle, link, answer, _ = asked(side)
    ledger = throttle.ledger
    link.settle(answer)
    held = ledger.reserved
    assert held > 0
    clock.move(0.1)
    link.accounts.confirm()
    clock.move(0.99)
    assert ledger.room() == pytest.approx(LIMIT - held, abs=1)
    clock.move(0.05)
    assert ledger.room() == pytest.approx(LIMIT, abs=1)


def test_what_has_arrived_leaves_the_window_a_second_later() -> None:
    """It does though nobody asks again."""
    clock, throttle, link, answer, _ = asked()
    ledger = throttle.ledger
    link.settle(answer)
    held = ledger.reserved
    assert held > 0
    link.let_pass(held // 2, inf, 0, 0.0)
    assert ledger.reserved == held - held // 2
    clock.move(1.1)
    assert ledger.room() == pytest.approx(LIMIT - held + held // 2, abs=1)


def test_what_no_quota_holds_counts_as_arriving_first() -> None:
    """500 KB of a partition in sync come along in the answer: they are no bytes of the quota that have arrived."""
    _, throttle, link, _, held = asked()
    link.answer_begins(500_000 + held)
    link.let_pass(500_000, inf, 0, 0.0)
    assert throttle.ledger.reserved == held
    link.let_pass(held // 2, inf, 0, 0.0)
    assert throttle.ledger.reserved == held - held // 2


def test_follower_that_always_takes_a_little_is_not_stuck() -> None:
    clock, throttle, link, answer, reserved = asked()
    for left in range(10, 0, -1):
        clock.move(STUCK_SECONDS / 4)
        throttle.release_stuck()
        assert throttle.ledger.reserved == left * reserved // 10
        link.let_pass(reserved // 10, inf, 0, 0.0)
    link.settle(answer)
    clock.move(STUCK_SECONDS + 1)
    throttle.release_stuck()
    assert throttle.ledger.reserved == 0


def test_what_a_stuck_follower_has_on_its_way_is_free_for_others_and_counts_when_it_arrives() -> None:
    clock, throttle, link, _, reserved = asked()
    ledger = throttle.ledger
    link.answer_begins(reserved)
    clock.move(1.1)  # the window is empty
    assert link.let_pass(0, 0, 8_000, 0.0) == 8_000
    before = ledger.room()
    clock.move(STUCK_SECONDS)
    throttle.release_stuck()
    assert ledger.room() == before + 8_000
    assert link.let_pass(0, 8_000, 0, 0.0) == 0
    assert ledger.room() == before + 8_000, "a look takes it back"
    link.let_pass(8_000, 0, 0, 0.0)
    assert ledger.room() == before


def test_accounts_of_several_ledgers_give_what_all_have_room() -> None:
    clock = MovedClock()
    ledgers = [StrictLedger(clock, RATE), StrictLedger(clock, RATE // 10)]
    clock.move(0.2)
    accounts = LinkAccounts()
    for ledger in ledgers:
        accounts._of(ledger).reserve(50_000)
    assert accounts.room() == inf, "nothing is held back"
    accounts.let_arrive(1_000)
    assert accounts.room() == pytest.approx(min(ledger.room() for ledger in ledgers), abs=1)


@pytest.mark.parametrize(("rate", "passes"), [(0, True), (5_000, True), (RATE // 3, True), (RATE * 2 // 3, False)])
def test_what_is_held_back_passes_when_the_rate_becomes_far_lower(rate: int, passes: bool) -> None:
    """It has begun, and no frame can be cut: whatever is behind it would wait for seconds."""
    _, throttle, link, _, _ = asked()
    throttle.ledger.charge(LIMIT)  # no room is left
    assert link.let_pass(0, 0, 8_000, 0.0) == 0
    throttle.ledger.set_rate(rate)
    assert link.let_pass(0, 0, 50_000, 0.0) == (50_000 if passes else 0)


def test_what_came_without_a_grant_passes_while_the_rate_is_0() -> None:
    """A quota of 0 that an answer's bytes belong to since it was asked for: nothing was set aside at a rate."""
    clock = MovedClock()
    ledger, accounts = StrictLedger(clock, 0), LinkAccounts()
    accounts.hand_over({ledger: 50_000})
    accounts.let_arrive(8_000)
    assert accounts.room() == inf


@pytest.mark.parametrize("due", [0, 200_000])
def test_large_batch_leaves_room_for_what_is_held_back(due: int) -> None:
    """It would go beyond the window, and a record in sync may wait behind what a slow follower has not taken yet."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    (quota,), accounts = throttle.quotas, throttle.link(3).accounts
    accounts.reserve({throttle.ledger: 500_000})
    accounts.arrive(500_000)
    accounts.reserve({throttle.ledger: 300_000})
    accounts.let_arrive(0, due)
    clock.move(0.9)
    ask = Ask(throttle.link(2), 2, 600_000, is_urgent=False, is_live=False, answer_seconds=0.0)
    verdict = quota.judge(quota.offer(ask, clock.now), Part(600_000, 600_000))
    assert verdict.fits == (not due)
    assert verdict.fits or verdict.spend == pytest.approx(LIMIT - 500_000 - due, abs=1)


def test_ended_link_leaves_its_part_of_what_is_lent() -> None:
    """Else a follower that connects twice a second would soon ask for a tenth."""
    _, throttle, link, _, _ = asked()
    assert throttle.ledger.lend(link, 1.0) == RATE
    assert throttle.ledger.lend(throttle.link(3), 1.0) == RATE / 2
    link.close()
    assert throttle.ledger.lend(throttle.link(4), 1.0) == RATE / 2


def test_ending_link_corrects_what_an_exception_left_held_back() -> None:
    _, throttle, link, _, _ = asked()
    other = throttle.link(3)
    account = other.accounts._of(throttle.ledger)
    account.reserve(9_000)
    account.let_arrive(2_000)
    link.let_pass(0, 0, 0, 0.0)
    throttle.ledger.reserved += 50_000  # as if an exception had come between two counts
    throttle.ledger.waiting_links += 1
    link.close()
    assert (throttle.ledger.reserved, throttle.ledger.waiting_links) == (2_000, 1)


@pytest.mark.parametrize("pace", [200_000, 1_000_000])
def test_live_record_waits_for_no_more_than_a_slow_follower_takes_soon(pace: int) -> None:
    """It was 0.15 s of quota in every answer: 1.5 s at a tenth of it, in which the link did not even count as live."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=10_000_000, replicas={"t": ALL_REPLICAS}))
    live = Log([])
    leader = Leader({(b"l", 0): live, (b"t", 0): Log([BATCH] * 10_000)})
    link, follower = throttle.link(2), Follower(dict.fromkeys(leader.logs, 0))
    talk = Conversation(clock, link, leader, follower)
    begin, durations = clock.now, list[float]()
    while clock.now < begin + 20:
        decision = talk.next_decision()
        assert isinstance(decision, Forward)
        clock.move(0.002)
        live.append(1_000)
        topics = take_out(leader.answer(decision.request), decision)
        left = sum([seen.size for topic in passed(topics) for seen in topic.records])
        link.answer_begins(left)
        link.settle(topics)
        came, untold = clock.now, 0
        while (seconds := min(0.05, left / pace)) > 0:
            clock.move(seconds)
            taken = min(left, round(seconds * pace))
            left, untold = left - taken, untold + taken
            if clock.now - came >= 0.2:  # as the relay tells it
                link.let_pass(untold, inf, 0, 0.0)
                untold = 0
        follower.take(passed(topics), clock.now)
        durations.append(clock.now - came)
    assert max(durations[len(durations) // 4 :]) <= max(0.5, 1.1 * 0.012 * 10_000_000 / pace)
    assert sum(durations) >= 0.7 * 20, "and the link is used"

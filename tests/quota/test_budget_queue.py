# SPDX-License-Identifier: Apache-2.0
"""First come, first served, and links that share one quota."""

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, booleans, data, integers, sampled_from

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.fakes.lines import line_of
from weir.quota.budget.queue import BudgetQueue
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.figures import MOST_FINISHED, STUCK_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS


def test_only_the_links_in_front_count_as_ahead() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1)
    assert [turns.ahead_of(link) for link in "abc"] == [0, 10, 30]


def test_waiting_again_keeps_the_place() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1)
    turns.wait("a", 15, clock.now + 2)
    assert [turns.ahead_of(link) for link in "ab"] == [0, 15]


def test_leaving_gives_the_place_up() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1)
    turns.leave("a")
    turns.leave("nobody")
    assert turns.ahead_of("b") == 0
    assert len(turns.claims) == 1


def test_a_large_share_of_a_short_line_is_one_turn_in_a_long_one() -> None:
    """Counted in bytes, who had 3 MB before 500 links came would wait until each of them had 3 MB: 75 s at 20 MB/s."""
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.turn_bytes = 3_000_000
    turns.wait("b", 3_000_000, clock.now + 1)
    turns.served("a", 3_000_000, is_urgent=False)
    turns.turn_bytes = 100_000
    for link in "cda":
        turns.wait(link, 100_000, clock.now + 1)
    for link in "bcd":
        assert turns.first() == link
        turns.served(link, 100_000, is_urgent=False)
        turns.wait(link, 100_000, clock.now + 1)
    assert turns.first() == "a"


def test_claim_lapses_when_its_link_does_not_come_back() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("stuck", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 5)
    assert turns.first() == "stuck"
    clock.move(1.1)
    assert turns.ahead_of("b") == 0
    assert turns.first() == "b"


def test_lapsed_claim_is_not_waited_for_by_urgent_links() -> None:
    """FLOOR's part gives the others a turn; one that has gone needs none."""
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("gone", 10, clock.now + 1)
    turns.served("urgent", 1_000, is_urgent=True)
    clock.move(1.1)
    turns.wait("a", 100, clock.now + 1)
    turns.wait("b", 20, clock.now + 1, is_urgent=True)
    assert turns.first() == "b"


def test_next_one_is_found_when_an_urgent_link_has_left() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1, is_urgent=True)
    assert turns.first() == "b"
    turns.leave("b")
    assert turns.first() == "a"


def test_place_left_in_line_is_there_for_its_own_link_alone() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1)
    clock.move(1 + STUCK_SECONDS + 0.1)
    turns.ahead_of("a")
    turns.wait("a", 10, clock.now + 1)
    turns.served("c", 10, is_urgent=False)
    assert set(turns.claims) == {"a"}


@pytest.mark.parametrize("round_trips", [(0.002, 0.002, 0.002, 0.002), (0.001, 0.004, 0.03)])
def test_links_share_one_quota_fairly(round_trips: tuple[float, ...]) -> None:
    rate, seconds = 2_000_000, 20.0
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", partition): Log([10_000] * 6000) for partition in range(4)})
    followers = [Follower({(b"t", p): 0 for p in range(4)}, replica_id=2 + i) for i in range(len(round_trips))]
    links = [throttle.link(follower.replica_id) for follower in followers]
    requests = [follower.request() for follower in followers]
    asked_at: list[float] = [clock.now] * len(links)
    next_at = list(asked_at)
    answers: list[Forward | None] = [None] * len(links)
    is_held = [False] * len(links)
    end = clock.now + seconds
    while (now := min(next_at)) < end:
        index = next_at.index(now)
        clock.now = now
        link, follower = links[index], followers[index]
        forwarded = answers[index]
        if forwarded is not None:
            topics = leader.answer(forwarded.request)
            link.settle(topics)
            follower.take(topics, now)
            answers[index] = None
            requests[index], asked_at[index] = follower.request(), now
            woken = throttle.next_in_line() or ()
            next_at = [now if is_held[i] and links[i] in woken else at for i, at in enumerate(next_at)]
        decision = link.plan(requests[index], now - asked_at[index])
        is_held[index] = isinstance(decision, Hold)
        if isinstance(decision, Hold):
            next_at[index] = max(decision.until, now + 0.0005)
            continue
        next_at[index] = now + round_trips[index]
        if isinstance(decision, Forward):
            answers[index] = decision
        else:
            requests[index], asked_at[index] = follower.request(), next_at[index]
    received = [sum(size for _, size in follower.received) for follower in followers]
    assert 0.97 * rate * seconds <= sum(received) <= 1.0 * rate * seconds + 10_000 * len(links)
    fair = sum(received) / len(received)
    assert all(0.8 * fair <= size <= 1.2 * fair for size in received), received


def test_urgent_links_are_ahead_of_all_and_keep_their_order() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 1, is_urgent=True)
    turns.wait("c", 40, clock.now + 1, is_urgent=True)
    assert turns.ahead_of("a") == 60
    assert [turns.ahead_of(link, is_urgent=True) for link in "bcd"] == [0, 20, 60]
    assert turns.ahead_of("d") == 70


def test_turn_another_took_first_costs_the_passed_over_nothing() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    for link in ("other", "first"):
        turns.wait(link, 10, clock.now + 1)
    turns.served("first", 10, is_urgent=False)
    for link in ("passed over", "first"):
        turns.wait(link, 10, clock.now + 1)
    for link in ("first", "passed over"):
        turns.served(link, 10, is_urgent=False)
    for link in ("first", "passed over"):
        turns.wait(link, 10, clock.now + 1)
    assert [turns.ahead_of(link) for link in ("other", "passed over", "first")] == [0, 10, 20]


@pytest.mark.long
@given(data())
def test_what_is_ahead_is_what_the_claims_in_front_ask_for(drawn: DataObject) -> None:
    """Compared with a sum made anew each time, while claims come, change, lapse and are served."""
    clock = MovedClock()
    turns = BudgetQueue(clock)
    claims: dict[int, tuple[int, float, bool]] = {}  # by link, in their order: every replica has its first turn
    for link in range(8):
        claims[link] = drawn.draw(integers(1, 50)), clock.now + drawn.draw(integers(1, 4)), drawn.draw(booleans())
        turns.wait(link, *claims[link][:2], is_urgent=claims[link][2])
    for _ in range(6):
        link = drawn.draw(integers(0, 7))
        if link in claims:
            claims[link] = drawn.draw(integers(1, 50)), clock.now + drawn.draw(integers(1, 4)), drawn.draw(booleans())
            turns.wait(link, *claims[link][:2], is_urgent=claims[link][2])
        if drawn.draw(booleans()):
            link = drawn.draw(integers(0, 7))
            claims.pop(link, None)
            turns.leave(link)
        clock.move(drawn.draw(sampled_from([0.0, 0.5, 1.0])))
        for asking in [*claims, 99]:
            is_urgent = claims[asking][2] if asking in claims else drawn.draw(booleans())
            expected = 0
            for other, (size, until, other_is_urgent) in claims.items():
                is_in_front = other_is_urgent > is_urgent or (other_is_urgent == is_urgent and other < asking)
                if other != asking and until >= clock.now and is_in_front:
                    expected += size
            assert turns.ahead_of(asking, is_urgent=is_urgent) == expected


def test_links_of_one_broker_stand_behind_each_other() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.turn_bytes = 10
    for link, broker, size in (("a1", 1, 10), ("a2", 1, 10), ("b1", 2, 15), ("b2", 2, 15)):
        turns.wait(link, size, clock.now + 1, broker=broker)
    assert [turns.ahead_of(link) for link in ("a1", "b1", "a2", "b2")] == [0, 10, 25, 35]
    turns.leave("a1")
    turns.wait("a3", 10, clock.now + 1, broker=1)  # behind a2, and no longer behind a1
    assert [turns.ahead_of(link) for link in ("b1", "a2", "a3", "b2")] == [0, 15, 25, 35]


def test_each_claim_that_lapsed_long_ago_is_forgotten() -> None:
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("early", 10, clock.now + 1)
    turns.wait("late", 10, clock.now + 4)
    for seconds, left in ((5.9, {"early", "late"}), (0.2, {"late"}), (2.8, {"late"}), (0.2, set())):
        clock.move(seconds)
        turns.served("another", 10, is_urgent=False)
        assert turns.claims.keys() == left


def test_next_in_line_is_the_first_turn() -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=1000))
    assert throttle.next_in_line() == []  # all that waits for budget is in line, so nobody does
    for link in "ab":
        line_of(throttle).wait(link, 10, clock.now + 1)
    assert throttle.next_in_line() == ["a"]


def test_without_a_line_any_link_may_be_next() -> None:
    throttle = Throttle("leader", 1, MovedClock(), ThrottleSettings(rate=1000, policy="kip73"))
    assert throttle.next_in_line() is None


def test_what_is_ahead_is_told_anew_when_a_claim_changes() -> None:
    """It is told anew when a claim lapses, comes back or changes."""
    clock = MovedClock()
    turns = BudgetQueue(clock)
    turns.wait("a", 10, clock.now + 1)
    turns.wait("b", 20, clock.now + 5)
    assert turns.ahead_of("c") == 30
    turns.wait("b", 25, clock.now + 5)
    assert turns.ahead_of("c") == 35
    clock.move(1.1)
    assert turns.ahead_of("c") == 25
    turns.wait("a", 10, clock.now + 1)
    assert turns.ahead_of("c") == 35
    turns.leave("b")
    assert turns.ahead_of("c") == 10


def test_one_replicas_places_are_as_far_apart_as_its_turns() -> None:
    """Large batches wait for a part of their credit only; twice that would be the next one's place."""
    clock = MovedClock()
    turns = BudgetQueue(clock)
    for link in ("a1", "a2"):
        turns.wait(link, 10, clock.now + 1, broker="a", share=100)
    turns.wait("b", 10, clock.now + 1, broker="b", share=100)
    turns.served("a1", 100, is_urgent=False, broker="a")
    turns.served("b", 100, is_urgent=False, broker="b")
    turns.wait("b", 10, clock.now + 1, broker="b", share=100)
    assert turns.first() == "a2"


def test_below_v3_links_take_turns_with_batches_known_or_not() -> None:
    """There a turn takes a partition's whole 1 MiB: small batches do not make it a short one."""
    clock = MovedClock()
    throttle = Throttle(
        "leader",
        1,
        clock,
        ThrottleSettings(rate=1_000_000, order="round-robin", replicas={f"t{i}": ALL_REPLICAS for i in range(6)}),
    )
    leader = Leader({(f"t{i}".encode(), 0): Log([10_000] * 2_000) for i in range(6)})
    one_topic: dict[tuple[bytes, int], int] = {(b"t0", 0): 0}
    many_topics = {(f"t{i}".encode(), 0): 0 for i in range(6)}  # each turn is of one without a known batch
    talks = {
        number: Conversation(clock, throttle.link(number), leader, Follower(offsets, number, version=2))
        for number, offsets in ((2, many_topics), (3, one_topic))
    }
    for talk in talks.values():
        talk.exchange()  # its high watermarks are known then
    granted: list[int] = []
    end = clock.now + 12.0
    while clock.now < end:
        clock.move(0.01)
        for number, talk in talks.items():
            decision = talk.link.plan(talk.follower.request())
            if isinstance(decision, Forward):
                topics = leader.answer(decision.request)
                talk.link.settle(topics)
                talk.follower.take(topics, clock.now)
                granted.append(number)
    assert granted == [2, 3] * (len(granted) // 2)
    assert len(granted) >= 8


def test_place_is_lost_though_nobody_waits_any_more() -> None:
    clock = MovedClock()
    line = BudgetQueue(clock)
    for number in range(30):
        line.wait(number, 10.0, clock.now + 1.0, broker=number, share=10.0)
    clock.move(1.5)
    line.served("other", 10.0, is_urgent=False)
    assert len(line.claims) == 30
    clock.move(STUCK_SECONDS + 1.0)
    line.served("other", 10.0, is_urgent=False)
    assert not line.claims


def test_ids_that_a_peer_makes_up_take_bounded_memory() -> None:
    """Each of its fetches has another replica id, while somebody else waits all the time."""
    line = BudgetQueue(MovedClock())
    line.wait("honest", 10, 1e9, broker=1)
    for made_up in range(3 * MOST_FINISHED):
        line.served("peer", 10, is_urgent=False, broker=2 + made_up)
    assert len(line._finished) <= MOST_FINISHED + 1

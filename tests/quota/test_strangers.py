# SPDX-License-Identifier: Apache-2.0
"""Clients that claim to be brokers from addresses that are no broker's: throttled, and no harm to the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.kafka.take_out import passed, take_out
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.lag.broker_ids import NO_BROKER, STRANGER
from weir.protocol.fetch_session import NO_SESSION
from weir.quota.fetch import link as replica_link
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.fetch.intake import TooManyPartitions
from weir.quota.figures import ABSENT_SECONDS
from weir.quota.scopes import Matching, Reassigned
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300


def throttle(clock: MovedClock, **settings: int) -> Throttle:
    return Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}, **settings))  # type: ignore[arg-type]


def talk(side: Throttle, clock: MovedClock, replica: int, *, is_stranger: bool) -> Conversation:
    leader = Leader({(b"t", p): Log([BATCH] * 20_000) for p in range(4)})
    link = side.link(NO_BROKER if is_stranger else replica, is_stranger=is_stranger)
    return Conversation(clock, link, leader, Follower(dict.fromkeys(leader.logs, 0), replica_id=replica))


def test_a_stranger_is_throttled() -> None:
    """As a broker that came back with another address."""
    clock = MovedClock()
    side = throttle(clock)
    stranger = talk(side, clock, 2, is_stranger=True)
    start = clock.now
    stranger.run(10.0)
    assert worst_second(stranger.follower.received) <= 1.05 * MB + BATCH
    assert mean_rate(stranger.follower.received, start + 1, clock.now) >= 0.95 * MB


@pytest.mark.long
def test_strangers_take_turns_as_one_with_any_number_of_ids() -> None:
    clock = MovedClock()
    side = throttle(clock)
    broker = talk(side, clock, 2, is_stranger=False)
    strangers = [talk(side, clock, replica, is_stranger=True) for replica in (2, 2, 2, 3, 77, 78, 79, 80)]
    served = _serve(clock, [broker, *strangers], 20.0)
    assert served[0] >= 0.45 * sum(served)
    assert sum(served) <= 1.05 * 20.0 * MB + 9 * BATCH


def _serve(
    clock: MovedClock,
    talks: list[Conversation],
    seconds: float,
    *,
    closes: Collection[Conversation] = (),
    anew: Collection[Conversation] = (),
) -> list[int]:
    """All fetch at once, without a wait for each other; returns what each has got.

    An answer comes 4 ms after its fetch went. The broker `closes` connections of some instead of an answer; `anew`:
    these connect for each fetch.
    """
    end = clock.now + seconds
    asked = [(one, one.follower.request(), clock.now) for one in talks]
    on_way: dict[int, tuple[float, Forward]] = {}
    while clock.now < end:
        clock.move(0.002)
        for index, (one, request, since) in enumerate(asked):
            if index not in on_way:
                decision = one.link.plan(request, max(clock.now - since, 1e-6) if clock.now > since + 0.002 else 0.0)
                if isinstance(decision, Forward):
                    on_way[index] = clock.now + 0.004, decision
                    continue
            elif on_way[index][0] > clock.now:
                continue
            else:
                _, decision = on_way.pop(index)
            if isinstance(decision, Hold):
                continue
            if isinstance(decision, Forward) and one not in closes:
                topics = take_out(one.leader.answer(decision.request), decision)
                one.link.settle(topics)
                one.follower.take(passed(topics), clock.now)
            if one in closes or one in anew:
                one.link.close(is_over=True)
                one.link = cast(Throttle, one.link.throttle).link(one.follower.replica_id)
            asked[index] = one, one.follower.request(), clock.now
    return [sum(size for _, size in one.follower.received) for one in talks]


def test_what_strangers_in_sync_fetch_does_not_count_in_a_quota() -> None:
    """They could keep all of it from those that are behind."""
    clock = MovedClock()
    side = throttle(clock)
    stranger = talk(side, clock, 2, is_stranger=True)
    for log in stranger.leader.logs.values():
        log.told_high_watermark = 0
    for _ in range(20):
        stranger.exchange()
    assert sum(size for _, size in stranger.follower.received) > 2 * MB
    assert side.quotas[0].measured.rate() < 0.1 * MB
    assert side.stats.replication_bytes[NO_BROKER, True] > 2 * MB


def test_a_stranger_is_throttled_in_a_session_and_its_lag_is_not_told() -> None:
    clock = MovedClock()
    side = throttle(clock)
    logs = {(b"t", p): Log([BATCH] * 2000) for p in range(4)}
    link = side.link(NO_BROKER, is_stranger=True)
    hop = Hop(clock, link, SessionLeader(clock, Leader(logs)))
    follower = SessionFollower(clock, hop, dict.fromkeys(logs, 0), 12)
    follower.run(2.0)
    assert link.sessions.follower.id != NO_SESSION
    assert not follower.refused
    assert 1.0 * MB <= sum(size for _, size in follower.received) <= 2.1 * MB + BATCH
    assert list(side.lag.rows()) == []
    assert list(side.held_to_a_rate()) == []
    assert side.away() == {}
    link.close()
    assert side.away() == {}


@pytest.mark.parametrize(
    ("scope", "claimed", "is_covered"),
    [
        (Matching(peers=frozenset({2})), 2, True),
        (Matching(peers=frozenset({2})), 3, False),
        (Reassigned(), 2, True),
        (Reassigned(), 3, False),
    ],
)
def test_quotas_cover_a_stranger_as_who_it_claims_to_be(
    scope: Matching | Reassigned, claimed: int, is_covered: bool
) -> None:
    clock = MovedClock()
    side = Throttle("leader", 1, clock, ThrottleSettings(quotas=(QuotaSettings("one", 0, scope),)))
    side.rules.set_adding_replicas({b"t": {p: frozenset({2}) for p in range(4)}})
    stranger = talk(side, clock, claimed, is_stranger=True)
    for _ in range(5):
        stranger.exchange()
    assert (sum(size for _, size in stranger.follower.received) <= BATCH) == is_covered


def test_what_a_stranger_asked_for_counts_while_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_link, "MOST_PARTITIONS", 10)
    clock = MovedClock()
    link = throttle(clock).link(2, is_stranger=True)
    for first in (0, 4):
        link.plan(Follower({(b"t", first + number): 0 for number in range(4)}).request())
        link.in_flight = None
    with pytest.raises(TooManyPartitions):
        link.plan(Follower({(b"t", 8 + number): 0 for number in range(4)}).request())
    clock.move(ABSENT_SECONDS)
    link.plan(Follower({(b"t", 12 + number): 0 for number in range(4)}).request())


def test_all_strangers_keep_no_more_partitions_than_one_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partitions of all strangers together count as one broker's."""
    monkeypatch.setattr(replica_link, "MOST_PARTITIONS", 10)
    clock = MovedClock()
    side = throttle(clock)
    strangers = [talk(side, clock, replica, is_stranger=True) for replica in (2, 3, 4)]
    strangers[0].exchange()
    strangers[1].exchange()
    with pytest.raises(TooManyPartitions):
        strangers[2].exchange()
    strangers[2].link.close()
    strangers[0].link.close()
    talk(side, clock, 5, is_stranger=True).exchange()
    for replica in range(10, 20):
        talk(side, clock, replica, is_stranger=False).exchange()


@pytest.mark.long
@pytest.mark.parametrize("closes", [False, True])
def test_claimants_whom_the_broker_refuses_leave_a_follower_its_rate(*, closes: bool) -> None:
    """Each claims an id of its own. Who never got bytes was always next, and the follower had nothing."""
    clock = MovedClock()
    side = throttle(clock)
    broker = talk(side, clock, 2, is_stranger=False)
    claimants = [talk(side, clock, replica, is_stranger=False) for replica in range(10, 16)]
    for one in claimants:
        one.leader = Leader({key: Log([], error_code=29) for key in one.leader.logs})
    served = _serve(clock, [broker, *claimants], 3.0, closes=claimants if closes else ())
    assert served[0] >= (0.9 if closes else 0.95) * 3.0 * MB


def test_link_that_is_refused_is_a_stranger_until_it_is_answered_again() -> None:
    clock = MovedClock()
    one = talk(throttle(clock), clock, 2, is_stranger=False)
    partitions, logs = one.link.partitions, one.leader.logs.values()
    seen = []
    for error_code in (29, 29, 0, 6):
        for log in logs:
            log.error_code = error_code
        one.exchange()
        seen.append(partitions.other_id)
    assert seen == [STRANGER, STRANGER, 2, STRANGER]


def test_link_with_an_error_beside_answers_takes_its_own_turns() -> None:
    clock = MovedClock()
    one = talk(throttle(clock), clock, 2, is_stranger=False)
    next(iter(one.leader.logs.values())).error_code = 6
    for _ in range(5):
        one.exchange()
        assert one.link.partitions.other_id == 2


def test_follower_that_connects_for_each_fetch_has_turns_beside_another() -> None:
    """Its place went with its connection: it had 0.01 of the quota."""
    clock = MovedClock()
    side = throttle(clock)
    usual, anew = (talk(side, clock, replica, is_stranger=False) for replica in (2, 3))
    served = _serve(clock, [usual, anew], 1.0, anew=[anew])
    assert served[1] >= 0.2 * MB
    assert sum(served) >= 0.8 * MB


def test_answer_that_never_began_costs_no_budget_where_the_broker_closes() -> None:
    clock = MovedClock()
    side = throttle(clock)
    clock.move(1.0)
    one = talk(side, clock, 2, is_stranger=False)
    one.exchange()
    clock.move(0.3)
    assert isinstance(one.next_decision(), Forward)
    before = side.ledger.room() + side.ledger.reserved
    assert side.ledger.reserved > 0
    one.link.close(is_over=True)
    assert side.ledger.reserved == 0
    assert side.ledger.room() >= before

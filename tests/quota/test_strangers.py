"""Clients that claim to be brokers from addresses that are no broker's: throttled, and no harm to the others."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.lag.broker_ids import NO_BROKER
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


def _serve(clock: MovedClock, talks: list[Conversation], seconds: float) -> list[int]:
    """All fetch at once, without a wait for each other; returns what each has got."""
    end = clock.now + seconds
    asked = [(one, one.follower.request(), clock.now) for one in talks]
    while clock.now < end:
        clock.move(0.002)
        for index, (one, request, since) in enumerate(asked):
            decision = one.link.plan(request, max(clock.now - since, 1e-6) if clock.now > since + 0.002 else 0.0)
            if isinstance(decision, Hold):
                continue
            if isinstance(decision, Forward):
                topics = one.leader.answer(decision.request)
                one.link.settle(topics)
                one.follower.take(topics, clock.now)
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

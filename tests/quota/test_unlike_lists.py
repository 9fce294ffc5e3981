"""The leader throttles more than the follower: what has quota on both sides now and then still has its turn."""

import pytest

from protocol.fetch import FETCH_VERSIONS
from quota.settings import Order, Side, ThrottleSettings
from quota.throttle import Throttle
from quota.throttled_replicas import ALL_REPLICAS
from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, NextHop
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader

MB = 1_000_000
BATCH = 10_300
BOTH, LEADER_ONLY, IDLE = b"b" * 16, b"l" * 16, b"i" * 16
IDS = {BOTH: b"both", LEADER_ONLY: b"leader-only", IDLE: b"idle"}


def throttle(side: Side, rate: int, clock: MovedClock, topics: list[str], order: Order) -> Throttle:
    settings = ThrottleSettings(rate=rate, replicas=dict.fromkeys(topics, ALL_REPLICAS), order=order)
    made = Throttle(side, 1, clock, settings)
    made.topic_names.learn(IDS)
    return made


def received(version: int, order: Order, seconds: float, *, partitions: int, batches: int) -> dict[bytes, float]:
    """Bytes/s by topic that a follower takes of topics behind, beside a partition in sync; 4 MB/s and 2 MB/s."""
    clock = MovedClock()
    by_id = FETCH_VERSIONS[version].names_topics_by_id
    both, leader_only, idle = (BOTH, LEADER_ONLY, IDLE) if by_id else (b"both", b"leader-only", b"idle")
    logs = {(both, p): Log([BATCH] * batches) for p in range(partitions)}
    logs |= {(leader_only, p): Log([BATCH] * 20_000) for p in range(partitions)}
    logs[idle, 0] = Log([])
    leader = Leader(logs)
    second = throttle("leader", 4 * MB, clock, ["both", "leader-only"], order).link(2)
    first = throttle("follower", 2 * MB, clock, ["both"], order).link(1)
    offsets = dict.fromkeys(logs, 0)
    if version < 7:
        plain = Follower(offsets, version=version)
        Conversation(clock, first, leader, plain, next_hop=NextHop(clock, second, leader)).run(seconds)
    else:
        hops = Hop(clock, first, Hop(clock, second, SessionLeader(clock, leader)))
        SessionFollower(clock, hops, offsets, version).run(seconds)
    sizes = dict.fromkeys((both, leader_only), 0)
    for (topic, _), offset in offsets.items():
        if topic in sizes:
            sizes[topic] += offset * BATCH
    return {IDS.get(topic, topic): size / seconds for topic, size in sizes.items()}


@pytest.mark.parametrize("order", ["urgent-first", "round-robin"])
@pytest.mark.parametrize("version", [3, 7, 13])
def test_partition_throttled_on_both_sides_has_its_turn_beside_more_that_the_leader_throttles(
    version: int, order: Order
) -> None:
    rates = received(version, order, 6.0, partitions=3, batches=9_000)
    assert rates[b"both"] >= 0.6 * 2 * MB
    assert 0.95 * 4 * MB * 5 / 6 <= sum(rates.values()) <= 1.01 * 4 * MB


@pytest.mark.parametrize("version", [3, 13])
def test_partition_throttled_on_both_sides_does_not_wait_for_smaller_ones_to_end(version: int) -> None:
    rates = received(version, "urgent-first", 6.0, partitions=1, batches=40_000)
    assert rates[b"both"] >= 0.4 * 2 * MB

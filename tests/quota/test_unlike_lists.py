# SPDX-License-Identifier: Apache-2.0
"""The leader throttles more than the follower: what has quota on both sides now and then still has its turn."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log, requested, requested_partition
from tests.fakes.kafka.wire import replica_fetch, request_topics
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.response_scanner import ResponseHead
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import Order, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300
BOTH, LEADER_ONLY, IDLE = b"b" * 16, b"l" * 16, b"i" * 16
IDS = {BOTH: b"both", LEADER_ONLY: b"leader-only", IDLE: b"idle"}


def throttle(side: SideName, rate: int, clock: MovedClock, topics: list[str], order: Order) -> Throttle:
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
    hops = Hop(clock, first, Hop(clock, second, SessionLeader(clock, leader)))
    SessionFollower(clock, hops, offsets, version).run(seconds)
    sizes = dict.fromkeys((both, leader_only), 0)
    for (topic, _), offset in offsets.items():
        if topic in sizes:
            sizes[topic] += offset * BATCH
    return {IDS.get(topic, topic): size / seconds for topic, size in sizes.items()}


@pytest.mark.long
@pytest.mark.parametrize("order", ["urgent-first", "round-robin"])
@pytest.mark.parametrize("version", [3, 7, 13])
def test_partition_throttled_on_both_sides_has_its_turn(version: int, order: Order) -> None:
    """It has its turn beside more that the leader alone throttles."""
    rates = received(version, order, 6.0, partitions=3, batches=9_000)
    assert rates[b"both"] >= 0.6 * 2 * MB
    assert 0.95 * 4 * MB * 5 / 6 <= sum(rates.values()) <= 1.01 * 4 * MB


@pytest.mark.parametrize("version", [4, 9])
def test_what_is_asked_without_bytes_is_behind_what_is_granted(version: int) -> None:
    """In front of it would come a batch for which the follower's side has set nothing aside."""
    clock = MovedClock()
    logs = {(topic, 0): Log([BATCH] * 100) for topic in (b"both", b"follower-only")}
    leader, link = Leader(logs), throttle("leader", 4 * MB, clock, ["both"], "round-robin").link(2)

    def fetch(number: int, sizes: dict[bytes, int]) -> FetchRequest:
        entries = [((topic, 0), requested_partition(version, 0, 0, size)) for topic, size in sizes.items()]
        return replica_fetch(version, request_topics(entries), session_id=min(1, number), session_epoch=number)

    first = link.plan(fetch(0, {b"both": MB}))
    assert isinstance(first, Forward)
    link.settle(leader.answer(first.request), ResponseHead(session_id=7 if version >= 7 else 0))
    clock.move(1.0)
    second = fetch(1, {b"follower-only": 0, b"both": MB})
    granted = link.plan(second.with_(session_id=link.sessions.follower.id) if version >= 7 else second)
    assert isinstance(granted, Forward)
    asked = [(topic, size) for (topic, _), (_, size) in requested(granted.request).items()]
    assert [topic for topic, _ in asked] == [b"both", b"follower-only"]
    assert asked[0][1] > 0

# SPDX-License-Identifier: Apache-2.0
"""What a side counts in an interval, and the lines made of it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, requested
from tests.sample_files import of_kind
from weir.lag.tracker import EXPIRE_SECONDS
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.records import RecordsSeen
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.counters import IntervalCounts
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.state import InFlight
from weir.quota.scopes import Matching, Recovering
from weir.quota.settings import RECOVERY, QuotaSettings, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS
from weir.samples.lines import SampleKey, lines, touch_behind
from weir.samples.schema import AnyLine, LinkLine, PartitionLine, QuotaLine, by_partition

RATE = 100_000
BATCH = 1_000
TOPIC = b"orders"


def make_throttle(clock: MovedClock, side: SideName = "leader", rate: int | None = RATE) -> Throttle:
    replicas = {TOPIC.decode(): ALL_REPLICAS}
    throttle = Throttle(side, 1, clock, ThrottleSettings(rate=rate, replicas=replicas))
    assert throttle.cut_interval(clock()) is None
    return throttle


def converse(throttle: Throttle, clock: MovedClock, logs: dict[tuple[bytes, int], Log], peer: int = 2) -> Conversation:
    follower = Follower(dict.fromkeys(logs, 0))
    return Conversation(clock, throttle.link(peer), Leader(logs), follower)


def sample(throttle: Throttle, clock: MovedClock) -> list[AnyLine]:
    counts = throttle.cut_interval(clock())
    assert counts is not None
    list(touch_behind(throttle, counts))
    key = SampleKey(1, "start", 1, counts.begin, clock(), "utc")
    return list(by_partition(line for line in lines(throttle, counts, key) if line is not None))


def logs_of(partitions: int, batches: int = 1_000) -> dict[tuple[bytes, int], Log]:
    return {(TOPIC, partition): Log([BATCH] * batches) for partition in range(partitions)}


def test_samples_add_up_to_what_was_kept_and_metrics_show() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    logs = logs_of(4) | {(b"other", 0): Log([BATCH] * 50)}
    talk = converse(throttle, clock, logs)
    found = []
    for _ in range(3):
        talk.run(4)
        found += sample(throttle, clock)
    partitions, links = of_kind(found, PartitionLine), of_kind(found, LinkLine)
    kept = sum(size for _, size in talk.follower.received)
    assert sum(line.bytes_complete for line in partitions) == kept
    assert sum(line.bytes_cut for line in partitions) == throttle.stats.cut_bytes
    for throttled, field in ((True, "bytes_throttled"), (False, "bytes_unthrottled")):
        moved = throttle.stats.replication_bytes[2, throttled]
        assert moved > 0
        assert sum(getattr(line, field) for line in partitions) == moved
        assert sum(getattr(line, field) for line in links) == moved
    assert sum(line.bytes_complete for line in links) == kept
    assert sum(line.left_out for line in links) == throttle.stats.partitions_left_out > 0
    assert sum(line.fetches for line in links) == len(talk.forwarded)
    by_partition: Counter[tuple[str, int]] = Counter()
    for line in partitions:
        by_partition[line.topic, line.partition] += line.batches
    assert by_partition == {(name.decode(), id_): offset for (name, id_), offset in talk.follower.offsets.items()}


def test_sample_has_only_the_partitions_that_changed() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock, rate=None)
    talk = converse(throttle, clock, {(TOPIC, 0): Log([BATCH]), (TOPIC, 1): Log([])})
    talk.exchange()
    (line,) = of_kind(sample(throttle, clock), PartitionLine)
    assert (line.partition, line.bytes_throttled, line.batches) == (0, BATCH, 1)
    assert line.lag_messages == 1  # its follower has them, but has not asked for what comes after them yet
    talk.exchange()
    (line,) = of_kind(sample(throttle, clock), PartitionLine)
    assert (line.partition, line.bytes_complete, line.lag_messages) == (0, 0, 0)
    talk.exchange()
    assert of_kind(sample(throttle, clock), PartitionLine) == []


def test_each_fetch_without_a_partition_counts_once_on_its_link() -> None:
    """Each is a fetch that went without it, or waited. The count outlives the link."""
    clock = MovedClock()
    throttle = make_throttle(clock)
    talk = converse(throttle, clock, logs_of(3))
    talk.exchange()  # from now on all are known to be behind
    sample(throttle, clock)
    before = throttle.stats.partitions_left_out
    talk.forwarded.clear()
    talk.run(6)
    talk.link.close()
    (line,) = of_kind(sample(throttle, clock), LinkLine)
    plans = len(talk.forwarded) + line.fetches_held
    granted = sum(max_bytes > 0 for decision in talk.forwarded for _, max_bytes in requested(decision.request).values())
    assert line.left_out == 3 * plans - granted == throttle.stats.partitions_left_out - before > 0
    assert line.fetches_held > 0


def test_partition_behind_has_a_line_though_nothing_of_it_moves() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock, rate=0)
    talk = converse(throttle, clock, logs_of(3))
    talk.run(10)
    for _ in range(2):
        found = of_kind(sample(throttle, clock), PartitionLine)
        assert [(line.partition, line.bytes_complete) for line in found] == [(0, 0), (1, 0), (2, 0)]
        assert all(line.lag_messages for line in found)


def test_link_line_shows_connections_and_partitions_behind() -> None:
    """It does though nothing moved."""
    clock = MovedClock()
    throttle = make_throttle(clock, rate=0)
    talk = converse(throttle, clock, logs_of(3))
    talk.run(2)
    sample(throttle, clock)
    (link,) = of_kind(sample(throttle, clock), LinkLine)
    assert (link.peer, link.connections, link.partitions_behind, link.fetches) == (2, 1, 3, 0)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_partition_line_tells_how_far_behind_its_replica_is(side: SideName) -> None:
    """On the leader's side the replica is the peer, on the follower's this broker."""
    clock = MovedClock()
    throttle = make_throttle(clock, side)
    talk = converse(throttle, clock, logs_of(1), peer=2 if side == "leader" else 3)
    talk.follower.replica_id = 2 if side == "leader" else 1
    talk.run(2)
    (line,) = of_kind(sample(throttle, clock), PartitionLine)
    (row,) = throttle.lag.rows()
    assert (line.lag_messages, line.lag_seconds) == (row.lag_messages, round(row.lag_seconds, 3))
    assert line.lag_messages is not None and line.lag_messages > 0
    assert line.lag_seconds == pytest.approx(2, abs=0.6)


@pytest.mark.parametrize("comes_back", [False, True])
def test_follower_away_has_a_line_until_back_or_forgotten(comes_back: bool) -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    talk = converse(throttle, clock, logs_of(1))
    talk.run(2)
    (line,) = of_kind(sample(throttle, clock), LinkLine)
    assert line.away_seconds is None
    fetched_at = talk.link.partitions.asker.at
    talk.link.close()
    clock.move(20)
    for _ in range(2):
        (line,) = of_kind(sample(throttle, clock), LinkLine)
        assert (line.peer, line.connections, line.away_seconds) == (2, 0, round(clock() - fetched_at, 3))
        clock.move(10)
    if comes_back:
        throttle.link(2)
        (line,) = of_kind(sample(throttle, clock), LinkLine)
        assert (line.connections, line.away_seconds) == (1, None)
    else:
        clock.move(EXPIRE_SECONDS)
        list(throttle.lag.rows())
        assert of_kind(sample(throttle, clock), LinkLine) == []


def test_topic_without_a_known_name_is_in_its_links_line_alone() -> None:
    """It counts as throttled: a list may cover it."""
    clock = MovedClock()
    throttle = make_throttle(clock)
    link = throttle.link(2)
    link.sessions.row, link.in_flight = fetch_version(13), InFlight()
    link.settle([ScannedTopic(b"id" * 8, b"", [RecordsSeen(0, 70, 60, 1, 10)])])
    found = sample(throttle, clock)
    assert of_kind(found, PartitionLine) == []
    (line,) = of_kind(found, LinkLine)
    assert (line.bytes_throttled, line.bytes_complete, line.bytes_cut) == (70, 60, 10)


def test_records_of_a_topic_no_longer_asked_for_count_too() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    talk = converse(throttle, clock, {(b"other", 0): Log([BATCH])})
    decision = talk.next_decision()
    assert isinstance(decision, Forward)
    talk.link.settle([ScannedTopic(TOPIC, b"", [RecordsSeen(0, 70, 60, 1, 10)])])
    (line,) = of_kind(sample(throttle, clock), PartitionLine)
    assert (line.topic, line.bytes_throttled, line.bytes_complete, line.bytes_cut) == ("orders", 70, 60, 10)
    assert throttle.stats.replication_bytes == {(2, True): 70}
    assert throttle.quotas[0].passed_bytes == 70
    assert throttle.stats.cut_bytes == 10


def test_quota_line_has_the_bytes_of_each_second_of_the_clock() -> None:
    clock = MovedClock(1000.5)
    throttle = make_throttle(clock)
    for size, seconds in ((5, 0.25), (7, 0.25), (11, 2.0)):
        throttle.record(throttle.quotas[0], size)
        clock.move(seconds)
    (first,) = of_kind(sample(throttle, clock), QuotaLine)
    assert (first.quota, first.rate, first.policy) == ("leader.replication.throttled.rate", RATE, "strict")
    assert (first.in_force_from_seconds, first.in_force_until_seconds) == (1000.5, 1003.0)
    assert (first.bytes, first.first_second, first.bytes_by_second) == (23, 1000, (12, 11, 0))
    throttle.record(throttle.quotas[0], 13)
    (second,) = of_kind(sample(throttle, clock), QuotaLine)
    assert (second.first_second, second.bytes_by_second) == (1003, (13,))


def test_quota_changed_in_an_interval_has_a_line_for_each_rate() -> None:
    """It has none for the time in which it is absent."""
    clock = MovedClock()
    throttle = make_throttle(clock)
    for rate in (RATE, None, 3):
        throttle.configure(ThrottleSettings(rate=rate, policy="kip73" if rate == 3 else "strict"))
        throttle.record(throttle.quotas[0], 5)
        clock.move(2)
    found = of_kind(sample(throttle, clock), QuotaLine)
    assert [(line.rate, line.policy, line.bytes) for line in found] == [(RATE, "strict", 5), (3, "kip73", 5)]
    times = [(line.in_force_from_seconds, line.in_force_until_seconds) for line in found]
    assert times == [(1000.0, 1002.0), (1004.0, 1006.0)]
    assert [line.rate for line in of_kind(sample(throttle, clock), QuotaLine)] == [3]


def test_every_quota_has_its_lines_and_says_what_its_rate_is() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    quotas = (
        QuotaSettings(RECOVERY, 20, Recovering()),
        QuotaSettings("zones", 30, Matching(peers=frozenset({2})), is_observed=True),
        QuotaSettings("into/3", 40, Matching(peers=frozenset({3})), shared_for=3),
    )
    throttle.configure(ThrottleSettings(rate=RATE, quotas=quotas))
    throttle.rules.use_shares({"into/3": 7.0})
    for number, quota in enumerate(throttle.quotas):
        throttle.record(quota, number)
    clock.move(1)
    found = of_kind(sample(throttle, clock), QuotaLine)
    assert [(line.quota, line.rate, line.mode, line.bytes) for line in found] == [
        ("leader.replication.throttled.rate", RATE, None, 0),
        ("leader.recovery.throttled.rate", 20, None, 1),
        ("zones", 30, "observe", 2),
        ("into/3", 40, "shared", 3),
    ]
    throttle.configure(ThrottleSettings(rate=RATE, is_observed=True))
    clock.move(1)
    found = of_kind(sample(throttle, clock), QuotaLine)
    assert [line.mode for line in found] == [None, None, "observe", "shared", "observe"]
    assert [line.mode for line in of_kind(sample(throttle, clock), QuotaLine)] == ["observe"]


def test_nothing_is_counted_for_samples_while_nobody_takes_them() -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={TOPIC.decode(): ALL_REPLICAS}))
    converse(throttle, clock, logs_of(2)).run(2)
    assert throttle.stats.interval is None
    assert throttle.stats.partition_bytes[TOPIC].total() > 0


def test_topic_that_no_replica_fetches_any_more_is_forgotten() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    first, second = throttle.link(2), throttle.link(3)
    for link in (first, second):
        talk = Conversation(clock, link, Leader(logs_of(1, batches=1)), Follower({(TOPIC, 0): 0}, link.partitions.peer))
        talk.run(1)
    first.close()
    clock.move(EXPIRE_SECONDS - 1)
    talk.exchange()
    clock.move(2)
    list(throttle.lag.rows())
    assert TOPIC in throttle.stats.partition_bytes
    second.close()
    clock.move(EXPIRE_SECONDS + 1)
    list(throttle.lag.rows())
    assert TOPIC not in throttle.stats.partition_bytes


def test_interval_is_handed_over_whole() -> None:
    clock = MovedClock()
    throttle = make_throttle(clock)
    throttle.record(throttle.quotas[0], 5)
    clock.move(1)
    counts = throttle.cut_interval(clock())
    throttle.record(throttle.quotas[0], 7)
    assert isinstance(counts, IntervalCounts)
    assert [quota.seconds for quota in counts.quotas] == [{1000: 5}]

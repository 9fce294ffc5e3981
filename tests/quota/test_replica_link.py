# SPDX-License-Identifier: Apache-2.0
"""What a link makes of replica fetches, rule by rule, and what comes of it in a conversation of many seconds."""

import struct

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import (
    MAX_WAIT_MS,
    PARTITION_MAX_BYTES,
    Conversation,
    Follower,
    Leader,
    Log,
    mean_rate,
    requested,
    worst_second,
)
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics, made_up_entries
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import FetchResponseScanner
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

BATCH = 100_000
MB = 1_000_000


def settings(rate: int) -> ThrottleSettings:
    return ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS})


def conversation(rate: int, behind: int = 1, in_sync: int = 0, version: int = 3, known: bool = True) -> Conversation:
    """Partitions of topic t, those behind first; `known`: the first probe was answered, its records not kept."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, settings(rate))
    leader = Leader({(b"t", partition): Log([BATCH] * 50) for partition in range(behind + in_sync)})
    follower = Follower({(b"t", p): 10 if p < behind else 50 for p in range(behind + in_sync)}, version=version)
    talk = Conversation(clock, throttle.link(2), leader, follower)
    if known:
        probe = forward(talk.link, follower.request())
        talk.link.settle(leader.answer(probe.request))
    return talk


def forward(link: ReplicaLink, request: FetchRequest, held_seconds: float = 0.0) -> Forward:
    decision = link.plan(request, held_seconds)
    assert isinstance(decision, Forward)
    return decision


def asked(request: FetchRequest) -> list[tuple[bytes, int, int]]:
    """(topic, partition, max_bytes) in the request's order."""
    return [(name, partition, max_bytes) for (name, partition), (_, max_bytes) in requested(request).items()]


def made_up(version: int, high_watermark: int) -> bytes:
    """Partition 0 of topic t, made up."""
    return encode_response_topics(version, [ResponseTopic(b"t", made_up_entries(version, [(0, high_watermark)]))])


def is_probe(decision: Forward) -> bool:
    return decision.request.max_wait_ms == 0 and not any(size for _, _, size in asked(decision.request))


def test_in_sync_partition_is_never_left_out_but_counted() -> None:
    talk = conversation(0, behind=1, in_sync=1)
    throttle = talk.link.throttle
    decision = forward(talk.link, talk.follower.request())
    assert asked(decision.request) == [(b"t", 1, PARTITION_MAX_BYTES)]
    counted, room = throttle.stats.replication_bytes[2, True], throttle.ledger.room()
    talk.leader.logs[b"t", 1].append(BATCH)
    talk.link.settle(talk.leader.answer(decision.request))
    assert throttle.stats.replication_bytes[2, True] == counted + BATCH
    assert throttle.ledger.room() <= room - BATCH


def test_unknown_high_watermark_is_asked_for_and_never_left_out() -> None:
    talk = conversation(0, behind=2, known=False)
    decision = forward(talk.link, talk.follower.request())
    assert asked(decision.request) == [(b"t", 0, 0), (b"t", 1, 0)]
    assert decision.request.max_wait_ms == 0
    assert decision.expected.appended == b""


def test_made_up_entries_carry_the_high_watermark_sent_last() -> None:
    talk = conversation(0, behind=1, in_sync=1)
    decision = forward(talk.link, talk.follower.request())
    assert (decision.expected.appended, decision.expected.appended_topics) == (made_up(3, 50), 1)


def test_error_of_high_watermark_minus_1_is_not_made_up_later() -> None:
    talk = conversation(0, behind=1, in_sync=1)
    talk.clock.move(1)
    forward(talk.link, talk.follower.request())
    talk.leader.logs[b"t", 0].error_code = 6
    headers = talk.leader.answer(talk.follower.request())
    talk.link.settle(headers)
    decision = forward(talk.link, talk.follower.request())
    assert decision.expected.appended == made_up(3, 50)


def test_fetch_offset_that_went_back_forgets_the_high_watermark() -> None:
    talk = conversation(0, behind=1, in_sync=1)
    talk.follower.offsets[b"t", 0] = 5
    decision = forward(talk.link, talk.follower.request())
    assert (b"t", 0, 0) in asked(decision.request)
    assert decision.request.max_wait_ms == 0
    assert decision.expected.appended == b""


def test_returning_partition_is_still_known_to_be_behind() -> None:
    """It was absent from a request meanwhile."""
    talk = conversation(0, behind=1, in_sync=1)
    offset = talk.follower.offsets.pop((b"t", 0))
    decision = forward(talk.link, talk.follower.request())
    assert decision.expected.appended == b""
    talk.link.settle(talk.leader.answer(decision.request))
    talk.follower.offsets[b"t", 0] = offset
    decision = forward(talk.link, talk.follower.request())
    assert (b"t", 0) not in {entry[:2] for entry in asked(decision.request)}
    assert decision.expected.appended_topics == 1


def test_returning_partition_is_behind_by_its_new_offset() -> None:
    """The follower's own sidecar leaves out what it has no room for: without producers no answer tells its lag anew."""
    talk = conversation(0, behind=1, in_sync=1)
    offset = talk.follower.offsets.pop((b"t", 0))
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    talk.follower.offsets[b"t", 0] = offset + 5
    forward(talk.link, talk.follower.request())
    rows = {row.partition: row.lag_messages for row in talk.link.throttle.lag.rows()}
    assert rows == {0: 50 - (offset + 5), 1: 0}


def test_granted_partition_is_behind_unthrottled_ones() -> None:
    """Others ride along with no bytes."""
    talk = conversation(5 * MB, behind=2)
    talk.leader.logs[b"u", 0] = Log([BATCH])
    talk.follower.offsets[b"u", 0] = 0
    talk.clock.move(2)
    decision = forward(talk.link, talk.follower.request())
    assert [entry[:2] for entry in asked(decision.request)] == [(b"u", 0), (b"t", 0), (b"t", 1)]
    sizes = [size for _, _, size in asked(decision.request)]
    assert sizes[0] == PARTITION_MAX_BYTES
    assert 0 < sizes[1] < PARTITION_MAX_BYTES
    assert sizes[2] == 0


@pytest.mark.parametrize("version", [0, 1, 3])
def test_request_wholly_left_out_is_held_and_then_answered(version: int) -> None:
    talk = conversation(0, version=version)
    request = talk.follower.request()
    start = talk.clock.now
    decision = talk.link.plan(request)
    assert isinstance(decision, Hold)
    assert decision.until == pytest.approx(start + MAX_WAIT_MS / 1000)
    talk.clock.now = decision.until
    answer = talk.link.plan(request, talk.clock.now - start)
    assert isinstance(answer, Answer)
    size, correlation_id = struct.unpack_from(">ii", answer.frame)
    assert (size, correlation_id) == (len(answer.frame) - 4, request.header.correlation_id)
    if version == 0:
        assert answer.frame[8:] == struct.pack(">i", 1) + made_up(version, 50)
    else:
        throttle_time_ms, topics = struct.unpack(">ii", answer.frame[8:])
        assert throttle_time_ms > 0
        assert topics == 0


@pytest.mark.parametrize("in_sync", [0, 1])
@pytest.mark.parametrize("rate", [0, 1000])
def test_true_answer_comes_every_four_seconds(rate: int, in_sync: int) -> None:
    talk = conversation(rate, in_sync=in_sync)
    last = start = talk.clock.now
    answers = 0
    while talk.clock.now < start + 65:
        decision = talk.exchange()
        if isinstance(decision, Forward) and any(entry[:2] == (b"t", 0) for entry in asked(decision.request)):
            assert talk.clock.now - last <= 4.6
            last = talk.clock.now
            answers += 1
    assert 13 <= answers <= 17


def test_rate_zero_lets_nothing_pass() -> None:
    talk = conversation(0, behind=3)
    talk.run(60)
    assert 12 <= len(talk.forwarded) <= 15
    assert all(is_probe(decision) for decision in talk.forwarded)
    assert not talk.follower.received


def test_max_wait_is_cut_to_the_next_grant_but_not_below_50_ms() -> None:
    talk = conversation(MB, behind=1, in_sync=1)
    wait = forward(talk.link, talk.follower.request()).request.max_wait_ms
    assert 50 < wait < MAX_WAIT_MS
    talk.clock.move(wait / 1000 - 0.01)
    talk.link.settle(())
    decision = forward(talk.link, talk.follower.request())
    assert decision.request.max_wait_ms == 50
    assert decision.expected.appended_topics == 1
    talk.link.settle(())
    talk.clock.move(0.011)
    decision = forward(talk.link, talk.follower.request())
    assert decision.expected.appended_topics == 0
    assert asked(decision.request)[-1][:2] == (b"t", 0)


@pytest.mark.parametrize("rate", [5 * MB, 10 * MB])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_below_v3_a_partition_is_taken_whole_or_not_at_all(version: int, rate: int) -> None:
    """At 10 MB/s there is more than one partition's bytes, and less than those of two."""
    talk = conversation(rate, behind=3, version=version)
    talk.clock.move(2)
    decision = forward(talk.link, talk.follower.request())
    sizes = [size for _, _, size in asked(decision.request)]
    assert sorted(sizes) == [0, 0, PARTITION_MAX_BYTES]


@pytest.mark.parametrize("version", [0, 2, 3, 12])
def test_what_a_broken_connection_had_reserved_counts_as_sent(version: int) -> None:
    """Each new connection would otherwise be granted at once what the one before it did not read."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, settings(BATCH))
    granted = []
    for _ in range(40):
        link = throttle.link(2)
        fetch = forward(link, Follower({(b"t", 0): 10}, version=version).request())
        granted.append(asked(fetch.request)[0][2])
        link.close()
        clock.move(0.05)
    assert sum(granted) <= 1.3 * 2.0 * BATCH or granted.count(0) == 39


@pytest.mark.parametrize("comes_whole", [False, True])
def test_what_may_have_arrived_counts_of_a_broken_connection(comes_whole: bool) -> None:
    """Followers that come anew twice a second would else leave half of the quota unused."""
    talk = conversation(MB)
    talk.clock.move(1.0)
    fetch = forward(talk.link, talk.follower.request())
    ledger = talk.link.throttle.ledger
    room = ledger.room() + ledger.reserved
    assert ledger.reserved >= BATCH
    if comes_whole:
        talk.link.settle(talk.leader.answer(fetch.request))
    talk.link.let_pass(3_000, 5_000, 0, 0.0)
    talk.link.close()
    assert ledger.reserved == 0
    assert room - ledger.room() == 8_000


def long_conversation(rate: int, batch: int, version: int = 3) -> Conversation:
    clock = MovedClock()
    leader = Leader({(b"t", partition): Log([batch] * 1500) for partition in range(8)})
    follower = Follower(dict.fromkeys(leader.logs, 0), version=version)
    return Conversation(clock, Throttle("leader", 1, clock, settings(rate)).link(2), leader, follower)


@pytest.mark.parametrize("rate", [MB, 5 * MB])
def test_mean_rate_and_worst_second_keep_to_the_quota(rate: int) -> None:
    """So does the first second."""
    batch = 16_000
    talk = long_conversation(rate, batch)
    start = talk.clock.now
    talk.run(20)
    assert 0.98 <= mean_rate(talk.follower.received, start, start + 20) / rate <= 1.0
    assert worst_second(talk.follower.received) <= 1.04 * rate + batch


def test_debt_of_an_oversized_batch_is_paid_before_the_next() -> None:
    talk = long_conversation(100_000, 500_000)
    start = talk.clock.now
    talk.run(60)
    # The probe's batch and the last one sent are not paid for within the time.
    assert sum(size for _, size in talk.follower.received) <= 60 * 100_000 + 2 * 500_000
    assert mean_rate(talk.follower.received, start, start + 60) >= 0.9 * 100_000


def test_configure_wakes_a_request_that_is_held() -> None:
    talk = conversation(0)
    request = talk.follower.request()
    assert isinstance(talk.link.plan(request), Hold)
    talk.link.throttle.configure(ThrottleSettings())
    assert asked(forward(talk.link, request, 0.1).request) == [(b"t", 0, PARTITION_MAX_BYTES)]


@pytest.mark.parametrize("later", [None, 0, MB, 50 * MB])
def test_configure_with_a_fetch_in_flight_takes_hold(later: int | None) -> None:
    """Nothing of that fetch stays reserved."""
    talk = conversation(5 * MB, behind=2)
    throttle = talk.link.throttle
    talk.clock.move(1)
    in_flight = forward(talk.link, talk.follower.request())
    assert throttle.ledger.reserved > 0
    throttle.configure(ThrottleSettings(rate=later, replicas={"t": ALL_REPLICAS}))
    talk.link.settle(talk.leader.answer(in_flight.request))
    talk.follower.take(talk.leader.answer(in_flight.request), talk.clock.now)
    start = talk.clock.now
    talk.run(5)
    received = sum(size for at, size in talk.follower.received if at > start)
    if later is None:
        assert talk.follower.offsets[b"t", 0] == 50
    else:
        assert received <= 5.25 * later + BATCH  # the credit saved before, capped by the new rate
    talk.link.close()
    assert throttle.ledger.reserved == 0


def test_ends_of_partitions_are_granted_together() -> None:
    """One fetch for each short rest would leave most of the quota unused at the end of a move."""
    clock = MovedClock()
    leader = Leader({(b"t", partition): Log([10_000] * 10) for partition in range(200)})
    link = Throttle("leader", 1, clock, settings(5 * MB)).link(2)
    talk = Conversation(clock, link, leader, Follower(dict.fromkeys(leader.logs, 0)))
    start = clock.now
    while any(offset < 10 for offset in talk.follower.offsets.values()):
        talk.exchange()
    assert mean_rate(talk.follower.received, start, clock.now) >= 0.95 * 5 * MB
    assert len(talk.follower.received) <= 15 * (clock.now - start)


def test_move_after_a_pause_keeps_to_the_quota_at_once() -> None:
    """Credit that gathered while nothing was behind would come on top."""
    talk = long_conversation(MB, 10_000)
    talk.clock.move(30)
    start = talk.clock.now
    talk.run(4)
    assert sum(size for _, size in talk.follower.received) <= MB * (talk.clock.now - start) + 10_000


@pytest.mark.parametrize("rate", [MB, 5 * MB])
def test_below_v3_the_mean_keeps_to_the_quota(rate: int) -> None:
    """It does though partitions are taken whole."""
    talk = long_conversation(rate, 10_000, version=2)
    start = talk.clock.now
    talk.run(8)
    assert 0.95 <= mean_rate(talk.follower.received, start, talk.clock.now) / rate <= 1.2
    assert worst_second(talk.follower.received) <= 1.05 * rate + PARTITION_MAX_BYTES


def test_replica_going_back_passes_while_it_may_be_in_the_isr() -> None:
    """Old levels truncate to the follower's own high watermark when a leader epoch begins."""
    talk = conversation(0, behind=1, in_sync=1)
    talk.leader.logs[b"t", 1].append(BATCH)
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    talk.follower.offsets[b"t", 1] = 51
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    talk.follower.offsets[b"t", 1] = 50  # the high watermark that it was told before
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    decision = forward(talk.link, talk.follower.request())
    assert asked(decision.request) == [(b"t", 1, PARTITION_MAX_BYTES)]
    talk.clock.move(31)
    talk.follower.offsets[b"t", 1] = 49  # looked into again
    talk.link.settle(talk.leader.answer(decision.request))
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    assert isinstance(talk.link.plan(talk.follower.request()), Hold)


def test_replica_that_truncates_is_in_sync_from_the_high_watermark_before() -> None:
    """It was told 50, then 60, and was at 60. Below 0.11 it goes back to what it was told before, or less far."""
    talk = conversation(0, behind=1, in_sync=1)
    talk.leader.logs[b"t", 1].told_high_watermark = 60
    for offset in (50, 60, 55):
        talk.follower.offsets[b"t", 1] = offset
        talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    decision = forward(talk.link, talk.follower.request())
    assert asked(decision.request) == [(b"t", 1, PARTITION_MAX_BYTES)]


@pytest.mark.parametrize("is_seen_absent", [True, False])
def test_replica_in_sync_that_begins_anew_at_0_is_throttled(is_seen_absent: bool) -> None:
    """It was deleted, and is moved here again: perhaps both while one fetch waited at the leader."""
    talk = conversation(0, behind=1, in_sync=1)
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    if is_seen_absent:
        del talk.follower.offsets[b"t", 1]
        assert isinstance(talk.link.plan(talk.follower.request()), Hold)
    talk.follower.offsets[b"t", 1] = 0
    talk.link.settle(talk.leader.answer(forward(talk.link, talk.follower.request()).request))
    assert isinstance(talk.link.plan(talk.follower.request()), Hold)


@pytest.mark.parametrize("version", [8, 12])
def test_full_fetch_wholly_left_out_is_answered_without_muting(version: int) -> None:
    """It has no session, so every answer has to be whole."""
    talk = conversation(0, version=version)
    request = talk.follower.request()
    decision = talk.link.plan(request)
    while isinstance(decision, Hold):
        talk.clock.now = max(decision.until, talk.clock.now + 0.0005)
        decision = talk.link.plan(request, 1.0)
    assert isinstance(decision, Answer)
    scanner = FetchResponseScanner(version, request.header.correlation_id)
    scanner.receive(memoryview(decision.frame))
    assert scanner.head.throttle_time_ms == 0
    (topic,) = scanner.topics
    assert RESPONSE_ENTRY.unpack(topic.headers)[:3] == (0, 0, 50)


@pytest.mark.parametrize("fetch_offset", [0, 20])
@pytest.mark.parametrize("version", [3, 12])
def test_replica_in_an_old_isr_is_throttled_where_it_is_behind(version: int, fetch_offset: int) -> None:
    """It has left the ISR since that was read, or was deleted and added again."""
    talk = conversation(MB, behind=3, known=False, version=version)
    talk.follower.offsets = dict.fromkeys(talk.follower.offsets, fetch_offset)
    in_sync = {key: frozenset({1, 2}) for key in talk.leader.logs}
    talk.link.throttle.set_in_sync_replicas(in_sync)
    start = talk.clock.now
    talk.run(5)
    assert mean_rate(talk.follower.received, start, start + 5) <= MB
    assert worst_second(talk.follower.received) <= 1.04 * MB + 2 * BATCH

# SPDX-License-Identifier: Apache-2.0
"""A move beside unthrottled backlog that fills every answer has what it would have without a quota, up to the quota."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300
SECONDS = 5.0
MOVED, BACKLOG = b"m" * 16, b"b" * 16
LONG = [BATCH] * 60_000


def received(
    version: int, backlog: int, rate: int | None, response_max_bytes: int | None = None
) -> tuple[float, list[int]]:
    """Bytes/s of five partitions that move, and the bytes of each of `backlog` others; every fetch takes 50 ms."""
    clock = MovedClock()
    moved, others = (MOVED, BACKLOG) if FETCH_VERSIONS[version].names_topics_by_id else (b"moved", b"backlog")
    logs = {(others, p): Log(LONG) for p in range(backlog)} | {(moved, p): Log(LONG) for p in range(5)}
    settings = ThrottleSettings(rate=rate, replicas={"moved": ALL_REPLICAS}, response_max_bytes=response_max_bytes)
    throttle = Throttle("leader", 1, clock, settings)
    throttle.topic_names.learn({MOVED: b"moved", BACKLOG: b"backlog"})
    offsets = dict.fromkeys(logs, 0)
    upstream = SessionLeader(clock, Leader(logs), round_trip=0.05)
    SessionFollower(clock, Hop(clock, throttle.link(2), upstream), offsets, version).run(SECONDS)
    sizes = {key: offset * BATCH for key, offset in offsets.items()}
    return (
        sum(size for (topic, _), size in sizes.items() if topic == moved) / SECONDS,
        [size for (topic, _), size in sizes.items() if topic == others],
    )


@pytest.mark.long
@pytest.mark.parametrize(("version", "backlog"), [(3, 30), (7, 30), (13, 60), (13, 150)])
def test_move_beside_backlog_in_every_answer_has_its_quota(version: int, backlog: int) -> None:
    rate, others = received(version, backlog, 5 * MB)
    unthrottled, _ = received(version, backlog, None)
    assert rate >= 0.9 * min(5 * MB, unthrottled)
    assert rate <= 5 * MB + BATCH
    assert min(others) > 0.5 * sum(others) / len(others)  # they go on in turn, as without a quota


@pytest.mark.parametrize(("version", "backlog"), [(3, 8), (7, 8), (13, 30)])
def test_move_in_small_answers_leaves_half_of_them_to_others(version: int, backlog: int) -> None:
    """Grants that stood in front each time would fill all of them: what is in sync would fall behind."""
    rate, others = received(version, backlog, 5 * MB, 100_000)
    total = sum(others) / SECONDS
    assert rate < 2 * MB
    assert total >= 0.8 * rate
    assert min(others) > 0.5 * sum(others) / len(others)


def conversation(moved: int, rate: int, *, response_max_bytes: int | None = None, round_trip: float) -> Conversation:
    """Twenty partitions of backlog beside `moved` ones with a quota, at v3; batches of 100 KB."""
    clock = MovedClock()
    logs = {(b"backlog", p): Log([100_000] * 2_000) for p in range(20)}
    logs |= {(b"moved", p): Log([100_000] * 300) for p in range(moved)}
    settings = ThrottleSettings(rate=rate, replicas={"moved": ALL_REPLICAS}, response_max_bytes=response_max_bytes)
    throttle = Throttle("leader", 1, clock, settings)
    throttle.set_under_min_isr(frozenset({(b"moved", moved - 1)}))
    follower = Follower(dict.fromkeys(logs, 0), version=3)
    return Conversation(clock, throttle.link(2), Leader(logs), follower, round_trip=round_trip)


def batches_of_moved(of: Conversation) -> dict[int, int]:
    """How many batches each partition that moves has."""
    return {partition: offset for (topic, partition), offset in of.follower.offsets.items() if topic == b"moved"}


def test_partition_below_min_isr_stays_first_without_room() -> None:
    """That its grant brought nothing says nothing of the partition, as backlog had filled the answer."""
    of = conversation(40, 2 * MB, response_max_bytes=3 * MB, round_trip=0.05)
    of.run(6.0)
    batches = batches_of_moved(of)
    assert batches[39] >= 0.8 * sum(batches.values()) > 0


def test_grants_stay_in_front_while_slow_answers_are_still_full() -> None:
    """An answer of 10 MB takes 2.5 s: a grant that goes behind backlog each second time brings nothing then."""
    of = conversation(5, MB // 2, round_trip=2.5)
    of.run(60.0)
    assert sum(batches_of_moved(of).values()) * 100_000 >= 0.08 * MB * 60


def test_in_sync_records_where_only_the_first_partition_comes() -> None:
    """A follower that asks for 1 byte of each gets one batch in all: a live record waited as long as grants led."""
    clock = MovedClock()
    logs = {(b"live", 0): Log([1_000] * 100), (b"moved", 0): Log([10_000] * 10_000)}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"moved": ALL_REPLICAS}))
    follower = Follower({(b"live", 0): 100, (b"moved", 0): 0}, partition_max_bytes=1)
    of = Conversation(clock, throttle.link(2), Leader(logs), follower, round_trip=0.02)
    waits, written, end = [0.0], clock.now, clock.now + 20.0
    while clock.now < end:
        if follower.offsets[b"live", 0] == logs[b"live", 0].end:
            waits.append(clock.now - written)
            logs[b"live", 0].append(1_000)
            written = clock.now
        of.exchange()
        waits.append(clock.now - written)
    assert max(waits) < 0.2

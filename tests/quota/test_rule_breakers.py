# SPDX-License-Identifier: Apache-2.0
"""Peers that lie, or are broken: what they ask for never lends them budget, nor keeps it from the others."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, requested_partition, worst_second
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader, planned
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.request_topics import RequestTopic
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300


def throttle(clock: MovedClock, rate: int = MB, **settings: int) -> Throttle:
    return Throttle("leader", 1, clock, ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}, **settings))  # type: ignore[arg-type]


def asking(version: int, *partitions: tuple[int, int, int], replica: int = 9, max_wait_ms: int = 500) -> FetchRequest:
    """A full fetch of partitions of topic t: (partition, fetch_offset, partition_max_bytes)."""
    entries = [requested_partition(version, *partition) for partition in partitions]
    topics = [RequestTopic(b"t", b"".join(entries), len(entries[0]))]
    return Follower({}, replica_id=replica, version=version).request(max_wait_ms).with_(topics=topics)


@pytest.mark.parametrize("version", [3, 4, 7, 12])
@pytest.mark.parametrize("partition", [(0, 5, -(2**31)), (0, -7, 1000), (-1, 5, 1000)])
def test_fetch_with_a_negative_field_is_refused(version: int, partition: tuple[int, int, int]) -> None:
    side = throttle(MovedClock())
    link = side.link(9)
    with pytest.raises(MalformedFrame):
        link.plan(asking(version, partition))
    link.close()
    assert side.ledger.reserved == 0


@pytest.mark.parametrize("version", [3, 7, 12])
def test_full_fetch_that_names_a_partition_twice_is_refused(version: int) -> None:
    side = throttle(MovedClock())
    link = side.link(9)
    with pytest.raises(MalformedFrame):
        link.plan(asking(version, (0, 5, 1000), (0, 5, 1000)))
    link.close()
    assert side.ledger.reserved == 0


@pytest.mark.parametrize("version", [3, 7, 12])
def test_full_fetch_that_names_a_partition_in_the_place_of_another_is_refused(version: int) -> None:
    """As many are named as before, so it is seen when the one that is missing has its turn."""
    side = throttle(clock := MovedClock())
    leader = Leader({(b"t", partition): Log([BATCH] * 100) for partition in range(2)})
    talk = Conversation(clock, side.link(9), leader, Follower(dict.fromkeys(leader.logs, 0), 9, version))
    talk.run(1.0)
    offset = talk.follower.offsets[b"t", 0]
    with pytest.raises(MalformedFrame):
        for _ in range(10):
            planned(clock, talk.link, asking(version, (0, offset, 1000), (0, offset, 1000)))
            talk.link.settle([])
    talk.link.close()
    assert side.ledger.reserved == 0


def honest(side: Throttle, clock: MovedClock, batches: int = 20_000) -> Conversation:
    leader = Leader({(b"t", p): Log([BATCH] * batches) for p in range(4)})
    return Conversation(clock, side.link(2), leader, Follower(dict.fromkeys(leader.logs, 0)))


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("high_watermark", [-2, -(2**63), 2**63 - 1, 0])
def test_answer_of_an_impossible_high_watermark_lifts_no_quota(version: int, high_watermark: int) -> None:
    clock = MovedClock()
    side = throttle(clock)
    logs = {(b"t", partition): Log([BATCH] * 20_000) for partition in range(4)}
    hop = Hop(clock, side.link(2), SessionLeader(clock, Leader(logs)))
    follower = SessionFollower(clock, hop, dict.fromkeys(logs, 0), version)
    follower.run(1.0)
    for log in logs.values():
        log.told_high_watermark = high_watermark
    follower.fetch()
    for log in logs.values():
        log.told_high_watermark = None
    follower.run(5.0)
    assert worst_second(follower.received) <= 1.05 * MB + 2 * BATCH
    assert sum(size for _, size in follower.received) >= 0.8 * 6.0 * MB


def test_claims_of_peers_that_never_return_keep_nobody_waiting() -> None:
    """They wait for days; others have the budget all the same."""
    clock = MovedClock()
    side = throttle(clock)
    talk = honest(side, clock)
    talk.run(2.0)
    for replica in (8, 9):
        link = side.link(replica)
        leader = Leader({(b"t", 0): Log([BATCH] * 10), (b"other", 0): Log([])})
        follower = Follower({(b"t", 0): 0, (b"other", 0): 0}, replica_id=replica)
        for _ in range(2):  # the second one, mixed, stands in line for the budget
            request = follower.request(max_wait_ms=2**31 - 1)
            decision = link.plan(request)
            while not isinstance(decision, Forward):  # until the other's probe is paid
                clock.move(0.01)
                decision = link.plan(request, 0.01)
            link.settle(leader.answer(decision.request))
    start = clock.now
    talk.run(20.0)
    assert mean_rate(talk.follower.received, start, clock.now) >= 0.9 * MB


@pytest.mark.parametrize("version", [3, 6])
def test_replica_in_sync_that_goes_back_far_is_throttled(version: int) -> None:
    """Below 0.11 a replica goes back to its own high watermark, one fetch before: not to its beginning."""
    clock = MovedClock()
    side = throttle(clock)
    leader = Leader({(b"t", 0): Log([BATCH] * 20_000)})
    follower = Follower({(b"t", 0): 20_000}, version=version)
    talk = Conversation(clock, side.link(2), leader, follower)
    start = clock.now
    while clock.now < start + 10:
        follower.offsets[b"t", 0] = 20_000
        talk.exchange()
        follower.offsets[b"t", 0] = 1
        for _ in range(5):
            talk.exchange()
    assert worst_second(follower.received) <= 1.04 * MB + 2 * BATCH
    assert mean_rate(follower.received, start, clock.now) <= 1.02 * MB


def test_replica_without_leader_epochs_going_back_is_in_sync() -> None:
    """Below leader epochs a follower may go back by one fetch."""
    clock = MovedClock()
    side = throttle(clock, rate=0)
    log = Log([BATCH] * 5)
    link = side.link(2)
    follower = Follower({(b"t", 0): 5}, version=3)
    leader = Leader({(b"t", 0): log})
    for batches in (5, 6, 7):
        log.extend([BATCH] * (batches - log.end))
        follower.offsets[b"t", 0] = batches
        talk = Conversation(clock, link, leader, follower)
        talk.exchange()
    follower.offsets[b"t", 0] = 6  # its own high watermark
    talk.exchange()
    passing = link.plan(follower.request())
    assert isinstance(passing, Forward)
    link.settle(leader.answer(passing.request))
    follower.offsets[b"t", 0] = 2
    talk.exchange()
    assert isinstance(link.plan(follower.request()), Hold)


def test_twenty_connections_of_a_replica_have_no_more_than_one() -> None:
    """That one is another replica's."""
    clock = MovedClock()
    side = throttle(clock, rate=4 * MB)
    links = [side.link(9) for _ in range(20)] + [side.link(2)]
    followers = [Follower({(b"t", 0): 0}, replica_id=9 if n < 20 else 2) for n in range(21)]
    leader = Leader({(b"t", 0): Log([BATCH] * 20_000)})
    take_turns(clock, links, followers, leader, 10.0)
    taken = [sum(size for _, size in one.received) for one in followers]
    assert taken[-1] >= 0.4 * sum(taken)
    assert sum(taken) >= 0.95 * 4 * MB * 10


def take_turns(
    clock: MovedClock, links: list[ReplicaLink], followers: list[Follower], leader: Leader, seconds: float
) -> None:
    """All at once: every link's request is planned when it is time, and answered 4 ms after it was forwarded."""
    requests = [follower.request() for follower in followers]
    asked_at, next_at = [clock.now] * len(links), [clock.now] * len(links)
    answers: list[Forward | None] = [None] * len(links)
    end = clock.now + seconds
    while (now := min(next_at)) < end:
        index = next_at.index(now)
        clock.now = now
        forwarded = answers[index]
        if forwarded is not None:
            topics = leader.answer(forwarded.request)
            links[index].settle(topics)
            followers[index].take(topics, now)
        if asked_at[index] < 0:
            requests[index], asked_at[index] = followers[index].request(), now
        decision = links[index].plan(requests[index], now - asked_at[index])
        answers[index] = decision if isinstance(decision, Forward) else None
        if isinstance(decision, Hold):
            next_at[index] = max(decision.until, now + 0.0005)
        else:
            next_at[index], asked_at[index] = now + 0.004, -1.0


@pytest.mark.parametrize("versions", [(3, 12), (12, 3), (7, 9), (9, 7), (0, 6), (5, 7)])
def test_fetch_version_changed_on_a_connection_begins_anew(versions: tuple[int, int]) -> None:
    clock = MovedClock()
    side = throttle(clock)
    link = side.link(2)
    leader = Leader({(b"t", p): Log([BATCH] * 50) for p in range(3)} | {(b"u", 0): Log([])})
    offsets = dict.fromkeys(leader.logs, 0)
    for version in versions * 2:
        follower = SessionFollower(clock, Hop(clock, link, SessionLeader(clock, leader)), offsets, version)
        follower.run(0.5)
        assert not follower.refused
    link.close()
    assert side.ledger.reserved == 0


def test_incremental_fetch_of_another_version_must_begin_anew() -> None:
    clock = MovedClock()
    side = throttle(clock)
    leader = Leader({(b"t", p): Log([BATCH] * 500) for p in range(3)})
    follower = SessionFollower(
        clock, Hop(clock, side.link(2), SessionLeader(clock, leader)), dict.fromkeys(leader.logs, 0), 7
    )
    follower.run(1)
    follower.version = 9
    follower.run(1)
    assert follower.errors == [70]
    assert follower.epoch > 1


@pytest.mark.parametrize("version", [3, 7, 12])
def test_no_fetch_is_planned_before_the_answer_to_the_last_one(version: int) -> None:
    """Taken as a sign that the follower has read that answer, it would be granted as much again: the relay waits."""
    clock = MovedClock()
    side = throttle(clock)
    link, leader = side.link(9), Leader({(b"t", 0): Log([BATCH] * 2)})
    first = link.plan(asking(version, (0, 0, 1_048_576)))
    assert isinstance(first, Forward)
    with pytest.raises(RuntimeError, match="awaits its answer"):
        link.plan(asking(version, (0, 1, 1_048_576)))
    clock.move(0.2)
    link.settle(leader.answer(first.request))
    assert isinstance(link.plan(asking(version, (0, 1, 1_048_576))), Forward)


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 6])
def test_follower_asking_for_0_bytes_keeps_to_the_quota(version: int) -> None:
    """A leader without a sidecar answers with a whole batch all the same."""
    clock = MovedClock()
    side = Throttle("follower", 2, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", partition): Log([BATCH] * 20_000) for partition in range(4)})
    follower = Follower(dict.fromkeys(leader.logs, 0), version=version, partition_max_bytes=0)
    talk = Conversation(clock, side.link(1), leader, follower)
    start = clock.now
    talk.run(10.0)
    assert 0.9 * MB <= mean_rate(follower.received, start, clock.now) <= MB + 2 * BATCH
    assert worst_second(follower.received) <= 1.04 * MB + 2 * BATCH

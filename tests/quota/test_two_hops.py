# SPDX-License-Identifier: Apache-2.0
"""The follower's sidecar before the leader's, and what the second makes of what the first leaves out."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, requested, worst_second
from tests.fakes.session_conversation import Hop, SessionLeader
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import RecordsSeen, ScannedTopic
from weir.quota.fetch import intake
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.figures import ABSENT_SECONDS, LEAST_SHARED
from weir.quota.scopes import Matching
from weir.quota.settings import QuotaSettings, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300
PARTITIONS = 20
IDLE = (b"idle", 0)


def throttle(side: SideName, rate: int | None, clock: MovedClock) -> Throttle:
    return Throttle(side, 1, clock, ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}))


def included(link: ReplicaLink, follower: Follower) -> set[tuple[bytes, int]]:
    """The partitions of the next fetch that are in the request that goes on."""
    decision = link.plan(follower.request())
    assert isinstance(decision, Forward)
    link.settle(())
    return set(requested(decision.request))


def two_hops(leader_rate: int | None, follower_rate: int | None, batch: int = BATCH) -> Conversation:
    """20 partitions behind and an idle one in sync: a request is mixed whenever the quota has no room."""
    clock = MovedClock()
    logs = {(b"t", partition): Log([batch] * (30 * MB * 10 // batch // PARTITIONS)) for partition in range(PARTITIONS)}
    logs[IDLE] = Log([])
    leader, follower = Leader(logs), Follower(dict.fromkeys(logs, 0))
    hop = Hop(clock, throttle("leader", leader_rate, clock).link(2), SessionLeader(clock, leader))
    return Conversation(clock, throttle("follower", follower_rate, clock).link(1), leader, follower, next_hop=hop)


@pytest.mark.long
@pytest.mark.parametrize("batch", [BATCH, 50_000])
@pytest.mark.parametrize(
    ("leader_rate", "follower_rate"),
    [(MB, None), (None, MB), (MB, 2 * MB), (2 * MB, MB), (5 * MB, 10 * MB), (10 * MB, 5 * MB), (5 * MB, 5 * MB)],
)
def test_lower_quota_rules_and_nothing_spins(leader_rate: int | None, follower_rate: int | None, batch: int) -> None:
    talk = two_hops(leader_rate, follower_rate, batch)
    start = talk.clock.now
    talk.run(20.0)
    rate = min(leader_rate or 10**9, follower_rate or 10**9)
    received = talk.follower.received
    assert 0.96 <= mean_rate(received, start, start + 20.0) / rate <= 1.01
    assert worst_second(received) <= 1.05 * rate + batch
    assert talk.fetches < 25 * 20


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("slow_partitions", [1, 3, 40])
@pytest.mark.parametrize("second", [(), ("s", "f"), ("f",), ("s",)])
def test_leaders_low_quota_does_not_hold_up_its_higher_one(
    version: int, slow_partitions: int, second: tuple[str, ...]
) -> None:
    """The leader has 20 KB/s for topic s and 2 MB/s for topic f, the follower 20 MB/s for both together.

    And 10 MB/s for the topics of `second`.
    """
    clock = MovedClock()
    logs = {(b"f", 0): Log([BATCH] * 4000)} | {(b"s", one): Log([BATCH] * 4000) for one in range(slow_partitions)}
    leader, follower = Leader(logs), Follower(dict.fromkeys(logs, 0), version=version)
    slow, fast = [QuotaSettings(name, rate, Matching(topics=(name,))) for name, rate in (("s", 20_000), ("f", 2 * MB))]
    ingress = Throttle("leader", 1, clock, ThrottleSettings(quotas=(slow, fast)))
    both = {"s": ALL_REPLICAS, "f": ALL_REPLICAS}
    quotas = (QuotaSettings("second", 10 * MB, Matching(topics=second)),) if second else ()
    egress = Throttle("follower", 2, clock, ThrottleSettings(rate=20 * MB, replicas=both, quotas=quotas))
    talk = Conversation(
        clock, egress.link(1), leader, follower, next_hop=Hop(clock, ingress.link(2), SessionLeader(clock, leader))
    )
    talk.run(15.0)
    _, high = ingress.quotas[1:]
    assert high.passed_bytes >= 0.9 * 15 * 2 * MB


def test_partition_left_out_for_a_moment_keeps_its_batch_sizes() -> None:
    """Without its batch sizes a partition would bring one batch each time that it returns."""
    talk = two_hops(None, MB)
    talk.run(5.0)
    assert sum(size for _, size in talk.follower.received) / len(talk.follower.received) > 0.08 * MB


@pytest.mark.parametrize("offset", [0, 1])
def test_returning_partition_keeps_the_size_of_its_next_batch(offset: int) -> None:
    """A leader's side that forgot the size would grant less than the batch again, and take it out again, at once."""
    side = throttle("leader", 0, MovedClock())
    link = side.link(2)
    follower = Follower({(b"t", 0): offset, (b"t", 1): 0})
    link.plan(follower.request())
    taken_out = RecordsSeen(0, 0, next_batch_size=MB, taken_out=MB)
    link.settle([ScannedTopic(b"t", RESPONSE_ENTRY.pack(0, 0, 9, MB), [taken_out])])
    (replica,) = [one for one in link.partitions if not one.partition]
    del follower.offsets[b"t", 0]
    included(link, follower)
    follower.offsets[b"t", 0] = offset
    included(link, follower)
    assert replica in list(link.partitions)
    assert replica.batches.next_size == MB


def test_returning_partition_goes_by_the_high_watermark_told() -> None:
    """A probe for each return would bring a batch that no quota can stop."""
    side = throttle("leader", 0, MovedClock())
    link = side.link(2)
    leader = Leader({(b"t", 0): Log([BATCH] * 9), (b"t", 1): Log([])})
    follower = Follower({(b"t", 0): 1, (b"t", 1): 0})
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    asked_before = side.stats.offset_probes
    assert included(link, follower) == {(b"t", 1)}
    offset = follower.offsets.pop((b"t", 0))
    assert included(link, follower) == {(b"t", 1)}
    follower.offsets[b"t", 0] = offset
    assert included(link, follower) == {(b"t", 1)}
    assert side.stats.offset_probes == asked_before


@pytest.mark.parametrize("is_known", [True, False])
def test_fetch_that_was_held_waits_in_the_leaders_line_too(is_known: bool) -> None:
    """Else it would leave there before its turn. Where a partition may be in sync it waits nowhere."""
    clock = MovedClock()
    leader = Leader({(b"t", partition): Log([BATCH] * 4_000) for partition in range(2)})
    side, follower = throttle("follower", MB, clock), Follower(dict.fromkeys(leader.logs, 0))
    link = side.link(1)
    Conversation(clock, link, leader, follower).run(3.0)
    link.made_to_wait_at = clock.now  # the leader's side throttles
    side.ledger.book(0, MB // 4)  # of another link
    assert isinstance(link.plan(follower.request()), Hold)
    clock.move(0.4)
    if not is_known:
        follower.offsets[b"t", 0] = 0
    decision = link.plan(follower.request(), 0.4 if is_known else 0.0)
    assert isinstance(decision, Forward)
    assert any(size for _, size in requested(decision.request).values())
    assert decision.request.max_wait_ms == (500 if is_known else 0)


def test_return_from_an_earlier_offset_has_no_high_watermark() -> None:
    """None is known for that offset, so the partition is probed again."""
    clock = MovedClock()
    side = throttle("leader", 0, clock)
    link = side.link(2)
    leader = Leader({(b"t", 0): Log([BATCH] * 9), (b"t", 1): Log([])})
    follower = Follower({(b"t", 0): 5, (b"t", 1): 0})
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    del follower.offsets[b"t", 0]
    included(link, follower)
    asked_before = side.stats.offset_probes
    follower.offsets[b"t", 0] = 4
    assert included(link, follower) == {(b"t", 0), (b"t", 1)}
    assert side.stats.offset_probes == asked_before + 1


def test_lag_goes_on_while_another_hop_leaves_a_partition_out() -> None:
    clock = MovedClock()
    side = throttle("leader", 0, clock)
    link = side.link(2)
    leader = Leader({(b"t", 0): Log([BATCH] * 9), (b"t", 1): Log([])})
    follower = Follower({(b"t", 0): 1, (b"t", 1): 0})
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    offset = follower.offsets.pop((b"t", 0))
    clock.move(5)
    included(link, follower)
    follower.offsets[b"t", 0] = offset
    clock.move(5)
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    assert [row.lag_seconds for row in side.lag.rows() if row.partition == 0] == [pytest.approx(10.0)]


@pytest.mark.long
def test_lag_is_no_longer_for_what_another_hop_leaves_out() -> None:
    """It leaves partitions out between its grants; what is behind lags since it is behind, and the others do not."""
    talk = two_hops(None, MB // 4)
    assert talk.next_hop is not None
    side = talk.next_hop.link.throttle
    began = talk.clock.now
    for _ in range(30):
        talk.run(1.0)
        rows = list(side.lag.rows())
        assert all(row.lag_seconds <= talk.clock.now - began for row in rows)
        assert [row.lag_seconds for row in rows if (row.topic, row.partition) == IDLE] == [0]
    assert len(rows) == PARTITIONS + 1
    assert not any(row.stuck for row in rows)


def test_long_absent_partition_is_remembered_by_lag_alone() -> None:
    clock = MovedClock()
    side = throttle("leader", 0, clock)
    link = side.link(2)
    leader = Leader({(b"t", 0): Log([BATCH] * 9), IDLE: Log([])})
    follower = Follower({(b"t", 0): 1, IDLE: 0})
    link.plan(follower.request())
    link.settle(leader.answer(follower.request()))
    del follower.offsets[b"t", 0]
    included(link, follower)
    assert b"t" in link.partitions.topics
    clock.move(ABSENT_SECONDS)
    link.plan(follower.request())
    assert set(link.partitions.topics) == {b"idle"}
    assert [row.lag_seconds for row in side.lag.rows() if row.topic == b"t"] == [ABSENT_SECONDS]


def test_absent_partitions_kept_are_as_many_as_a_request_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_PARTITIONS", 25)
    clock = MovedClock()
    link = throttle("leader", MB, clock).link(2)
    for first in range(0, 1000, 10):
        follower = Follower({(b"t", first + number): 0 for number in range(10)})
        link.plan(follower.request())
        link.in_flight = None
    topic = link.partitions.topics[b"t"]
    assert len(topic.partitions) == 10
    assert len(topic.absent) == 15


def test_returning_partition_is_granted_where_quota_has_room() -> None:
    """Each time that the hop before has left everything out."""
    clock = MovedClock()
    side = throttle("leader", MB, clock)
    link = side.link(2)
    leader = Leader({(b"t", 0): Log([BATCH] * 9), (b"t", 1): Log([BATCH] * 9), IDLE: Log([])})
    follower = Follower(dict.fromkeys(leader.logs, 0))
    probe = link.plan(follower.request())
    assert isinstance(probe, Forward)
    link.settle(leader.answer(probe.request))
    clock.move(0.2)
    assert isinstance(link.plan(Follower({IDLE: 0}).request()), Forward)
    link.settle([])
    decision = link.plan(follower.request())
    assert isinstance(decision, Forward)
    sizes = {key: max_bytes for key, (_, max_bytes) in requested(decision.request).items()}
    assert sizes[b"t", 0] > 0
    assert sizes[b"t", 1] == 0
    link.settle(leader.answer(decision.request))
    assert side.ledger.reserved > 0  # in the window until the follower shows that it has taken them in


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("leader_rate", [0, MB])
def test_leader_quota_is_not_passed_by_returns_from_a_hop(leader_rate: int, version: int) -> None:
    """The follower's sidecar leaves out and brings back again; each return may not be a probe with a batch."""
    talk = two_hops(leader_rate, 5 * MB, batch=900_000)
    talk.follower.version = version
    start = talk.clock.now
    talk.run(30.0)
    received = talk.follower.received
    assert sum(size for _, size in received) <= 30 * leader_rate + 4 * 900_000
    assert worst_second(received) <= 1.04 * leader_rate + 900_000
    assert mean_rate(received, start, start + 30.0) >= 0.95 * leader_rate


@pytest.mark.parametrize("is_live", [False, True])
def test_without_live_records_partitions_share_all_there_is(is_live: bool) -> None:
    """Where no record in sync passes, each asks for all that the follower has."""
    talk = two_hops(MB, 2 * MB)
    talk.run(5.0)
    if is_live:
        talk.leader.logs[IDLE].append(BATCH)
        talk.run(0.5)
    decision = talk.next_decision()
    assert isinstance(decision, Forward)
    caps = [
        max_bytes for (topic, _), (_, max_bytes) in requested(decision.request).items() if topic == b"t" and max_bytes
    ]
    if is_live:
        assert sum(caps) < decision.request.max_bytes
    else:
        assert caps == [decision.request.max_bytes] * LEAST_SHARED

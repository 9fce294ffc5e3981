# SPDX-License-Identifier: Apache-2.0
"""Replicas that had caught up within `replica.lag.time.max.ms`: a leader waits for them with its high watermark."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import PARTITION_MAX_BYTES, Follower, Leader, Log, requested, requested_partition
from tests.fakes.kafka.wire import replica_fetch, request_topics
from weir.protocol.fetch_request import FetchRequest
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.scopes import Recovering
from weir.quota.settings import QuotaSettings, SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
NOT_LEADER_OR_FOLLOWER = 6
LAG_TIME_MAX_SECONDS = 30.0
LISTED = ThrottleSettings(rate=0, replicas={"t": ALL_REPLICAS})
RECOVERY = ThrottleSettings(quotas=(QuotaSettings("recovery", 0, Recovering()),))


class Cluster:
    """A leader and a follower of one partition, whose offsets are moved by hand; nothing may pass of what waits."""

    def __init__(self, side: SideName = "leader", settings: ThrottleSettings = LISTED, version: int = 12) -> None:
        self.clock = MovedClock()
        self.throttle = Throttle(side, 1, self.clock, settings)
        self.log = Log([1_000] * 100)
        self.leader = Leader({(b"t", 0): self.log})
        self.follower = Follower({(b"t", 0): 100}, version=version)
        self.link = self.connect()
        self.leader_epoch = 5

    def connect(self, peer: int = 2) -> ReplicaLink:
        self.link = self.throttle.link(peer)
        return self.link

    def fetch(self) -> Decision:
        """One fetch with its answer, none of which the follower takes."""
        decision = self.link.plan(self.request())
        if isinstance(decision, Forward):
            self.link.settle(self.leader.answer(decision.request, self.clock.now))
        return decision

    def request(self) -> FetchRequest:
        version, offset = self.follower.version, self.follower.offsets[b"t", 0]
        entry = requested_partition(version, 0, offset, PARTITION_MAX_BYTES, self.leader_epoch)
        return replica_fetch(version, request_topics([((b"t", 0), entry)]))

    def catch_up(self) -> None:
        for _ in range(2):
            assert is_passed(self.fetch()) or self.throttle.stats.offset_probes
        assert is_passed(self.fetch())

    def write(self, batches: int = 100) -> None:
        self.log.extend([1_000] * batches)

    def come_back(self, after: float, *, offset: int = 100) -> Decision:
        """The broker ends and comes back: what it is answered to its second fetch, when high watermarks are told."""
        self.link.close()
        self.log.leave_isr(2)
        self.write()
        self.clock.move(after)
        self.follower.offsets[b"t", 0] = offset
        self.connect()
        self.fetch()
        self.clock.move(1.0)
        return self.fetch()


def is_passed(decision: Decision) -> bool:
    if not isinstance(decision, Forward):
        assert isinstance(decision, (Answer, Hold))
        return False
    return next(iter(requested(decision.request).values()))[1] == PARTITION_MAX_BYTES


@pytest.mark.parametrize("version", [3, 6, 7, 12])
@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("settings", [LISTED, RECOVERY])
def test_broker_that_is_back_soon_is_not_throttled(side: SideName, settings: ThrottleSettings, version: int) -> None:
    made = Cluster(side, settings, version)
    made.catch_up()
    probes = made.throttle.stats.offset_probes
    assert is_passed(made.come_back(14.0))
    assert made.throttle.stats.offset_probes == probes


def test_it_is_throttled_once_behind_as_long_as_leaders_wait() -> None:
    made = Cluster()
    made.catch_up()
    assert is_passed(made.come_back(14.0))
    made.clock.move(LAG_TIME_MAX_SECONDS - 15.1)
    made.follower.offsets[b"t", 0] += 1
    assert is_passed(made.fetch())
    made.clock.move(0.2)
    made.follower.offsets[b"t", 0] += 1
    assert not is_passed(made.fetch())


def test_further_connections_prolong_nothing() -> None:
    made = Cluster()
    made.catch_up()
    for _ in range(2):
        assert is_passed(made.come_back(13.0))
    assert not is_passed(made.come_back(2.0))


def test_connection_broken_before_an_answer_prolongs_nothing() -> None:
    made = Cluster()
    made.catch_up()
    made.link.close()
    made.clock.move(20.0)
    made.connect()
    assert is_passed(made.link.plan(made.request()))
    assert not is_passed(made.come_back(11.0))


def test_broker_that_stood_still_counts_from_its_last_fetch() -> None:
    made = Cluster()
    made.catch_up()
    made.write()
    made.clock.move(14.0)
    assert is_passed(made.fetch())  # until it is answered, nothing tells that it is behind
    made.clock.move(15.9)
    made.follower.offsets[b"t", 0] += 1
    assert is_passed(made.fetch())
    made.clock.move(0.2)
    made.follower.offsets[b"t", 0] += 1
    assert not is_passed(made.fetch())


@pytest.mark.parametrize("offset", [0, 99])
def test_replica_perhaps_deleted_and_made_anew_is_throttled(offset: int) -> None:
    made = Cluster()
    made.catch_up()
    assert not is_passed(made.come_back(1.0, offset=offset))
    made.link.close()
    made.follower.offsets[b"t", 0] = 150  # however far it comes
    assert not is_passed(made.come_back(1.0, offset=150))


def test_added_replica_is_throttled_whatever_connections_do() -> None:
    made = Cluster()
    made.follower.offsets[b"t", 0] = 0
    for offset in (0, 50, 80):
        assert not is_passed(made.come_back(1.0, offset=offset))


def test_replica_once_moved_away_is_throttled_when_it_is_back() -> None:
    made = Cluster()
    made.catch_up()
    for lag in made.throttle.lag.topics():
        lag.leave_out(0)
    assert not is_passed(made.come_back(1.0))


def test_sidecar_just_begun_throttles_what_it_cannot_tell() -> None:
    """Which replicas a leader waits for is in no metadata. A move must not pass whole after each start."""
    made = Cluster()
    assert not is_passed(made.come_back(1.0))


def test_new_leader_epoch_is_no_reason_to_ask_who_is_in_sync() -> None:
    made = Cluster()
    made.catch_up()
    probes = made.throttle.stats.offset_probes
    for _ in range(20):
        made.leader_epoch += 1
        assert is_passed(made.fetch())
        made.clock.move(0.5)
    assert made.throttle.stats.offset_probes == probes


def test_refused_partition_counts_from_its_last_answer_on() -> None:
    made = Cluster()
    made.catch_up()
    made.log.error_code = NOT_LEADER_OR_FOLLOWER
    for _ in range(20):
        made.fetch()
        made.clock.move(1.0)
    made.log.error_code = 0
    assert not is_passed(made.come_back(11.0))


@pytest.mark.parametrize("is_new", [False, True])
def test_follower_truncating_the_uncommitted_is_in_sync(is_new: bool) -> None:
    """As after a leader has failed: the new one had less, but all that was committed."""
    made = Cluster()
    made.catch_up()
    made.write(5)
    made.log.told_high_watermark = 100
    made.follower.offsets[b"t", 0] = 105
    made.fetch()
    probes = made.throttle.stats.offset_probes
    made.leader_epoch += 1
    made.follower.offsets[b"t", 0] = 102
    if is_new:
        made.link.close()
        made.connect(3)
    assert is_passed(made.fetch())
    assert made.throttle.stats.offset_probes == probes


def test_offset_that_goes_back_with_a_leader_epoch_is_asked_for() -> None:
    """Since KIP-101 no follower goes back to its own high watermark."""
    made = Cluster()
    made.catch_up()
    made.write(1)
    made.fetch()
    made.follower.offsets[b"t", 0] += 1
    made.catch_up()
    made.leader_epoch += 1
    made.follower.offsets[b"t", 0] -= 1
    made.clock.move(10.0)
    assert not is_passed(made.fetch())


@pytest.mark.parametrize("is_new_epoch", [True, False])
def test_lower_high_watermark_counts_when_told_for_some_seconds(is_new_epoch: bool) -> None:
    """A leader may know of less than is committed for a moment: who is far behind is not in sync with it."""
    cluster = Cluster()
    cluster.write()
    cluster.fetch()
    assert not is_passed(cluster.fetch())
    cluster.leader_epoch += is_new_epoch
    cluster.log.told_high_watermark = 90
    passed = []
    for _ in range(15):
        cluster.clock.move(1.0)
        passed.append(is_passed(cluster.fetch()))
    assert not any(passed[:5])
    assert passed[-1]


@pytest.mark.parametrize("version", [3, 12])
def test_high_watermark_told_as_before_counts_after_a_step_back(version: int) -> None:
    """Nothing in the answer is new, but what it told before was forgotten with the follower's step back."""
    cluster = Cluster(version=version)
    cluster.write()
    cluster.fetch()
    cluster.follower.offsets[b"t", 0] -= 10
    for _ in range(2):
        cluster.fetch()
    assert cluster.link.partitions.unknown_count == 0


def test_answer_is_looked_into_whole_after_a_partition_was_added() -> None:
    cluster = Cluster(version=3)
    cluster.write()
    cluster.fetch()
    assert cluster.link.partitions.told
    request = cluster.request()
    added = requested_partition(3, 1, 0, PARTITION_MAX_BYTES)
    cluster.link.plan(request.with_(topics=[*request.topics, *request_topics([((b"t", 1), added)])]))
    assert not cluster.link.partitions.told


def test_follower_that_truncates_is_in_sync_when_told_less() -> None:
    """The leader tells a lower high watermark then."""
    cluster = Cluster()
    cluster.catch_up()
    cluster.leader_epoch += 1
    cluster.log.told_high_watermark = cluster.follower.offsets[b"t", 0] = 90
    cluster.fetch()
    assert is_passed(cluster.fetch())
    cluster.clock.move(LAG_TIME_MAX_SECONDS + 1)
    assert is_passed(cluster.fetch())

# SPDX-License-Identifier: Apache-2.0
"""Connections that end and come back: a follower's side need not ask again who is behind."""

import struct

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import PARTITION_MAX_BYTES, Leader, Log, requested, requested_partition
from tests.fakes.kafka.wire import replica_fetch, request_topics
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
PROBE_SECONDS = 10.0
NOT_LEADER_OR_FOLLOWER = 6
versions = pytest.mark.parametrize("version", [3, 12])


class Churn:
    """A follower of a partition that is behind and of others in sync, whose connections end all the time."""

    def __init__(self, version: int, *, in_sync: int = 0, side: SideName = "follower", rate: int = 0) -> None:
        self.version = version
        self.clock = MovedClock()
        settings = ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS})
        self.throttle = Throttle(side, 2, self.clock, settings)
        self.log = Log([MB] * 100)
        self.leader = Leader({(b"t", 0): self.log} | {(b"t", 1 + number): Log([1_000]) for number in range(in_sync)})
        self.offsets = {0: 0} | {1 + number: 1 for number in range(in_sync)}
        self.link = self.throttle.link(1)

    def connect(self) -> ReplicaLink:
        self.link.close()
        self.link = self.throttle.link(1)
        return self.link

    def fetch(self) -> Decision:
        """One whole fetch with its answer, of which the follower takes nothing."""
        entries = [
            ((b"t", one), requested_partition(self.version, one, offset, PARTITION_MAX_BYTES, 5))
            for one, offset in self.offsets.items()
        ]
        decision = self.link.plan(replica_fetch(self.version, request_topics(entries)))
        if isinstance(decision, Forward):
            self.link.settle(self.leader.answer(decision.request, self.clock.now))
        return decision


def asks_for(decision: Decision) -> set[int]:
    return {partition for _, partition in requested(decision.request)} if isinstance(decision, Forward) else set()


@versions
def test_new_connections_bring_no_batches_of_what_is_behind(version: int) -> None:
    churn = Churn(version)
    assert asks_for(churn.fetch()) == {0}  # nobody knows anything of it
    for _ in range(18):
        churn.clock.move(0.5)
        churn.connect()
        assert isinstance(churn.fetch(), Hold)
    assert churn.throttle.stats.offset_probes == 1


@versions
def test_what_is_in_sync_passes_at_once_on_a_new_connection(version: int) -> None:
    churn = Churn(version, in_sync=2)
    churn.fetch()
    churn.fetch()
    for _ in range(18):
        churn.clock.move(0.5)
        churn.connect()
        decision = churn.fetch()
        assert asks_for(decision) == {1, 2}
        assert isinstance(decision, Forward)
        # Without a high watermark an empty entry would send the follower back to its log start.
        assert struct.pack(">ihq", 0, NOT_LEADER_OR_FOLLOWER, -1) in decision.expected.appended


@versions
def test_it_is_asked_for_on_a_connection_that_lasts(version: int) -> None:
    churn = Churn(version, in_sync=1)
    churn.fetch()
    churn.connect()
    assert asks_for(churn.fetch()) == {1}
    churn.clock.move(PROBE_SECONDS)
    assert asks_for(churn.fetch()) == {0, 1}
    churn.clock.move(0.5)
    assert asks_for(churn.fetch()) == {1}
    assert churn.throttle.stats.offset_probes == 2


@versions
@pytest.mark.parametrize("offset", [99, 100])
def test_who_may_have_caught_up_or_is_made_anew_is_asked_for(version: int, offset: int) -> None:
    churn = Churn(version)
    churn.offsets[0] = 50
    churn.fetch()
    churn.connect()
    churn.offsets[0] = offset
    assert asks_for(churn.fetch()) == (set() if offset < 100 else {0})
    churn.connect()
    churn.offsets[0] = 49
    assert asks_for(churn.fetch()) == {0}


def test_a_leaders_side_asks_at_once_as_that_brings_nothing() -> None:
    churn = Churn(12, side="leader")
    for _ in range(3):
        churn.connect()
        assert asks_for(churn.fetch()) == {0}


def test_an_empty_answer_to_a_new_connection_is_no_news() -> None:
    churn = Churn(12)
    churn.fetch()
    churn.connect()
    decision = churn.fetch()
    assert isinstance(decision, Hold)
    churn.clock.move(0.5)
    entry = requested_partition(12, 0, 0, PARTITION_MAX_BYTES, 5)
    answer = churn.link.plan(replica_fetch(12, request_topics([((b"t", 0), entry)])), 0.5)
    assert isinstance(answer, Answer)
    assert struct.pack(">ihq", 0, NOT_LEADER_OR_FOLLOWER, -1) in answer.frame

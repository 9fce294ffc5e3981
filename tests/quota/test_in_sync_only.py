# SPDX-License-Identifier: Apache-2.0
"""What decides about a link on which the throttle failed again and again: in sync passes, behind stays out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log
from tests.fakes.kafka.wire import scan
from tests.fakes.session_conversation import Response, SessionFollower, SessionLeader, appended_topics
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from weir.protocol.steps import at_once
from weir.protocol.take_out import Passing
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.in_sync_only import InSyncOnly
from weir.quota.figures import PROBE_SECONDS
from weir.quota.topic_names import CLUSTER_METADATA_ID

BATCH = 30_000
T, LIVE = b"t" * 16, (b"l" * 16, 0)  # ids from v13 on


@dataclass
class Spare:
    """A sidecar before `upstream`, whose throttle failed."""

    clock: MovedClock
    link: InSyncOnly
    upstream: SessionLeader
    decisions: list[Decision] = field(default_factory=list)

    def respond(self, request: FetchRequest) -> Response:
        """Answer a request, while the clock moves."""
        asked_at = self.clock.now
        decision = at_once(self.link.plan_steps(request))
        while isinstance(decision, Hold):
            assert decision.until > self.clock.now, "a hold that does not wait spins"
            self.clock.now = decision.until
            decision = at_once(self.link.plan_steps(request, self.clock.now - asked_at))
        self.decisions.append(decision)
        if not isinstance(decision, Forward):
            return scan(request.header.api_version, decision.frame)
        head, topics = self.upstream.respond(decision.request)
        at_once(self.link.settle_steps(topics, head))
        return head, topics + appended_topics(decision)


class Spared:
    """A follower that is behind in all partitions but one."""

    def __init__(self, version: int, *, behind: int = 3, live: bool = True) -> None:
        self.clock = MovedClock()
        logs = {(T, partition): Log([BATCH] * 2000) for partition in range(behind)}
        if live:
            logs[LIVE] = Log([])
        self.log = logs.get(LIVE, Log([]))
        self.leader = SessionLeader(self.clock, Leader(logs))
        self.hop = Spare(self.clock, InSyncOnly(self.clock), self.leader)
        self.follower = SessionFollower(self.clock, self.hop, dict.fromkeys(logs, 0), version)

    def run(self, seconds: float) -> int:
        """Returns the bytes that came."""
        before = sum(size for _, size in self.follower.received)
        self.follower.run(seconds)
        assert not self.follower.refused
        return sum(size for _, size in self.follower.received) - before


@pytest.mark.parametrize("version", [0, 1, 3, 7, 12, 17])
def test_what_is_behind_stays_out_and_what_is_in_sync_passes(version: int) -> None:
    made = Spared(version)
    assert made.run(PROBE_SECONDS - 1) <= BATCH
    for written in range(1, 20):
        made.log.append(BATCH)
        made.follower.fetch()
        assert made.follower.offsets[LIVE] == written
    assert made.follower.offsets[T, 1] == made.follower.offsets[T, 2] == 0


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("live", [True, False])
def test_what_is_behind_is_asked_for_offsets_every_10_seconds(version: int, live: bool) -> None:
    made = Spared(version, live=live)
    made.run(1.0)
    for log in made.leader.leader.logs.values():
        log.error_code = 6
    errors = len([one for one in made.hop.decisions if isinstance(one, Forward)])
    assert made.run(5 * PROBE_SECONDS) == 0
    assert len([one for one in made.hop.decisions if isinstance(one, Forward)]) > errors
    for log in made.leader.leader.logs.values():
        log.error_code = 0
    assert made.run(5 * PROBE_SECONDS) <= 6 * BATCH


def test_fetch_of_only_what_is_behind_is_held_then_answered() -> None:
    """The answer has nothing new."""
    made = Spared(12, live=False)
    made.follower.fetch()
    request = made.follower.request()
    decision = at_once(made.hop.link.plan_steps(request))
    assert isinstance(decision, Hold)
    assert decision.until == made.clock.now + request.max_wait_ms / 1000
    made.clock.now = decision.until
    assert isinstance(at_once(made.hop.link.plan_steps(request, request.max_wait_ms / 1000)), Answer)


def test_a_follower_in_a_session_begins_anew() -> None:
    made = Spared(12)
    made.follower.session_id, made.follower.epoch = 7, 3
    made.follower.fetch()
    assert made.follower.errors == [FETCH_SESSION_ID_NOT_FOUND]
    assert made.run(1.0) <= BATCH


def test_the_metadata_log_passes_whatever_is_known_of_it() -> None:
    """Kafka's Raft client asks for it with 0 bytes: a broker whose controller is behind a sidecar would never start."""
    made = Spared(17)
    request = made.follower.request()
    (topic, *_) = request.topics
    log = request.with_(topics=[topic._replace(name=CLUSTER_METADATA_ID)])
    decision = at_once(made.hop.link.plan_steps(log))
    assert isinstance(decision, Forward)
    assert decision.request.topics == log.topics
    assert decision.expected.admit is not None
    assert decision.expected.admit(CLUSTER_METADATA_ID, 0, 100) is Passing.ALL

# SPDX-License-Identifier: Apache-2.0
"""A follower that forgets thousands of partitions keeps others waiting for a few milliseconds at most."""

from __future__ import annotations

from tests.fakes.clock import MovedClock
from tests.protocol.fetch_data import request
from tests.protocol.hostile import Work
from weir.protocol.fetch_request import ForgottenTopic
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_scanner import ResponseHead
from weir.protocol.steps import at_once
from weir.quota.fetch.decisions import Forward
from weir.quota.figures import ABSENT_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle

MANY = 10_000
MOST_IN_A_STEP = 40_000
"""Lines of code: about 4 ms."""


def test_partitions_that_are_forgotten_are_taken_in_dropped_and_told_the_leader_in_steps() -> None:
    clock = MovedClock()
    link = Throttle("leader", 1, clock, ThrottleSettings()).link(2)
    pack, stride = FETCH_VERSIONS[7].request_partition.layout.pack, FETCH_VERSIONS[7].partition_size
    entries = b"".join(pack(number, 7, 0, 1000) for number in range(MANY + 1))  # one of them stays
    whole = request(7, [RequestTopic(b"t", entries, stride)]).with_(session_id=0, session_epoch=0)
    decision = at_once(link.plan_steps(whole))
    assert isinstance(decision, Forward)
    at_once(link.settle_steps([], ResponseHead(session_id=9)))
    session = link.sessions.follower
    forgotten = (ForgottenTopic(b"t", tuple(range(MANY))),)
    asks = whole.with_(topics=[], session_id=session.id, session_epoch=1)
    for later, one in ((0.0, asks.with_(forgotten=forgotten)), (ABSENT_SECONDS, asks.with_(session_epoch=2))):
        clock.move(later)
        work = Work("protocol", "quota").run(link.plan_steps(one))
        if link.in_flight is not None:
            at_once(link.settle_steps([], ResponseHead(session_id=9)))
        assert work.longest <= MOST_IN_A_STEP, later
    assert not link.partitions.absent

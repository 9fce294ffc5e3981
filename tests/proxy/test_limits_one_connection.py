# SPDX-License-Identifier: Apache-2.0
"""A model of a producer that has all it is let send in flight, with heartbeats on the same connection, as in sarama."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fakes.clock import MovedClock
from tests.limits.limiters import rule
from tests.protocol.wire import request
from tests.proxy.limited import SOURCE, produce, produced
from weir.limits.holds import MOST_OWED_SECONDS
from weir.protocol.header import PRODUCE
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import RequestHead, read_request_head
from weir.protocol.request_sender import RequestSender
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.outcomes import Outcome, PassOn, Wait, Waiting

LIMIT, SECONDS, STEP = 100, 200.0, 0.01
ROUND_TRIP, EVERY = 0.01, 3.0  # seconds to the broker and back, and between two heartbeats
HEARTBEAT = request(12, 4, 1, b"", client_id=SOURCE.encode())


class Connection:
    """It has `in_flight` requests of `records` each under way, and a heartbeat now and then."""

    session_end = math.inf

    def __init__(self, records: int, in_flight: int) -> None:
        self.clock = MovedClock()
        stage = LimitStage(self.clock, EventLog())
        stage.configure([rule(SOURCE, LIMIT)])
        self._gate = LinkGate(stage, cast(Any, SimpleNamespace(held=None)), cast(Any, self))
        self._produce = produce(1, records)
        head = read_request_head(self._produce)
        assert isinstance(head, RequestHead)
        self._begins = RequestBegins(head, RequestSender(PRODUCE, head.api_version, self._produce[:1024]))
        self._queue = deque([self._produce] * in_flight)
        self._answers = deque[tuple[float, PassOn | None]]()
        self._hold: Wait | None = None
        self._held: Waiting[Outcome] | None = None
        self._beat_at: float | None = None  # when the heartbeat under way was sent
        self._last_beat = self.clock()
        self.passed = 0
        """Requests that went to the broker."""
        self.waits: list[float] = []
        """How long each heartbeat waited."""

    def behind(self, most: int) -> bytes:
        """Return what has come behind the held request."""
        return b"".join(list(self._queue)[1:])[:most]

    def step(self) -> None:
        """Do what is due."""
        now = self.clock()
        while self._answers and self._answers[0][0] <= now:
            _, passed = self._answers.popleft()
            if passed is not None:
                assert passed.pending is not None
                assert passed.pending.observer is not None
                passed.pending.observer.receive(memoryview(bytearray(produced(1))))
                self._queue.append(self._produce)
        if self._beat_at is None and now >= self._last_beat + EVERY:
            self._beat_at = self._last_beat = now
            self._queue.append(HEARTBEAT)
        while self._queue and (self._hold is None or now >= self._hold.until):
            if self._queue[0] is HEARTBEAT:
                assert self._beat_at is not None
                self.waits.append(now - self._beat_at)
                self._beat_at = None
                self._answers.append((now + ROUND_TRIP, None))
                self._queue.popleft()
            elif not self._goes():
                break
        self.clock.move(STEP)

    def _goes(self) -> bool:
        outcome = self._gate.arrived(self._begins) if self._held is None else self._held
        self._hold = self._held = None
        if not isinstance(outcome, PassOn):
            try:
                self._hold, self._held = next(outcome), outcome
            except StopIteration as stop:
                outcome = stop.value
        if isinstance(outcome, PassOn) and outcome.watcher is not None:
            outcome.watcher(memoryview(self._produce))
            self.passed += 1
            self._answers.append((self.clock() + ROUND_TRIP, outcome))
            self._queue.popleft()
        return self._hold is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("in_flight", "seconds", "waits"),
    [(1, 0.5, 1.0), (1, 1, 1.0), (1, 3, 1.0), (5, 0.1, 1.0), (5, 0.25, 1.0), (5, 0.5, 1.0), (5, 1, 7.5)],
)
def test_heartbeats_behind_requests_worth_so_many_seconds_each(in_flight: int, seconds: float, waits: float) -> None:
    """More than 3 s of the limit before each heartbeat can't pass within 1 s, for good: then the limit is kept."""
    connection = Connection(round(seconds * LIMIT), in_flight)
    begin = connection.clock()
    while connection.clock() - begin < SECONDS:
        connection.step()
    assert max(connection.waits) <= waits + 5 * STEP
    assert 0.97 * SECONDS <= connection.passed * seconds <= SECONDS + MOST_OWED_SECONDS + 2 * seconds

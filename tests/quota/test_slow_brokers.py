"""A broker that reads slowly for one follower: what is granted there takes nothing from others until it comes."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.kafka.take_out import passed, take_out
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ScannedTopic
from weir.proxy.relay.passage import Passage
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

RATE = 5_000_000
BATCH = 10_300
SECONDS = 15.0
BYTES_A_SECOND = 200_000_000  # of the network


class Loop:
    """An event loop with a moved clock."""

    def __init__(self) -> None:
        self.clock = MovedClock()
        self._calls: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.clock.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer([call], self.clock.now + seconds)
        heappush(self._calls, (timer.due, next(self._numbers), timer.calls))
        return timer

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self._calls[0][0] < end:
            self.clock.now, _, calls = heappop(self._calls)
            for call in calls:
                call()


class Timer:
    """What the loop returns for a later call."""

    def __init__(self, calls: list[Callable[[], None]], due: float) -> None:
        self.calls = calls
        self.due = due

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.calls.clear()


class Link:
    """One follower on the leader's side, with the relay's passage; the passage's pump and transport, too."""

    def __init__(self, loop: Loop, throttle: Throttle, replica_id: int, read_seconds: float) -> None:
        """The broker takes `read_seconds` for each answer."""
        self._loop = loop
        self._link = throttle.link(replica_id)
        partitions = range(5 * replica_id, 5 * replica_id + 5)  # each has at most 1 MiB of an answer
        self._leader = Leader({(b"t", one): Log([BATCH] * int(RATE * SECONDS / BATCH)) for one in partitions})
        self.follower = Follower(dict.fromkeys(self._leader.logs, 0), replica_id=replica_id)
        self._read_seconds = read_seconds
        self._queued = self._arrived = self.sent = 0
        self.allowed = math.inf
        self._passage = Passage(loop, self._link.let_pass, self, self)  # type: ignore[arg-type]
        self._answer: list[ScannedTopic] = []
        self.received: list[tuple[float, int]] = []
        self._ask()

    def keep_unsent(self, most: int) -> bool:
        return True

    def unacknowledged(self) -> int:
        return self.sent - self._arrived

    def allow(self, size: float) -> None:
        self.allowed = size
        self._send()

    def _send(self) -> None:
        size = int(min(self._queued - self.sent, self.allowed))
        if size > 0:
            self.sent += size
            self.allowed -= size
            self._loop.call_later(size / BYTES_A_SECOND, lambda: self._arrive(size))
        if self.allowed <= 0 and self._queued > self.sent:
            self._passage.held_back()

    def _arrive(self, size: int) -> None:
        self._arrived += size
        self.received.append((self._loop.time(), size))
        if self._arrived == self._queued:
            self.follower.take(self._answer, self._loop.time())
            self._loop.call_later(0.001, self._ask)

    def _ask(self) -> None:
        self._plan(self.follower.request(), self._loop.time())

    def _plan(self, request: FetchRequest, since: float) -> None:
        now = self._loop.time()
        decision = self._link.plan(request, now - since)
        if isinstance(decision, Forward):
            self._passage.begin(is_granted=decision.is_granted, is_lent=self._link.is_lent)
            self._loop.call_later(self._read_seconds, lambda: self._read(decision))
        elif isinstance(decision, Hold):
            self._loop.call_later(min(decision.until - now, 0.005), lambda: self._plan(request, since))
        else:
            self._loop.call_later(0.001, self._ask)

    def _read(self, decision: Forward) -> None:
        topics = take_out(self._leader.answer(decision.request), decision)
        self._answer = passed(topics)
        self._queued += 100 + sum([seen.size for topic in self._answer for seen in topic.records])
        self._link.answer_begins(0)
        self._link.settle(topics)
        self._send()


@pytest.mark.parametrize("read_seconds", [0.25, 0.4, 0.85])
def test_a_slow_broker_takes_nothing_from_other_followers(read_seconds: float) -> None:
    """It was 0.92 of the quota in all, and the slow one had 0.13 of it: bytes were set aside while the broker read."""
    loop = Loop()
    settings = ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS})
    throttle, start = Throttle("leader", 1, loop.clock, settings), loop.time()
    links = [Link(loop, throttle, 2 + one, 0.002 if one else read_seconds) for one in range(3)]
    loop.run(SECONDS)
    received = sorted(one for link in links for one in link.received)
    assert mean_rate(received, start + 3, start + SECONDS) >= 0.98 * RATE
    assert mean_rate(links[0].received, start + 3, start + SECONDS) >= 0.28 * RATE
    assert worst_second(received) <= 1.042 * RATE

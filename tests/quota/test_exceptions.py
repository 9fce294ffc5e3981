# SPDX-License-Identifier: Apache-2.0
"""An exception anywhere in the throttle: nothing passes above the quota for it, replication goes on, and nothing stays
reserved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log
from tests.fakes.kafka.wire import scan
from tests.fakes.lines import line_of
from tests.fakes.relaying import AtOnce
from tests.fakes.session_conversation import Response, SessionFollower, SessionLeader, appended_topics
from weir import lag, quota
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.response_scanner import FetchResponseScanner
from weir.protocol.steps import at_once
from weir.proxy.log import EventLog
from weir.proxy.relay import outcomes
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

pytestmark = pytest.mark.long

RATE = 1_000_000
BATCH = 30_000
LIVE_BATCH = 500
PARTITIONS = 3
LIVE = (b"live", 0)
SECONDS = 0.4
ROOMS = tuple(str(Path(str(room.__file__)).parent) for room in (quota, lag))
Line = tuple[CodeType, int]


class Injected(Exception):
    """What a test raises inside the throttle."""


class Interruption:
    """Raises when `line` is about to run for the `count`-th time, or from then on each time.

    Without a line it notes all that run, in order.
    """

    def __init__(self, line: Line | None = None, count: int = 1, *, for_ever: bool = False) -> None:
        self.line = line
        self.left = count
        self.for_ever = for_ever
        self.seen: dict[Line, int] = {}

    def __enter__(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Trace from now on. Python stops to do so when the traced line has raised."""
        sys.settrace(self._call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if self.line is None:
            return self._line if code.co_filename.startswith(ROOMS) else None
        return self._line if code is self.line[0] else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if event == "line":
            at = (frame.f_code, frame.f_lineno)
            if self.line is None:
                self.seen[at] = self.seen.get(at, 0) + 1
            elif frame.f_lineno == self.line[1]:
                self.left -= 1
                if self.left == 0 or (self.left < 0 and self.for_ever):
                    raise Injected
        return self._line


class Disconnected(Exception):
    """The sidecar closed the connection."""


@dataclass
class Proxied:
    """A sidecar before a leader, as the proxy is: connections come and go."""

    clock: MovedClock
    relay: Side
    upstream: SessionLeader
    fetches: ReplicaFetches = field(init=False)

    def __post_init__(self) -> None:
        self.fetches = ReplicaFetches(self.relay, None)

    def respond(self, request: FetchRequest) -> Response:
        """Answer a request, while the clock moves."""
        try:
            return self._respond(request)
        except (ConnectionEnds, Injected) as error:
            if isinstance(error, Injected):  # while an answer passes
                self.fetches.failed(error)
            self.fetches.close()
            self.fetches = ReplicaFetches(self.relay, None)
            raise Disconnected from None

    def _respond(self, request: FetchRequest) -> Response:
        deciding = self.fetches.take(ReplicaFetch(request.header, encode_fetch_request(request)[4:]))
        outcome: outcomes.Outcome | None = None
        while outcome is None:
            try:
                said = next(deciding)
            except StopIteration as stop:
                outcome = stop.value
            else:
                if said is not None:
                    self.clock.now = max(said.until, self.clock.now + 0.0005)
        if isinstance(outcome, outcomes.Reply):
            assert outcome.pending.answer is not None
            return scan(request.header.api_version, outcome.pending.answer)
        assert isinstance(outcome, outcomes.Send), "nothing passes as it came"
        scanner = outcome.pending.observer
        assert isinstance(scanner, FetchResponseScanner)
        head, topics = self.upstream.respond(decode_fetch_request(outcome.data[4:]))
        scanner.head, scanner.topics = head, topics
        made_up = appended_topics(Forward(request, scanner.expected))
        at_once(self.fetches.settle(scanner))
        return head if scanner.expected.head_patch is None else scanner.expected.head_patch(head), topics + made_up


@dataclass
class Run:
    """A move of three partitions beside a live one, which is written to all the time."""

    version: int
    interruption: Interruption = field(default_factory=Interruption)
    """What is raised in each fetch, where it is `for_ever`."""
    clock: MovedClock = field(default_factory=MovedClock)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began_at = self.clock.now
        self.settings = ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS, "live": ALL_REPLICAS})
        self.throttle = Throttle("leader", 1, self.clock, self.settings)
        logs = {(b"t", p): Log([BATCH] * 2000) for p in range(PARTITIONS)} | {LIVE: Log([])}
        self.live = logs[LIVE]
        self.live.fetched(2, 0, self.began_at)  # from now on the follower is in the ISR
        leader = SessionLeader(self.clock, Leader(logs))
        log = EventLog("tests", clock=self.clock)
        self.relay = Side(self.throttle, RelayStats("leader"), log, clock=self.clock, turns=AtOnce())
        self.proxied = Proxied(self.clock, self.relay, leader)
        self.follower = SessionFollower(self.clock, self.proxied, dict.fromkeys(logs, 0), self.version)

    def go_on(self, seconds: float = SECONDS) -> None:
        """Fetch, and change the settings in the middle."""
        end, other = self.clock.now + seconds, ThrottleSettings(rate=RATE // 2, replicas=self.settings.replicas)
        written_at = self.clock.now
        while self.clock.now < end:
            if self.follower.offsets[LIVE] == self.live.end:
                self.waits.append(self.clock.now - written_at)
                self.live.append(LIVE_BATCH)
                written_at = self.clock.now
            before = self.clock.now
            if self.interruption.for_ever:
                self.interruption.go_on()
            try:
                self.follower.fetch()
            except Disconnected:
                self.follower.session_id = self.follower.epoch = 0
                self.clock.move(0.05)
            if self.clock.now == before:
                self.clock.move(0.0005)
            with suppress(Injected):
                if self.throttle.settings is self.settings and self.clock.now > end - seconds / 2:
                    self.throttle.configure(other)
        self.waits.append(self.clock.now - written_at)

    def finish(self) -> None:
        """Close the connection."""
        self.proxied.fetches.close()

    def check(self, where: object, probes: int) -> None:
        """`probes` is how many connections may each have brought a batch that nothing was reserved for."""
        received = sum(size for _, size in self.follower.received)
        assert received <= (self.clock.now - self.began_at + 0.04) * RATE + (1 + probes) * BATCH, where
        assert self.throttle.ledger.reserved == 0, where
        assert not self.throttle.links, where
        assert len(line_of(self.throttle).claims) == 0, where


def lines_of(version: int) -> list[tuple[Line, int]]:
    """All lines of the throttle that a run goes through, and how often."""
    noted, run = Interruption(), Run(version)
    with noted:
        run.go_on()
        run.finish()
    run.check("no exception", 1)
    assert sum(size for _, size in run.follower.received) > 0.5 * SECONDS * RATE
    assert len(noted.seen) > 300
    # a bare `return` cannot fail: behind it stands who closes the link
    returned = max(number for *_, number in Throttle.link.__code__.co_lines() if number is not None)
    noted.seen.pop((Throttle.link.__code__, returned), None)
    return sorted(noted.seen.items(), key=lambda seen: (seen[0][0].co_filename, seen[0][1]))


@pytest.mark.parametrize(("version", "at_last_time"), [(3, True), (12, False)])
def test_exception_at_any_line_passes_and_reserves_nothing(version: int, at_last_time: bool) -> None:
    """Every eighth line at its first time, and those behind them at their last."""
    for line, count in lines_of(version)[at_last_time::8]:
        run = Run(version)
        with Interruption(line, count if at_last_time else 1):
            run.go_on()
            run.finish()
        run.check(line, 2)


@pytest.mark.parametrize("version", [3, 12])
def test_raising_line_passes_nothing_and_stops_nobody_in_sync(version: int) -> None:
    """With every connection anew."""
    raised = []
    for line, _ in lines_of(version)[::40]:
        run = Run(version, Interruption(line, for_ever=True))
        with suppress(Injected), run.interruption:
            run.go_on(1.0)
            run.finish()
        run.finish()
        raised.append(1 - run.interruption.left)
        assert sum(size for _, size in run.follower.received) <= (1.04 + 0.04) * RATE + 5 * BATCH, line
        assert max(run.waits) < 1.0, line
        assert run.live.end > 3, line
    assert sum(times > 1 for times in raised) > 20

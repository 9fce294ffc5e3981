"""An exception anywhere in the throttle: whatever it interrupts, nothing stays reserved when its link is closed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Follower, Leader, Log
from tests.fakes.lines import line_of
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir import quota
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 30_000
PARTITIONS = 3
QUOTA = str(Path(quota.__file__).parent)
Line = tuple[CodeType, int]


class Injected(Exception):
    """What a test raises inside the throttle."""


class Interruption:
    """Raises when `line` is about to run for the `count`-th time; without a line it notes all that run, in order."""

    def __init__(self, line: Line | None = None, count: int = 1) -> None:
        self.line = line
        self.left = count
        self.seen: dict[Line, int] = {}

    def __enter__(self) -> None:
        if self.left:
            sys.settrace(self._call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if self.line is None:
            return self._line if code.co_filename.startswith(QUOTA) else None
        return self._line if code is self.line[0] else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if event == "line":
            at = (frame.f_code, frame.f_lineno)
            if self.line is None:
                self.seen[at] = self.seen.get(at, 0) + 1
            elif frame.f_lineno == self.line[1]:
                self.left -= 1
                if not self.left:
                    sys.settrace(None)
                    raise Injected
        return self._line


def converse(throttle: Throttle, clock: MovedClock, version: int, interruption: Interruption) -> None:
    """Two connections, each of which ends in the midst of an answer; the first one's link stays open for longer."""
    links = [throttle.link(replica) for replica in (2, 3)]
    for link in links:
        with suppress(Injected), interruption:
            _fetch_some(throttle, link, clock, version)
    for link in links:
        try:
            with interruption:
                link.close()
        except Injected:
            throttle.drop(link)


def _fetch_some(throttle: Throttle, link: ReplicaLink, clock: MovedClock, version: int) -> None:
    logs = {(b"t", p): Log([BATCH] * 60) for p in range(PARTITIONS)} | {(b"idle", 0): Log([])}
    leader = Leader(logs)
    follower = SessionFollower(clock, Hop(clock, link, SessionLeader(clock, leader)), dict.fromkeys(logs, 0), version)
    plain = Follower(dict.fromkeys(logs, 0), version=version)
    for number in range(5):
        if version >= 7:
            follower.fetch()
            clock.move(0.06)
        else:
            request = plain.request()
            decision = link.plan(request)
            clock.move(0.06)
            if isinstance(decision, Forward):
                topics = leader.answer(decision.request)
                link.settle(topics)
                plain.take(topics, clock.now)
        if number == 3:
            throttle.configure(ThrottleSettings(rate=MB // 2, replicas={"t": ALL_REPLICAS}))
    link.plan(plain.request() if version < 7 else follower.request())


def run(version: int, interruption: Interruption) -> Throttle:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    converse(throttle, clock, version, interruption)
    return throttle


@pytest.mark.parametrize(("version", "at_last_time"), [(3, True), (12, False)])
def test_exception_at_any_line_leaves_nothing_reserved_when_all_is_closed(version: int, at_last_time: bool) -> None:
    """Every other line at its first time, and those between at their last."""
    noted = Interruption()
    assert run(version, noted).ledger.reserved == 0
    assert len(noted.seen) > 300
    lines = sorted(noted.seen.items(), key=lambda seen: (seen[0][0].co_filename, seen[0][1]))
    for line, count in lines[at_last_time::2]:
        throttle = run(version, Interruption(line, count if at_last_time else 1))
        assert throttle.ledger.reserved == 0, line
        assert not throttle.links, line
        assert len(line_of(throttle)) == 0, line

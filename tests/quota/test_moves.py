# SPDX-License-Identifier: Apache-2.0
"""How often one fetch goes from one of our files to another: who reads along has to do so as often."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

import weir.quota
from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.protocol.steps import Steps
from weir.quota.fetch.decisions import Decision
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

ROOMS = str(Path(weir.quota.__file__).parents[1])
T = TypeVar("T")


class Moves:
    """Counts calls into other files of ours, by both files. A step that goes on counts as a call."""

    def __init__(self) -> None:
        self.pairs = Counter[tuple[str, str]]()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not _is_ours(frame):
            return
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self.pairs[caller.f_code.co_filename, frame.f_code.co_filename] += 1

    def of(self, steps: Steps[T]) -> T:
        """Take all steps, as the data path does, and return what comes of them."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            sys.setprofile(before)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(ROOMS)


def moves_of(patch: pytest.MonkeyPatch, fetches: int) -> list[tuple[int, int]]:
    """The calls into other files on the way in, and when the answer is settled, of each fetch in a session (v12).

    Of three partitions two are behind, and all have a quota on the leader's side.
    """
    clock = MovedClock()
    logs = {(b"t", number): Log([10_240] * (0 if number == 2 else 4_000)) for number in range(3)}
    settings = ThrottleSettings(rate=5_000_000, replicas={"t": ALL_REPLICAS})
    hop = Hop(clock, link := Throttle("leader", 1, clock, settings).link(2), SessionLeader(clock, Leader(logs)))
    follower = SessionFollower(clock, hop, dict.fromkeys(logs, 0), 12)
    found: list[tuple[int, int]] = []
    way_in, way_back = Moves(), Moves()

    def plan(request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        return way_in.of(link.plan_steps(request, held_seconds))

    def settle(topics: Sequence[ScannedTopic], head: ResponseHead) -> None:
        way_back.of(link.settle_steps(topics, head))

    patch.setattr(link, "plan", plan)
    patch.setattr(link, "settle", settle)
    for _ in range(fetches):
        way_in.pairs.clear()
        way_back.pairs.clear()
        logs[b"t", 2].append(1_000)
        follower.fetch()
        clock.move(0.12)
        found.append((way_in.pairs.total(), way_back.pairs.total()))
    return found


def test_a_fetch_takes_few_moves_between_files(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *later = moves_of(monkeypatch, 30)
    assert max(way_in for way_in, _ in later) <= 55
    assert max(way_back for _, way_back in later) <= 28
    assert sum(first) <= 113

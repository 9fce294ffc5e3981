# SPDX-License-Identifier: Apache-2.0
"""The example of docs/throttle.md: its figures are those of the real classes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Follower, Leader, Log, worst_second
from tests.fakes.kafka.take_out import passed, take_out
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.fetch.decisions import Answer, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.figures import WINDOW_SLACK
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

PAGE = Path(__file__).resolve().parents[2] / "docs/throttle.md"
ANSWER_SECONDS = 0.020
ASKS_AFTER_SECONDS = 0.005
KB = 1_000
_ROW = re.compile(r"^\| (\d\.\d{3}) \|.*\| (-?[\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


@dataclass
class Peer:
    """A follower with its link: what it waits for, and when that happens."""

    follower: Follower
    link: ReplicaLink
    asked_at: float
    at: float
    request: FetchRequest | None = None
    answer: list[ScannedTopic] | None = None


@dataclass
class Example:
    """Two followers of one leader, event by event."""

    clock: MovedClock = field(default_factory=MovedClock)
    events: dict[float, tuple[int, ...]] = field(default_factory=dict)
    """By the time: KB of credit, reserved, and sent in the last second."""
    forwarded: dict[float, int] = field(default_factory=dict)
    """By the time: whose fetch went to the leader."""
    taken_out: dict[float, int] = field(default_factory=dict)
    """By the time: bytes."""

    def __post_init__(self) -> None:
        self.start = self.clock.now
        settings = ThrottleSettings(rate=1_000 * KB, replicas={"t": ALL_REPLICAS})
        self.throttle = Throttle("leader", 1, self.clock, settings)
        third = [100 * KB] * 200
        third[2] = 400 * KB
        self.leader = Leader(
            {(b"t", 0): Log([100 * KB] * 200), (b"t", 1): Log([100 * KB] * 200), (b"t", 2): Log(third)}
        )
        followers = [
            Follower({(b"t", 0): 0, (b"t", 1): 0}, replica_id=2),
            Follower({(b"t", 2): 0}, replica_id=3),
        ]
        self.peers = [
            Peer(one, self.throttle.link(one.replica_id), self.start, self.start + number * 0.002)
            for number, one in enumerate(followers)
        ]

    def run(self, seconds: float) -> None:
        """Go on until `seconds` have passed."""
        while (peer := min(self.peers, key=lambda one: one.at)).at <= self.start + seconds:
            self.clock.now = max(self.clock.now, peer.at)
            if peer.answer is None:
                self._asks(peer)
            else:
                self._take_answer(peer, peer.answer)
            ledger = self.throttle.ledger
            sent = 1_000 * KB * (1 + WINDOW_SLACK) - ledger.room() - ledger.reserved
            self.events[self.seconds] = tuple([round(size / KB) for size in (ledger.credit(), ledger.reserved, sent)])

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return round(self.clock.now - self.start, 3)

    def _asks(self, peer: Peer) -> None:
        now = self.clock.now
        if peer.request is None:
            peer.request, peer.asked_at = peer.follower.request(), now
        decision = peer.link.plan(peer.request, now - peer.asked_at)
        if isinstance(decision, Hold):
            peer.at = decision.until
            return
        peer.request = None
        if isinstance(decision, Answer):
            peer.at = now + ASKS_AFTER_SECONDS
            return
        self.forwarded[self.seconds] = peer.follower.replica_id
        peer.answer = take_out(self.leader.answer(decision.request), decision)
        peer.at = now + ANSWER_SECONDS

    def _take_answer(self, peer: Peer, topics: list[ScannedTopic]) -> None:
        if size := sum([seen.taken_out for topic in topics for seen in topic.records]):
            self.taken_out[self.seconds] = size
        peer.link.settle(topics)
        peer.follower.take(passed(topics), self.clock.now)
        peer.answer, peer.at = None, self.clock.now + ASKS_AFTER_SECONDS
        woken = self.throttle.next_in_line() or ()
        for other in self.peers:
            if other.request is not None and other.link in woken:
                other.at = self.clock.now


def test_example_has_the_figures_of_the_real_classes() -> None:
    example = Example()
    example.run(3.0)
    rows = _ROW.findall(PAGE.read_text())
    assert len(rows) >= 8
    told = {float(at): tuple(int(cell.replace(",", "")) for cell in cells) for at, *cells in rows}
    assert told == {at: example.events[at] for at in told}
    received = [one for peer in example.peers for one in peer.follower.received]
    total = f"In 3.0 s the followers have {sum([size for _, size in received]) // KB:,} KB together, and "
    assert total + f"{worst_second(received) // KB:,} KB in the fullest second" in PAGE.read_text()


def test_example_tells_what_happens_at_its_times() -> None:
    example = Example()
    example.run(1.1)
    assert example.taken_out == {
        0.020: 100 * KB,
        0.022: 100 * KB,
        0.140: 20 * KB,
        0.240: 20 * KB,
        0.340: 20 * KB,
        0.440: 20 * KB,
        0.540: 20 * KB,
        1.040: 20 * KB,
    }
    assert example.forwarded == {
        0.000: 2,
        0.002: 3,
        0.120: 2,
        0.220: 3,
        0.320: 2,
        0.420: 3,
        0.520: 2,
        0.625: 3,
        1.020: 2,
    }

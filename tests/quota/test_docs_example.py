"""The example of docs/throttle.md: its figures are those of the real classes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Follower, Leader, Log, worst_second
from tests.fakes.take_out import passed, take_out
from weir.protocol.fetch import FetchRequest
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.fetch.link import ReplicaLink
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
    events: dict[float, tuple[str, int, int, int]] = field(default_factory=dict)
    """By the time: what happened, and then KB of credit, reserved, and sent in the last second."""

    def __post_init__(self) -> None:
        self.start = self.clock.now
        settings = ThrottleSettings(rate=1_000 * KB, replicas={"t": ALL_REPLICAS})
        self.throttle = Throttle("leader", 1, self.clock, settings)
        third = [100 * KB] * 200
        third[2] = 400 * KB
        self.leader = Leader({(b"t", 0): Log([100 * KB] * 200), (b"t", 1): Log([100 * KB] * 200), (b"t", 2): Log(third)})
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
            happened = self._answered(peer) if peer.answer is not None else self._asks(peer)
            ledger = self.throttle.ledger
            sent = ledger.rate * 1.04 - ledger.room() - ledger.reserved if ledger.rate else 0.0
            figures = [round(size / KB) for size in (ledger.credit(), ledger.reserved, sent)]
            self.events[round(self.clock.now - self.start, 3)] = (
                f"F{peer.follower.replica_id} {happened}",
                *figures,
            )

    def _asks(self, peer: Peer) -> str:
        now = self.clock.now
        if peer.request is None:
            peer.request, peer.asked_at = peer.follower.request(), now
        decision = peer.link.plan(peer.request, now - peer.asked_at)
        if isinstance(decision, Hold):
            peer.at = decision.until
            return f"held until {decision.until - self.start:.3f}"
        peer.request = None
        if isinstance(decision, Answer):
            peer.at = now + ASKS_AFTER_SECONDS
            return "answered"
        assert isinstance(decision, Forward)
        answer = take_out(self.leader.answer(decision.request), decision)
        peer.answer, peer.at = answer, now + ANSWER_SECONDS
        return "forwarded"

    def _answered(self, peer: Peer) -> str:
        topics = peer.answer
        assert topics is not None
        peer.answer = None
        peer.link.settle(topics)
        kept = peer.follower.take(passed(topics), self.clock.now)
        taken_out = sum([seen.taken_out for topic in topics for seen in topic.records])
        for link in self.throttle.next_in_line() or ():
            for other in self.peers:
                if other.link is link and other.request is not None:
                    other.at = min(other.at, self.clock.now)
        peer.at = self.clock.now + ASKS_AFTER_SECONDS
        return f"has {kept:,}, {taken_out:,} taken out"


if __name__ == "__main__":
    example = Example()
    example.run(3.0)
    for at, (what, *figures) in example.events.items():
        print(f"{at:.3f}", what, figures)
    received = sorted([one for peer in example.peers for one in peer.follower.received])
    print(worst_second(received), sum(size for _, size in received))

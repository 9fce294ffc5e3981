"""What a link with slow answers reaches of its quota, and what more would cost: `python -m bench.slow_answers`.

One follower, one leader and one throttle on a moved clock, the same as in tests/quota (hence the import of tests: no
sockets, no other process). Compared are three ways to count the bytes of an answer on its way:

- as it is: reserved until the follower asks again, then in the window for a second;
- by piece: each twentieth of an answer is in the window from when it passes, not reserved until the end;
- looking ahead: bytes that leave the window before an answer can come count no more. That takes the time of an answer
  for granted: measured is also what comes when the network becomes fast half way.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from bench.table import Report, parser
from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from weir.quota.budget.ledger import WINDOW_SECONDS, StrictLedger
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

RATE = 5_000_000
BATCH = 10_300
SECONDS, SETTLED = 15.0, 3.0
PIECES = 20
FAST = 0.004
ANSWERS = (0.1, 0.3, 0.85)
L = TypeVar("L", bound=StrictLedger)
COLUMNS = {"an answer takes, s": 2, "way": 0, "mean, x quota": 3, "worst second, x quota": 3}


class _LookingAhead(StrictLedger):
    """Takes for granted that no answer comes sooner than in `answer_seconds`."""

    answer_seconds = 0.0

    def room(self) -> float:
        until = self._clock() + self.answer_seconds
        return super().room() + sum(sent for at, sent, _ in self._sent if at + WINDOW_SECONDS <= until)


class _InPieces(StrictLedger):
    """Was told of a part of what is handed over before: it counts as sent from then on."""

    passed = 0

    def pass_on(self, size: int) -> None:
        """A piece of the answer passed."""
        self.passed += size
        super().hand_over(size, size)
        super().confirm(size)

    def hand_over(self, reserved: int, used: int) -> None:
        super().hand_over(reserved - self.passed, used - self.passed)

    def confirm(self, used: int) -> None:
        super().confirm(used - self.passed)
        self.passed = 0


def main() -> int:
    """Measure and print."""
    chosen = parser("bench.slow_answers", "Compare ways to count answers that take long.").parse_args()
    report = Report(chosen.json)

    def measured() -> Iterator[Sequence[object]]:
        for answer in ANSWERS:
            yield answer, "as it is", *_all_at_once(answer, 0.0, answer)
            yield answer, "looking ahead", *_all_at_once(answer, answer, answer)
            yield answer, "looking ahead, fast half way", *_all_at_once(answer, answer, FAST)
            yield answer, "spread, as it is", *_spread(answer, in_pieces=False)
            yield answer, "spread, by piece", *_spread(answer, in_pieces=True)

    report.table("5 MB/s, one link, batches of 10.3 KB", COLUMNS, measured())
    return report.status


def _conversation(kind: type[L]) -> tuple[L, Conversation]:
    clock = MovedClock()
    logs = {(b"t", partition): Log([BATCH] * 40_000) for partition in range(5)}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    ledger = kind(clock, RATE)
    for quota in throttle.quotas:
        quota.ledger = ledger
    return ledger, Conversation(clock, throttle.link(2), Leader(logs), Follower(dict.fromkeys(logs, 0)))


def _figures(received: list[tuple[float, int]], start: float) -> tuple[float, float]:
    return mean_rate(received, start + SETTLED, start + SECONDS) / RATE, worst_second(received) / RATE


def _all_at_once(answer: float, looks_ahead: float, later: float) -> tuple[float, float]:
    """All bytes of an answer come at its end; answers take `later` in the second half."""
    ledger, talk = _conversation(_LookingAhead)
    ledger.answer_seconds = looks_ahead
    start, talk.round_trip = talk.clock.now, answer
    talk.run(SECONDS / 2)
    talk.round_trip = later
    talk.run(SECONDS / 2)
    return _figures(talk.follower.received, start)


def _spread(answer: float, *, in_pieces: bool) -> tuple[float, float]:
    """The bytes of an answer come evenly while it lasts."""
    ledger, talk = _conversation(_InPieces)
    start = talk.clock.now
    received: list[tuple[float, int]] = []
    while talk.clock.now < start + SECONDS:
        decision = talk.next_decision()
        if not isinstance(decision, Forward):
            talk.clock.move(FAST / 4)
            continue
        topics = talk.leader.answer(decision.request)
        size = sum(seen.size for topic in topics for seen in topic.records)
        left = ledger.reserved
        for number in range(PIECES):
            talk.clock.move(answer / PIECES)
            piece = size * (number + 1) // PIECES - size * number // PIECES
            received.append((talk.clock.now, piece))
            if in_pieces and piece <= left:
                left -= piece
                ledger.pass_on(piece)
        talk.link.settle(topics)
        talk.follower.take(topics, talk.clock.now)
    return _figures(received, start)


if __name__ == "__main__":
    sys.exit(main())

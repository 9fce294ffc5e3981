"""The `strict` policy: a grant is reserved before it goes, so a response never outruns the quota."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar, Final

from quota.budget.ledger import CREDIT_SECONDS, WINDOW_SECONDS, StrictLedger
from quota.budget.queue import CLAIM_SECONDS, BudgetQueue
from quota.budget.quota import Ask, Coverage, Offer, Part, Quota, Verdict
from quota.settings import Policy

SHARE_SECONDS: Final = 0.12
"""Of quota: what one fetch is granted; small enough to pace, large enough to waste little."""

SHARE_BESIDE_LIVE_SECONDS: Final = 0.012
"""The same on a link with live traffic: a record in sync waits behind every share."""

LARGEST_SHARE_SECONDS: Final = 0.15
"""What a fetch that comes late may be granted."""

SLOW_SECONDS: Final = 0.1
"""Answers that take longer bring larger shares: what gathers meanwhile."""

SLOWEST_SHARE_SECONDS: Final = 0.9
"""The most that one of them is granted: all of it may come at once."""

ROUND_SECONDS: Final = 4.0
"""In which all links in line have had a share, however many there are."""

SMALLEST_FILL_SECONDS: Final = 0.05
"""Worth a fetch of its own when the window has no room for a whole share."""

_NEVER: Final = float("inf")


class StrictQuota(Quota):
    """A sliding ledger, and a line of links that wait for it; see `quota.budget.ledger` for what is promised."""

    policy: ClassVar[Policy] = "strict"
    reserves: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        ledger: StrictLedger,
        covers: Coverage,
        line: BudgetQueue,
        clock: Callable[[], float],
        *,
        counts_in_sync: bool = True,
    ) -> None:
        super().__init__(name, ledger, covers, counts_in_sync=counts_in_sync)
        self.line = line
        self._clock = clock

    def look(self) -> None:
        if self.rate:
            self.ledger.want(is_waited_for=len(self.line) > 0)

    def offer(self, ask: Ask, now: float) -> Offer:
        rate = self.rate
        if not rate:
            return Offer(self, _NEVER)
        share = rate * (SHARE_BESIDE_LIVE_SECONDS if ask.is_live else SHARE_SECONDS)
        fair = rate * ROUND_SECONDS / (len(self.line) + 1)
        share = min(share, fair)
        turn = max(share, ask.largest_batch)
        # More than can gather until the fetch is planned again, whether it waits for credit or for room.
        most_ahead = rate * (CREDIT_SECONDS + WINDOW_SECONDS)
        ahead = self.line.ahead_of(
            ask.link, replica=ask.replica_id, is_urgent=ask.is_urgent, turn=turn, most=most_ahead
        )
        # Late by a little: what has gathered meanwhile goes along, within bounds, or bursts would repeat every second.
        spend = min(max(self.ledger.credit() - ahead, share), rate * LARGEST_SHARE_SECONDS, fair)
        if ask.answer_seconds > SLOW_SECONDS:
            spend = max(spend, min(rate * min(ask.answer_seconds, SLOWEST_SHARE_SECONDS), fair))
        return Offer(self, now, spend, share, ahead, turn)

    def needed(self, part: Part) -> float:
        """Credit: all that is reserved, but for batches larger than what can gather.

        A batch larger than the credit that can gather goes when half of that has; the rest becomes debt. Beside records
        in sync a fetch never finds all of it.
        """
        return min(part.reserved, self.ledger.most_credit / 2)

    def judge(self, offer: Offer, part: Part) -> Verdict:
        ledger, ahead = self.ledger, offer.ahead
        ready = ledger.credit_at(self.needed(part) + ahead)
        # Compared with a fresh reading: the ledger has read the clock since the plan was begun.
        if ready > self._clock():
            return Verdict(False, ready)
        room = ledger.room() - ahead
        if part.reserved <= room + part.batch:
            return Verdict(True, ready)
        smallest = min(offer.share, (self.rate or 0) * SMALLEST_FILL_SECONDS)
        ready = ledger.room_at(smallest + ahead)
        if ready > self._clock():
            return Verdict(False, ready)
        return Verdict(False, ledger.room_at(part.reserved - part.batch + ahead), spend=room)

    def wait(self, ask: Ask, offer: Offer, needed: float, now: float) -> None:
        self.line.wait(
            ask.link,
            needed,
            now + CLAIM_SECONDS,
            replica=ask.replica_id,
            is_urgent=ask.is_urgent,
            turn=offer.turn,
        )

    def served(self, ask: Ask, part: Part) -> None:
        self.line.served(ask.link, part.share, is_urgent=ask.is_urgent, replica=ask.replica_id)

    def leave(self, link: Hashable) -> None:
        self.line.leave(link)

    def owe(self, replica_id: int, size: int) -> None:
        self.line.owe(replica_id, size)

    def first_in_line(self) -> Hashable | None:
        return self.line.first()

# SPDX-License-Identifier: Apache-2.0
"""The `strict` policy: bytes are reserved before they go, so a response never outruns the quota."""

from __future__ import annotations

import math
from typing import ClassVar

from weir.quota.budget.quota import Ask, Offer, Part, Quota, Verdict
from weir.quota.figures import (
    CLAIM_SECONDS,
    CREDIT_SECONDS,
    CROWD,
    LARGEST_SHARE_SECONDS,
    ROUND_SECONDS,
    SHARE_BESIDE_LIVE_SECONDS,
    SHARE_SECONDS,
    SHORTEST_WAIT_SECONDS,
    SLOW_SECONDS,
    SLOWEST_SHARE_SECONDS,
    TICK_SECONDS,
    WINDOW_SLACK,
)
from weir.quota.settings import Policy


class StrictQuota(Quota):
    """A sliding ledger with a line of links that wait for it. `weir.quota.budget.ledger` says what is promised."""

    policy: ClassVar[Policy] = "strict"
    reserves: ClassVar[bool] = True

    def offer(self, ask: Ask, now: float) -> Offer:
        ledger, rate, waiting = self.ledger, self.ledger.rate, len(self.line.claims)
        if not rate:
            return Offer(self, math.inf)
        credit = ledger.want(is_waited_for=waiting > 0)
        share = rate * (SHARE_BESIDE_LIVE_SECONDS if ask.is_live else SHARE_SECONDS)
        fair = rate * ROUND_SECONDS / (waiting + 1)
        self.line.turn_bytes = min(rate * SHARE_SECONDS, fair)
        if ask.is_first and waiting >= CROWD:
            fair = min(fair, rate * TICK_SECONDS)
        share = min(share, fair)
        ahead = self.line.ahead_of(ask.link, broker=ask.broker_id, is_urgent=ask.is_urgent)
        claim = self.line.claims.get(ask.link) if ahead else None
        # Times of the ledger are compared with a new reading of the clock: it has read it since `now`.
        if claim is not None and ledger.credit_at(ahead) > ledger.clock():
            claimed = Part(int(claim.share), 0)
            return Offer(self, ledger.credit_at(claim.size + ahead), ahead=ahead, claimed=claimed)
        # A fetch that comes late takes along what has gathered meanwhile, within bounds: else a burst would repeat each
        # second.
        spend = min(max(credit - ahead, share), rate * LARGEST_SHARE_SECONDS, fair)
        if ask.answer_seconds > SLOW_SECONDS:
            spend = max(spend, min(rate * min(ask.answer_seconds, SLOWEST_SHARE_SECONDS), fair))
        if ask.is_lent:  # all that is lent may come in one moment
            spend = min(spend, ledger.lend(ask.link, SHARE_SECONDS + min(ask.distance, SLOWEST_SHARE_SECONDS)))
        spend = min(spend, max(ask.most_beside_live, share))
        return Offer(self, now, spend, share, ahead, is_lent=ask.is_lent)

    def wait(self, ask: Ask, offer: Offer, part: Part, now: float) -> None:
        size, until = 0.0 if ask.is_lent else self._needed(part), now + CLAIM_SECONDS
        self.line.wait(ask.link, size, until, broker=ask.broker_id, is_urgent=ask.is_urgent, share=part.size)

    def _needed(self, part: Part) -> float:
        """Return the credit to wait for: all that the part reserves, but at most half of what can gather.

        A batch larger than that goes as debt: beside records in sync a fetch never finds all of the credit.
        """
        return min(part.size, (self.ledger.rate or 0) * CREDIT_SECONDS / 2)

    def is_exceeded(self, now: float) -> bool:
        return not self.ledger.rate or self.ledger.credit() <= 0

    def judge(self, offer: Offer, part: Part) -> Verdict:
        ledger, rate, ahead = self.ledger, self.ledger.rate or 0, offer.ahead
        most_credit = rate * CREDIT_SECONDS
        if offer.is_lent:  # it goes where nothing is owed, and less than the quota came in the last second
            ready = max(ledger.credit_at(ahead), ledger.room_at(ahead))
            return Verdict(ready <= ledger.clock(), ready)
        if not ahead:
            needed = self._needed(part)
        elif part.size > max(offer.spend, most_credit):
            needed = part.size + ahead  # its debt would take from those ahead what they wait for
        else:
            # At the most credit those ahead could have gone, so they are away, and no more credit gathers for them.
            needed = min(self._needed(part) + ahead, most_credit)
        ready = ledger.credit_at(needed)
        if ready > ledger.clock():
            return Verdict(False, ready)
        if ahead:
            # A batch that goes beyond the window would take the room that those ahead wait for: each time, where they
            # come back seldom. So there has to be as much room as gathers while they could have gone.
            ready = ledger.room_at(min(part.size, most_credit))
            if ready > ledger.clock():
                return Verdict(False, ready)
        room = ledger.room() - ahead
        # A batch goes wherever there is any room. Where bytes that are held back wait for that room, or the batch is
        # the whole window, it goes only if nothing but records in sync has passed.
        goes = goes_beyond(part.batch, rate) and not ledger.due
        beyond = part.batch - 1 if goes else min(part.batch, ledger.sent_exempt)
        if part.size <= room + beyond:
            return Verdict(True, ready)
        smallest = min(offer.share, rate * SHORTEST_WAIT_SECONDS)
        ready = ledger.room_at(smallest + ahead)
        if ready > ledger.clock():
            return Verdict(False, ready)
        return Verdict(False, ledger.room_at(part.size - beyond + ahead), spend=room)


def goes_beyond(batch: int, rate: int) -> bool:
    """Whether a batch may go beyond the window of a rate: else whole batches would leave much of it unused.

    One that is the whole window waits until that is empty. At 1 MB/s this is a batch of 1 MB, and not one of 200 KB.
    """
    return 0 < batch < (1 - WINDOW_SLACK) * rate or batch > (1 + WINDOW_SLACK) * rate

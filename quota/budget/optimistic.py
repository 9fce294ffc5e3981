"""The `kip73` policy as a Quota: nothing is reserved, and no link waits in line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from weir.quota.budget.kip73 import Kip73Budget
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.quota import Ask, Coverage, Offer, Part, Quota, Verdict
from weir.quota.budget.simple_rate import SimpleRate
from weir.quota.settings import Policy


class Kip73Quota(Quota):
    """Kafka's own optimistic quota: it measures what has passed, and lets nothing through while that is too much."""

    policy: ClassVar[Policy] = "kip73"
    reserves: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        ledger: StrictLedger,
        covers: Coverage,
        measured: SimpleRate,
        clock: Callable[[], float],
        window_size_seconds: float,
        *,
        counts_in_sync: bool = True,
        is_observed: bool = False,
    ) -> None:
        super().__init__(name, ledger, covers, measured, counts_in_sync=counts_in_sync, is_observed=is_observed)
        self._budget = Kip73Budget(clock, ledger.rate, measured, window_size_seconds)

    def refresh(self) -> None:
        self._budget.set_rate(self.rate)

    def is_exceeded(self, now: float) -> bool:
        self.refresh()
        return self._budget.is_quota_exceeded()

    def offer(self, ask: Ask, now: float) -> Offer:
        # KIP-73 reserves nothing. But its samples work only if answers are smaller than the quota's window (KIP-73's
        # Q&A), so one fetch gets one window: whole 10 MB answers at a quota of 1 MB/s let 1.8 x the quota through.
        budget = self._budget
        if budget.is_quota_exceeded():
            return Offer(self, budget.retry_at(now))
        return Offer(self, now, budget.one_window)

    def judge(self, offer: Offer, part: Part) -> Verdict:
        return Verdict(True, offer.ready)

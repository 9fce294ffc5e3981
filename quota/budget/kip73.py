# SPDX-License-Identifier: Apache-2.0
"""The `kip73` policy: KIP-73's optimistic quota, as Kafka's ReplicationQuotaManager keeps it.

Bytes are recorded after they have passed. Throttled partitions wait while the measured rate is above the quota, so a
whole response can slip through each time it falls below. Nothing is reserved, and no link waits in line.
"""

from __future__ import annotations

import math
from typing import ClassVar

from weir.quota.budget.quota import Ask, Offer, Part, Quota, Verdict
from weir.quota.figures import LOOK_SECONDS, WINDOW_SECONDS
from weir.quota.settings import Policy


class Kip73Quota(Quota):
    """A quota by the rate that `measured` has sampled, in samples as long as Kafka's."""

    policy: ClassVar[Policy] = "kip73"
    reserves: ClassVar[bool] = False

    def is_exceeded(self, now: float) -> bool:
        """Whether the measured rate is above the quota; at 0 it always is, though Kafka lets some through."""
        if self.rate is None:
            return False
        # Kafka's samples begin at the first look, so a later quota has to find them begun even at rate 0.
        return self.measured.rate() > self.rate or not self.rate

    def offer(self, ask: Ask, now: float) -> Offer:
        """Offer what the quota allows in the time of one sample: KIP-73's samples work only if answers are smaller."""
        if self.is_exceeded(now):
            falls_at = self.measured.falls_to(self.rate) if self.rate else math.inf
            return Offer(self, min(max(falls_at, now + LOOK_SECONDS), now + WINDOW_SECONDS))
        return Offer(self, now, math.inf if self.rate is None else self.rate * self.measured.window_seconds)

    def judge(self, offer: Offer, part: Part) -> Verdict:
        return Verdict(True, offer.ready)

# SPDX-License-Identifier: Apache-2.0
"""The quotas of followers that their leaders keep together: this sidecar has a share of each on its leader's side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from weir.lag.broker_ids import MOST_IDS
from weir.quota.budget.quota import Quota
from weir.quota.shares.demand import DemandMeter
from weir.quota.shares.share import Terms
from weir.quota.throttle import Throttle


@dataclass(eq=False)
class FollowerQuotas:
    """Shares the quotas of `throttle`, that of the leader's side, with the sidecars of all brokers but the follower.

    `brokers` tells which brokers there are, none while that is not known. `changed` is called when there is a follower
    that had no quota.
    """

    _throttle: Throttle
    _brokers: Callable[[], Collection[int]]
    _changed: Callable[[], None]
    _clock: Callable[[], float]
    _meters: dict[str, DemandMeter] = field(default_factory=dict)
    _quotas: dict[str, Quota] = field(default_factory=dict)
    _rates: dict[str, int] = field(default_factory=dict)
    followers: frozenset[int] = frozenset()
    """All brokers that were ever seen: one that returns finds its quota in force."""

    def shared(self) -> Mapping[str, Terms]:
        """Return each follower's rate, shared by all brokers but that one; none while the brokers are not known."""
        brokers = frozenset(self._brokers())
        if not brokers:
            return {}
        self._learn(brokers)
        shared = {one.name: one for one in self._throttle.settings.quotas if one.shared_for is not None}
        self._meters = {name: self._meters.get(name) or DemandMeter(self._clock) for name in shared}
        self._quotas = {quota.name: quota for quota in self._throttle.quotas if quota.name in shared}
        self._rates = {name: one.rate for name, one in shared.items()}
        return {name: Terms(float(one.rate), brokers - {one.shared_for}) for name, one in shared.items()}

    def asked_for(self, name: str) -> bool:
        """Return False: which quotas are shared, the throttle of this sidecar says."""
        return False

    def demand(self, name: str, share: float) -> float:
        """Return the bytes/s that followers would take of a rate here, while this sidecar may use `share` of it."""
        quota = self._quotas[name]
        waits = quota.line.first() is not None
        return self._meters[name].update(quota.passed_bytes, share, self._rates[name], waits=waits)

    def use(self, shares: Mapping[str, float]) -> None:
        """Have each quota allow this sidecar's part from now on."""
        self._throttle.rules.use_shares(shares)

    def _learn(self, brokers: Collection[int]) -> None:
        own = self._throttle.broker_id
        known = frozenset(islice(sorted({*self.followers, *brokers} - {own}), MOST_IDS))
        if known != self.followers:
            self.followers = known
            self._changed()

# SPDX-License-Identifier: Apache-2.0
"""What an operator sets for one side's throttle, and by which names: Kafka's, as KIP-73 gives them, and weir's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from weir.quota.scopes import Scope
from weir.quota.throttled_replicas import ThrottledReplicas

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

# weir's own, named after Kafka's: they need no list of replicas
LEADER_REASSIGNMENT_RATE: Final = "leader.reassignment.throttled.rate"
FOLLOWER_REASSIGNMENT_RATE: Final = "follower.reassignment.throttled.rate"
LEADER_RECOVERY_RATE: Final = "leader.recovery.throttled.rate"
FOLLOWER_RECOVERY_RATE: Final = "follower.recovery.throttled.rate"
UNDER_MIN_ISR: Final = "under.min.isr"
MODE: Final = "mode"
STANDING_RATES: Final = (
    LEADER_REASSIGNMENT_RATE,
    FOLLOWER_REASSIGNMENT_RATE,
    LEADER_RECOVERY_RATE,
    FOLLOWER_RECOVERY_RATE,
)

REASSIGNMENT = "reassignment"
RECOVERY = "recovery"  # the names of the standing quotas

UNTOLD = "untold"
"""How the names of quotas begin that hold for all that is behind, until the cluster has told what is to be throttled.
"""

LEAST_SHARE = 1  # of a shared rate (bytes/s): tells who waits from who must not send anything

SideName = Literal["leader", "follower"]
Policy = Literal["strict", "kip73"]
Order = Literal["urgent-first", "round-robin"]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """A quota beside the one of the listed replicas: `rate` (bytes/s) for all replicas of `scope` together.

    `is_observed`: it only counts what it would hold back. `shared_for` is a follower's id where other sidecars share
    `rate` (`SideQuotas.use_shares`).
    """

    name: str
    rate: int
    scope: Scope
    is_observed: bool = False
    shared_for: int | None = None


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """What an operator sets for one side. A value that is absent throttles nothing.

    - `rate`: bytes/s, `leader.` or `follower.replication.throttled.rate`.
    - `replicas`: the lists of throttled replicas by topic name.
    - `quotas`: further quotas, each with a name of its own. A replica's bytes count in all that cover it.
    - `is_observed`: every quota only counts what it would hold back.
    - `response_max_bytes`: KIP-74's cap on what one replica fetch returns.
    """

    rate: int | None = None
    replicas: Mapping[str, ThrottledReplicas] = field(default_factory=dict)
    quotas: tuple[QuotaSettings, ...] = ()
    is_observed: bool = False
    policy: Policy = "strict"
    order: Order = "urgent-first"
    window_num: int = 11
    window_size_seconds: int = 1
    replica_lag_time_max_ms: int = 30_000
    response_max_bytes: int | None = None

    @property
    def throttles(self) -> bool:
        """Whether any quota is set."""
        return bool(self.quotas) or (self.rate is not None and bool(self.replicas))

    @property
    def rates(self) -> tuple[int | None, ...]:
        """The rate of each quota (bytes/s), that of the listed replicas first."""
        return self.rate, *[one.rate for one in self.quotas]

    @property
    def without_rates(self) -> tuple[object, ...]:
        """What decides which quotas there are, and what each covers. A change of rates alone changes nothing of it."""
        quotas = [(one.name, one.scope, one.is_observed, one.shared_for) for one in self.quotas]
        window = self.window_num, self.window_size_seconds
        return self.rate is None, self.replicas, quotas, self.is_observed, self.policy, window

"""The names of the replication throttle's settings: Kafka's, as KIP-73 gives them, and weir's own."""

from __future__ import annotations

from typing import Final

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

"""Asks the cluster whether silent replicas are still assigned (see `weir.quota.removed_replicas`)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from weir.proxy.cluster.view import ClusterView
from weir.proxy.log import EventLog
from weir.quota.removed_replicas import Assignment, RemovedReplicas


class RemovedReplicasPoll:
    """A subscriber that forgets the lag of replicas that no longer follow."""

    with_partitions = True

    def __init__(self, removed: RemovedReplicas, log: EventLog) -> None:
        self._removed = removed
        self._log = log
        self._untold: dict[tuple[str, str], int] = {}  # by event and side: the count when it was logged last

    async def topics(self) -> Collection[bytes]:
        """Return the topics of replicas that look as if they were removed."""
        for _ in self._removed.check():
            await asyncio.sleep(0)
        return self._removed.topics

    async def told(self, view: ClusterView) -> None:
        """Forget replicas that are no longer assigned."""
        told: dict[bytes, Assignment] = {}
        for name in self._removed.topics:
            topic = view.topics.get(name)
            if topic is not None and topic.partitions is not None:
                told[name] = topic.partitions
        forgotten = 0
        for count in self._removed.take(told):
            forgotten += count
            await asyncio.sleep(0)
        if forgotten:
            self._log.info("replicas_not_assigned", partitions=forgotten, effect="their lag is forgotten")

    def not_told(self) -> None:
        """Do nothing: a replica goes on lagging until the cluster says that it is removed."""

    def log_untold(self) -> None:
        """Log where there was no room for lag, and where ids belong to no brokers."""
        for throttle in self._removed.throttles:
            for event, count, effect in (
                ("lag_evicted", throttle.lag.evicted, "the lag of some replicas is not told"),
                ("replica_ids_refused", throttle.brokers.refused, "what fetches with them has no series of its own"),
            ):
                if count != self._untold.get((event, throttle.side), 0):
                    self._untold[event, throttle.side] = count
                    self._log.fault(event, peer=throttle.side, count=count, effect=effect)

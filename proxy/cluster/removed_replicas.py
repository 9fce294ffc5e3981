"""Asks by the way whether replicas that are silent are assigned at all (quota.unassigned)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from proxy.cluster.view import ClusterView
from proxy.log import EventLog
from quota.removed_replicas import Assignment, RemovedReplicas


class RemovedReplicasPoll:
    """A subscriber that forgets the lag of replicas that follow no more."""

    with_partitions = True

    def __init__(self, unassigned: RemovedReplicas, log: EventLog) -> None:
        self._unassigned = unassigned
        self._log = log
        self._untold: dict[tuple[str, str], int] = {}  # by event and side: how often, when it was logged last

    async def topics(self) -> Collection[bytes]:
        """Return the topics of replicas that look as if they were gone."""
        for _ in self._unassigned.look():
            await asyncio.sleep(0)
        return self._unassigned.topics

    async def told(self, view: ClusterView) -> None:
        """Forget what is not assigned any more."""
        told: dict[bytes, Assignment] = {}
        for name in self._unassigned.topics:
            topic = view.topics.get(name)
            if topic is not None and topic.partitions is not None:
                told[name] = topic.partitions
        forgotten = 0
        for count in self._unassigned.take(told):
            forgotten += count
            await asyncio.sleep(0)
        if forgotten:
            self._log.info("replicas_not_assigned", partitions=forgotten, effect="their lag is forgotten")

    def not_told(self) -> None:
        """What lags goes on lagging: nobody said otherwise."""

    def log_untold(self) -> None:
        """Say so where there was no room for lag, or where ids are no brokers'."""
        for throttle in self._unassigned.throttles:
            for event, count, effect in (
                ("lag_evicted", throttle.lag.evicted, "the lag of some replicas is not told"),
                ("replica_ids_refused", throttle.brokers.refused, "what fetches with them has no series of its own"),
            ):
                if count != self._untold.get((event, throttle.side), 0):
                    self._untold[event, throttle.side] = count
                    self._log.fault(event, peer=throttle.side, count=count, effect=effect)

"""A client of the cluster in a test's hands, as a sidecar with `[cluster]` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.fakes.clock import MovedClock
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.in_sync import InSyncReplicas, InSyncTopics
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.min_isr import MinIsrPoll, Partitions
from weir.proxy.cluster.removed_replicas import RemovedReplicasPoll
from weir.proxy.cluster.topics import BrokerHosts, TopicPoll
from weir.proxy.cluster.watch import EVENTS
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.quota.removed_replicas import RemovedReplicas
from weir.quota.throttle import Throttle


class Polling:
    """A client whose publications are recorded."""

    def __init__(self, server: Address, topics: set[str]) -> None:
        self.topics = topics
        self.published: list[InSyncReplicas] = []
        self.published_again = asyncio.Event()
        self.under_min_isr: list[Partitions] = []
        self.clock = MovedClock(0.0)
        self.brokers: list[Mapping[int, str]] = []
        self.throttle = Throttle("leader", 1, self.clock)
        self.log = EventLog()
        in_sync = InSyncTopics(lambda: self.topics, lambda found: self.publish(found))
        self.removed = RemovedReplicasPoll(RemovedReplicas([self.throttle]), self.log)
        self.poll_of_topics = TopicPoll(
            [in_sync, BrokerHosts(self.brokers.append), self.removed], self.clock, 5.0, needs_topic_ids=False
        )
        self.client = ClusterClient(
            [server],
            KafkaChannel.open,
            [self.poll_of_topics, MinIsrPoll(in_sync, self.under_min_isr.append)],
            self.log,
            EVENTS,
            clock=self.clock,
        )

    def publish(self, in_sync: InSyncReplicas) -> None:
        self.published.append(in_sync)
        self.published_again.set()

    def wake(self) -> None:
        self.poll_of_topics.due_now()
        self.client.wake()

    async def poll(self) -> None:
        self.wake()
        await self.client.round()

    @property
    def counted(self) -> tuple[int, int]:
        """How many polls of topics were answered, and how many failed."""
        polls = self.client.stats.polls
        return polls["topics", "ok"], polls["topics", "failed"]

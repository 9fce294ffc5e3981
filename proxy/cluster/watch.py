"""What a sidecar watches of the cluster: puts the client, its polls and their subscribers together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from weir.proxy.cluster.broker_addresses import BrokerAddresses
from weir.proxy.cluster.channel import Channel, PlainChannel
from weir.proxy.cluster.client import MAX_IDLE_RETRY_SECONDS, ClusterClient, Events, Poll
from weir.proxy.cluster.followers import Followers
from weir.proxy.cluster.in_sync import InSyncReplicas, InSyncTopics
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.removed_replicas import RemovedReplicasPoll
from weir.proxy.cluster.topic_ids import ThrottledTopics, TopicIdPoll
from weir.proxy.cluster.topics import DEFAULT_POLL_SECONDS, BrokerHosts, Subscriber, TopicPoll
from weir.proxy.config.address import Address
from weir.proxy.config.cluster_access import connection_options
from weir.proxy.config.tables import Config
from weir.proxy.log import EventLog
from weir.proxy.relay.replica_sources import Addresses
from weir.quota.removed_replicas import RemovedReplicas
from weir.quota.topic_names import TopicNames

EVENTS_WITHOUT_CLUSTER = Events(
    "topic_ids_not_asked",
    "topic_ids_recovered",
    "topics that have ids only are throttled as if they were listed, and what was moved away counts as lag",
)
EVENTS = Events(
    "cluster_poll_failed",
    "cluster_poll_recovered",
    f"fetch offsets alone tell who is in sync, {EVENTS_WITHOUT_CLUSTER.effect}",
)


class Consumers(NamedTuple):
    """The callbacks of a sidecar that take what is known of the cluster."""

    throttled_topics: Callable[[], Collection[str]]
    names_changed: Callable[[], None]
    in_sync: Callable[[InSyncReplicas], None]
    under_min_isr: Callable[[frozenset[tuple[bytes, int]]], None]
    broker_addresses: Callable[[Addresses], None]
    followers: Followers
    wants_brokers: Callable[[], bool] = lambda: False


class ClusterWatch:
    """Polls the cluster from `start` to `close`. `clock` gives monotonic seconds.

    With `[cluster]`, its servers are asked over aiokafka's connections, and all consumers are told. Without it, the
    brokers of the routes are asked, and only for the names of topic ids and for replicas that lag; nobody then gets an
    ISR.
    """

    def __init__(
        self,
        config: Config,
        names: TopicNames,
        removed_replicas: RemovedReplicas,
        consumers: Consumers,
        log: EventLog,
        stats: PollStats,
        clock: Callable[[], float],
    ) -> None:
        removed = RemovedReplicasPoll(removed_replicas, log)
        topics, changed = consumers.throttled_topics, consumers.names_changed
        subscribers: list[Subscriber] = [ThrottledTopics(names, topics, changed), removed]
        behind: list[Poll] = []
        open_channel: Callable[[Address], Awaitable[Channel]] = PlainChannel.open
        poll_seconds, longest_retry = DEFAULT_POLL_SECONDS, MAX_IDLE_RETRY_SECONDS
        self._addresses = BrokerAddresses(consumers.broker_addresses)
        if config.cluster is not None:
            # imported here: aiokafka costs memory that most sidecars can save
            from weir.proxy.cluster.kafka_channel import KafkaChannel
            from weir.proxy.cluster.min_isr import MinIsrPoll

            in_sync = InSyncTopics(topics, consumers.in_sync)
            subscribers = [in_sync, BrokerHosts(self._addresses.offer), *subscribers]
            behind = [MinIsrPoll(in_sync, consumers.under_min_isr)]
            options = connection_options(config.cluster, strict=config.strict_tls)
            open_kafka_channel = partial(KafkaChannel.open, options=options)
            open_channel = open_kafka_channel
            poll_seconds = config.cluster.poll_seconds
            longest_retry = min(poll_seconds, MAX_IDLE_RETRY_SECONDS)
        self._topics = TopicPoll(
            subscribers,
            clock,
            poll_seconds,
            needs_topic_ids=config.cluster is None,
            wants_brokers=lambda: config.capture is not None or consumers.wants_brokers(),
        )
        self.client = ClusterClient(
            metadata_servers(config),
            open_channel,
            # ids first, as fetches use them already
            [TopicIdPoll(names, changed, self._topics), self._topics, *behind],
            log,
            EVENTS_WITHOUT_CLUSTER if config.cluster is None else EVENTS,
            stats,
            clock,
            longest_retry,
            before_round=removed.log_untold,
        )
        names.on_miss = self.client.wake
        self._polling: asyncio.Task[None] | None = None
        self._follower = None
        if config.cluster is not None:
            from weir.proxy.cluster.follow import ThrottleFollower

            part = config.cluster.followed_part if config.cluster.follow_throttles else None
            servers = config.cluster.bootstrap_servers
            self._follower = ThrottleFollower(
                config.broker_id, part, servers, consumers.followers, log, stats, clock, open_kafka_channel
            )

    def start(self) -> None:
        """Begin to poll."""
        self._polling = asyncio.create_task(self.client.run())
        if self._follower is not None:
            self._follower.start()

    def ask_now(self) -> None:
        """Poll now, as the brokers have become of interest."""
        self._topics.due_now()
        self.client.wake()

    def throttle_changed(self) -> None:
        """Poll now, as other topics are throttled."""
        self._topics.due_now()
        self.client.wake()
        if self._follower is not None:
            self._follower.wants_changed()

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        if self._follower is not None:
            await self._follower.close()
        await self._addresses.close()


def metadata_servers(config: Config) -> tuple[Address, ...]:
    """Return the servers to ask: bootstrap servers, else the broker beside this sidecar, else its peers."""
    servers: Iterable[Address]
    if config.cluster is not None:
        servers = config.cluster.bootstrap_servers
    else:
        servers = (route.upstream for route in config.ingress or config.egress)
    return tuple(dict.fromkeys(servers))

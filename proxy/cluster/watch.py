# SPDX-License-Identifier: Apache-2.0
"""What a sidecar asks of the cluster, and over which connections: puts the client and its polls together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from weir.proxy.cluster.channel import BrokerConnections, Channel, PlainChannel
from weir.proxy.cluster.client import MAX_RETRY_SECONDS, ClusterClient, Outage
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.removed_replicas import RemovedReplicas
from weir.proxy.cluster.topics import MinIsr, TopicIdPoll, TopicPoll
from weir.proxy.cluster.view import Takers, Wants
from weir.proxy.config.address import Address
from weir.proxy.config.keys import connection_options
from weir.proxy.config.tables import Config
from weir.proxy.log import EventLog
from weir.quota.topic_names import TopicNames

_WITHOUT_ANSWERS: Final = (
    "topics that have ids only are throttled as if they were listed, and what was moved away counts as lag"
)


def watch_cluster(
    config: Config,
    names: TopicNames,
    removed: RemovedReplicas,
    wants: Wants,
    takers: Takers,
    log: EventLog,
    stats: PollStats,
    clock: Callable[[], float],
) -> ClusterClient:
    """Return the client that asks the cluster, not started yet. `clock` gives monotonic seconds.

    With `[cluster]`, its servers are asked over aiokafka's connections, and all takers are told. Without it, the
    brokers of the routes are asked, and only for the names of topic ids and for replicas that lag.
    """
    open_channel: Callable[[Address], Awaitable[Channel]] = PlainChannel.open
    follower, takes = None, takers
    if config.cluster is None:
        takes = Takers(takers.names_generation)
        outage = Outage(log, "topic_ids_not_asked", "topic_ids_recovered", _WITHOUT_ANSWERS)
        topics, longest_retry = TopicPoll(wants, names, removed), MAX_RETRY_SECONDS
    else:
        # imported here: aiokafka costs memory that most sidecars can save
        from weir.proxy.cluster.follow import ThrottlePoll
        from weir.proxy.cluster.kafka_channel import KafkaChannel
        from weir.proxy.cluster.kafka_throttle import min_isr_of

        effect = f"no partition counts as below its min ISR, {_WITHOUT_ANSWERS}"
        outage = Outage(log, "cluster_poll_failed", "cluster_poll_recovered", effect)
        options = connection_options(config.cluster, strict=config.strict_tls)
        open_channel = partial(KafkaChannel.open, options=options)
        longest_retry = config.cluster.poll_seconds
        topics = TopicPoll(wants, names, removed, longest_retry, MinIsr(min_isr_of))
        stats.known(MinIsr.what)
        part = config.cluster.followed_part if config.cluster.follow_throttles else None
        follower = ThrottlePoll(config.broker_id, part, wants, log, stats)
    client = ClusterClient(
        BrokerConnections(metadata_servers(config), open_channel),
        (TopicIdPoll(names, longest_retry), topics),  # ids first, as fetches use them already
        follower,
        _untold(removed, log),
        outage,
        *(log, stats, clock, takes),
    )
    names.on_miss = client.wake
    return client


def metadata_servers(config: Config) -> tuple[Address, ...]:
    """Return the servers to ask: bootstrap servers, else the broker beside this sidecar, else its peers."""
    if config.cluster is not None:
        return tuple(dict.fromkeys(config.cluster.bootstrap_servers))
    return tuple(dict.fromkeys(route.upstream for route in config.ingress or config.egress))


def _untold(removed: RemovedReplicas, log: EventLog) -> Callable[[], None]:
    """Return a function that logs, once, each time that lag had no room or that replica ids belonged to no broker."""
    logged: dict[tuple[str, str], int] = {}  # by event and side: the count when it was logged last

    def log_untold() -> None:
        for throttle in removed.throttles:
            for event, count, effect in (
                ("lag_evicted", throttle.lag.evicted, "the lag of some replicas is not told"),
                ("replica_ids_refused", throttle.brokers.refused, "what fetches with them has no series of its own"),
            ):
                if count != logged.get((event, throttle.side), 0):
                    logged[event, throttle.side] = count
                    log.fault(event, peer=throttle.side, count=count, effect=effect)

    return log_untold

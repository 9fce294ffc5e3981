# SPDX-License-Identifier: Apache-2.0
"""The requests that are sent as Metadata, over a channel."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import NamedTuple

from weir.protocol.metadata import (
    FIRST_METADATA_BY_ID,
    FIRST_METADATA_WITH_IDS,
    FIRST_METADATA_WITHOUT_CREATION,
    NO_ERROR,
    NO_ID,
    REPLICA_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    MetadataHead,
    MetadataPartition,
    MetadataTopic,
    decode_cluster,
    encode_metadata_request,
)
from weir.proxy.cluster.channel import CLIENT_ID, Channel, NoTopicIds
from weir.proxy.cluster.removed_replicas import Replicas
from weir.proxy.cluster.view import Broker, Topic
from weir.proxy.slices import in_slices

_ROWS_PER_SLICE = 100  # topics or partitions, read in about 0.5 ms, for which other connections have to wait


class Described(NamedTuple):
    """What a broker answered: `topics` by name (UTF-8). Topics that it could not tell of are missing."""

    brokers: dict[int, Broker]
    controller: int
    topics: dict[bytes, Topic]
    cluster_id: str | None


async def names_of_ids(channel: Channel, topic_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Return names (UTF-8) by topic id, of those ids that the broker knows. Raises NoTopicIds too."""
    version = channel.metadata_version
    if version < FIRST_METADATA_WITH_IDS:
        raise NoTopicIds
    by_id = version >= FIRST_METADATA_BY_ID
    # None asks for all topics: versions 10 and 11 have ids, but cannot be asked for a topic by id.
    _, rows = await _asked(channel, () if by_id else None, topic_ids if by_id else ())
    found, wanted = {}, frozenset(topic_ids)
    async for row in in_slices(rows, _ROWS_PER_SLICE):
        if isinstance(row, MetadataTopic) and row.error_code == NO_ERROR and row.topic_id in wanted and row.name:
            found[row.topic_id] = row.name
    return found


async def describe(channel: Channel, names: Collection[bytes], with_partitions: Collection[bytes]) -> Described:
    """Ask for topics by name (UTF-8), and read the partitions of those in `with_partitions`."""
    # a request that names topics may create them, so all topics are asked for
    may_create = channel.metadata_version < FIRST_METADATA_WITHOUT_CREATION
    named, wanted = frozenset(names), frozenset(with_partitions)
    head, rows = await _asked(channel, None if may_create else names, with_partitions=wanted)
    topics: dict[bytes, Topic] = {}
    partitions: dict[int, Replicas | None] = {}
    gone: set[bytes] = set()
    unseen = set(names) if may_create else set()
    async for row in in_slices(rows, _ROWS_PER_SLICE):
        if isinstance(row, MetadataTopic):
            partitions = {}
            unseen.discard(row.name or b"")
            if row.name in named and row.name:
                wanted_partitions = partitions if row.name in wanted else None
                if row.error_code == NO_ERROR:
                    topics[row.name] = Topic(row.topic_id, wanted_partitions)
                elif row.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                    topics[row.name] = Topic(NO_ID, wanted_partitions)
                    gone.add(row.name)
        else:
            is_told = row.error_code in (NO_ERROR, REPLICA_NOT_AVAILABLE)
            followers = row.replicas - {row.leader}
            partitions[row.partition] = Replicas(row.leader, followers, row.in_sync) if is_told else None
    topics |= dict.fromkeys(unseen, Topic(NO_ID, {}))
    gone |= unseen
    for name, topic in topics.items():
        # A topic never has no partitions. But in ZooKeeper mode a starting broker knows neither brokers nor topics
        # until the controller tells it.
        if not head.brokers or (not topic.partitions and name not in gone):
            topics[name] = topic._replace(partitions=None)
    return _described(head, topics)


async def every_topic(channel: Channel) -> tuple[Described, set[str]]:
    """Ask for the brokers, and the names of all topics."""
    head, rows = await _asked(channel, None)
    topics = in_slices(rows, _ROWS_PER_SLICE)
    names = {_text(row.name) async for row in topics if isinstance(row, MetadataTopic) and row.name}
    return _described(head, {}), names


async def _asked(
    channel: Channel,
    names: Collection[bytes] | None,
    topic_ids: Collection[bytes] = (),
    with_partitions: Container[bytes] = (),
) -> tuple[MetadataHead, Iterator[MetadataTopic | MetadataPartition]]:
    version = channel.metadata_version
    answer = await channel.ask(
        lambda correlation_id: encode_metadata_request(version, correlation_id, CLIENT_ID, names, topic_ids)
    )
    return decode_cluster(answer.frame, version, answer.correlation_id, with_partitions)


def _described(head: MetadataHead, topics: dict[bytes, Topic]) -> Described:
    brokers = {
        broker.broker_id: Broker(_text(broker.host), broker.port, None if broker.rack is None else _text(broker.rack))
        for broker in head.brokers
    }
    cluster_id = None if head.cluster_id is None else _text(head.cluster_id)
    return Described(brokers, head.controller, topics, cluster_id)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")

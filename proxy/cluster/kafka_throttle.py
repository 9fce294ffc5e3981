"""The requests that read Kafka's own throttle: a broker's rates, the topics' lists, and what is being reassigned.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest, ListPartitionReassignmentsRequest

from weir.protocol.metadata import MetadataTopic, decode_cluster, encode_metadata_request
from weir.proxy.cluster.channel import CLIENT_ID
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.config.address import Address
from weir.quota.followed_throttle import LISTS, RATES, Lists, Move
from weir.quota.throttled_replicas import InvalidThrottledReplicas, ThrottledReplicas

_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
_SOURCES_OF_RATES = (2, 3)  # ConfigSource: dynamic, of the broker or of all. Kafka ignores a rate in server.properties
_EVERY_BROKER = ""  # the name of the resource that holds the cluster's defaults
_TIMEOUT_MS = 5_000
_TOPICS_PER_SLICE = 100  # decoded in about 0.5 ms, for which other connections have to wait


class ClusterTold(NamedTuple):
    """What the cluster answered: all topics are told by their names.

    - `brokers`: where they listen for clients, by id.
    - `racks`: of the same brokers; None where one has no rack.
    - `controller`: a broker's id, -1 where none is known.
    """

    brokers: Mapping[int, Address]
    racks: Mapping[int, str | None]
    controller: int
    topics: set[str]


class NotSupported(Exception):
    """The broker has no version of a request that is known here; `str()` names the request."""


class Refused(ConnectionError):
    """The broker answers with an error; `str()` says which."""


async def rates_of(channel: KafkaChannel, broker_id: int) -> dict[str, int]:
    """Return the rates (bytes/s) of the broker that is asked, by name: its own, else the cluster's default.

    Only dynamic ones count. Version 0 of DescribeConfigs (before Kafka 1.1) does not tell which these are.
    """
    resources = [(_BROKER, name, RATES) for name in (str(broker_id), _EVERY_BROKER)]
    rates: dict[str, int] = {}
    for error_code, _, _, name, entries in await _configs(channel, resources):
        _check(error_code, f"broker {name}" if name else "all brokers")
        for key, value, _, source, *_ in entries:
            if key in RATES and value and source in _SOURCES_OF_RATES:
                rates.setdefault(key, int(value))  # the broker's own entry comes first
    return rates


async def lists_of(channel: KafkaChannel, topics: Sequence[str]) -> tuple[dict[str, Lists], dict[str, str]]:
    """Return the topics' lists, and by topic what is wrong with those that cannot be read.

    A topic that does not exist has no list.
    """
    found: dict[str, Lists] = {}
    wrong: dict[str, str] = {}
    for error_code, _, _, topic, entries in await _configs(channel, [(_TOPIC, topic, LISTS) for topic in topics]):
        if error_code not in (0, UnknownTopicOrPartitionError.errno):
            wrong[topic] = for_code(error_code).__name__
            continue
        try:
            lists = {key: ThrottledReplicas.parse(_text_of_list(value)) for key, value, *_ in entries if key in LISTS}
        except InvalidThrottledReplicas as error:
            wrong[topic] = str(error)
        else:
            found[topic] = lists
    return found, wrong


async def moves_of(channel: KafkaChannel) -> dict[str, dict[int, Move]]:
    """Return what is being reassigned. In ZooKeeper mode only the controller answers."""
    try:
        told = await channel.send(ListPartitionReassignmentsRequest(_TIMEOUT_MS, None, {}))
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise NotSupported("ListPartitionReassignments") from error
    _check(told.error_code, "ListPartitionReassignments")
    return {
        topic: {partition: Move(frozenset(replicas), frozenset(adding)) for partition, replicas, adding, *_ in rows}
        for topic, rows, _ in told.topics
    }


async def cluster_of(channel: KafkaChannel) -> ClusterTold:
    """Ask for the brokers, the controller, and the names of all topics."""
    version = channel.metadata_version
    answer = await channel.ask(lambda correlation_id: encode_metadata_request(version, correlation_id, CLIENT_ID, None))
    head, topics = decode_cluster(answer.frame, version, answer.correlation_id, ())
    names: set[str] = set()
    for number, topic in enumerate(topics, start=1):
        if isinstance(topic, MetadataTopic) and topic.name:
            names.add(_text(topic.name))
        if number % _TOPICS_PER_SLICE == 0:
            await asyncio.sleep(0)
    brokers = {broker.broker_id: Address(_text(broker.host), broker.port) for broker in head.brokers}
    racks = {broker.broker_id: None if broker.rack is None else _text(broker.rack) for broker in head.brokers}
    return ClusterTold(brokers, racks, head.controller, names)


async def _configs(channel: KafkaChannel, resources: Sequence[tuple[int, str, Sequence[str]]]) -> Any:
    """Return (error_code, message, type, name, [(key, value, ...)]) for each (type, name, keys), in that order."""
    try:
        answer = await channel.send(
            DescribeConfigsRequest([(kind, name, list(keys)) for kind, name, keys in resources])
        )
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise NotSupported("DescribeConfigs") from error
    return answer.resources


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _text_of_list(value: str | None) -> str:
    """Return a list's text. Some versions of Kafka show an empty list as `[]`."""
    return "" if value is None or value == "[]" else value


def _check(error_code: int, what: str) -> None:
    if error_code:
        raise Refused(f"{what}: {for_code(error_code).__name__}")

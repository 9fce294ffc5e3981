# SPDX-License-Identifier: Apache-2.0
"""The requests that are sent as aiokafka's: configurations of brokers and topics, and what is being reassigned.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest, ListPartitionReassignmentsRequest

from weir.proxy.cluster.channel import Channel, NotSupported
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.throttle.followed import LISTS, RATES, Lists, Move
from weir.quota.throttled_replicas import InvalidThrottledReplicas, ThrottledReplicas

_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
_SOURCES_OF_RATES = (2, 3)  # ConfigSource: dynamic, of the broker or of all. Kafka ignores a rate in server.properties
_EVERY_BROKER = ""  # the name of the resource that holds the cluster's defaults
_TIMEOUT_MS = 5_000
_EMPTY = (None, "[]")  # an empty list, as some versions of Kafka show it
_MIN_ISR = "min.insync.replicas"
_NO_ERRORS = (0, UnknownTopicOrPartitionError.errno)  # a topic that does not exist has no configuration


async def rates_of(channel: Channel, broker_id: int) -> dict[str, int]:
    """Return the rates (bytes/s) of the broker that is asked, by name: its own, else the cluster's default.

    Only dynamic ones count. Version 0 of DescribeConfigs (before Kafka 1.1) does not tell which these are.
    """
    rates: dict[str, int] = {}
    for error_code, name, entries in await _configs(channel, _BROKER, (str(broker_id), _EVERY_BROKER), RATES):
        _check(error_code, f"broker {name}" if name else "all brokers")
        for key, value, _, source, *_ in entries:
            if key in RATES and value and source in _SOURCES_OF_RATES:
                rates.setdefault(key, int(value))  # the broker's own entry comes first
    return rates


async def lists_of(channel: Channel, topics: Sequence[str]) -> tuple[dict[str, Lists | None], dict[str, str]]:
    """Return the topics' lists, None where they are not told, and by topic what is wrong with those not read.

    A broker that has just started knows no topic, so that it knows one not is no news of its lists.
    """
    found: dict[str, Lists | None] = {}
    wrong: dict[str, str] = {}
    for error_code, topic, entries in await _configs(channel, _TOPIC, topics, LISTS):
        if error_code:
            found[topic] = None
            if error_code not in _NO_ERRORS:
                wrong[topic] = for_code(error_code).__name__
            continue
        try:
            texts = {key: value for key, value, *_ in entries if key in LISTS}
            lists = {key: ThrottledReplicas.parse("" if text in _EMPTY else text) for key, text in texts.items()}
        except InvalidThrottledReplicas as error:
            found[topic], wrong[topic] = None, str(error)
        else:
            found[topic] = lists
    return found, wrong


async def min_isr_of(channel: Channel, topics: Sequence[str]) -> tuple[dict[bytes, int], dict[str, str]]:
    """Return `min.insync.replicas` by topic (UTF-8), a topic's own or the broker's, and why it is refused by topic."""
    values: dict[bytes, int] = {}
    refused: dict[str, str] = {}
    for error_code, topic, entries in await _configs(channel, _TOPIC, topics, (_MIN_ISR,)):
        if error_code not in _NO_ERRORS:
            refused[topic] = for_code(error_code).__name__
        values.update({topic.encode(): int(value) for key, value, *_ in entries if key == _MIN_ISR})
    return values, refused


async def moves_of(channel: Channel) -> dict[str, dict[int, Move]]:
    """Return what is being reassigned. In ZooKeeper mode only the controller answers."""
    answer = await _sent(
        channel, ListPartitionReassignmentsRequest(_TIMEOUT_MS, None, {}), "ListPartitionReassignments"
    )
    _check(answer.error_code, "ListPartitionReassignments")
    return {
        topic: {partition: Move(frozenset(replicas), frozenset(adding)) for partition, replicas, adding, *_ in rows}
        for topic, rows, _ in answer.topics
    }


async def _configs(
    channel: Channel, kind: int, names: Sequence[str], keys: Sequence[str]
) -> list[tuple[int, str, list[Any]]]:
    """Return (error_code, name, [(key, value, ...)]) of each resource, in the order of `names`."""
    request = DescribeConfigsRequest([(kind, name, list(keys)) for name in names])
    answer = await _sent(channel, request, "DescribeConfigs")
    return [(error_code, name, entries) for error_code, _, _, name, entries in answer.resources]


async def _sent(channel: Channel, request: Any, name: str) -> Any:
    try:
        return await cast(KafkaChannel, channel).send(request)
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise NotSupported(name) from error


def _check(error_code: int, what: str) -> None:
    if error_code:
        raise ConnectionError(f"{what}: {for_code(error_code).__name__}")

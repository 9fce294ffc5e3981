"""`min.insync.replicas` of throttled topics, and the partitions that have fewer replicas in sync.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import cast

from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest

from weir.proxy.cluster.channel import Channel
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.in_sync import InSyncTopics
from weir.proxy.cluster.kafka_channel import KafkaChannel

Partitions = frozenset[tuple[bytes, int]]

REFRESH_SECONDS = 60.0
RETRY_SECONDS = 10.0
TOPICS_PER_QUESTION = 100

_TOPIC = 2  # ConfigResource.Type
_MIN_ISR = "min.insync.replicas"


class ConfigRefused(Exception):
    """The cluster refuses the configuration of some topics; `str()` says why."""


class MinIsrPoll:
    """Asks with DescribeConfigs for a topic's own value or the broker's default, and compares it with the ISR.

    It asks when other topics are throttled, and every REFRESH_SECONDS. What it could not learn is asked again after
    RETRY_SECONDS; until then the old value stays. After each poll of topics, `publish` gets the partitions that are
    known to have fewer replicas in sync.
    """

    what = "configs"

    def __init__(self, in_sync: InSyncTopics, publish: Callable[[Partitions], None]) -> None:
        self._in_sync = in_sync
        self._publish = publish
        self._asked: frozenset[bytes] = frozenset()
        self._ask_at = -inf
        self._seen: object = None  # the ISR that was compared last
        self._refused = ""

    def due_at(self, client: ClusterClient) -> float:
        """Return -inf: it follows each poll of topics."""
        return inf if self._in_sync.known is self._seen else -inf

    def is_urgent(self) -> bool:
        """Return False: nobody waits for it."""
        return False

    async def ask(self, client: ClusterClient) -> None:
        """Ask where it is time to, then publish."""
        self._seen = in_sync = self._in_sync.known
        topics = frozenset(self._in_sync.asked)
        if topics and (topics != self._asked or client.clock() >= self._ask_at):
            self._asked, self._ask_at = topics, client.clock() + RETRY_SECONDS
            await self._learn(client, sorted(topic.decode() for topic in topics))
        least = client.view.min_in_sync
        self._publish(frozenset(key for key, isr in in_sync.items() if len(isr) < least.get(key[0], 0)))

    def not_told(self, client: ClusterClient) -> None:
        """Note that it is not known who is in sync."""
        self._seen = self._in_sync.known
        self._publish(frozenset())

    async def _learn(self, client: ClusterClient, topics: list[str]) -> None:
        values: dict[bytes, int] = {}
        refused: dict[str, int] = {}
        try:
            for start in range(0, len(topics), TOPICS_PER_QUESTION):
                some = topics[start : start + TOPICS_PER_QUESTION]
                told = await client.question(self.what, partial(_values, topics=some, refused=refused))
                values |= told
        except ConnectionError as error:
            effect = "what was known of it stays"
            client.log.fault("min_isr_not_answered", peer=client.servers, error=error, effect=effect)
            return
        except ConfigRefused as error:
            self._warn(client, str(error))
            return
        client.view = replace(client.view, min_in_sync=values)
        self._ask_at = client.clock() + REFRESH_SECONDS
        if refused:
            topic, error_code = min(refused.items())
            self._warn(
                client, f"{for_code(error_code).__name__} for {len(refused)} of {len(topics)} topics, as {topic}"
            )

    def _warn(self, client: ClusterClient, refused: str) -> None:
        if refused != self._refused:
            self._refused = refused
            client.log.warning("min_isr_refused", peer=client.servers, error=refused, effect="it is taken for 0")


async def _values(channel: Channel, topics: list[str], refused: dict[str, int]) -> dict[bytes, int]:
    try:
        resources = [(_TOPIC, topic, [_MIN_ISR]) for topic in topics]
        response = await cast(KafkaChannel, channel).send(DescribeConfigsRequest(resources))
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise ConfigRefused("the broker has no version of DescribeConfigs that is known here") from error
    values: dict[bytes, int] = {}
    for error_code, _message, _type, topic, entries in response.resources:
        if error_code not in (0, UnknownTopicOrPartitionError.errno):
            refused[topic] = error_code
        values.update({topic.encode(): int(entry[1]) for entry in entries if entry[0] == _MIN_ISR})
    return values

"""`min.insync.replicas` of topics, from the cluster, and which partitions have fewer replicas in sync.

Imported with proxy.cluster alone: aiokafka costs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest

Partitions = frozenset[tuple[bytes, int]]

REFRESH_SECONDS = 60.0
RETRY_SECONDS = 10.0
TOPICS_PER_QUESTION = 100

_TOPIC = 2  # ConfigResource.Type
_MIN_ISR = "min.insync.replicas"


class ConfigRefused(Exception):
    """The cluster does not tell the configuration of some topics; `str()` says why."""


class MinInSyncReplicas:
    """What DescribeConfigs told last: a topic's own value, or the broker's default. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[bytes, int] = {}
        self._asked: frozenset[str] = frozenset()
        self._ask_at = clock()

    async def refresh(self, connection: Any, topics: Collection[str]) -> None:
        """Ask anew when these are other topics, or after REFRESH_SECONDS.

        Raises ConfigRefused, and whatever aiokafka does when there is no answer or none that can be read: what was
        known then stays, and is asked for again after RETRY_SECONDS.
        """
        asked = frozenset(topics)
        if asked == self._asked and self._clock() < self._ask_at:
            return
        self._asked, self._ask_at = asked, self._clock() + RETRY_SECONDS
        values: dict[bytes, int] = {}
        refused: dict[str, int] = {}
        named = sorted(topics)
        for start in range(0, len(named), TOPICS_PER_QUESTION):
            resources = [(_TOPIC, topic, [_MIN_ISR]) for topic in named[start : start + TOPICS_PER_QUESTION]]
            try:
                response = await connection.send(DescribeConfigsRequest(resources))
            except (IncompatibleBrokerVersion, NotImplementedError) as error:
                raise ConfigRefused("the broker has no version of DescribeConfigs that is known here") from error
            for error_code, _message, _type, topic, entries in response.resources:
                if error_code not in (0, UnknownTopicOrPartitionError.errno):
                    refused[topic] = error_code
                values.update({topic.encode(): int(entry[1]) for entry in entries if entry[0] == _MIN_ISR})
        self._values, self._ask_at = values, self._clock() + REFRESH_SECONDS
        if refused:
            topic, error_code = min(refused.items())
            raise ConfigRefused(
                f"{for_code(error_code).__name__} for {len(refused)} of {len(named)} topics, as {topic}"
            )

    def under(self, in_sync: Mapping[tuple[bytes, int], frozenset[int]]) -> Partitions:
        """Return those of `in_sync` (replica ids by partition) whose ISR is smaller than their topic asks for."""
        return frozenset(key for key, isr in in_sync.items() if len(isr) < self._values.get(key[0], 0))

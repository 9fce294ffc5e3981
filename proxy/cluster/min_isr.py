"""`min.insync.replicas` of throttled topics: a topic's own value or the broker's default.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import inf

from aiokafka.errors import for_code

from weir.proxy.cluster.channel import NotSupported
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.connections import NotAnswered
from weir.proxy.cluster.kafka_throttle import min_isr_of
from weir.proxy.cluster.poll_stats import PollStats

REFRESH_SECONDS = 60.0
RETRY_SECONDS = 10.0
TOPICS_PER_QUESTION = 100

WHAT = "configs"


class MinIsrOfTopics:
    """Asks when other topics are throttled, and every REFRESH_SECONDS.

    What it could not learn is asked again after RETRY_SECONDS; until then the old value stays.
    """

    def __init__(self, stats: PollStats) -> None:
        self._asked: frozenset[bytes] = frozenset()
        self._ask_at = -inf
        self._refused = ""
        stats.known(WHAT)

    async def learn(self, client: ClusterClient, topics: Collection[bytes]) -> None:
        """Ask for these topics where it is time to, and publish what was told."""
        wanted = frozenset(topics)
        if not wanted or (wanted == self._asked and client.clock() < self._ask_at):
            return
        self._asked, self._ask_at = wanted, client.clock() + RETRY_SECONDS
        names = sorted(topic.decode() for topic in wanted)
        values: dict[bytes, int] = {}
        refused: dict[str, int] = {}
        try:
            for start in range(0, len(names), TOPICS_PER_QUESTION):
                some = names[start : start + TOPICS_PER_QUESTION]
                found, errors = await client.question(WHAT, partial(min_isr_of, topics=some))
                values |= found
                refused |= errors
        except NotAnswered as error:
            effect = "what was known of it stays"
            client.log.fault("min_isr_not_answered", peer=client.connections.servers, error=error, effect=effect)
        except NotSupported as error:
            self._warn(client, str(error))
        else:
            client.publish(replace(client.view, min_in_sync=values))
            self._ask_at = client.clock() + REFRESH_SECONDS
            if refused:
                topic, error_code = min(refused.items())
                reason = for_code(error_code).__name__
                self._warn(client, f"{reason} for {len(refused)} of {len(names)} topics, as {topic}")

    def _warn(self, client: ClusterClient, refused: str) -> None:
        if refused != self._refused:
            self._refused = refused
            servers = client.connections.servers
            client.log.warning("min_isr_refused", peer=servers, error=refused, effect="it is taken for 0")

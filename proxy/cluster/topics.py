"""The poll of topics: their ids, and the replicas of some topics' partitions. Its answers also list the brokers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from weir.proxy.cluster.channel import NoTopicIds
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.metadata import describe
from weir.proxy.cluster.view import ClusterView, Topic

TOPICS_PER_QUESTION = 1000
DEFAULT_POLL_SECONDS = 5.0  # the default of [cluster] poll_seconds


class Subscriber(Protocol):
    """Someone who takes the answers of a poll of topics."""

    with_partitions: bool
    """Whether the replicas of its topics are asked for, or only their ids."""

    async def topics(self) -> Collection[bytes]:
        """Return the names (UTF-8) of the topics that it wants to know about now."""

    async def told(self, view: ClusterView) -> None:
        """Take the answer. Also called where it wanted no topic, or none was asked for."""

    def not_told(self) -> None:
        """Note that no server answered."""


class TopicPoll:
    """Asks for the topics of all `subscribers` every `poll_seconds`. `clock` gives monotonic seconds.

    With `needs_topic_ids`, a cluster without topic ids is asked again only when a broker is known to have them. While
    `wants_brokers`, the brokers are asked for where no topic is wanted.
    """

    what = "topics"

    def __init__(
        self,
        subscribers: Sequence[Subscriber],
        clock: Callable[[], float],
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        needs_topic_ids: bool = True,
        wants_brokers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._subscribers = subscribers
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._needs_topic_ids = needs_topic_ids
        self._wants_brokers = wants_brokers
        self._at = clock()

    def due_now(self) -> None:
        """Make it due in the next round."""
        self._at = self._clock()

    def due_at(self, client: ClusterClient) -> float:
        """Return when to ask next (clock seconds)."""
        return self._at if client.has_topic_ids or not self._needs_topic_ids else math.inf

    def is_urgent(self) -> bool:
        """Return False: nobody waits for it."""
        return False

    async def ask(self, client: ClusterClient) -> None:
        """Ask for what the subscribers want, and tell them."""
        self._at = self._clock() + self._poll_seconds
        wanted: dict[bytes, None] = {}
        with_partitions: set[bytes] = set()
        for subscriber in self._subscribers:
            names = await subscriber.topics()
            wanted |= dict.fromkeys(names)
            if subscriber.with_partitions:
                with_partitions.update(names)
            if len(names) > TOPICS_PER_QUESTION:
                await asyncio.sleep(0)  # tens of thousands take some milliseconds
        brokers, controller, cluster_id = client.view.brokers, client.view.controller, client.view.cluster_id
        topics: dict[bytes, Topic] = {}
        try:
            for names in _shares(list(wanted), at_least_one=self._wants_brokers()):
                told = await client.question(self.what, partial(describe, names=names, with_partitions=with_partitions))
                brokers, controller = told.brokers or brokers, told.controller
                cluster_id = told.cluster_id or cluster_id
                topics |= told.topics
        except NoTopicIds:
            client.has_topic_ids = False  # asked again when an id is seen, as some broker then has ids
            return
        client.view = replace(client.view, brokers=brokers, controller=controller, topics=topics, cluster_id=cluster_id)
        client.stats.told_at = self._clock()
        for subscriber in self._subscribers:
            await client.tell(self.what, subscriber.told(client.view))

    def not_told(self, client: ClusterClient) -> None:
        """Forget the topics, and tell the subscribers. What is known of brokers stays."""
        self._at = self._clock()
        client.view = replace(client.view, topics={})
        for subscriber in self._subscribers:
            subscriber.not_told()


class BrokerHosts:
    """Passes the brokers' hosts by id to `offer`, each time an answer lists them."""

    with_partitions = False

    def __init__(self, offer: Callable[[dict[int, str]], None]) -> None:
        self._offer = offer
        self._offered: object = None

    async def topics(self) -> Collection[bytes]:
        """Return no topic: every answer lists the brokers."""
        return ()

    async def told(self, view: ClusterView) -> None:
        """Offer the brokers, unless they are from an earlier answer."""
        brokers: object = view.brokers
        if view.brokers and brokers is not self._offered:
            self._offered = brokers
            self._offer({broker_id: broker.host for broker_id, broker in view.brokers.items()})

    def not_told(self) -> None:
        """Do nothing: known brokers stay."""


def _shares(names: list[bytes], *, at_least_one: bool) -> Iterator[list[bytes]]:
    for start in range(0, len(names) or int(at_least_one), TOPICS_PER_QUESTION):
        yield sorted(names[start : start + TOPICS_PER_QUESTION])

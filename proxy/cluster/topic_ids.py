"""Learns the names of topic ids: of throttled topics in advance, of others when their ids are first seen.

Nothing on the data path waits for it. Until its name is known an id is throttled as far as any list may cover it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from weir.protocol.metadata import NO_ID
from weir.proxy.cluster.channel import NoTopicIds
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.metadata import names_of_ids
from weir.proxy.cluster.topics import TopicPoll
from weir.proxy.cluster.view import ClusterView
from weir.quota.topic_names import TopicNames, printed_id

IDS_PER_QUESTION = 1000
_TOPICS_PER_SLICE = 5_000  # encoded in about 1 ms
_MOST_SHOWN = 5  # the most ids in one log line


class ThrottledTopics:
    """A subscriber that puts the ids of throttled topics into `names`, and calls `changed` when some were new."""

    with_partitions = False

    def __init__(self, names: TopicNames, topics: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        self._names = names
        self._topics = topics
        self._changed = changed
        self._asked: list[bytes] = []

    async def topics(self) -> Collection[bytes]:
        """Return the names of the throttled topics."""
        self._asked = []
        for number, topic in enumerate(self._topics(), start=1):
            self._asked.append(topic.encode())
            if number % _TOPICS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return self._asked

    async def told(self, view: ClusterView) -> None:
        """Learn the ids of the throttled topics that exist."""
        found = {view.topics[name].topic_id: name for name in self._asked if name in view.topics}
        found.pop(NO_ID, None)
        if self._names.learn(found):
            self._changed()

    def not_told(self) -> None:
        """Do nothing: known names stay."""


class TopicIdPoll:
    """Asks for the names of the ids that `names` wants, as soon as it wants one."""

    what = "topic_ids"

    def __init__(self, names: TopicNames, changed: Callable[[], None], topics: TopicPoll) -> None:
        self._names = names
        self._changed = changed
        self._topics = topics

    def due_at(self, client: ClusterClient) -> float:
        """Return when the next id has to be asked for (clock seconds)."""
        return self._names.next_wanted_at()

    def is_urgent(self) -> bool:
        """Whether fetches have ids without a name."""
        return bool(self._names.unknown_count)

    async def ask(self, client: ClusterClient) -> None:
        """Ask for the ids wanted now. Those that the cluster does not know are asked for again later."""
        wanted = self._names.wanted()
        for start in range(0, len(wanted), IDS_PER_QUESTION):
            topic_ids = wanted[start : start + IDS_PER_QUESTION]
            try:
                found = await client.question(self.what, partial(names_of_ids, topic_ids=topic_ids))
            except NoTopicIds:
                client.has_topic_ids = False
                self._unknown(client, wanted[start:], "the broker is older than topic ids")
                return
            if not client.has_topic_ids:
                client.has_topic_ids = True
                self._topics.due_now()
            missing = [topic_id for topic_id in topic_ids if topic_id not in found]
            self._unknown(client, missing, "the cluster does not know it")
            if self._names.learn(found):
                self._changed()

    def not_told(self, client: ClusterClient) -> None:
        """Do nothing: nobody said that an id is unknown, so each is asked for again."""

    def _unknown(self, client: ClusterClient, topic_ids: Collection[bytes], reason: str) -> None:
        if topic_ids:
            self._names.unknown(topic_ids)
            client.log.fault(
                "topic_id_unknown",
                peer=client.server,
                ids=",".join(_shown(topic_ids)),
                count=len(topic_ids),
                reason=reason,
                effect="throttled as any topic that is listed",
            )


def _shown(topic_ids: Iterable[bytes]) -> list[str]:
    return [printed_id(topic_id) for topic_id in islice(topic_ids, _MOST_SHOWN)]

"""The poll of topic ids that fetches have, and whose topics' names are not known.

Nothing on the data path waits for it. Until its name is known an id is throttled as far as any list may cover it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from weir.proxy.cluster.channel import NoTopicIds
from weir.proxy.cluster.client import MAX_RETRY_SECONDS, ClusterClient, Poll
from weir.proxy.cluster.metadata import names_of_ids
from weir.quota.topic_names import TopicNames, printed_id

IDS_PER_QUESTION = 1000
_MOST_SHOWN = 5  # the most ids in one log line


class TopicIdPoll(Poll):
    """Asks for the names of the ids that `names` wants, as soon as it wants one."""

    what = "topic_ids"

    def __init__(self, names: TopicNames, longest_retry: float = MAX_RETRY_SECONDS) -> None:
        self._names = names
        self.longest_retry = min(longest_retry, MAX_RETRY_SECONDS)

    def due_at(self, client: ClusterClient) -> float:
        """Return when the next id has to be asked for (clock seconds)."""
        return self._names.next_wanted_at()

    async def ask(self, client: ClusterClient) -> None:
        """Ask for the ids wanted now. Those that the cluster does not know are asked for again later.

        Where no server answers, nobody said that an id is unknown, so each stays wanted.
        """
        wanted = self._names.wanted()
        for start in range(0, len(wanted), IDS_PER_QUESTION):
            topic_ids = wanted[start : start + IDS_PER_QUESTION]
            try:
                found = await client.question(self.what, partial(names_of_ids, topic_ids=topic_ids))
            except NoTopicIds:
                client.has_topic_ids = False
                self._unknown(client, wanted[start:], "the broker is older than topic ids")
                return
            client.has_topic_ids = True
            missing = [topic_id for topic_id in topic_ids if topic_id not in found]
            self._unknown(client, missing, "the cluster does not know it")
            self._names.learn(found)
            client.publish(replace(client.view, names_generation=self._names.generation))

    def _unknown(self, client: ClusterClient, topic_ids: Collection[bytes], reason: str) -> None:
        if topic_ids:
            self._names.unknown(topic_ids)
            shown = ",".join(printed_id(topic_id) for topic_id in list(topic_ids)[:_MOST_SHOWN])
            effect = "throttled as any topic that is listed"
            client.log.fault(
                "topic_id_unknown",
                peer=client.connections.server,
                ids=shown,
                count=len(topic_ids),
                reason=reason,
                effect=effect,
            )

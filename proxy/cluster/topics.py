# SPDX-License-Identifier: Apache-2.0
"""The polls of topics: the names of ids that fetches have, who is in sync, and which replicas are assigned at all.

Nothing on the data path waits for them. Until its name is known an id is throttled as far as any list may cover it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from weir.proxy.cluster.channel import NotAnswered, NoTopicIds, NotSupported
from weir.proxy.cluster.client import MAX_IDLE_RETRY_SECONDS, MAX_RETRY_SECONDS, ClusterClient, Poll
from weir.proxy.cluster.metadata import describe, names_of_ids
from weir.proxy.cluster.removed_replicas import RemovedReplicas
from weir.proxy.cluster.view import NOTHING, ClusterView, InSyncReplicas, Partitions, Topic, Wants
from weir.proxy.slices import in_slices
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
            told = {"ids": shown, "count": len(topic_ids), "reason": reason}
            effect = "throttled as any topic that is listed"
            client.log.fault("topic_id_unknown", peer=client.connections.server, **told, effect=effect)


TOPICS_PER_QUESTION = 1000
DEFAULT_POLL_SECONDS = 5.0  # the default of [cluster] poll_seconds
_PARTITIONS_PER_SLICE = 1_000  # taken in within about 0.5 ms
_TOPICS_PER_SLICE = 5_000  # encoded in about 1 ms

MIN_ISR_SECONDS = 60.0
MIN_ISR_RETRY_SECONDS = 10.0
MIN_ISR_TOPICS_PER_QUESTION = 100


@dataclass(eq=False)
class MinIsr:
    """`min.insync.replicas` of throttled topics. `_of` asks for it.

    It is asked for when other topics are throttled, and every MIN_ISR_SECONDS. What could not be learnt is asked for
    again after MIN_ISR_RETRY_SECONDS; until then the old value stays.
    """

    what = "configs"

    _of: Callable[..., Awaitable[tuple[dict[bytes, int], dict[str, str]]]]
    _asked: frozenset[bytes] = frozenset()
    _ask_at: float = -math.inf
    _refused: str = ""

    async def learn(self, client: ClusterClient, topics: Collection[bytes]) -> None:
        """Ask for these topics where it is time to, and publish what was told."""
        wanted = frozenset(topics)
        if not wanted or (wanted == self._asked and client.clock() < self._ask_at):
            return
        self._asked, self._ask_at = wanted, client.clock() + MIN_ISR_RETRY_SECONDS
        names = sorted(topic.decode() for topic in wanted)
        values: dict[bytes, int] = {}
        refused: dict[str, str] = {}
        servers = client.connections.servers
        try:
            for start in range(0, len(names), MIN_ISR_TOPICS_PER_QUESTION):
                some = names[start : start + MIN_ISR_TOPICS_PER_QUESTION]
                found, errors = await client.question(self.what, partial(self._of, topics=some))
                values |= found
                refused |= errors
        except NotAnswered as error:
            client.log.fault("min_isr_not_answered", peer=servers, error=error, effect="what was known of it stays")
            return
        except NotSupported as error:
            reason = str(error)
        else:
            client.publish(replace(client.view, min_in_sync=values))
            self._ask_at = client.clock() + MIN_ISR_SECONDS
            if not refused:
                return
            topic, name = min(refused.items())
            reason = f"{name} for {len(refused)} of {len(names)} topics, as {topic}"
        if reason != self._refused:
            self._refused = reason
            client.log.warning("min_isr_refused", peer=servers, error=reason, effect="it is taken for 0")


@dataclass(eq=False)
class TopicPoll(Poll):
    """Asks for throttled topics, and those with replicas that look as if they were removed, every `poll_seconds`.

    Ids go to `names`, assignments to `removed`. With `min_isr`, as with `[cluster]`, it also publishes who is in
    sync. Without it, a cluster without topic ids is asked again only when a broker is known to have them.
    """

    what = "topics"

    _wants: Wants
    _names: TopicNames
    _removed: RemovedReplicas
    _poll_seconds: float = DEFAULT_POLL_SECONDS
    _min_isr: MinIsr | None = None
    _at: float = field(init=False, default=-math.inf)  # when to ask next (clock seconds)

    def __post_init__(self) -> None:
        self.longest_retry = MAX_IDLE_RETRY_SECONDS if self._min_isr is None else self._poll_seconds

    def due_now(self) -> None:
        """Make it due in the next round."""
        self._at = -math.inf

    def due_at(self, client: ClusterClient) -> float:
        """Return when to ask next (clock seconds)."""
        return self._at if client.has_topic_ids or self._min_isr is not None else math.inf

    async def ask(self, client: ClusterClient) -> None:
        """Ask for what is wanted, publish it, and forget the lag of replicas that no longer follow."""
        self._at = client.clock() + self._poll_seconds
        wanted = in_slices(self._wants.throttled_topics(), _TOPICS_PER_SLICE)
        throttled = [topic.encode() async for topic in wanted]
        for _ in self._removed.check():
            await asyncio.sleep(0)
        described = {*self._removed.topics, *(throttled if self._min_isr is not None else ())}
        topics: dict[bytes, Topic] = {}
        try:
            for names in _questions(throttled, self._removed.topics, at_least_one=self._wants.brokers()):
                answer = await client.question(self.what, partial(describe, names=names, with_partitions=described))
                client.learn_brokers(answer)
                topics |= answer.topics
        except NoTopicIds:
            client.has_topic_ids = False
            self.due_now()  # as soon as some broker is known to have ids
            return
        client.stats.confirmed_at = client.clock()
        in_sync = client.view.in_sync
        if self._min_isr is not None:
            in_sync = await in_sync_of(topics, throttled, in_sync)
        self._names.learn({topics[name].topic_id: name for name in throttled if name in topics})
        names_generation = self._names.generation
        client.publish(replace(client.view, topics=topics, in_sync=in_sync, names_generation=names_generation))
        told = ((name, topics[name].partitions) for name in self._removed.topics if name in topics)
        assigned = {name: partitions for name, partitions in told if partitions is not None}
        if forgotten := sum([count async for count in in_slices(self._removed.take(assigned), 1)]):
            client.log.info("replicas_not_assigned", partitions=forgotten, effect="their lag is forgotten")
        if self._min_isr is not None:
            await self._min_isr.learn(client, throttled)
            under_min_isr = await _under_min_isr(client.view)
            client.publish(replace(client.view, under_min_isr=under_min_isr))

    def unanswered(self, client: ClusterClient) -> None:
        """Forget topics and who is in sync: a replica that has left the ISR since would pass unthrottled.

        What is known of brokers and of names stays, and a replica goes on lagging.
        """
        self.due_now()
        view = replace(client.view, topics=NOTHING.topics, in_sync=NOTHING.in_sync)
        client.publish(replace(view, under_min_isr=NOTHING.under_min_isr))


async def in_sync_of(topics: dict[bytes, Topic], names: Collection[bytes], before: InSyncReplicas) -> InSyncReplicas:
    """Return the ISR of the topics with these names, or `before` where it is the same.

    A partition with an error is left out. Where nothing is known, only fetch offsets tell who is in sync.
    """
    in_sync: dict[tuple[bytes, int], frozenset[int]] = {}
    same = 0
    told = ((name, one) for name in names if name in topics for one in (topics[name].partitions or {}).items())
    async for name, (number, replicas) in in_slices(told, _PARTITIONS_PER_SLICE):
        if replicas is not None:
            in_sync[name, number] = replicas.in_sync
            same += before.get((name, number)) == replicas.in_sync
    return before if same == len(in_sync) == len(before) else in_sync


async def _under_min_isr(view: ClusterView) -> Partitions:
    rows = in_slices(view.in_sync.items(), _PARTITIONS_PER_SLICE)
    found = frozenset([key async for key, in_sync in rows if len(in_sync) < view.min_in_sync.get(key[0], 0)])
    return view.under_min_isr if found == view.under_min_isr else found


def _questions(*of: Collection[bytes], at_least_one: bool) -> Iterator[list[bytes]]:
    names = list(dict.fromkeys(name for some in of for name in some))
    for start in range(0, len(names) or int(at_least_one), TOPICS_PER_QUESTION):
        yield sorted(names[start : start + TOPICS_PER_QUESTION])

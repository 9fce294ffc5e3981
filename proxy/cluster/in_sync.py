"""The replicas that are in sync by the cluster's word: the ISR of throttled topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from weir.proxy.cluster.view import ClusterView

InSyncReplicas = Mapping[tuple[bytes, int], frozenset[int]]

_PARTITIONS_PER_SLICE = 1000  # taken in within about 0.5 ms


class InSyncTopics:
    """A subscriber that passes the ISR of the topics named by `topics()` to `publish`.

    `publish` gets {(topic, partition): ids of the brokers in sync}. The mapping is empty when nothing is known; then
    only fetch offsets tell who is in sync.
    """

    with_partitions = True

    def __init__(self, topics: Callable[[], Collection[str]], publish: Callable[[InSyncReplicas], None]) -> None:
        self._topics = topics
        self._publish = publish
        self.known: InSyncReplicas = {}
        """The mapping that was published last."""
        self.asked: list[bytes] = []
        """The names (UTF-8) of the topics that were asked for last."""

    async def topics(self) -> Collection[bytes]:
        """Return the names of the throttled topics."""
        self.asked = [topic.encode() for topic in self._topics()]
        return self.asked

    async def told(self, view: ClusterView) -> None:
        """Publish the ISR of these topics. A partition with an error is left out."""
        in_sync: dict[tuple[bytes, int], frozenset[int]] = {}
        read = 0
        for name in self.asked:
            topic = view.topics.get(name)
            for number, replicas in ((topic and topic.partitions) or {}).items():
                if replicas is not None:
                    in_sync[name, number] = replicas.in_sync
                read += 1
                if read % _PARTITIONS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        self._put(in_sync)

    def not_told(self) -> None:
        """Forget everything: with an old ISR, a replica that has left it since would pass unthrottled."""
        self._put({})

    def _put(self, in_sync: InSyncReplicas) -> None:
        self.known = in_sync
        self._publish(in_sync)

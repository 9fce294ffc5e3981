"""Polls the in-sync replicas of throttled topics from the cluster's metadata, and how few its configuration allows.

Imported only where `[cluster]` is configured: aiokafka costs memory. Without it, or while the cluster does not answer,
the wire alone decides who is in sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from proxy.config import Cluster
from proxy.log import EventLog, innermost_frame, os_error_reason
from proxy.min_isr import ConfigRefused, MinInSyncReplicas, Partitions

InSyncReplicas = Mapping[tuple[bytes, int], frozenset[int]]

REQUEST_TIMEOUT_SECONDS = 5.0

_AUTO_CREATION_CAN_BE_REFUSED = 4  # from this version of Metadata on (MetadataRequest.json)
_NO_ERROR = 0
_REPLICA_NOT_AVAILABLE = 9  # a replica is offline; the ISR is true all the same


class ClusterPoller:
    """Asks for the ISR of the topics that `topics()` names, every `poll_seconds`, and hands it to `publish`.

    `publish` gets {(topic, partition): ids of the brokers in sync}; an empty mapping when nothing is known.
    `publish_under_min_isr` gets the partitions with fewer than `min.insync.replicas`, as far as they are known.
    `count` gets `ok` or `failed` for each poll. `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        config: Cluster,
        topics: Callable[[], Collection[str]],
        publish: Callable[[InSyncReplicas], None],
        publish_under_min_isr: Callable[[Partitions], None],
        log: EventLog,
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._topics = topics
        self._publish = publish
        self._publish_under_min_isr = publish_under_min_isr
        self._min_isr = MinInSyncReplicas(clock)
        self._min_isr_refused = ""
        self._log = log
        self._count = count
        self._connection: Any = None  # aiokafka has no types
        self._names_topics = True
        self._wake = asyncio.Event()
        self._failing = False

    def wake(self) -> None:
        """Poll now: other topics are throttled."""
        self._wake.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self.poll()
                except Exception as error:  # noqa: BLE001 - a bug in what takes the answer may not end it for good
                    self._log.error("cluster_poll_not_taken", error=repr(error), at=innermost_frame(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._config.poll_seconds)
        finally:
            self._disconnect()

    async def poll(self) -> None:
        """Ask once and publish; a cluster that does not answer is logged, counted and asked again next time."""
        topics = self._topics()
        if not topics:
            self._publish_nothing_known()
            return
        try:
            in_sync = await self._ask(topics)
        except Exception as error:  # noqa: BLE001 - on a malformed answer aiokafka raises almost anything
            self._disconnect()
            self._failed(error)
            return
        if self._failing:
            self._failing = False
            self._log.info("cluster_poll_recovered", topics=len(topics))
        self._count("ok")
        self._publish(in_sync)  # before the configuration is asked for: that answer may not come
        await self._learn_min_isr(topics)
        self._publish_under_min_isr(self._min_isr.under(in_sync))

    async def _learn_min_isr(self, topics: Collection[str]) -> None:
        try:
            await self._min_isr.refresh(self._connection, topics)
        except ConfigRefused as error:
            if str(error) != self._min_isr_refused:
                self._min_isr_refused = str(error)
                self._log.warning("min_isr_refused", peer=self._peers(), error=error, effect="it is taken for 0")
        except Exception as error:  # noqa: BLE001 - on a malformed answer aiokafka raises almost anything
            self._disconnect()
            self._log.fault(
                "min_isr_not_answered",
                peer=self._peers(),
                error=str(error) or type(error).__name__,
                effect="what was known of it stays",
            )

    def _publish_nothing_known(self) -> None:
        self._publish({})
        self._publish_under_min_isr(frozenset())

    def _peers(self) -> str:
        return ",".join(map(str, self._config.bootstrap_servers))

    def _failed(self, error: Exception) -> None:
        self._failing = True
        self._count("failed")
        self._log.fault(
            "cluster_poll_failed",
            peer=self._peers(),
            error=str(error) or type(error).__name__,
            effect="fetch offsets alone tell who is in sync",
        )
        # A stale ISR would exempt a replica that has fallen out of it since.
        self._publish_nothing_known()

    async def _ask(self, topics: Collection[str]) -> InSyncReplicas:
        if self._connection is None or not self._connection.connected():
            self._connection = await self._connect()
            # No topic is asked for here: the answer only tells the version that the broker speaks.
            version = (await self._connection.send(MetadataRequest([]))).API_VERSION
            self._names_topics = version >= _AUTO_CREATION_CAN_BE_REFUSED
        # Before v4, naming a topic that is not there may create it: then all are asked for.
        named = sorted(topics) if self._names_topics else None
        return in_sync_replicas(await self._connection.send(MetadataRequest(named, False)), topics)

    async def _connect(self) -> Any:
        failures = []
        for server in self._config.bootstrap_servers:
            try:
                return await create_conn(
                    server.host,
                    server.port,
                    client_id="weir",
                    request_timeout_ms=round(REQUEST_TIMEOUT_SECONDS * 1000),
                )
            except OSError as error:
                failures.append(f"{server}: {os_error_reason(error) or type(error).__name__}")
            except (KafkaError, EOFError) as error:
                failures.append(f"{server}: {error or type(error).__name__}")
        raise ConnectionError("; ".join(failures))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def in_sync_replicas(response: Any, topics: Collection[str]) -> InSyncReplicas:
    """Read the ISRs of `topics` from a Metadata response (v0 to v5); partitions with errors are not known."""
    in_sync: dict[tuple[bytes, int], frozenset[int]] = {}
    for topic in response.topics:
        error, name, partitions = topic[0], topic[1], topic[-1]
        if error != _NO_ERROR or name not in topics:
            continue
        for partition in partitions:
            error, number, _leader, _replicas, isr = partition[:5]
            if error in (_NO_ERROR, _REPLICA_NOT_AVAILABLE):
                in_sync[name.encode(), number] = frozenset(isr)
    return in_sync

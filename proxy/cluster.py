"""Polls the in-sync replicas of throttled topics from the cluster's metadata, and how few its configuration allows.

By the way it asks whether replicas that lag are assigned at all, where brokers are too old for proxy.topic_ids.

Imported only where `[cluster]` is configured: aiokafka costs memory. Without it, or while the cluster does not answer,
the wire alone decides who is in sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Int32

from proxy.config import Cluster
from proxy.log import EventLog, innermost_frame, os_error_reason
from proxy.min_isr import ConfigRefused, MinInSyncReplicas, Partitions
from quota.unassigned import Replicas, UnassignedReplicas

Told = dict[bytes, dict[int, Replicas | None]]
"""The replicas of topics, as `quota.unassigned` takes them."""

InSyncReplicas = Mapping[tuple[bytes, int], frozenset[int]]

REQUEST_TIMEOUT_SECONDS = 5.0

_AUTO_CREATION_CAN_BE_REFUSED = 4  # from this version of Metadata on (MetadataRequest.json)
_NO_ERROR = 0
_UNKNOWN_TOPIC_OR_PARTITION = 3
_REPLICA_NOT_AVAILABLE = 9  # a replica is offline; the ISR is true all the same
_PARTITIONS_PER_SLICE = 200  # decoded in about 1 ms; connections wait for no more than that


class ClusterPoller:
    """Asks for the ISR of the topics that `topics()` names, every `poll_seconds`, and hands it to `publish`.

    `publish` gets {(topic, partition): ids of the brokers in sync}; an empty mapping when nothing is known.
    `publish_under_min_isr` gets the partitions with fewer than `min.insync.replicas`, as far as they are known.
    `count` gets `ok` or `failed` for each poll. `clock` gives monotonic seconds. `lagging()` names replicas to ask for
    too; None while somebody else does.
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
        lagging: Callable[[], UnassignedReplicas | None] = lambda: None,
    ) -> None:
        self._config = config
        self._lagging = lagging
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
        lagging = self._lagging()
        told: Told = {}
        if lagging is not None:
            for _ in lagging.look():
                await asyncio.sleep(0)
            told = {topic: {} for topic in lagging.topics}
        if not topics and not told:
            self._publish_nothing_known()
            return
        try:
            in_sync = await self._ask(topics, told)
        except Exception as error:  # noqa: BLE001 - on a malformed answer aiokafka raises almost anything
            self._disconnect()
            self._failed(error)
            return
        if self._failing:
            self._failing = False
            self._log.info("cluster_poll_recovered", topics=len(topics))
        self._count("ok")
        self._publish(in_sync)  # before the configuration is asked for: that answer may not come
        if lagging is not None and told:
            await self._forget_unassigned(lagging, told)
        if not topics:
            return
        await self._learn_min_isr(topics)
        self._publish_under_min_isr(self._min_isr.under(in_sync))

    async def _forget_unassigned(self, lagging: UnassignedReplicas, told: Told) -> None:
        forgotten = 0
        for count in lagging.take(told):
            forgotten += count
            await asyncio.sleep(0)
        if forgotten:
            self._log.info("replicas_not_assigned", partitions=forgotten, effect="their lag is forgotten")

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

    async def _ask(self, topics: Collection[str], told: Told) -> InSyncReplicas:
        if self._connection is None or not self._connection.connected():
            self._connection = await self._connect()
            # No topic is asked for here: the answer only tells the version that the broker speaks.
            version = (await self._connection.send(MetadataRequest([]))).API_VERSION
            self._names_topics = version >= _AUTO_CREATION_CAN_BE_REFUSED
        # Before v4, naming a topic that is not there may create it: then all are asked for.
        named = sorted({*topics, *(name.decode("utf-8", "replace") for name in told)}) if self._names_topics else None
        schema, answer = await self._connection.send(_Undecoded(MetadataRequest(named, False)))
        return await in_sync_replicas(schema, answer, topics, told)

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


class _Undecoded:
    """A request of aiokafka to whose answer its connection gives the schema and the bytes: it would decode all at once.

    20,000 partitions would take it more than 100 ms, and every connection of this sidecar would wait.
    """

    def __init__(self, request: MetadataRequest) -> None:
        self._request = request

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request in the version that the broker speaks."""
        request: Any = self._request.prepare(versions)
        self._schema = request.RESPONSE_TYPE.SCHEMA
        request.RESPONSE_TYPE = self
        return request

    def decode(self, answer: BytesIO) -> tuple[Any, BytesIO]:
        """Return what is to be decoded, behind the response's header."""
        return self._schema, answer


async def in_sync_replicas(
    schema: Any, answer: BytesIO, topics: Collection[str], told: Told | None = None
) -> InSyncReplicas:
    """Read the ISRs of `topics` from a Metadata response (v0 to v5), letting the event loop run in between.

    Partitions with errors are not known. What it says of the topics in `told` is put there; one that has an error is
    taken out. Raises what aiokafka does on an answer that cannot be read, mostly ValueError.
    """
    in_sync: dict[tuple[bytes, int], frozenset[int]] = {}
    told = {} if told is None else told
    *before, topic_array = schema.fields
    knows_brokers = False
    for name, field in zip(schema.names, before, strict=False):
        value = field.decode(answer)
        knows_brokers |= name == "brokers" and bool(value)
    *head, partition_array = topic_array.array_of.fields
    read = 0
    for _ in range(Int32.decode(answer)):
        topic_error, name, *_ = [field.decode(answer) for field in head]
        is_wanted = topic_error == _NO_ERROR and name in topics
        replicas_of: dict[int, Replicas | None] | None = {} if (key := name.encode()) in told else None
        for _ in range(Int32.decode(answer)):
            error, number, leader, replicas, isr, *_ = partition_array.array_of.decode(answer)
            is_told = error in (_NO_ERROR, _REPLICA_NOT_AVAILABLE)
            if is_wanted and is_told:
                in_sync[name.encode(), number] = frozenset(isr)
            if replicas_of is not None:
                followers = frozenset(replicas) - {leader}
                replicas_of[number] = Replicas(leader, followers, frozenset(isr)) if is_told else None
            read += 1
            if read % _PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
        if replicas_of is not None:
            told[key] = replicas_of
            if topic_error not in (_NO_ERROR, _UNKNOWN_TOPIC_OR_PARTITION) or not (topic_error or replicas_of):
                del told[key]
    if not knows_brokers:  # it starts, and knows no topics either
        told.clear()
    return in_sync

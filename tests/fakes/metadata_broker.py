# SPDX-License-Identifier: Apache-2.0
"""A broker that answers ApiVersions and Metadata v10 to v12, made of kafka-python's codec, with faults as told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from tests.fakes.servers import serving
from weir.proxy.config.address import Address

Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
Partition = Topic.MetadataResponsePartition
Api = ApiVersionsResponse.ApiVersion
NO_UUID = UUID(int=0)

UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 3, 100


@dataclass(frozen=True)
class Question:
    """A Metadata request as the broker got it; `names` is None when it asks for all topics."""

    names: list[str] | None
    topic_ids: list[bytes]
    may_create: bool
    version: int


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class MetadataBroker:
    """`topics` is what the cluster has; `asked` what Metadata requests asked for."""

    topics: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    """What is answered for a topic in place of success."""
    replicas: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """Of topics' partitions."""
    partition_errors: dict[int, int] = field(default_factory=dict)
    leader: int = 1
    """Of every partition."""
    knows_brokers: bool = True
    peers: dict[int, str] = field(default_factory=dict)
    """The hosts of further brokers, by id."""
    newest_metadata: int = 13
    silent: bool = False
    """Reads, and answers nothing."""
    hangs_up: bool = False
    garbage: bytes | None = None
    """Sent in place of every answer."""
    released: asyncio.Event = field(default_factory=_set_event)
    """Answers Metadata while this is set."""
    asked: list[Question] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if self.hangs_up:
                    return
                answer = await self._answer(frame)
                if self.silent:
                    continue
                writer.write(len(answer).to_bytes(4) + answer if self.garbage is None else self.garbage)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._open.discard(writer)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def disconnect(self) -> None:
        """Close every connection, as a broker that is restarted."""
        for writer in self._open:
            writer.close()

    async def close(self) -> None:
        """Wait until every connection is closed, one that was just accepted too."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.disconnect()
        while self._open:  # noqa: ASYNC110 - of a few turns of the event loop
            await asyncio.sleep(0)

    async def _answer(self, frame: bytes) -> bytes:
        api_key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
        if api_key == 18:
            apis = [Api(api_key=3, min_version=0, max_version=self.newest_metadata)]
            return frame[4:8] + bytes(ApiVersionsResponse(version=0, api_keys=apis).encode(version=0))
        assert (api_key, 10 <= version <= self.newest_metadata) == (3, True)
        request = MetadataRequest.decode(frame, version=version, header=True)
        named = None if request.topics is None else [topic.name for topic in request.topics if topic.name is not None]
        ids = [topic.topic_id.bytes for topic in request.topics or () if topic.name is None]
        assert version >= 12 or not ids
        self.asked.append(Question(named, ids, request.allow_auto_topic_creation, version))
        await self.released.wait()
        by_name = [] if ids else self.topics if named is None else named  # as KafkaApis: ids alone, where there are any
        found = list(self._found(by_name, ids))
        hosts = {1: "127.0.0.1", **self.peers} if self.knows_brokers else {}
        brokers = [Broker(node_id=broker_id, host=host, port=self.port) for broker_id, host in hosts.items()]
        whole = MetadataResponse(version=version, brokers=brokers, topics=found)
        return frame[4:8] + b"\x00" + bytes(whole.encode(version=version))

    def _found(self, names: Iterable[str], topic_ids: Iterable[bytes]) -> Iterable[object]:
        for name in names:
            topic_id = self.topics.get(name)
            error = UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else self.errors.get(name, 0)
            uuid = NO_UUID if topic_id is None else UUID(bytes=topic_id)
            partitions = [] if error else [self._partition(*of) for of in self.replicas.get(name, {}).items()]
            yield Topic(error_code=error, name=name, topic_id=uuid, partitions=partitions)
        by_id = {topic_id: name for name, topic_id in self.topics.items()}
        for topic_id in topic_ids:
            error = 0 if topic_id in by_id else UNKNOWN_TOPIC_ID
            yield Topic(error_code=error, name=by_id.get(topic_id), topic_id=UUID(bytes=topic_id), partitions=[])

    def _partition(self, partition: int, replicas: list[int]) -> object:
        error = self.partition_errors.get(partition, 0)
        return Partition(
            error_code=error,
            partition_index=partition,
            leader_id=self.leader,
            leader_epoch=0,
            replica_nodes=replicas,
            isr_nodes=replicas[:1],
            offline_replicas=[],
        )


@asynccontextmanager
async def metadata_broker(**how: object) -> AsyncIterator[MetadataBroker]:
    """A broker on a free port of 127.0.0.1; `how` are fields of MetadataBroker."""
    broker = MetadataBroker(**how)  # type: ignore[arg-type]
    async with serving(broker.serve) as (_, broker.port):
        try:
            yield broker
        finally:
            await broker.close()

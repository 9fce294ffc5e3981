"""Asks one broker for the ids and names of topics, and for their replicas, over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from protocol.errors import FrameTooLarge, InvalidFrameSize
from protocol.header import SIZE
from protocol.metadata import (
    FIRST_METADATA_BY_ID,
    FIRST_METADATA_WITH_IDS,
    LAST_METADATA,
    METADATA,
    NO_ERROR,
    REPLICA_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    decode_api_versions,
    decode_assigned_followers,
    decode_metadata,
    encode_api_versions_request,
    encode_metadata_request,
)
from proxy.address import Address
from proxy.connect import connect
from quota.unassigned import Assignment, Replicas

MAX_ANSWER_BYTES = 32 * 2**20
CLIENT_ID = b"weir"

_TOPICS_PER_SLICE = 100  # decoded in about 0.5 ms; other connections wait for no more than that
_PARTITIONS_PER_SLICE = 100  # the same


class NoTopicIds(Exception):
    """The broker's Metadata has no topic ids: it is older than Kafka 2.8."""


class MetadataConnection:
    """Asks one question at a time. After an exception it is of no use any more: close it.

    It raises NoTopicIds, OSError, EOFError and ProtocolError. How long an answer may take is for the caller to limit.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0
        self._version = 0

    @classmethod
    async def open(cls, address: Address) -> MetadataConnection:
        """Connect, and agree on a version."""
        connection = cls(*await asyncio.open_connection(sock=await connect(address)))
        try:
            await connection._negotiate()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether either end has closed it."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def topic_names(self, names: Collection[bytes], topic_ids: Collection[bytes]) -> dict[bytes, bytes]:
        """Ask for topics by name (UTF-8) or by id; return the names by id of those that the broker knows.

        Where there are ids, a broker leaves the names out (KafkaApis.handleTopicMetadataRequest): ask for them apart.

        NO_ID stands among them for topics without one.
        """
        asked: Collection[bytes] | None = names
        if topic_ids and self._version < FIRST_METADATA_BY_ID:
            asked = None  # all topics: these versions cannot be asked for one by its id
        self._correlation_id += 1
        question = encode_metadata_request(self._version, self._correlation_id, CLIENT_ID, asked, topic_ids)
        answer = await self._ask(question)
        found = {}
        wanted_names, wanted_ids = frozenset(names), frozenset(topic_ids)
        for number, topic in enumerate(decode_metadata(answer, self._version, self._correlation_id), start=1):
            wanted = topic.name in wanted_names or topic.topic_id in wanted_ids
            if topic.error_code == NO_ERROR and wanted and topic.name:
                found[topic.topic_id] = topic.name
            if number % _TOPICS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def assignments(self, names: Collection[bytes]) -> Mapping[bytes, Assignment]:
        """Ask for the replicas of topics by name (UTF-8); returns those that the broker can tell of.

        A topic that does not exist has no partitions; a partition that the broker has an error for has None.
        """
        self._correlation_id += 1
        answer = await self._ask(encode_metadata_request(self._version, self._correlation_id, CLIENT_ID, names))
        found: dict[bytes, dict[int, Replicas | None]] = {}
        rows = decode_assigned_followers(answer, self._version, self._correlation_id)
        for number, row in enumerate(rows, start=1):
            if row.topic and row.topic_error == UNKNOWN_TOPIC_OR_PARTITION:
                found[row.topic] = {}
            elif row.topic and row.topic_error == NO_ERROR and row.partition >= 0:
                is_told = row.error_code in (NO_ERROR, REPLICA_NOT_AVAILABLE)
                replicas = Replicas(row.leader, row.followers, row.in_sync) if is_told else None
                found.setdefault(row.topic, {})[row.partition] = replicas
            if number % _PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def _negotiate(self) -> None:
        answer = await self._ask(encode_api_versions_request(self._correlation_id, CLIENT_ID))
        oldest, newest = decode_api_versions(answer, self._correlation_id).get(METADATA, (0, -1))
        self._version = min(newest, LAST_METADATA)
        if self._version < max(oldest, FIRST_METADATA_WITH_IDS):
            raise NoTopicIds

    async def _ask(self, question: bytes) -> bytes:
        self._writer.write(question)
        await self._writer.drain()
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        if size < SIZE.size:
            raise InvalidFrameSize(size)
        if size > MAX_ANSWER_BYTES:
            raise FrameTooLarge(size, MAX_ANSWER_BYTES)
        return await self._reader.readexactly(size)

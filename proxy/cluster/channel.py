"""Connections on which a broker is asked: the interface, and the implementation that needs no library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from weir.protocol.errors import FrameTooLarge, InvalidFrameSize
from weir.protocol.header import SIZE
from weir.protocol.metadata import (
    FIRST_METADATA,
    FIRST_METADATA_WITH_IDS,
    LAST_CLASSIC_METADATA,
    LAST_METADATA,
    METADATA,
    decode_api_versions,
    encode_api_versions_request,
)
from weir.proxy.config.address import Address
from weir.proxy.relay.connect import connect

MAX_ANSWER_BYTES = 32 * 2**20
CLIENT_ID = b"weir"


class NotSupported(Exception):
    """The broker has no version of a request that is known here; `str()` says of which."""

    def __init__(self, request: str) -> None:
        super().__init__(f"the broker has no version of {request} that is known here")


class NoTopicIds(NotSupported):
    """The broker's Metadata has no topic ids, as it is older than Kafka 2.8."""

    def __init__(self) -> None:
        super().__init__("Metadata with topic ids")


class Response(NamedTuple):
    """A whole response without its size prefix, and the correlation id that it must have."""

    frame: bytes
    correlation_id: int


class Channel(Protocol):
    """Sends one request at a time. After an exception it can't be used any more, and has to be closed.

    It raises OSError, EOFError and ProtocolError. It has no time-out of its own: set one around it.
    """

    metadata_version: int
    """The version in which to send Metadata requests."""
    moved: int
    """Bytes sent and received so far."""

    @property
    def closed(self) -> bool:
        """Whether either end has closed the connection."""

    def close(self) -> None:
        """Close the connection at once."""

    async def ask(self, question: Callable[[int], bytes]) -> Response:
        """Send the request that `question` makes for a correlation id, size included. Returns the response."""


_Opened = TypeVar("_Opened", bound=Channel)


async def versions_of(channel: Channel) -> dict[int, tuple[int, int]]:
    """Ask the broker for its oldest and newest version of each request, by api_key."""
    answer = await channel.ask(lambda correlation_id: encode_api_versions_request(correlation_id, CLIENT_ID))
    return decode_api_versions(*answer)


async def agreed(channel: _Opened, least: int, lacks: Exception) -> _Opened:
    """Agree on the version of Metadata, and return the channel. Raises `lacks` where there is none from `least` on."""
    try:
        version = metadata_version(*(await versions_of(channel)).get(METADATA, (0, -1)))
        if version is None or version < least:
            raise lacks
        channel.metadata_version = version
    except BaseException:
        channel.close()
        raise
    return channel


def metadata_version(oldest: int, newest: int) -> int | None:
    """Return the version to use for Metadata, if possible one with topic ids; None where there is none."""
    if newest >= FIRST_METADATA_WITH_IDS and oldest <= LAST_METADATA:
        return min(newest, LAST_METADATA)
    version = min(newest, LAST_CLASSIC_METADATA)
    return version if version >= max(oldest, FIRST_METADATA) else None


class PlainChannel:
    """A `Channel` over plaintext, without authentication, to a broker that has topic ids.

    It uses the listener of the replicas. Older brokers are not asked over it: below Metadata v4 a request may create
    topics.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.metadata_version = 0
        self.moved = 0
        self._reader = reader
        self._writer = writer
        self._correlation_id = -1

    @classmethod
    async def open(cls, address: Address) -> PlainChannel:
        """Connect, and agree on a version. Raises NoTopicIds too."""
        channel = cls(*await asyncio.open_connection(sock=await connect(address)))
        return await agreed(channel, FIRST_METADATA_WITH_IDS, NoTopicIds())

    @property
    def closed(self) -> bool:
        """Whether either end has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def ask(self, question: Callable[[int], bytes]) -> Response:
        """Send the request that `question` makes for a correlation id. Returns the response."""
        self._correlation_id += 1
        request = question(self._correlation_id)
        self._writer.write(request)
        await self._writer.drain()
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        if size < SIZE.size:
            raise InvalidFrameSize(size)
        if size > MAX_ANSWER_BYTES:
            raise FrameTooLarge(size, MAX_ANSWER_BYTES)
        frame = await self._reader.readexactly(size)
        self.moved += len(request) + SIZE.size + size
        return Response(frame, self._correlation_id)

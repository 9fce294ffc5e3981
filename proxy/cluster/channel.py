# SPDX-License-Identifier: Apache-2.0
"""Connections on which brokers are asked, the implementation that needs no library, and why a broker did not answer."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Final, NamedTuple, Protocol, TypeVar

from weir.access.tls_contexts import client_context
from weir.protocol.errors import FrameTooLarge, InvalidFrameSize, ProtocolError
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
from weir.proxy.log import os_error_reason
from weir.proxy.relay.transport import connect

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

    metadata_version: int = 0
    """The version in which to send Metadata requests, once it is agreed on."""
    moved: int = 0
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


class PlainChannel(Channel):
    """A `Channel` over plaintext, without authentication, to a broker that has topic ids.

    It uses the listener of the replicas. Older brokers are not asked over it: below Metadata v4 a request may create
    topics.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()

    async def ask(self, question: Callable[[int], bytes]) -> Response:
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


SOON_SECONDS = 1.0
QUESTION_TIMEOUT_SECONDS = 5.0

_FAILURES: Final = (OSError, EOFError, ProtocolError)  # TimeoutError is an OSError

_Answer = TypeVar("_Answer")


class NotAnswered(ConnectionError):
    """A broker does not answer; `str()` says why. `is_late`: it may be that it answers later."""

    def __init__(self, reason: str, *, is_late: bool) -> None:
        super().__init__(reason)
        self.is_late = is_late


class BrokerConnections:
    """One connection to each broker that is asked. `servers` know the same, so any of them may be asked.

    The server that answered last is asked first. One that hangs keeps the others from being asked for SOON_SECONDS
    only. Where none answers so soon, those that hang are asked once more, and have QUESTION_TIMEOUT_SECONDS each.
    """

    def __init__(self, servers: Sequence[Address], open_channel: Callable[[Address], Awaitable[Channel]]) -> None:
        self._servers = deque(servers)
        self._open_channel = open_channel
        self._channels: dict[Address, Channel] = {}
        self._moved_before = 0  # bytes of channels that were closed

    @property
    def server(self) -> Address:
        """The server that is asked first."""
        return self._servers[0]

    @property
    def servers(self) -> str:
        """All servers, as shown in the log."""
        return ",".join(sorted(map(str, self._servers)))

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""
        return self._moved_before + sum(channel.moved for channel in self._channels.values())

    async def ask_any(self, question: Callable[[Channel], Awaitable[_Answer]]) -> _Answer:
        """Return the first server's answer. Raises NoTopicIds where one is without, else NotAnswered that names all."""
        failures: dict[Address, str] = {}
        without_ids: NoTopicIds | None = None
        late = list(self._servers)
        for seconds in (SOON_SECONDS, QUESTION_TIMEOUT_SECONDS) if len(late) > 1 else (QUESTION_TIMEOUT_SECONDS,):
            asked, late = late, []
            for server in asked:
                try:
                    answer = await self.ask(server, question, seconds)
                except NotAnswered as error:
                    failures[server] = str(error)
                    if error.is_late:
                        late.append(server)
                except NoTopicIds as error:
                    without_ids = error
                else:
                    self._servers.rotate(-self._servers.index(server))
                    return answer
        if without_ids is not None:
            raise without_ids
        reasons = "; ".join(f"{server}: {reason}" for server, reason in failures.items())
        raise NotAnswered(reasons, is_late=False)

    async def ask(
        self, address: Address, question: Callable[[Channel], Awaitable[_Answer]], seconds: float | None = None
    ) -> _Answer:
        """Return a broker's answer. Raises NotAnswered after `seconds` or QUESTION_TIMEOUT_SECONDS, or NotSupported."""
        seconds = QUESTION_TIMEOUT_SECONDS if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await question(await self._channel(address))
        except NotSupported:
            raise
        except BaseException as error:  # on this connection the answer might come late, to another question
            self._close(address)
            if isinstance(error, _FAILURES):
                raise NotAnswered(_reason_of(error, seconds), is_late=isinstance(error, TimeoutError)) from error
            raise

    def close(self) -> None:
        """Close all connections. The next question opens another one."""
        for address in list(self._channels):
            self._close(address)

    async def _channel(self, address: Address) -> Channel:
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            self._close(address)
            channel = self._channels[address] = await self._open_channel(address)
        return channel

    def _close(self, address: Address) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._moved_before += channel.moved
            channel.close()


def _reason_of(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, EOFError):
        return "closed the connection without an answer"
    reason = os_error_reason(error) if isinstance(error, OSError) else ""
    return reason or str(error) or type(error).__name__


@cache
def _greeting() -> ssl.SSLContext:
    # No data is sent, so it does not matter who answers.
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def answers_tls(address: Address) -> bool:
    """Whether what listens there speaks TLS. Raises OSError where nothing does."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=_greeting())
    except (ssl.SSLEOFError, ConnectionResetError):
        return False
    except ssl.SSLError:
        return True  # it refuses this client, but in TLS
    writer.transport.abort()
    return True

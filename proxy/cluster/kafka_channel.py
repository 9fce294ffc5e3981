# SPDX-License-Identifier: Apache-2.0
"""A channel over aiokafka's connections, which `[cluster]` uses.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import IncompatibleBrokerVersion, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from weir.access.refusals import authentication_refused
from weir.protocol.errors import FrameTooLarge
from weir.protocol.header import SIZE
from weir.protocol.metadata import FIRST_METADATA
from weir.proxy.cluster.channel import CLIENT_ID, MAX_ANSWER_BYTES, Channel, Response, agreed
from weir.proxy.config.address import Address
from weir.proxy.log import os_error_reason

REQUEST_TIMEOUT_SECONDS = 5.0


class KafkaChannel(Channel):
    """A `Channel` that also sends aiokafka's own requests."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # aiokafka has no types

    @classmethod
    async def open(cls, address: Address, options: Mapping[str, Any] | None = None) -> KafkaChannel:
        """Connect, and agree on a version. `options` are those of SASL and TLS. Raises OSError."""
        lacks = ConnectionError("the broker has no version of Metadata that is known here")
        return await agreed(cls(await _connected(address, options or {})), FIRST_METADATA, lacks)

    @property
    def closed(self) -> bool:
        return not self._connection.connected()

    def close(self) -> None:
        self._connection.close()

    async def ask(self, question: Callable[[int], bytes]) -> Response:
        sent = _Request(lambda correlation_id, _: question(correlation_id))
        frame = await _answered(lambda: self._connection.send(sent))
        self.moved += sent.size + SIZE.size + len(frame)
        if len(frame) > MAX_ANSWER_BYTES:
            raise FrameTooLarge(len(frame), MAX_ANSWER_BYTES)
        return Response(frame, sent.correlation_id)

    async def send(self, request: Any) -> Any:
        """Send one of aiokafka's own requests. Returns its response.

        Raises IncompatibleBrokerVersion or NotImplementedError where broker and aiokafka have no version in common.
        """
        prepared: Any = None

        def made(correlation_id: int, versions: Mapping[int, tuple[int, int]]) -> bytes:
            nonlocal prepared
            prepared = request.prepare(versions)
            header = prepared.build_request_header(correlation_id=correlation_id, client_id=CLIENT_ID.decode())
            encoded: bytes = header.encode() + prepared.encode()
            return SIZE.pack(len(encoded)) + encoded

        async def decoded() -> Any:
            answer = BytesIO(await self._connection.send(sent))
            self.moved += sent.size + SIZE.size + len(answer.getbuffer())
            prepared.parse_response_header(answer)
            return prepared.RESPONSE_TYPE.decode(answer)

        sent = _Request(made)
        return await _answered(decoded)


async def _connected(address: Address, options: Mapping[str, Any]) -> Any:
    try:
        return await _answered(
            lambda: create_conn(
                address.host,
                address.port,
                client_id=CLIENT_ID.decode(),
                request_timeout_ms=round(REQUEST_TIMEOUT_SECONDS * 1000),
                **options,
            )
        )
    except ConnectionError as error:
        cause = error.__cause__
        if isinstance(cause, (SaslAuthenticationFailed, UnsupportedSaslMechanismError)):
            said = [reason for reason in cause.args if isinstance(reason, str)]
            raise ConnectionError(authentication_refused(options, "".join(said[:1]))) from error
        raise


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Await a result of aiokafka. Whatever it raises for a malformed response becomes an OSError.

    So does what `ask` itself raises on a connection that has just been closed.
    """
    try:
        return await ask()
    except (IncompatibleBrokerVersion, NotImplementedError, TimeoutError):
        raise
    except OSError as error:
        raise ConnectionError(os_error_reason(error) or str(error) or type(error).__name__) from error
    except Exception as error:  # almost anything can come
        raise ConnectionError(str(error) or type(error).__name__) from error


class _Request:
    """A request that `make` encodes, for a correlation id and the broker's versions, as aiokafka's connection takes it.

    It keeps aiokafka from decoding the response.

    Decoding 20,000 partitions in one go would take more than 100 ms, and every connection of this sidecar would wait.
    """

    def __init__(self, make: Callable[[int, Mapping[int, tuple[int, int]]], bytes]) -> None:
        self.size = 0
        self.correlation_id = 0
        self.RESPONSE_TYPE = self
        self._make = make
        self._versions: Mapping[int, tuple[int, int]] = {}

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> _Request:
        self._versions = versions
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> SimpleNamespace:
        request = self._make(correlation_id, self._versions)
        self.size, self.correlation_id = len(request), correlation_id
        return SimpleNamespace(encode=lambda: request[SIZE.size :])

    def encode(self) -> bytes:
        return b""  # everything is in the header

    def parse_response_header(self, answer: BytesIO) -> SimpleNamespace:
        return SimpleNamespace(correlation_id=int.from_bytes(answer.getbuffer()[: SIZE.size]))

    def decode(self, answer: BytesIO) -> bytes:
        return answer.getvalue()

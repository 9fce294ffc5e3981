"""The stream of requests: which pass, which the broker will answer, and which Fetch requests are collected.

Only a request's first bytes are held back until it is known what it is; it then streams at any size.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from protocol.errors import FrameTooLarge, ProtocolError
from protocol.fetch_versions import DECODED_VERSIONS
from protocol.frame_stream import FrameStream
from protocol.header import FETCH, SASL_HANDSHAKE, SIZE, RequestHeader
from protocol.request_head import Head, RequestHead, read_request_head
from protocol.response_scanner import Buffer

DEFAULT_FETCH_SIZE_LIMIT: Final = 100 * 2**20
"""Kafka's default socket.request.max.bytes, for the Fetch requests that are collected."""

LARGEST_API_KEY: Final = 200
"""No Kafka release has a key above 100: a first frame with a larger one is not Kafka's protocol."""

_SIZE_AND_KEY: Final = struct.Struct(">ih")
_TLS_HANDSHAKE: Final = b"\x16\x03"  # TLSPlaintext: ContentType handshake, major version 3 (RFC 8446, 5.1)

OpaqueReason = Literal["tls", "sasl", "not_kafka"]


class Pass(NamedTuple):
    """Bytes to forward as they are."""

    buffer: Buffer


class Expect(NamedTuple):
    """The broker will answer the request whose bytes follow: every one but a Produce with acks=0."""

    api_key: int
    api_version: int
    correlation_id: int


class ReplicaFetch(NamedTuple):
    """A whole Fetch request of a replica, without its size prefix; it was not passed.

    `header.client_id` is not read here: always None.
    """

    header: RequestHeader
    frame: bytes


class Undecoded(NamedTuple):
    """A replica's Fetch request passes although it should be decoded, for its version is not one that is.

    `replica_id` is None from v15 on, where it is a tag behind the topics: such a request may be a consumer's.
    """

    reason: Literal["fetch_version"]
    api_version: int
    replica_id: int | None


class BecameOpaque(NamedTuple):
    """From here on every byte passes, in this direction at once and in the other when all answers due have come."""

    reason: OpaqueReason


RequestEvent: TypeAlias = Pass | Expect | ReplicaFetch | Undecoded | BecameOpaque


def decodes_replicas(replica_id: int, api_version: int) -> bool:
    """Whether to collect a Fetch request: a replica's (consumers have replica_id -1), in a version that is decoded."""
    return replica_id >= 0 and api_version in DECODED_VERSIONS


class RequestStream(FrameStream):
    """One connection's requests, from follower or client to broker.

    Feed `receive` with what arrives and carry its events out in order.
    `fetch_size_limit` is in bytes, the size prefix left out, and counts only for requests that are collected.
    `decode_fetch(replica_id, api_version)` chooses those; it may be replaced at any time.
    """

    __slots__ = ("_first", "_frame", "_header", "_needed", "consumed", "decode_fetch", "fetch_size_limit")

    def __init__(
        self,
        fetch_size_limit: int = DEFAULT_FETCH_SIZE_LIMIT,
        decode_fetch: Callable[[int, int], bool] = decodes_replicas,
    ) -> None:
        super().__init__()
        self.fetch_size_limit = fetch_size_limit
        self.decode_fetch = decode_fetch
        self.consumed = 0
        """Bytes of the view that were taken when the last ReplicaFetch was given out."""
        self._first = True
        self._needed = 0  # bytes to hold back before the request's head can be read any further
        self._header: RequestHeader | None = None  # of the request that is collected
        self._frame = bytearray()  # what was collected of it, size prefix included

    @property
    def missing(self) -> int:
        """Bytes of the current request that are still to come, as far as that is known; 0 between requests."""
        return self._left or (self._needed - len(self._head) if self._head else 0)

    @property
    def passing(self) -> int:
        """Bytes of the current request that are still to come and will all pass."""
        return self._left if self._header is None else 0

    @property
    def collected(self) -> int:
        """Bytes kept of a request that is being collected."""
        return len(self._frame)

    def skip(self, size: int) -> bool:
        """Whether the next `size` bytes pass without an event. If so they count as received: the fast path."""
        if self.opaque:
            return True
        if size <= self._left and self._header is None:
            self._left -= size
            return True
        return False

    def receive(self, view: memoryview) -> Iterator[RequestEvent]:
        """Take the next bytes received; the events' buffers are slices of `view` wherever possible.

        The caller may stop after a ReplicaFetch and give `view[consumed:]` again later; else it takes every event.
        Raises InvalidFrameSize, MalformedFrame, FrameTooLarge, after the events of all that came before that request.
        """
        size = len(view)
        start = at = 0  # view[start:at] is to pass and was not given out yet
        try:
            while at < size:
                if self.opaque:
                    at = size
                elif self._left:
                    step = min(self._left, size - at)
                    at += step
                    self._left -= step
                    if self._header is not None:
                        self._frame += view[start:at]
                        start = at
                        if not self._left:
                            self.consumed = at
                            yield self._take_fetch()
                elif self._head:
                    at = start = yield from self._complete_head(view, at)
                else:
                    head = self._read_head(view[at:])
                    if isinstance(head, int):
                        self._needed = head
                        self._head += view[at:]
                        size = at
                    else:
                        yield from self._begin(head)
                        if self._header is not None and start < at:
                            yield Pass(view[start:at])
                            start = at
        except ProtocolError:
            if start < at:
                yield Pass(view[start:at])
            raise
        if start < at:
            yield Pass(view[start:at])

    def _complete_head(self, view: memoryview, at: int) -> Generator[RequestEvent, None, int]:
        """Add to the bytes held back until they say what the request is; returns the offset behind what was taken."""
        at = self._hold(view, at, self._needed)
        held = self._head
        if len(held) < self._needed:
            return at
        head = self._read_head(held)
        if isinstance(head, int):
            self._needed = head
            return at
        yield from self._begin(head)
        self._head = bytearray()
        if self._header is not None:
            self._left -= len(held)
            self._frame = held
            if not self._left:
                self.consumed = at
                yield self._take_fetch()
        else:
            if not self.opaque:
                self._left -= len(held)
            yield Pass(bytes(held))
        return at

    def _read_head(self, head: Head) -> RequestHead | OpaqueReason | int:
        if self._first:
            if len(head) < len(_TLS_HANDSHAKE):
                return len(_TLS_HANDSHAKE)
            if head[: len(_TLS_HANDSHAKE)] == _TLS_HANDSHAKE:
                return "tls"
            if len(head) >= _SIZE_AND_KEY.size:
                size, api_key = _SIZE_AND_KEY.unpack_from(head)
                if size > 0 and not 0 <= api_key <= LARGEST_API_KEY:
                    return "not_kafka"
        return read_request_head(head)

    def _begin(self, head: RequestHead | OpaqueReason) -> Iterator[RequestEvent]:
        """Give out what has to be known before the request's first byte passes."""
        self._first = False
        if isinstance(head, str):
            self.opaque = True
            yield BecameOpaque(head)
            return
        frame_size, api_key, api_version, correlation_id, expects_response, replica_id = head
        if replica_id is not None and self.decode_fetch(replica_id, api_version):
            if frame_size - SIZE.size > self.fetch_size_limit:
                raise FrameTooLarge(frame_size - SIZE.size, self.fetch_size_limit)
            self._left = frame_size
            self._header = RequestHeader(api_key, api_version, correlation_id, None)
            return
        if api_key == FETCH and api_version not in DECODED_VERSIONS and (replica_id is None or replica_id >= 0):
            yield Undecoded("fetch_version", api_version, replica_id)
        self._left = frame_size
        if expects_response:
            yield Expect(api_key, api_version, correlation_id)
        if api_key == SASL_HANDSHAKE and api_version == 0:
            # Tokens without any header follow, for as long as the mechanism likes (KIP-152 ended that with v1).
            self.opaque = True
            yield BecameOpaque("sasl")

    def _take_fetch(self) -> ReplicaFetch:
        header = self._header
        assert header is not None  # noqa: S101
        frame, self._frame, self._header = self._frame, bytearray(), None
        with memoryview(frame) as whole:
            return ReplicaFetch(header, bytes(whole[SIZE.size :]))

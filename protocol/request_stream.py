"""The stream of requests: which pass, which the broker will answer, and which Fetch requests are collected.

Only a request's first bytes are held back until it is known what it is; it then streams at any size. A Fetch request
of v15 or above says only at its end who sent it, so it is collected whole before it is known what it is.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from protocol.errors import MalformedFrame, ProtocolError, TooMany
from protocol.fetch_request import FetchRequest, fetch_request_steps, replica_id_at_end, replica_id_steps
from protocol.fetch_versions import DECODED_VERSIONS, FETCH_VERSIONS
from protocol.frame_stream import FrameStream
from protocol.header import FETCH, SASL_HANDSHAKE, SIZE, RequestHeader
from protocol.request_head import Head, RequestHead, read_request_head
from protocol.response_scanner import Buffer
from protocol.steps import Steps, T, at_once

DEFAULT_FETCH_SIZE_LIMIT: Final = 16 * 2**20
"""Bytes of a Fetch request that is collected: 200,000 partitions of v18 have room in it, one in each topic."""

LARGEST_API_KEY: Final = 200
"""No Kafka release has a key above 100: a first frame with a larger one is not Kafka's protocol."""

_SHORT_HEAD: Final = 1024
"""Bytes that nearly every request's head fits into: client ids and transactional ids are short."""

_SHORT_FRAME: Final = 2**14  # bytes: reading a Fetch request of this size is nothing to be done in steps

_SIZE_AND_KEY: Final = struct.Struct(">ih")
_TLS_HANDSHAKE: Final = b"\x16\x03"  # TLSPlaintext: ContentType handshake, major version 3 (RFC 8446, 5.1)

_VERSIONS_WITH_REPLICA_STATE: Final = frozenset(
    version for version, row in FETCH_VERSIONS.items() if row.has_replica_state
)

OpaqueReason = Literal["tls", "sasl", "not_kafka"]

UndecodedReason = Literal[
    "fetch_version", "fetch_too_large", "fetch_malformed", "too_many_topics", "too_many_partitions"
]


class Pass(NamedTuple):
    """Bytes to forward as they are."""

    buffer: Buffer


class Expect(NamedTuple):
    """The broker will answer the request whose bytes follow: every one but a Produce with acks=0."""

    api_key: int
    api_version: int
    correlation_id: int


class RequestBegins(NamedTuple):
    """A request for which `RequestStream.may_hold` said yes; nothing of it was passed yet.

    The caller that does not want it to pass now stops here. When it goes on, the request passes.
    """

    head: RequestHead


@dataclass(frozen=True, slots=True)
class ReplicaFetch:
    """A whole Fetch request of a replica, without its size prefix; it was not passed.

    `header.client_id` is not read here: always None. `request` is what the frame says, or why it says nothing; None
    where nobody has decoded it yet.
    """

    header: RequestHeader
    frame: bytes
    request: FetchRequest | ProtocolError | None = field(default=None, compare=False, repr=False)


class PartDecoded(NamedTuple):
    """A part of a large Fetch request is decoded. The caller may stop here, and go on when others had their turn."""


class Undecoded(NamedTuple):
    """A Fetch request that is a replica's, or may be one, passes.

    `fetch_version`: its version is not one that is decoded. `fetch_too_large`: it is above the limit. Where
    `replica_id` is None it is not known, and the request may be a consumer's. The other reasons are of v15 or above:
    `fetch_malformed`, its lengths do not add up to where the replica id would stand; `too_many_topics` and
    `too_many_partitions`, it lists more than is decoded.
    """

    reason: UndecodedReason
    api_version: int
    replica_id: int | None


class BecameOpaque(NamedTuple):
    """From here on every byte passes, in this direction at once and in the other when all answers due have come."""

    reason: OpaqueReason


RequestEvent: TypeAlias = Pass | Expect | RequestBegins | PartDecoded | ReplicaFetch | Undecoded | BecameOpaque


def decodes_replicas(replica_id: int, api_version: int) -> bool:
    """Whether to collect a Fetch request: a replica's (consumers have replica_id -1), in a version that is decoded."""
    return replica_id >= 0 and api_version in DECODED_VERSIONS


class RequestStream(FrameStream):
    """One connection's requests, from follower or client to broker.

    Feed `receive` with what arrives and carry its events out in order.
    `decode_fetch(replica_id, api_version)` chooses the Fetch requests that become a ReplicaFetch; it may be replaced at
    any time. `fetch_size_limit` is in bytes, the size prefix left out, and counts only for requests that are collected.
    `may_hold(head)` chooses, among all others, the requests that the caller is asked about before they pass.

    A malformed request is refused only where it is certain that it was to be decoded, and a ReplicaFetch may turn out
    malformed when it is. A request of v15 or above that does not let itself be read up to its replica id passes: it may
    be a consumer's, and the broker is left to judge. One above the limit passes in any version.
    """

    __slots__ = (
        "_collecting",
        "_first",
        "_frame",
        "_needed",
        "_waiting",
        "consumed",
        "decode_fetch",
        "fetch_size_limit",
        "may_hold",
    )

    def __init__(
        self,
        fetch_size_limit: int = DEFAULT_FETCH_SIZE_LIMIT,
        decode_fetch: Callable[[int, int], bool] = decodes_replicas,
    ) -> None:
        super().__init__()
        self.fetch_size_limit = fetch_size_limit
        self.decode_fetch = decode_fetch
        self.may_hold: Callable[[RequestHead], bool] | None = None
        self.consumed = 0
        """Bytes of the view that were taken when the last event was given out at which the caller may stop."""
        self._first = True
        self._waiting: Iterator[RequestEvent] | None = None  # what is to be given out of a request, if not all was
        self._needed = 0  # bytes to hold back before the request's head can be read any further
        self._collecting: RequestHead | None = None  # the request that is collected
        self._frame = bytearray()  # what was collected of it, size prefix included

    @property
    def missing(self) -> int:
        """Bytes of the current request that are still to come, as far as that is known; 0 between requests."""
        return self._left or (self._needed - len(self._head) if self._head else 0)

    @property
    def passing(self) -> int:
        """Bytes of the current request that are still to come and will all pass."""
        return self._left if self._collecting is None else 0

    @property
    def collected(self) -> int:
        """Bytes kept of a request that is being collected, or whose head is long."""
        held = len(self._head)
        return len(self._frame) + (held if held > _SHORT_HEAD else 0)

    def skip(self, size: int) -> bool:
        """Whether the next `size` bytes pass without an event. If so they count as received: the fast path."""
        if self.opaque:
            return True
        if size <= self._left and self._collecting is None and self._waiting is None:
            self._left -= size
            return True
        return False

    def receive(self, view: memoryview) -> Iterator[RequestEvent]:
        """Take the next bytes received; the events' buffers are slices of `view` wherever possible.

        The caller may stop after a ReplicaFetch, PartDecoded or RequestBegins, and give `view[consumed:]` later, even
        if that is empty; else it takes every event. Raises InvalidFrameSize and MalformedFrame, after the events of
        all that came before that request.
        """
        if self._waiting is not None:
            yield from self._go_on()
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
                    if self._collecting is not None:
                        self._frame += view[start:at]
                        start = at
                        if not self._left:
                            self.consumed = at
                            self._waiting = self._finish()
                            yield from self._go_on()
                elif self._head:
                    self.consumed = at = start = self._complete_head(view, at)
                    if self._waiting is not None:
                        yield from self._go_on()
                else:
                    head = self._read_head(view[at:])
                    if isinstance(head, int):
                        self._needed = head
                        self._head += view[at:]
                        size = at
                    elif self.may_hold is None:
                        yield from self._begin(head, view[at:])
                        if self._collecting is not None and start < at:
                            yield Pass(view[start:at])
                            start = at
                    else:
                        if start < at:
                            yield Pass(view[start:at])
                            start = at
                        self.consumed = at
                        self._waiting = self._begin(head, view[at:])
                        yield from self._go_on()
        except ProtocolError:
            if start < at:
                yield Pass(view[start:at])
            raise
        if start < at:
            yield Pass(view[start:at])

    def drop(self) -> None:
        """Forget the request at which the caller stopped: it is as if it had never come."""
        self._waiting = self._collecting = None
        self._head, self._frame, self._left = bytearray(), bytearray(), 0

    def _go_on(self) -> Iterator[RequestEvent]:
        """Give out what is to be known of a request. Where the caller stops, the rest waits for the next time."""
        assert self._waiting is not None  # noqa: S101
        for event in self._waiting:  # noqa: UP028 - "yield from" would end it with the caller
            yield event
        self._waiting = None

    def _complete_head(self, view: memoryview, at: int) -> int:
        """Add to the bytes held back until they say what the request is; returns the offset behind what was taken."""
        wanted = self._needed
        if len(self._head) >= SIZE.size:  # a few bytes more, or each of its fields could have all read anew
            wanted = max(wanted, min(SIZE.size + SIZE.unpack_from(self._head)[0], _SHORT_HEAD))
        at = self._hold(view, at, wanted)
        if len(self._head) >= self._needed:
            head = self._read_head(self._head)
            if isinstance(head, int):
                self._needed = head
            else:
                self._waiting = self._begin_held(head)
        return at

    def _begin_held(self, head: RequestHead | OpaqueReason) -> Iterator[RequestEvent]:
        """Give out a request whose first bytes were held back."""
        held = self._head
        yield from self._begin(head, held)
        self._head = bytearray()
        if self._collecting is not None:
            self._left -= len(held)
            self._frame = held
            if not self._left:
                yield from self._finish()
        else:
            if not self.opaque:
                self._left -= len(held)
            yield Pass(bytes(held))

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

    def _begin(self, head: RequestHead | OpaqueReason, frame: Head) -> Iterator[RequestEvent]:
        """Give out what has to be known before the request's first byte passes; `frame` is what is there of it."""
        self._first = False
        if isinstance(head, str):
            self.opaque = True
            yield BecameOpaque(head)
            return
        frame_size, api_key, api_version, _, _, replica_id = head
        is_too_large = frame_size - SIZE.size > self.fetch_size_limit
        reason: UndecodedReason | None = None
        if api_key == FETCH and api_version in _VERSIONS_WITH_REPLICA_STATE:
            if is_too_large:
                reason = "fetch_too_large"
            elif (
                len(frame) < frame_size or frame_size > _SHORT_FRAME or replica_id_at_end(frame, frame_size) is not None
            ):
                self._left = frame_size
                self._collecting = head
                return
            else:
                replica_id, reason = at_once(_sender_of(bytes(frame[SIZE.size : frame_size])))
        is_decoded = replica_id is not None and self.decode_fetch(replica_id, api_version)
        if is_decoded and is_too_large:
            reason = "fetch_too_large"
        if is_decoded and not is_too_large:
            self._left = frame_size
            self._collecting = head._replace(replica_id=replica_id)
        else:
            self._left = frame_size
            yield from self._announce(head, replica_id, reason)

    def _announce(
        self, head: RequestHead, replica_id: int | None, reason: UndecodedReason | None
    ) -> Iterator[RequestEvent]:
        """Give out what has to be known of a request that passes."""
        if self.may_hold is not None and self.may_hold(head):
            yield RequestBegins(head)
        _, api_key, api_version, correlation_id, expects_response, _ = head
        if api_key == FETCH:
            if reason is None and api_version not in DECODED_VERSIONS and (replica_id is None or replica_id >= 0):
                reason = "fetch_version"
            if reason is not None:
                yield Undecoded(reason, api_version, replica_id)
        if expects_response:
            yield Expect(api_key, api_version, correlation_id)
        if api_key == SASL_HANDSHAKE and api_version == 0:
            # Tokens without any header follow, for as long as the mechanism likes (KIP-152 ended that with v1).
            self.opaque = True
            yield BecameOpaque("sasl")

    def _finish(self) -> Iterator[RequestEvent]:
        """Give out the request that was collected."""
        head = self._collecting
        assert head is not None  # noqa: S101
        self._collecting = None
        with memoryview(self._frame) as view:
            frame = bytes(view[SIZE.size :])
        replica_id: int | None
        request: FetchRequest | ProtocolError | None = None
        reason: UndecodedReason | None = None
        if head.replica_id is not None:
            replica_id, is_wanted = head.replica_id, True
        else:
            replica_id = replica_id_at_end(frame, len(frame))
            is_wanted = replica_id is not None and self.decode_fetch(replica_id, head.api_version)
        if is_wanted:
            request = yield from _in_parts(_decoded(frame))
        if head.replica_id is None and (replica_id is None or isinstance(request, ProtocolError)):
            request = None  # what is wrong may stand behind the sender, or only look like one
            replica_id, reason = yield from _in_parts(_sender_of(frame))
            is_wanted = replica_id is not None and self.decode_fetch(replica_id, head.api_version)
        elif isinstance(request, FetchRequest) and request.replica_id != replica_id:
            is_wanted = self.decode_fetch(request.replica_id, head.api_version)
        self._frame = bytearray()
        if is_wanted:
            yield ReplicaFetch(RequestHeader(head.api_key, head.api_version, head.correlation_id, None), frame, request)
        else:
            yield from self._announce(head, replica_id, reason)
            yield Pass(SIZE.pack(len(frame)) + frame)


def _in_parts(steps: Steps[T]) -> Generator[RequestEvent, None, T]:
    """Say after each step that there is more to be done."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield PartDecoded()


def _decoded(frame: bytes) -> Steps[FetchRequest | ProtocolError]:
    try:
        return (yield from fetch_request_steps(frame))
    except (MalformedFrame, TooMany) as error:
        return error


def _sender_of(frame: bytes) -> Steps[tuple[int | None, UndecodedReason | None]]:
    """Who sent a whole Fetch request of v15 or above, given without its size; else why that is not read."""
    try:
        return (yield from replica_id_steps(frame)), None
    except TooMany as error:
        return None, "too_many_topics" if error.what == "topics" else "too_many_partitions"
    except MalformedFrame:
        return None, "fetch_malformed"

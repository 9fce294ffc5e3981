# SPDX-License-Identifier: Apache-2.0
"""The stream of requests: which pass, which the broker will answer, and which Fetch requests are collected.

Only the first bytes of a request are held back, until it is known what it is; the rest is streamed, however long. A
Fetch request of v15 or later names its sender only at its end, so it is collected whole before that is known.
"""

import math
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from weir.protocol.errors import MalformedFrame, ProtocolError, TooMany
from weir.protocol.fetch_request import FetchRequest, fetch_request_steps, replica_id_at_end, replica_id_steps
from weir.protocol.fetch_versions import DECODED_VERSIONS, FETCH_VERSIONS
from weir.protocol.frame_stream import FrameStream
from weir.protocol.header import FETCH, PRODUCE, SASL_HANDSHAKE, SIZE, RequestHeader
from weir.protocol.request_events import (
    BecameOpaque,
    Expect,
    OpaqueReason,
    PartDecoded,
    Pass,
    ReplicaFetch,
    RequestBegins,
    RequestEvent,
    Undecoded,
    UndecodedReason,
)
from weir.protocol.request_head import Head, RequestHead, read_request_head
from weir.protocol.request_sender import MOST_FETCH_START, MOST_START, RequestSender
from weir.protocol.request_topics import Runs
from weir.protocol.response_stream import ResponseObserver
from weir.protocol.steps import Steps, T, at_once

DEFAULT_FETCH_SIZE_LIMIT: Final = 16 * 2**20
"""The largest Fetch request that is collected, in bytes: 200,000 partitions of v18 fit in, with one in each topic."""

LARGEST_API_KEY: Final = 200
"""Kafka has no API key above 100, so a first frame with a key above this is not Kafka's protocol."""

_SHORT_HEAD: Final = 1024
"""Bytes that nearly every request's head fits into, as client ids and transactional ids are short."""

_SHORT_FRAME: Final = 2**14  # bytes: a Fetch request of this size is read in one go

_SIZE_AND_KEY: Final = struct.Struct(">ih")
_TLS_HANDSHAKE: Final = b"\x16\x03"  # TLSPlaintext: ContentType handshake, major version 3 (RFC 8446, 5.1)

_VERSIONS_WITH_REPLICA_STATE: Final = frozenset(
    version for version, row in FETCH_VERSIONS.items() if row.has_replica_state
)


def decodes_replicas(replica_id: int, api_version: int) -> bool:
    """Return whether to collect a Fetch request: from a replica (not -1), in a version that is decoded."""
    return replica_id >= 0 and api_version in DECODED_VERSIONS


class RequestStream(FrameStream):
    """One connection's requests, from follower or client to broker. Feed `receive`, and carry its events out in order.

    - `decode_fetch(replica_id, api_version)` chooses the Fetch requests that become a ReplicaFetch. It may be replaced
      at any time.
    - `fetch_size_limit` is in bytes without the size prefix, and applies only to requests that are collected.
    - `may_hold(head, frame, may_be_replicas)` chooses, among all other requests, those that the caller is asked about
      before they pass (True). `frame` is what is there of one. Of a request that passes at once it may also return who
      is to see the answer. `may_be_replicas` is that of RequestBegins.

    A malformed request is refused only if it certainly had to be decoded; a ReplicaFetch may turn out malformed when it
    is decoded. A request of v15 or later that cannot be read up to its replica id passes: it may be a consumer's, and
    the broker judges it. A request above the limit passes in any version.
    """

    __slots__ = (
        "_collecting",
        "_first",
        "_frame",
        "_needed",
        "_runs",
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
        self.may_hold: Callable[[RequestHead, Head, bool], ResponseObserver | bool] | None = None
        self.consumed = 0
        """Bytes taken of the view that was given last, where the caller has stopped, or has every event."""
        self._first = True
        self._waiting: Iterator[RequestEvent] | None = None  # the events of a request that were not given out yet
        self._needed = 0  # bytes to hold back before more of the request's head can be read
        self._collecting: RequestHead | None = None  # the request that is being collected
        self._frame = bytearray()  # what was collected of it, with the size prefix
        self._runs: Runs = {}  # of the last fetch that was decoded in here

    @property
    def missing(self) -> int:
        """Bytes of the current request that are still to come, as far as that is known; 0 between requests."""
        return self._left or (self._needed - len(self._head) if self._head else 0)

    @property
    def passing(self) -> int:
        """Bytes of the current request that are still to come, and that will all pass."""
        return self._left if self._collecting is None else 0

    @property
    def returned(self) -> int:
        """Bytes of the request at which the caller stopped that it is to give again."""
        return max(0, self.passing - len(self._head))

    @property
    def held_head(self) -> bytes:
        """The first bytes of the request at which the caller stopped, as far as they are not to be given again."""
        return bytes(self._head) if self._waiting is not None else b""

    @property
    def collected(self) -> int:
        """Bytes kept of a request that is being collected, or that has a long head."""
        held = len(self._head)
        return len(self._frame) + (held if held > _SHORT_HEAD else 0)

    def skip(self, size: int) -> bool:
        """Return whether the next `size` bytes pass without an event; if so, they count as received (the fast path)."""
        if self.opaque:
            return True
        if size <= self._left and self._collecting is None and self._waiting is None:
            self._left -= size
            return True
        return False

    def receive(self, view: memoryview, most: float = math.inf) -> Iterator[RequestEvent]:
        """Take the next bytes received, and begin at most so many frames. Buffers are slices of `view` where possible.

        The caller may stop after a ReplicaFetch, PartDecoded or RequestBegins. Otherwise it has to take every event. It
        gives `view[consumed:]` later, after such a stop even if that is empty. Raises InvalidFrameSize and
        MalformedFrame, after the events of everything before that request.
        """
        self.consumed = 0
        if self._waiting is not None:
            yield from self._go_on()
        size = len(view)
        last = self.frames + most
        start = at = 0  # view[start:at] passes, and is not given out yet
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
                elif self.frames == last:
                    view = view[:at]
                    break
                else:
                    self.frames += 1
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
                        events = self._begin(head, view[at:])
                        if events and isinstance(events[0], RequestBegins):
                            self.consumed = at
                            self._waiting = iter(events)
                            yield from self._go_on()
                        else:
                            yield from events
        except ProtocolError:
            if start < at:
                yield Pass(view[start:at])
            raise
        self.consumed = len(view)
        if start < at:
            yield Pass(view[start:at])

    def drop(self) -> None:
        """Forget the request at which the caller stopped: the broker is not to see it."""
        self._waiting = self._collecting = None
        self._head, self._frame, self._left = bytearray(), bytearray(), 0

    def _go_on(self) -> Iterator[RequestEvent]:
        """Give out the events of a request. If the caller stops, the rest waits for the next call."""
        assert self._waiting is not None  # noqa: S101
        for event in self._waiting:  # noqa: UP028 - "yield from" would end it with the caller
            yield event
        self._waiting = None

    def _complete_head(self, view: memoryview, at: int) -> int:
        """Add to the bytes held back until they tell what the request is. Returns the offset after those taken."""
        wanted = self._needed
        # a few bytes more: otherwise each field could cause everything to be read anew
        if len(self._head) >= SIZE.size:
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
        """Give out the events of a request whose first bytes were held back."""
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

    def _begin(self, head: RequestHead | OpaqueReason, frame: Head) -> Sequence[RequestEvent]:
        """Return what has to be known before a request's first byte passes; `frame` is what is there of it."""
        self._first = False
        if isinstance(head, str):
            self.opaque = True
            return (BecameOpaque(head),)
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
                return ()
            else:
                replica_id, reason = at_once(_sender_of(bytes(frame[SIZE.size : frame_size])))
        is_decoded = replica_id is not None and self.decode_fetch(replica_id, api_version)
        if is_decoded and is_too_large:
            reason = "fetch_too_large"
        self._left = frame_size
        if is_decoded and not is_too_large:
            self._collecting = head._replace(replica_id=replica_id)
            return ()
        return self._announce(head, replica_id, reason, frame)

    def _announce(
        self, head: RequestHead, replica_id: int | None, reason: UndecodedReason | None, frame: Head
    ) -> list[RequestEvent]:
        """Return what has to be known of a request that passes; `frame` is what is there of it."""
        events: list[RequestEvent] = []
        _, api_key, api_version, correlation_id, expects_response, _ = head
        is_known = api_version in DECODED_VERSIONS or (replica_id is not None and replica_id < 0)
        if api_key == FETCH and reason is None and not is_known:
            reason = "fetch_version"
        observer: ResponseObserver | bool = False
        if self.may_hold is not None:
            observer = self.may_hold(head, frame, reason is not None)
        if observer is True:
            start = bytes(frame[: min(MOST_START if api_key == PRODUCE else MOST_FETCH_START, head.frame_size)])
            sender = RequestSender(head.api_key, head.api_version, start)
            events.append(RequestBegins(head, sender, may_be_replicas=reason is not None))
        if reason is not None:
            events.append(Undecoded(reason, api_version, replica_id))
        if expects_response:
            events.append(
                Expect(api_key, api_version, correlation_id, None if isinstance(observer, bool) else observer)
            )
        if api_key == SASL_HANDSHAKE and api_version == 0:
            # Tokens without a header follow, for as long as the mechanism needs (KIP-152 ended that with v1).
            self.opaque = True
            events.append(BecameOpaque("sasl"))
        return events

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
        if is_wanted and (head.replica_id is None or len(frame) > _SHORT_FRAME):
            request = yield from _in_parts(_decoded(frame, self._runs))
        if head.replica_id is None and (replica_id is None or isinstance(request, ProtocolError)):
            # The fault may come after the sender, or be none at all in a layout that weir reads wrongly.
            replica_id, reason = yield from _in_parts(_sender_of(frame))
            is_wanted = replica_id is not None and self.decode_fetch(replica_id, head.api_version)
            if is_wanted and request is None:
                request = yield from _in_parts(_decoded(frame, self._runs))
        elif isinstance(request, FetchRequest) and request.replica_id != replica_id:
            is_wanted = self.decode_fetch(request.replica_id, head.api_version)
        self._frame = bytearray()
        if is_wanted:
            yield ReplicaFetch(RequestHeader(head.api_key, head.api_version, head.correlation_id, None), frame, request)
        else:
            with_size = SIZE.pack(len(frame)) + frame
            yield from self._announce(head, replica_id, reason, with_size)
            yield Pass(with_size)


def _in_parts(steps: Steps[T]) -> Generator[RequestEvent, None, T]:
    """Give out a PartDecoded after each step."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield PartDecoded()


def _decoded(frame: bytes, runs: Runs) -> Steps[FetchRequest | ProtocolError]:
    try:
        return (yield from fetch_request_steps(frame, runs))
    except (MalformedFrame, TooMany) as error:
        return error


def _sender_of(frame: bytes) -> Steps[tuple[int | None, UndecodedReason | None]]:
    """Read the sender of a whole Fetch request (v15+, without its size); or the reason why it cannot be read."""
    try:
        return (yield from replica_id_steps(frame)), None
    except TooMany as error:
        return None, "too_many_topics" if error.what == "topics" else "too_many_partitions"
    except MalformedFrame:
        return None, "fetch_malformed"

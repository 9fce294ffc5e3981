# SPDX-License-Identifier: Apache-2.0
"""What a stream of requests makes of bytes, for tests."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from tests.protocol.wire import frame
from weir.protocol.errors import ProtocolError
from weir.protocol.request_events import Pass, ReplicaFetch, RequestEvent
from weir.protocol.request_stream import RequestStream


def events_of(stream: RequestStream, *chunks: bytes) -> list[RequestEvent]:
    """All events of `chunks`, with passing bytes copied out of the chunk they were slices of."""
    events: list[RequestEvent] = []
    for chunk in chunks:
        buffer = bytearray(chunk)
        with memoryview(buffer) as view:
            received = stream.receive(view)
            events += [Pass(bytes(event.buffer)) if isinstance(event, Pass) else event for event in received]
        buffer[:] = b"\xdd" * len(buffer)  # nothing may be read from a chunk later
    return events


def joined(events: Iterable[RequestEvent]) -> list[RequestEvent]:
    """The same events with neighbouring Pass events made one, and every Expect before the bytes around it."""
    merged: list[RequestEvent] = []
    for event in events:
        if isinstance(event, Pass) and merged and isinstance(merged[-1], Pass):
            merged[-1] = Pass(bytes(merged[-1].buffer) + bytes(event.buffer))
        else:
            merged.append(event)
    return merged


def passed(events: Iterable[RequestEvent]) -> bytes:
    """What reaches the broker when every decoded request is forwarded as it came."""
    return b"".join(
        bytes(event.buffer) if isinstance(event, Pass) else frame(event.frame)
        for event in events
        if isinstance(event, Pass | ReplicaFetch)
    )


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces; `cuts` are taken modulo its length."""
    at = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


def failure(stream: RequestStream, data: bytes) -> tuple[list[RequestEvent], ProtocolError]:
    """The events before the error that `data` ends with, and the error."""
    events: list[RequestEvent] = []
    with pytest.raises(ProtocolError) as raised:
        events.extend(stream.receive(memoryview(data)))
    return events, raised.value

"""Kafka connections as frames: what passes, what waits for an answer, and what has to be decoded.

Requests become events (RequestStream), responses are matched with those that wait (ResponseStream).
"""

from protocol.request_stream import (
    DEFAULT_FETCH_SIZE_LIMIT,
    BecameOpaque,
    Expect,
    PartDecoded,
    Pass,
    ReplicaFetch,
    RequestBegins,
    RequestEvent,
    RequestStream,
    Undecoded,
)
from protocol.response_stream import Pending, ResponseObserver, ResponseStream

__all__ = [
    "DEFAULT_FETCH_SIZE_LIMIT",
    "BecameOpaque",
    "Expect",
    "PartDecoded",
    "Pass",
    "Pending",
    "ReplicaFetch",
    "RequestBegins",
    "RequestEvent",
    "RequestStream",
    "ResponseObserver",
    "ResponseStream",
    "Undecoded",
]

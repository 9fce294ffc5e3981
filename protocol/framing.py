"""A Kafka connection as frames: what passes, what waits for a response, and what has to be decoded.

RequestStream turns requests into events; ResponseStream matches responses with the requests that wait.
"""

from weir.protocol.request_stream import (
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
from weir.protocol.response_stream import Pending, ResponseObserver, ResponseStream, ResponseWatcher

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
    "ResponseWatcher",
    "Undecoded",
]

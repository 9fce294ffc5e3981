# SPDX-License-Identifier: Apache-2.0
"""What a stream of requests tells, in order: what passes, what waits, and what was collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from weir.protocol.errors import ProtocolError
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.header import RequestHeader
from weir.protocol.request_head import RequestHead
from weir.protocol.request_sender import RequestSender
from weir.protocol.response_scanner import Buffer
from weir.protocol.response_stream import ResponseObserver

OpaqueReason = Literal["tls", "sasl", "not_kafka"]

UndecodedReason = Literal[
    "fetch_version", "fetch_too_large", "fetch_malformed", "too_many_topics", "too_many_partitions"
]


class Pass(NamedTuple):
    """Bytes to forward as they are."""

    buffer: Buffer


class Expect(NamedTuple):
    """The broker will answer the request whose bytes follow: any request but a Produce with acks=0."""

    api_key: int
    api_version: int
    correlation_id: int
    observer: ResponseObserver | None = None
    """Who sees the answer, as `RequestStream.may_hold` has said."""


class RequestBegins(NamedTuple):
    """A request for which `RequestStream.may_hold` returned True, and of which nothing has passed yet.

    A caller that wants to hold it stops here. If the caller goes on, the request passes.
    `may_be_replicas`: it is a Fetch that was not decoded, so it may be an in-sync replica's, which nobody holds.
    """

    head: RequestHead
    sender: RequestSender = RequestSender()
    may_be_replicas: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaFetch:
    """A whole Fetch request of a replica, without its size prefix. It did not pass.

    `header.client_id` is always None, as it is not read. `request` is the decoded request, or the error in it; None
    where nobody has decoded it yet.
    """

    header: RequestHeader
    frame: bytes
    request: FetchRequest | ProtocolError | None = field(default=None, compare=False, repr=False)


class PartDecoded(NamedTuple):
    """A part of a large Fetch request is decoded. The caller may stop here, and go on after others had their turn."""


class Undecoded(NamedTuple):
    """A Fetch request passes that is a replica's, or may be one. The reason is one of these:

    - `fetch_version`: its version is not decoded.
    - `fetch_too_large`: it is above the limit. If `replica_id` is None, it may also be a consumer's.
    - `fetch_malformed` (v15+): its lengths do not add up before the replica id.
    - `too_many_topics`, `too_many_partitions` (v15+): it lists more than is decoded.
    """

    reason: UndecodedReason
    api_version: int
    replica_id: int | None


class BecameOpaque(NamedTuple):
    """From here on every byte passes: in this direction at once, in the other one after all pending responses."""

    reason: OpaqueReason


RequestEvent: TypeAlias = Pass | Expect | RequestBegins | PartDecoded | ReplicaFetch | Undecoded | BecameOpaque

# SPDX-License-Identifier: Apache-2.0
"""Request headers (Kafka's RequestHeader.json, version 1: a nullable client id after the fixed part).

Fetch v0 to v11 use this header; v12 and later add a tag buffer. The response headers of v0 to v11 are only the
correlation id, so they have no type here.
"""

import struct
from dataclasses import dataclass
from typing import Final

from weir.protocol.errors import MalformedFrame

# Kafka's ApiKeys.java, only those that are treated differently from the rest.
PRODUCE: Final = 0
FETCH: Final = 1
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
SHARE_FETCH: Final = 78

SIZE: Final = struct.Struct(">i")
"""A frame's size in bytes, without these four; also the count of an array."""

FIXED_HEADER: Final = struct.Struct(">hhi")
"""What every request begins with after its size: api_key, api_version, correlation_id."""

_CLIENT_ID: Final = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What a request's header says. `client_id` is UTF-8 as on the wire, None where it is null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: bytes | None
    tags: bytes = b""


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """Read the header at the start of `frame`, which has no size prefix.

    Returns the header and the offset after it. Raises MalformedFrame when the frame ends within the header.
    """
    if len(frame) < _CLIENT_ID.size:
        raise MalformedFrame("the frame ends within the request header", len(frame))
    api_key, api_version, correlation_id, length = _CLIENT_ID.unpack_from(frame)
    start = _CLIENT_ID.size
    if length < 0:
        if length != -1:
            raise MalformedFrame(f"the client id has a length of {length}", start - 2)
        return RequestHeader(api_key, api_version, correlation_id, None), start
    end = start + length
    if end > len(frame):
        raise MalformedFrame(f"a client id of {length} bytes passes the end of the frame", start - 2)
    return RequestHeader(api_key, api_version, correlation_id, frame[start:end]), end


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the header's bytes, without a size prefix."""
    client_id = header.client_id
    if client_id is None:
        return _CLIENT_ID.pack(header.api_key, header.api_version, header.correlation_id, -1)
    return _CLIENT_ID.pack(header.api_key, header.api_version, header.correlation_id, len(client_id)) + client_id

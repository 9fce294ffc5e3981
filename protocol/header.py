"""Request headers (Kafka's RequestHeader.json, version 1: a nullable client id follows the fixed part).

Fetch v0 to v11 use this header; v12 and above add a tag buffer. Response headers up to there are the correlation id
alone, so they have no type of their own.
"""

import struct
from dataclasses import dataclass
from typing import Final

from protocol.errors import MalformedFrame

# Kafka's ApiKeys.java; only those that are treated apart from the rest.
PRODUCE: Final = 0
FETCH: Final = 1
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18

SIZE: Final = struct.Struct(">i")
"""A frame's size in bytes, itself left out; also every array's count."""

FIXED_HEADER: Final = struct.Struct(">hhi")
"""What every request begins with behind its size: api_key, api_version, correlation_id."""

_CLIENT_ID: Final = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Who asks for what. `client_id` is UTF-8 as on the wire, None when it is null there."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: bytes | None
    tags: bytes = b""


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """Read the header at the start of `frame` (without its size prefix).

    Returns the header and the offset of the first byte behind it. Raises MalformedFrame when the frame ends within it.
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
    """The header's bytes, without a size prefix."""
    client_id = header.client_id
    if client_id is None:
        return _CLIENT_ID.pack(header.api_key, header.api_version, header.correlation_id, -1)
    return _CLIENT_ID.pack(header.api_key, header.api_version, header.correlation_id, len(client_id)) + client_id

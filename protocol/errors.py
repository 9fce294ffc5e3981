# SPDX-License-Identifier: Apache-2.0
"""Errors in a peer's bytes.

Each error has its facts as fields; `kind` is its label on `weir_protocol_errors_total`, and `str()` is one sentence.
The stream that raised it cannot be read any further, so its connection has to be closed.
"""

from typing import ClassVar, Literal


class ProtocolError(Exception):
    """The peer's bytes are not what Kafka's protocol allows here."""

    kind: ClassVar[str] = "protocol"


class InvalidFrameSize(ProtocolError):
    """A frame's size field has an impossible value: the client's fault in a request, the broker's in a response."""

    kind = "invalid_frame_size"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size

    def __str__(self) -> str:
        return f"A frame announces a size of {self.size} bytes, too small for any frame."


class FrameTooLarge(ProtocolError):
    """A frame that has to be kept, or made larger, is above its limit. Both are in bytes, without the size field."""

    kind = "frame_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"A frame of {self.size} bytes is larger than the limit of {self.limit} bytes."


class MalformedFrame(ProtocolError):
    """A frame's inner lengths and counts do not add up to its size.

    `offset` is the place of the error, in bytes after the frame's size field.
    """

    kind = "malformed_frame"

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"A frame is malformed at byte {self.offset}: {self.reason}."


class TooMany(ProtocolError):
    """A request lists more topics or partitions (`what`) than are decoded.

    It is not malformed, and can pass as it is.
    """

    kind = "too_many"

    def __init__(self, what: Literal["topics", "partitions"], count: int, limit: int) -> None:
        super().__init__(what, count, limit)
        self.what = what
        self.count = count
        self.limit = limit

    def __str__(self) -> str:
        return f"A request lists {self.count} {self.what} at least, and at most {self.limit} are decoded."


class UnsupportedVersion(ProtocolError):
    """A request was to be decoded in a version that weir does not know.

    The caller is at fault, as it can ask before.
    """

    kind = "unsupported_version"

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(api_key, api_version)
        self.api_key = api_key
        self.api_version = api_version

    def __str__(self) -> str:
        return f"Version {self.api_version} of API key {self.api_key} cannot be decoded."


class UnexpectedResponse(ProtocolError):
    """The broker answered although no request waits for an answer."""

    kind = "unexpected_response"

    def __init__(self, correlation_id: int) -> None:
        super().__init__(correlation_id)
        self.correlation_id = correlation_id

    def __str__(self) -> str:
        return f"The broker sent a response with correlation id {self.correlation_id} that no request waits for."


class CorrelationMismatch(ProtocolError):
    """The broker answered another request than the oldest one that waits: responses come in the order of requests."""

    kind = "correlation_mismatch"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(expected, received)
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        return f"The broker sent a response with correlation id {self.received} where {self.expected} was due."

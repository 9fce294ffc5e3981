"""How long a SASL session may last, as a broker's answer to SaslAuthenticate says (KIP-368).

SaslAuthenticateResponse.json: error_code, error_message, auth_bytes and, from v1 on, session_lifetime_ms. v2 is
flexible.
"""

import struct
from typing import Final

from weir.protocol.errors import MalformedFrame
from weir.protocol.header import SIZE
from weir.protocol.response_scanner import Buffer
from weir.protocol.varint import after_tags, read_unsigned_varint

_FIRST_WITH_LIFETIME: Final = 1
_FIRST_FLEXIBLE: Final = 2
_LAST_KNOWN: Final = 2
_MOST_KEPT: Final = 2**16
"""Bytes of an answer that are kept to be read. Tickets of Kerberos have some thousands; a larger answer only passes."""

_CORRELATION_END: Final = 8
_ERROR_CODE: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_LIFETIME: Final = struct.Struct(">q")


class SaslAnswer:
    """Sees one answer while it passes: a `ResponseObserver`, which changes nothing.

    `lifetime_seconds` is None where the answer says nothing of it: also in the middle of an authentication.
    """

    is_dense = False

    def __init__(self, api_version: int) -> None:
        self.lifetime_seconds: float | None = None
        self._version = api_version
        self._kept = bytearray()
        self._left: int | None = None  # bytes of the frame that are still to come

    @property
    def done(self) -> bool:
        """Whether the answer's last byte was received."""
        return self._left == 0

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes; the first call begins with the frame's size prefix, whole."""
        if self._left is None:
            self._left = SIZE.size + SIZE.unpack_from(view)[0]
        taken = min(self._left, len(view))
        self._left -= taken
        if len(self._kept) < _MOST_KEPT:
            self._kept += view[: min(taken, _MOST_KEPT)]
        if self.done:
            milliseconds = _lifetime_ms(self._kept, self._version)
            self.lifetime_seconds = milliseconds / 1000 if milliseconds > 0 else None
            self._kept = bytearray()
        return [view[:taken]], taken


def _lifetime_ms(frame: bytearray, version: int) -> int:
    """Read the lifetime of an answer that is whole, its size in front; 0 where it has none or cannot be read."""
    if not _FIRST_WITH_LIFETIME <= version <= _LAST_KNOWN:
        return 0
    try:
        at = _CORRELATION_END
        if version >= _FIRST_FLEXIBLE:
            at = after_tags(frame, at) + _ERROR_CODE.size
            for _ in range(2):
                length_and_one, at = read_unsigned_varint(frame, at)
                at += max(0, length_and_one - 1)
        else:
            at += _ERROR_CODE.size
            (length,) = _ERROR_CODE.unpack_from(frame, at)
            at += _ERROR_CODE.size + max(0, length)
            (length,) = _LENGTH.unpack_from(frame, at)
            at += _LENGTH.size + max(0, length)
        found: int = _LIFETIME.unpack_from(frame, at)[0]
    except (MalformedFrame, struct.error):
        return 0  # its client reads it, too, and knows better
    return found

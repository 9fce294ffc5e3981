# SPDX-License-Identifier: Apache-2.0
"""Counts, strings and tag buffers within a whole frame, in Kafka's two encodings.

The classic encoding has int16 lengths, int32 counts and no tag buffers. The compact one (KIP-482) has unsigned varints
of the length or count plus one. Reading raises MalformedFrame where the frame ends too early.
"""

import struct
from typing import Final, Protocol

from weir.protocol.errors import MalformedFrame
from weir.protocol.header import SIZE
from weir.protocol.varint import after_tags, encode_unsigned_varint, read_unsigned_varint

STRING_LENGTH: Final = struct.Struct(">h")
COUNT: Final = SIZE
NO_TAGS: Final = b"\x00"
_NO_CLASSIC_STRING: Final = STRING_LENGTH.pack(-1)
LONGEST_STRING: Final = 2**15 - 1


class Encoding(Protocol):
    """One of the two encodings. Tags are the whole buffer as on the wire, b"" where there are none."""

    def read_count(self, frame: bytes, at: int, smallest: int) -> tuple[int, int]:
        """Read the count of an array with elements of at least `smallest` bytes. Returns it and the offset after it."""

    def read_string(self, frame: bytes, at: int) -> tuple[bytes, int]:
        """Read a string that may not be null. Returns it and the offset after it."""

    def read_nullable(self, frame: bytes, at: int) -> tuple[bytes | None, int]:
        """Read a string that may be null. Returns it and the offset after it."""

    def read_tags(self, frame: bytes, at: int) -> tuple[bytes, int]:
        """Read a tag buffer, if the encoding has them. Returns it and the offset after it."""

    def count(self, value: int) -> bytes:
        """Encode an array's count."""

    def string(self, value: bytes) -> bytes:
        """Encode a string with its length."""

    def tags(self, value: bytes) -> bytes:
        """Encode a tag buffer, if the encoding has them."""


class _Classic:
    def read_count(self, frame: bytes, at: int, smallest: int) -> tuple[int, int]:
        end = at + COUNT.size
        _check_end(frame, at, end)
        (count,) = COUNT.unpack_from(frame, at)
        if count < 0:
            raise MalformedFrame(f"an array has a count of {count}", at)
        return _checked_count(frame, at, count, end, smallest)

    def read_string(self, frame: bytes, at: int) -> tuple[bytes, int]:
        start = at + STRING_LENGTH.size
        _check_end(frame, at, start)
        (length,) = STRING_LENGTH.unpack_from(frame, at)
        return _checked_string(frame, at, length, start)

    def read_nullable(self, frame: bytes, at: int) -> tuple[bytes | None, int]:
        return (None, at + 2) if frame[at : at + 2] == _NO_CLASSIC_STRING else self.read_string(frame, at)

    def read_tags(self, frame: bytes, at: int) -> tuple[bytes, int]:
        return b"", at

    def count(self, value: int) -> bytes:
        return COUNT.pack(value)

    def string(self, value: bytes) -> bytes:
        return STRING_LENGTH.pack(len(value)) + value

    def tags(self, value: bytes) -> bytes:
        return b""


class _Compact:
    def read_count(self, frame: bytes, at: int, smallest: int) -> tuple[int, int]:
        # one byte, and enough room for all: nearly always so, and there are many topics
        if at < len(frame) and 0 < frame[at] < 0x80 and (frame[at] - 1) * smallest < len(frame) - at:
            return frame[at] - 1, at + 1
        count_and_one, end = read_unsigned_varint(frame, at)
        _check_end(frame, at, end)
        if not count_and_one:
            raise MalformedFrame("an array is null", at)
        return _checked_count(frame, at, count_and_one - 1, end, smallest)

    def read_string(self, frame: bytes, at: int) -> tuple[bytes, int]:
        length_and_one, start = read_unsigned_varint(frame, at)
        _check_end(frame, at, start)
        return _checked_string(frame, at, length_and_one - 1, start)

    def read_nullable(self, frame: bytes, at: int) -> tuple[bytes | None, int]:
        return (None, at + 1) if frame[at : at + 1] == b"\x00" else self.read_string(frame, at)

    def read_tags(self, frame: bytes, at: int) -> tuple[bytes, int]:
        if frame[at : at + 1] == NO_TAGS:
            return b"", at + 1
        end = after_tags(frame, at)
        _check_end(frame, at, end)
        return frame[at:end], end

    def count(self, value: int) -> bytes:
        return encode_unsigned_varint(value + 1)

    def string(self, value: bytes) -> bytes:
        return encode_unsigned_varint(len(value) + 1) + value

    def tags(self, value: bytes) -> bytes:
        return value or NO_TAGS


CLASSIC: Final = _Classic()
COMPACT: Final = _Compact()


def _check_end(frame: bytes, at: int, end: int) -> None:
    if end > len(frame):
        raise MalformedFrame(f"the frame ends within the field at byte {at}", len(frame))


def _checked_count(frame: bytes, at: int, count: int, end: int, smallest: int) -> tuple[int, int]:
    if count * smallest > len(frame) - end:
        raise MalformedFrame(f"{count} elements cannot stand in {len(frame) - end} bytes", at)
    return count, end


def _checked_string(frame: bytes, at: int, length: int, start: int) -> tuple[bytes, int]:
    end = start + length
    if not 0 <= length <= LONGEST_STRING or end > len(frame):
        raise MalformedFrame(f"a string of {length} bytes does not fit into the frame", at)
    return frame[start:end], end

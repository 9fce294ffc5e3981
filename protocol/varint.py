# SPDX-License-Identifier: Apache-2.0
"""Unsigned varints and tag buffers (KIP-482), which Kafka's flexible versions are made of.

Both are read from bytes that may end too early. The offset returned is then beyond the end, and says how many bytes are
needed to read on. Reading on from such an offset gives an even larger one, so callers need not check in between.
"""

from typing import Final

from weir.protocol.errors import MalformedFrame

LONGEST_VARINT: Final = 5
"""The bytes of the longest unsigned 32-bit varint."""

MOST_TAGS: Final = 8
"""The most tags in one buffer. Kafka writes at most three; any number of tags without bytes could take seconds."""


def read_unsigned_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Read a varint. Returns it and the offset after it; 0 and an offset beyond `data` if it is cut off.

    Raises MalformedFrame where it does not end within 5 bytes.
    """
    if at < len(data) and data[at] < 0x80:  # nearly always
        return data[at], at + 1
    value = 0
    for index in range(LONGEST_VARINT):
        if at + index >= len(data):
            return 0, at + index + 1
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise MalformedFrame("a varint is longer than 5 bytes", at)


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a value in as few bytes as possible."""
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_tags(data: bytes | bytearray | memoryview, at: int) -> tuple[bool, int]:
    """Read a tag buffer: a count, then for each tag its number, its size in bytes, and its bytes.

    Returns whether tag 0 is in it, and the offset after it. Raises MalformedFrame where there are more than MOST_TAGS.
    """
    count, at = read_tag_count(data, at)
    end, has_first = len(data), False
    for _ in range(count):
        if at + 1 < end and data[at] < 0x80 and data[at + 1] < 0x80:  # nearly always
            number, size, at = data[at], data[at + 1], at + 2
        else:
            number, at = read_unsigned_varint(data, at)
            size, at = read_unsigned_varint(data, at)
        has_first |= not number
        at += size
    return has_first, at


def after_tags(data: bytes | bytearray | memoryview, at: int) -> int:
    """Return the offset after a tag buffer; raises as `read_tags` does."""
    return read_tags(data, at)[1]


def read_tag_count(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Read the count of tags at a buffer's begin. Returns it and the offset after it, as `read_unsigned_varint`.

    Raises MalformedFrame where there are more than MOST_TAGS.
    """
    count, end = read_unsigned_varint(data, at)
    if count > MOST_TAGS:
        raise MalformedFrame(f"a tag buffer has {count} tags", at)
    return count, end


_SHORT: Final = tuple(bytes((value,)) for value in range(0x80))

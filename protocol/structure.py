"""Reads what comes in chunks of any size: a structure says how many bytes it wants next, and is sent them whole."""

from collections.abc import Generator
from typing import TypeAlias

from weir.protocol.varint import LONGEST_VARINT

Structure: TypeAlias = Generator[int, bytes, None]
"""Reads a frame, or a unit of one. It yields n > 0 to be sent the next n bytes, and n < 0 to have -n bytes skipped."""


class LongVarint(Exception):
    """An unsigned varint does not end within LONGEST_VARINT bytes, which were read."""


def varint() -> Generator[int, bytes, int]:
    """Read an unsigned varint, for use within a structure. Raises LongVarint."""
    value = 0
    for index in range(LONGEST_VARINT):
        (byte,) = yield 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    raise LongVarint


def tags() -> Generator[int, bytes, bool]:
    """Read a tag buffer, skipping the tags' contents. Returns whether tag 0 is among them."""
    has_first = False
    for _ in range((yield from varint())):
        has_first |= (yield from varint()) == 0
        size = yield from varint()
        if size:
            yield -size
    return has_first

# SPDX-License-Identifier: Apache-2.0
"""Reads one frame whose bytes pass in chunks of any size: a structure reads plainly what is there, and waits for more.

Nothing is kept but the few bytes that a chunk's end cuts off from what is wanted in one piece.
"""

from collections.abc import Generator
from typing import Final, TypeAlias

from weir.protocol.errors import MalformedFrame
from weir.protocol.primitives import STRING_LENGTH
from weir.protocol.varint import MOST_TAGS, after_tags, read_unsigned_varint

Structure: TypeAlias = Generator[int, None, None]
"""Reads a frame from `at` on. It yields n to have n bytes there in one piece, and may set `at` behind `end` before."""

_NOTHING: Final = memoryview(b"")
_FEW: Final = 64  # elements of an array that may be as small as they like
_NO_MORE: Final = -1  # wants a structure that has ended: an exception would cost more


class CannotRead(Exception):
    """The frame cannot be read any further; the argument is the reason."""


class FrameReader:
    """Feeds a structure with one frame. It never raises: `fault` has the reason where the frame cannot be read.

    Whoever feeds it sets `left` before the first bytes, which begin with the frame's size.

    A structure reads `view[at:end]`, and moves `at`. The frame ends at `frame_end`, as offset in `view`. After a
    `yield` all four are other ones, and are to be read anew. `fault` is "frame" where lengths do not add up, or what a
    CannotRead says.
    """

    __slots__ = ("_held", "_skip", "_structure", "_wanted", "at", "done", "end", "fault", "frame_end", "left", "view")

    def __init__(self, structure: Structure) -> None:
        self.fault: str | None = None
        self.left = -1
        """Bytes of the frame still to come, from its size on; -1 until that is known."""
        self.done = False
        """Whether it reads nothing more of the frame."""
        self.view = _NOTHING
        self.at = self.end = self.frame_end = 0
        self._held = b""  # the first bytes of what is wanted in one piece
        self._skip = 0  # bytes that nobody reads
        self._structure: Structure | None = structure
        self._wanted = 0

    def receive(self, view: memoryview) -> int:
        """Take the next bytes. Returns how many of them are of this frame."""
        end = min(len(view), self.left)
        self.left -= end
        if self._structure is not None:
            own = view[:end]
            try:
                self.done = self._read(self._structure, own, end)
                if not self.done:
                    own.release()  # the structure keeps it
                    if not self.left:
                        raise CannotRead("frame")
            except (CannotRead, MalformedFrame) as error:
                self.done = True
                self.fault = self.fault or (str(error) if isinstance(error, CannotRead) else "frame")
            self.view = _NOTHING
            if self.done:
                self._structure = None
        return end

    def step_over(self) -> int:
        """Take the next bytes that nobody reads for received, without the frame's last one; returns how many."""
        size = min(self._skip, self.left - 1)
        self._skip -= size
        self.left -= size
        return size

    def _read(self, structure: Structure, view: memoryview, end: int) -> bool:
        """Let the structure read `view[:end]`. Returns whether it has read all that it wants."""
        at = 0
        while (at := at + self._skip) <= end:
            self._skip = 0
            if self._held or end - at < self._wanted:
                stop = at + self._wanted - len(self._held)
                self._held += view[at:stop]
                if stop > end:
                    return False
                self.view, self.at, self.end = memoryview(self._held), 0, len(self._held)
                self.frame_end = self.end + end - stop + self.left
                self._held = b""
                at = stop
            else:
                self.view, self.at, self.end, self.frame_end = view, at, end, end + self.left
                at = end
            self._wanted = next(structure, _NO_MORE)
            if self._wanted == _NO_MORE:
                return True
            if self.at < self.end:
                self._held = bytes(self.view[self.at :])
            else:
                self._skip = self.at - self.end
        self._skip = at - end
        return False

    # For structures

    def need(self, size: int) -> Structure:
        """Have `size` bytes in one piece."""
        if self.at + size > self.end:
            yield size

    def skip(self, size: int) -> None:
        """Step over bytes, which may not be there yet."""
        self.at += size
        if self.at > self.frame_end:
            raise CannotRead("frame")

    def checked(self, count: int, least: int) -> int:
        """Return an array's count; 0 where it is null. All elements but a few take `least` bytes each, or more.

        Every count of a frame is judged here, so that no byte of it can cost more than a fraction of a microsecond.
        """
        left = self.frame_end - self.at
        if count > left or (count - _FEW) * least > left:
            raise CannotRead("frame")
        return max(0, count)

    def varint(self) -> Generator[int, None, int]:
        """Read an unsigned varint."""
        while True:
            value, after = read_unsigned_varint(self.view, self.at)
            if after <= self.end:
                self.at = after
                return value
            yield after - self.at

    def count(self, least: int) -> Generator[int, None, int]:
        """Read a compact array's count; see `checked`."""
        return self.checked((yield from self.varint()) - 1, least)

    def string(self) -> Structure:
        """Step over a string that is not compact, and may be null."""
        yield from self.need(STRING_LENGTH.size)
        (length,) = STRING_LENGTH.unpack_from(self.view, self.at)
        self.skip(STRING_LENGTH.size + max(0, length))

    def compact_bytes(self) -> Generator[int, None, int]:
        """Step over a compact string, or records; returns the size."""
        size = max(0, (yield from self.varint()) - 1)
        self.skip(size)
        return size

    def tags(self) -> Structure:
        """Step over a tag buffer."""
        after = after_tags(self.view, self.at)
        if after <= self.end:  # nearly always
            self.at = after
            return
        count = yield from self.varint()
        if count > MOST_TAGS:
            raise CannotRead("frame")
        for _ in range(count):
            yield from self.varint()
            self.skip((yield from self.varint()))

# SPDX-License-Identifier: Apache-2.0
"""Reads one frame whose bytes pass in chunks of any size: a structure reads plainly what is there, and waits for more.

Nothing is kept but the few bytes that a chunk's end cuts off from what is wanted in one piece.
"""

from collections.abc import Generator
from typing import Final, TypeAlias

from weir.protocol.errors import MalformedFrame
from weir.protocol.header import SIZE
from weir.protocol.primitives import STRING_LENGTH
from weir.protocol.varint import MOST_TAGS, read_tags, read_unsigned_varint

Structure: TypeAlias = Generator[int, None, None]
"""Reads a frame from `at` on. It yields n to have n bytes there in one piece, and may set `at` behind `end` before."""

_NOTHING: Final = memoryview(b"")
_FEW: Final = 64  # elements of an array that may be as small as they like
_NO_MORE: Final = -1  # wants a structure that has ended: an exception would cost more


class FrameReader:
    """Feeds a structure with one frame: by `read`, or as a ResponseObserver, which never raises.

    A structure reads `view[at:end]`, and moves `at`. The frame ends at `frame_end`, as offset in `view`. After a
    `yield` all four are other ones, and are to be read anew. It raises MalformedFrame where the frame cannot be read
    any further, and so does `read`. An error does not depend on how the frame is cut into chunks: what is wanted beyond
    the frame's end is one as soon as it is wanted.
    """

    __slots__ = (
        *("_held", "_skip", "_structure", "_wanted"),
        *("at", "end", "fault", "frame_end", "frame_size", "left", "view"),
    )

    def __init__(self, structure: Structure) -> None:
        self.left = -1
        """Bytes of the frame still to come, from its size on; -1 until that is known."""
        self.frame_size = 0
        """Bytes of the frame as its size says, without that; errors count from there."""
        self.fault: str | None = None
        """Why `see` reads no more: "frame" where lengths do not add up, or what the structure has set before."""
        self.view = _NOTHING
        self.at = self.end = self.frame_end = 0
        self._held = bytearray()  # the first bytes of what is wanted in one piece
        self._skip = 0  # bytes that nobody reads
        self._structure: Structure | None = structure
        self._wanted = 0

    def read(self, view: memoryview) -> None:
        """Take the frame's next bytes. Nothing keeps the view."""
        end = len(view)
        self.left -= end
        if self._structure is None:
            return
        if self._feed(self._structure, view, end):
            self.end_reading()
        else:
            view.release()  # the structure keeps it
        self.view = _NOTHING

    def see(self, view: memoryview) -> int:
        """Read the next bytes, from the frame's size on: at first at least that. Returns how many are of this frame."""
        if self.left < 0:
            self.left = SIZE.size + max(0, SIZE.unpack_from(view)[0])
        end = min(len(view), self.left)
        try:
            self.read(view[:end])
        except MalformedFrame:
            self.fault = self.fault or "frame"
            self.end_reading()
        return end

    def end_reading(self) -> None:
        """Read nothing more, and let go what the structure keeps."""
        self._structure, self._skip, self.view = None, self.left, _NOTHING

    # As a ResponseObserver

    @property
    def done(self) -> bool:
        """Whether the frame's last byte has come."""
        return not self.left

    def receive(self, view: memoryview) -> tuple[list[bytes | memoryview], int]:
        """See the next bytes, which pass as they are."""
        end = self.see(view)
        return [view[:end]], end

    def look(self, view: memoryview) -> int:
        """See bytes amid the frame, and step over those behind them; -1 where the last one is among them."""
        if len(view) >= self.left:
            return -1
        self.see(view)
        return self.step_over()

    def passed(self) -> None:
        """Note that the frame has passed whole."""

    def step_over(self) -> int:
        """Take the next bytes that nobody reads for received, without the frame's last one; returns how many."""
        size = min(self._skip, self.left - 1)
        self._skip -= size
        self.left -= size
        return size

    def _feed(self, structure: Structure, view: memoryview, end: int) -> bool:
        """Let the structure read `view[:end]`. Returns whether it has read all that it wants."""
        at = 0
        while (at := at + self._skip) <= end:
            self._skip = 0
            if self._held or end - at < self._wanted:
                stop = at + self._wanted - len(self._held)
                self._held += view[at:stop]
                if stop > end:
                    return False
                self.view, self.at, self.end = memoryview(bytes(self._held)), 0, len(self._held)
                self.frame_end = self.end + end - stop + self.left
                self._held = bytearray()
                at = stop
            else:
                self.view, self.at, self.end, self.frame_end = view, at, end, end + self.left
                at = end
            self._wanted = next(structure, _NO_MORE)
            if self._wanted == _NO_MORE:
                return True
            if self._wanted > self.frame_end - self.at:
                raise self.malformed(f"the frame ends within {self._wanted} bytes that follow", self.at)
            if self.at < self.end:
                self._held += self.view[self.at :]
            else:
                self._skip = self.at - self.end
        self._skip = at - end
        return False

    # For structures

    def malformed(self, reason: str, at: int) -> MalformedFrame:
        """Return an error at the offset `at` of `view`."""
        return MalformedFrame(reason, self.frame_size - self.frame_end + at)

    def need(self, size: int) -> Structure:
        """Have `size` bytes in one piece."""
        if self.at + size > self.end:
            yield size

    def skip(self, size: int) -> None:
        """Step over bytes, which may not be there yet."""
        if size > self.frame_end - self.at:
            raise self.malformed(f"{size} bytes are announced where {self.frame_end - self.at} are left", self.at)
        self.at += size

    def checked(self, count: int, least: int) -> int:
        """Return an array's count; 0 where it is null. All elements but a few take `least` bytes each, or more.

        Every count of a frame is judged here, so that no byte of it can cost more than a fraction of a microsecond.
        """
        left = self.frame_end - self.at
        if count > left or (count - _FEW) * least > left:
            raise self.malformed(f"{count} elements cannot stand in {left} bytes", self.at)
        return max(0, count)

    def varint(self) -> Generator[int, None, int]:
        """Read an unsigned varint."""
        while True:
            try:
                value, after = read_unsigned_varint(self.view, self.at)
            except MalformedFrame as error:
                raise self.malformed(error.reason, self.at) from None
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

    def tags(self) -> Generator[int, None, bool]:
        """Step over a tag buffer. Returns whether tag 0 is in it."""
        try:
            has_first, after = read_tags(self.view, self.at)
        except MalformedFrame as error:
            raise self.malformed(error.reason, self.at) from None
        if after <= self.end:  # nearly always
            self.at = after
            return has_first
        has_first = False
        start = self.frame_end - self.at
        count = yield from self.varint()
        if count > MOST_TAGS:
            raise self.malformed(f"a tag buffer has {count} tags", self.frame_end - start)
        for _ in range(count):
            has_first |= not (yield from self.varint())
            self.skip((yield from self.varint()))
        return has_first

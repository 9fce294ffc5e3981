"""Finds where frames end in the bytes that arrive, so that a stream can be given a few frames at a time."""

from typing import Final

from weir.protocol.header import SIZE

_PREFIX: Final = SIZE.size


class FrameCutter:
    """The frames of one direction of a connection, from its first byte on.

    It reads sizes only. The stream that gets the bytes finds what is wrong with a frame.
    """

    __slots__ = ("_left", "_prefix")

    def __init__(self) -> None:
        self._left = 0  # bytes of the frame under way, after its size, that are still to come
        self._prefix = b""  # the first bytes of a size that has not arrived whole

    def skip(self, size: int) -> None:
        """Pass `size` bytes that are known to end no later than the frame under way."""
        self._left -= size

    @property
    def is_within(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._left or self._prefix)

    @property
    def place(self) -> tuple[int, bytes]:
        """Where in its frame the next byte is. Set it to an earlier value to take bytes again from there."""
        return self._left, self._prefix

    @place.setter
    def place(self, place: tuple[int, bytes]) -> None:
        self._left, self._prefix = place

    def cut(self, view: memoryview, most: int) -> tuple[int, int]:
        """Take at most `most` frames of `view`. Returns the offset after them, and how many frames began or ended.

        Where `view` has fewer frames, the offset is its end.
        """
        size = len(view)
        at = frames = 0
        while at < size:
            frames += 1
            if not self._left:
                at = self._read_size(view, at)
            step = min(self._left, size - at)
            at += step
            self._left -= step
            if frames == most and not self._left and not self._prefix:
                break
        return at, frames

    def _read_size(self, view: memoryview, at: int) -> int:
        """Read the size at `at`, or as much of it as has arrived. Returns the offset after it."""
        if self._prefix or len(view) - at < _PREFIX:
            end = at + _PREFIX - len(self._prefix)
            self._prefix += bytes(view[at:end])
            if len(self._prefix) < _PREFIX:
                return len(view)
            (size,) = SIZE.unpack(self._prefix)
            self._prefix = b""
        else:
            end = at + _PREFIX
            (size,) = SIZE.unpack_from(view, at)
        self._left = max(size, 0)
        return end

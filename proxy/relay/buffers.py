"""Buffers that connections borrow while they hold unsent bytes.

An idle connection owns no buffer. A peer that reads nothing keeps the buffer that could not be sent to it, so large
buffers are few: once that many are lent out the rest of the connections get small ones, and thousands of stuck peers
stay bounded at 16 KB each way.
"""

from typing import Final

LARGE_BUFFER_SIZE: Final = 256 * 1024
SMALL_BUFFER_SIZE: Final = 16 * 1024


class BufferPool:
    """Lends buffers of two sizes, as memoryviews; sizes are in bytes.

    At most `large_limit` large ones are lent out or kept at any time, and `small_spares` small ones are kept for reuse.
    """

    def __init__(self, large_limit: int = 32, small_spares: int = 64) -> None:
        self.large_limit = large_limit
        self.small_spares = small_spares
        self.large_lent = 0
        self._large: list[memoryview] = []
        self._small: list[memoryview] = []

    def borrow(self, large: bool) -> memoryview:
        """A buffer of arbitrary content: a small one unless a `large` one was asked for and is to be had."""
        if large and self.large_lent < self.large_limit:
            self.large_lent += 1
            return self._large.pop() if self._large else memoryview(bytearray(LARGE_BUFFER_SIZE))
        return self._small.pop() if self._small else memoryview(bytearray(SMALL_BUFFER_SIZE))

    def give_back(self, buffer: memoryview) -> None:
        """Return a borrowed buffer, exactly once; no slice of it may be used any more."""
        if len(buffer) == LARGE_BUFFER_SIZE:
            self.large_lent -= 1
            self._large.append(buffer)
        else:
            if len(self._small) < self.small_spares:
                self._small.append(buffer)

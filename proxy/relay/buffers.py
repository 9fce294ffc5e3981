# SPDX-License-Identifier: Apache-2.0
"""Buffers that connections borrow while they have unsent bytes.

An idle connection has no buffer. A peer that reads nothing keeps the buffer that could not be sent to it, so large
buffers are few, and small ones a thousand. Once that many are lent out, all other connections get the next smaller
size: thousands of stuck peers then take no more than 4 KB each way.

A peer that never reads must not keep a large buffer from those that do. That it reads shows once more has passed than
the systems in between keep for it. Half of the large buffers are for these connections alone.
"""

from typing import Final

LARGE_BUFFER_SIZE: Final = 256 * 1024
SMALL_BUFFER_SIZE: Final = 16 * 1024
LEAST_BUFFER_SIZE: Final = 4 * 1024

SHOWN_BY: Final = 32 * 1024 * 1024
"""The bytes passed that show that a peer reads: as Linux is set up, its kernel and ours keep 10 MB for it at most."""


class BufferPool:
    """Lends buffers of three sizes, as memoryviews; sizes are in bytes.

    At most `large_limit` large buffers exist at any time, half of them for connections by which SHOWN_BY has passed. At
    most `small_limit` small ones are lent, and `small_spares` are kept for reuse.
    """

    def __init__(self, large_limit: int = 32, small_limit: int = 1024, small_spares: int = 64) -> None:
        self.large_limit = large_limit
        self.small_limit = small_limit
        self.small_spares = small_spares
        self.large_lent = 0
        self.small_lent = 0
        self._large: list[memoryview] = []
        self._small: list[memoryview] = []

    def borrow(self, large: bool, passed: int) -> memoryview:
        """Lend a buffer of arbitrary content to a connection by which `passed` bytes went so far.

        It is small or less, unless a `large` one is asked for and available.
        """
        if large and self.large_lent < (self.large_limit if passed >= SHOWN_BY else self.large_limit >> 1):
            self.large_lent += 1
            return self._large.pop() if self._large else memoryview(bytearray(LARGE_BUFFER_SIZE))
        if self.small_lent < self.small_limit:
            self.small_lent += 1
            return self._small.pop() if self._small else memoryview(bytearray(SMALL_BUFFER_SIZE))
        return memoryview(bytearray(LEAST_BUFFER_SIZE))

    def give_back(self, buffer: memoryview) -> None:
        """Take a buffer back. Call it exactly once per buffer; no slice of it may be used afterwards."""
        if len(buffer) == LARGE_BUFFER_SIZE:
            self.large_lent -= 1
            self._large.append(buffer)
        elif len(buffer) == SMALL_BUFFER_SIZE:
            self.small_lent -= 1
            if len(self._small) < self.small_spares:
                self._small.append(buffer)

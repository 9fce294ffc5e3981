# SPDX-License-Identifier: Apache-2.0
"""A pool of buffers that shows who reads what was given back."""

from __future__ import annotations

from weir.proxy.relay.buffers import BufferPool


class PoisonedPool(BufferPool):
    """Overwrites what is given back, so that bytes read from it too late are seen; knows the sizes lent out now."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: list[int] = []

    def borrow(self, large: bool, passed: int) -> memoryview:
        """Lend a buffer, and remember it."""
        buffer = super().borrow(large, passed)
        self.lent.append(len(buffer))
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Take the buffer back, spoiled."""
        buffer[:64] = b"\xdd" * 64
        buffer[-64:] = b"\xdd" * 64
        self.lent.remove(len(buffer))
        super().give_back(buffer)

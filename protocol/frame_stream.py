# SPDX-License-Identifier: Apache-2.0
"""The common base of both directions of a connection: bytes pass, and the first ones of a frame are held back.

A frame is a 4-byte size and that many bytes (Kafka's NetworkReceive.java).
"""


class FrameStream:
    """The position of one direction of a connection within its frames. After an error it can't be used any more."""

    __slots__ = ("_head", "_left", "frames", "opaque")

    def __init__(self) -> None:
        self.frames = 0
        """How many frames have begun."""
        self.opaque = False
        """Whether all bytes pass from here on, whatever they are."""
        self._head = bytearray()  # the first bytes of a frame, held back until they tell what becomes of it
        self._left = 0  # bytes of the frame still to come, as soon as that is known

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte received was the last one of a frame."""
        return not self._left and not self._head

    @property
    def passing(self) -> int:
        """Bytes of the current frame that are still to come, and that will all pass."""
        return self._left

    def _hold(self, view: memoryview, at: int, needed: int) -> int:
        """Hold back bytes from `view[at]` on until there are `needed`. Returns the offset after those taken."""
        stop = min(at + needed - len(self._head), len(view))
        self._head += view[at:stop]
        return stop

"""What the two directions of a connection have in common: bytes that pass, and a frame's first ones held back.

A frame is a 4-byte size and that many bytes (Kafka's NetworkReceive.java).
"""


class FrameStream:
    """Where in its frames one direction of a connection is; after an error it is of no use any more."""

    __slots__ = ("_head", "_left", "opaque")

    def __init__(self) -> None:
        self.opaque = False
        """Whether all bytes pass from here on, whatever they are."""
        self._head = bytearray()  # a frame's first bytes, held back until they say what becomes of it
        self._left = 0  # bytes of the frame still to come, once that is known

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte received was a frame's last one."""
        return not self._left and not self._head

    @property
    def passing(self) -> int:
        """Bytes of the current frame that are still to come and will all pass."""
        return self._left

    def _hold(self, view: memoryview, at: int, needed: int) -> int:
        """Hold bytes back from `view[at]` on until `needed` are; returns the offset behind what was taken."""
        stop = min(at + needed - len(self._head), len(view))
        self._head += view[at:stop]
        return stop

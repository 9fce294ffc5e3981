# SPDX-License-Identifier: Apache-2.0
"""Takes records out of a Fetch response as it passes.

A sidecar beside its broker keeps back what nobody was granted: no byte of it leaves the machine. The entry of the
partition stays, with its true offsets and its error; only its records become empty.

From Fetch v3 on just one partition can return more than its partition_max_bytes: the first one with data returns one
whole batch, however large (KIP-74). Only empty entries come before it. So the frame's start is held back until the
first records begin. Then it is known what to take out, and the frame's size, which comes first, can be patched.

A broker also cuts the last batch of a partition at partition_max_bytes, and a follower throws that tail away. Tails are
taken out where the whole answer may be held: it is small, and its owner has room for it. Elsewhere they pass. They were
granted, too, so no quota is exceeded by them.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from weir.protocol.header import SIZE
from weir.protocol.primitives import COUNT
from weir.protocol.varint import encode_unsigned_varint

MOST_HELD: Final = 2**20
"""Bytes of the largest answer that is held whole. A larger one keeps its tails."""


class Passing(Enum):
    """What may pass of a partition's records."""

    ALL = auto()
    WHOLE_BATCHES = auto()
    NOTHING = auto()


Admit: TypeAlias = Callable[[bytes, int, int], Passing]
"""Says what may pass of records: given a topic as it stands in the response, a partition, and the records' bytes."""


@dataclass(eq=False, repr=False, slots=True)
class TakeOut:
    """What is taken out of one response. Offsets count from behind the frame's size prefix.

    `_admit` is asked about each partition with records, in order. `holds_all`: the whole answer is held, so that tails
    can be taken out, if it is small and `_may_hold` agrees to its bytes.
    """

    _admit: Admit
    _may_hold: Callable[[int], bool]
    _: KW_ONLY
    is_flexible: bool
    holds_all: bool
    drops_until: int = 0
    """The offset up to which what comes is dropped, once the head has gone."""
    _head: bytes = b""
    _held: bytearray = field(default_factory=bytearray)  # what follows the head
    _at: int = 0  # the offset of its first byte
    _edits: list[tuple[int, int, bytes]] = field(default_factory=list)  # from, to, and what stands there instead
    _saw_records: bool = False

    def begin(self, head: bytes, at: int, size: int) -> None:
        """Take the frame's start as it would be sent, size prefix included.

        What follows begins at offset `at` of a frame of `size` bytes.
        """
        self._head = head
        self._at = at
        self.holds_all = self.holds_all and size <= MOST_HELD and self._may_hold(size)

    def hold(self, data: memoryview) -> None:
        """Keep the next bytes received."""
        self._held += data

    @property
    def is_decided(self) -> bool:
        """Whether nothing further can be taken out, before the frame has ended."""
        return self._saw_records and not self.holds_all

    def passing(self, topic: bytes, partition: int, size: int) -> Passing:
        """Return what passes of records that begin now."""
        if self.is_decided:  # the first records alone can be more than was asked for
            return Passing.ALL
        self._saw_records = True
        passing = self._admit(topic, partition, size)
        return Passing.ALL if passing is Passing.WHOLE_BATCHES and not self.holds_all else passing

    def shorten(self, length_at: int, records_at: int, size: int, kept: int) -> None:
        """Let only the first `kept` of `size` bytes of records pass.

        They begin at `records_at`, and their length stands from `length_at` on.
        """
        length = encode_unsigned_varint(kept + 1) if self.is_flexible else COUNT.pack(kept)
        self._edits.append((length_at, records_at, length))
        self._edits.append((records_at + kept, records_at + size, b""))

    def insert(self, at: int, data: bytes) -> None:
        """Send `data` before what stands at an offset. Its bytes are in the head's size already."""
        self._edits.append((at, at, data))
        self._head = SIZE.pack(SIZE.unpack_from(self._head)[0] - len(data)) + self._head[SIZE.size :]

    def release(self) -> list[bytes | memoryview]:
        """Return what is to be sent for all that was held."""
        grown = sum([len(new) - (stop - start) for start, stop, new in self._edits])
        size = SIZE.unpack_from(self._head)[0] + grown
        buffers: list[bytes | memoryview] = [SIZE.pack(size) + self._head[SIZE.size :]]
        held, at = memoryview(self._held), self._at
        for start, stop, new in self._edits:
            buffers += (held[at - self._at : start - self._at], new)
            at = stop
        buffers.append(held[at - self._at :])
        self.drops_until = at
        self._held = bytearray()
        return [buffer for buffer in buffers if buffer]

# SPDX-License-Identifier: Apache-2.0
"""Decides how many bytes to ask of a partition, so that whole batches come back and nothing is thrown away.

A broker cuts records at partition_max_bytes, and a follower throws away the tail after the last whole batch. A cap that
ends where a batch ends wastes nothing, so batch sizes are read off the stream and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.protocol.records import BATCH_HEAD_SIZE
from weir.protocol.response_scanner import RecordsSeen
from weir.quota.figures import (
    BARREN_BEFORE_FIRST,
    EVEN_SPREAD,
    FEW,
    FORGIVEN_MISSES,
    LEAST_BYTES,
    MANY_BATCHES,
    SOME_BATCHES,
)


@dataclass(slots=True)
class BatchSizes:
    """What is known of one partition's batch sizes, in bytes; 0 is unknown."""

    smallest: int = 0
    largest: int = 0
    seen: int = 0
    next_size: int = 0  # of the batch at the fetch offset, read off the tail that was cut
    barren: int = 0  # grants in a row that brought nothing and may have had too small a cap
    bytes_per_offset: float = 0.0
    arrived: int = 0  # bytes of whole batches in the last answer; the next fetch offset tells their offsets
    misses: int = 0  # grants in a row that brought nothing

    def miss(self, others: BatchSizes, *, is_last_hop: bool) -> None:
        """Note that a grant brought nothing, in an answer that had records of other partitions and room for more.

        From the broker itself, the `is_last_hop`, this means that the cap is below one batch. Another hop may have had
        budget for some grants only: that is likely where sizes are known, of this partition or of `others` of the
        topic.
        """
        self.misses += 1
        if is_last_hop or max(self.seen, others.seen) < FEW or self.misses > FORGIVEN_MISSES:
            self.barren += 1

    @property
    def has_to_be_first(self) -> bool:
        """Whether a larger cap was of no help. The first partition with data returns one whole batch in any case."""
        return self.barren >= BARREN_BEFORE_FIRST

    @property
    def is_even(self) -> bool:
        """Whether batches are so alike that a cap of several of them ends where a batch ends."""
        return self.seen >= FEW and self.largest - self.smallest <= self.largest * EVEN_SPREAD

    def cap_for(
        self, left: float, asked: int, others: BatchSizes, *, takes_out: bool = False, wastes_some: bool = False
    ) -> tuple[int, bool]:
        """Return the partition_max_bytes (> 0, <= `asked`) for at most `left` bytes, and whether a batch is sure.

        A cap above `left` means that not even one batch fits. One that is not sure brings a whole batch where this is
        the first partition with data, and perhaps nothing elsewhere. `others` is what the topic's other partitions
        showed. `takes_out`: a batch that is cut is taken out, and costs nothing. `wastes_some`: a cut batch costs less
        than an answer with a single one.
        """
        known = self if self.seen >= FEW else others
        batch = self.next_size or known.largest
        room = max(1, int(min(left, asked)))
        if self.barren:
            return min(room, max(batch, LEAST_BYTES) << min(self.barren, 16)), False
        if known.is_even and known.largest <= asked:
            return max(1, room // known.largest) * known.largest, True
        if self.next_size > room:
            return min(asked, self.next_size), True
        if takes_out and known.smallest > room:
            return min(asked, known.largest), True
        if takes_out or room >= (SOME_BATCHES if wastes_some else MANY_BATCHES) * batch:
            return room, 0 < batch <= room
        # Sizes differ: ask for one whole batch, and for the head of the next, which tells its size.
        return min(asked, batch + BATCH_HEAD_SIZE), bool(self.next_size)


def learn(records: RecordsSeen, *sizes: BatchSizes) -> None:
    """Take in what one response had of a partition, into the partition's sizes and its topic's."""
    for known in sizes:
        known.next_size, known.arrived = records.next_batch_size, records.complete_bytes
        if records.batches:
            known.barren = known.misses = 0
            smallest, largest = records.smallest, records.largest
            if records.batches < FEW and known.seen:  # too few to replace what earlier ones showed
                smallest, largest = min(smallest, known.smallest), max(largest, known.largest)
            known.smallest, known.largest = smallest, largest
            known.seen += records.batches

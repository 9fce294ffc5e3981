"""How many bytes to ask of a partition so that whole batches come back and nothing is thrown away.

A broker cuts a partition's records at partition_max_bytes, and a follower throws the tail behind the last whole batch
away: paid for out of the quota, and moved in vain. A cap that ends where a batch ends wastes nothing, so the sizes seen
in the stream are remembered.
"""

from __future__ import annotations

import math
from typing import Final
from weakref import WeakValueDictionary

from protocol.records import BATCH_HEAD_SIZE
from protocol.response_scanner import RecordsSeen

_EVEN_SPREAD = 0.002  # sizes this close together count as equal: their caps waste 0.2 % at most
_FEW = 4  # batches from which nothing is concluded yet
_MANY_BATCHES = 50  # a cap of this many batches wastes about half of one: 1 %
_SOME_BATCHES = 4
_FORGIVEN_MISSES = 3
_BARREN_BEFORE_FIRST = 2
_PROBE_BYTES = 64 * 1024  # the first cap after a probe that brought nothing
REMEMBERED_SECONDS: Final = 60.0
"""How long a batch is remembered at least for being the largest of its topic; twice as long at most."""


class LargestBatch:
    """The largest batch of one topic lately, on any link of a side: what may come where one whole batch comes.

    All links share it. Else a batch that one has seen would surprise each of the others once, perhaps all at once.
    """

    __slots__ = ("__weakref__", "_before", "_since", "_size")

    def __init__(self) -> None:
        self._size = self._before = 0  # of the minute that began at `_since`, and of the one before it
        self._since = -math.inf

    @property
    def size(self) -> int:
        """In bytes; 0 while nothing was seen."""
        return max(self._size, self._before)

    def learn(self, size: int, now: float) -> None:
        """A batch of this size was seen."""
        if now - self._since >= REMEMBERED_SECONDS:
            self._before = self._size if now - self._since < 2 * REMEMBERED_SECONDS else 0
            self._size, self._since = 0, now
        if size > self._size:
            self._size = size


class LargestBatches:
    """The largest batches of all topics that the links of a side fetch, by topic as requests name it."""

    def __init__(self) -> None:
        # A topic that no link fetches any more is forgotten.
        self._topics: WeakValueDictionary[bytes, LargestBatch] = WeakValueDictionary()

    def of(self, topic: bytes) -> LargestBatch:
        """What all links share of a topic; keep it as long as the topic is fetched."""
        largest = self._topics.get(topic)
        if largest is None:
            largest = self._topics[topic] = LargestBatch()
        return largest


class BatchSizes:
    """What is known of one partition's batch sizes, in bytes. Zero is unknown."""

    __slots__ = (
        "_misses",
        "barren",
        "bytes_per_offset",
        "largest",
        "next_size",
        "seen",
        "smallest",
    )

    def __init__(self) -> None:
        self.smallest = 0
        self.largest = 0
        self.seen = 0
        self.next_size = 0  # of the batch at the fetch offset, read off the tail that was cut
        self.barren = 0  # grants in a row that brought nothing, as far as the cap is to blame
        self._misses = 0
        self.bytes_per_offset = 0.0

    def learn(self, records: RecordsSeen) -> None:
        """Take what one response showed of this partition."""
        self.next_size = records.next_batch_size
        if records.batches:
            self.barren = self._misses = 0
            smallest, largest = records.smallest, records.largest
            if records.batches < _FEW and self.seen:  # not enough to forget the earlier ones
                smallest, largest = min(smallest, self.smallest), max(largest, self.largest)
            self.smallest, self.largest = smallest, largest
            self.seen = min(self.seen + records.batches, 1000)

    def miss(self) -> None:
        """A grant brought nothing, in an answer that did bring records of other partitions.

        Where the sizes are known that is likely another hop's doing, which had budget for some of the grants only.
        """
        self._misses += 1
        if self.seen < _FEW or self._misses > _FORGIVEN_MISSES:
            self.barren += 1

    @property
    def has_to_be_first(self) -> bool:
        """Whether a larger cap was no help: the first partition with data returns one whole batch, of whatever size."""
        return self.barren >= _BARREN_BEFORE_FIRST

    @property
    def is_even(self) -> bool:
        """Whether batches are so alike that a cap of several ends where one of them ends."""
        return self.seen >= _FEW and self.largest - self.smallest <= self.largest * _EVEN_SPREAD

    def remaining(self, offsets: int, others: BatchSizes) -> float:
        """The bytes in about `offsets` offsets, and half a batch more; inf while nothing is known of either."""
        known = self if self.bytes_per_offset else others
        if not known.bytes_per_offset or not known.largest:
            return float("inf")
        return offsets * known.bytes_per_offset + known.largest / 2

    def cap_for(self, left: float, asked: int, others: BatchSizes, *, wastes_some: bool = False) -> tuple[int, bool]:
        """The partition_max_bytes (> 0, <= asked) for at most `left` bytes, and whether it surely returns a batch.

        A cap above `left` means that not even one batch fits. An unsure one brings exactly one whole batch where this
        is the first partition with data, and perhaps nothing elsewhere. `others` is what was seen of the topic's other
        partitions: used while nothing is known of this one. `wastes_some` says that answers take long: then a part of a
        batch that is thrown away costs less than an answer with a single one.
        """
        known = self if self.seen >= _FEW else others
        batch = self.next_size or known.largest
        if self.barren:
            return max(1, min(asked, int(left), max(batch, _PROBE_BYTES) << min(self.barren, 16))), False
        if not batch:
            return 1, False
        room = int(min(left, asked))
        if known.is_even and known.largest <= asked:
            return max(1, room // known.largest) * known.largest, True
        if room >= (_SOME_BATCHES if wastes_some else _MANY_BATCHES) * batch:
            return room, True
        # Uneven sizes: one whole batch, and the head of the next one, which tells that one's size.
        return min(asked, batch + BATCH_HEAD_SIZE), bool(self.next_size)

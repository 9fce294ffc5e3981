"""A leader's partition as plain data: one offset a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from tests.fakes.leader_sessions import Key
from weir.protocol.records import BATCH_HEAD_SIZE, RecordsSeen

LEAVES_ISR_SECONDS = 10.0
FIRST_WITH_WHOLE_BATCHES = 3  # KIP-74


@lru_cache(maxsize=256)
def _ends(pattern: tuple[int, ...], count: int, last: tuple[int, ...]) -> tuple[int, ...]:
    sizes = (pattern * (count // len(pattern) + 1))[:count] + last
    return tuple(accumulate(sizes, initial=0))


class Log:
    """`ends` are the bytes up to each offset. Reads follow Log.read and LogSegment.read of Kafka."""

    __slots__ = (
        "appended_at",
        "caught_up",
        "ends",
        "error_code",
        "first_live",
        "high_watermark",
        "isr",
        "key",
        "seen_at",
        "sizes",
    )

    def __init__(self, key: Key, pattern: tuple[int, ...], count: int, last: tuple[int, ...] = ()) -> None:
        self.key = key
        self.ends = list(_ends(pattern, count, last))
        self.sizes = set(pattern) | set(last)
        self.error_code = 0
        self.isr: dict[int, int] = {}  # followers in the ISR, each with its fetch offset
        self.seen_at: dict[int, float] = {}  # when each of them was last at the end
        self.caught_up: dict[int, tuple[int, float]] = {}  # followers that were: with which high watermark, and when
        self.high_watermark = len(self.ends) - 1
        self.first_live = self.high_watermark
        self.appended_at: list[float] = []  # of the offsets from `first_live` on

    @property
    def end(self) -> int:
        """The offset that comes next."""
        return len(self.ends) - 1

    def append(self, size: int, now: float) -> None:
        """A producer's batch."""
        self.ends.append(self.ends[-1] + size)
        self.sizes.add(size)
        self.appended_at.append(now)
        for replica, at in list(self.seen_at.items()):
            if now - at > LEAVES_ISR_SECONDS and self.isr[replica] < self.end - 1:
                del self.isr[replica], self.seen_at[replica]
        if not self.isr:
            self.high_watermark = self.end

    def fetched(self, replica: int, offset: int, now: float) -> None:
        """A follower asks from `offset` on: it has all before."""
        if offset >= self.high_watermark:
            self.caught_up[replica] = self.high_watermark, now
        if replica in self.isr or offset >= self.high_watermark:
            self.isr[replica] = offset
            if offset >= self.end or replica not in self.seen_at:
                self.seen_at[replica] = now
            self.high_watermark = max(self.high_watermark, min(min(self.isr.values()), self.end))

    def read(self, offset: int, limit: int, at_least_one: bool, version: int) -> RecordsSeen | None:
        """What a fetch gets; None where it gets nothing."""
        ends = self.ends
        end = len(ends) - 1
        if offset >= end:
            return None
        start = ends[offset]
        if at_least_one and version >= FIRST_WITH_WHOLE_BATCHES:
            limit = max(limit, ends[offset + 1] - start)
        if limit <= 0:
            return None
        last = bisect_right(ends, start + limit, offset, end + 1) - 1
        batches, complete = last - offset, ends[last] - start
        if last == end:
            size, next_size = complete, 0
        elif not batches and version >= FIRST_WITH_WHOLE_BATCHES:
            return None
        else:
            size = limit
            next_size = ends[last + 1] - ends[last] if size - complete >= BATCH_HEAD_SIZE else 0
        smallest = largest = 0
        if batches:
            smallest, largest = self._spread(ends[offset : last + 1])
        return RecordsSeen(self.key[1], size, complete, batches, size - complete, smallest, largest, next_size)

    def _spread(self, ends: Sequence[int]) -> tuple[int, int]:
        if len(self.sizes) == 1:
            (size,) = self.sizes
            return size, size
        sizes = [after - before for before, after in pairwise(ends)]
        return min(sizes), max(sizes)

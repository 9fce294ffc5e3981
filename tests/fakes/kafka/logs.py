# SPDX-License-Identifier: Apache-2.0
"""A leader's partition as plain data: one offset a batch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from tests.fakes.kafka.sessions import Key
from weir.protocol.records import BATCH_HEAD_SIZE, RecordsSeen

LEAVES_ISR_SECONDS = 10.0
FIRST_WITH_WHOLE_BATCHES = 3  # KIP-74: a fetch has a limit of its own from then on, too


@lru_cache(maxsize=256)
def _ends(pattern: tuple[int, ...], count: int, last: tuple[int, ...]) -> tuple[int, ...]:
    sizes = (pattern * (count // len(pattern) + 1))[:count] + last
    return tuple(accumulate(sizes, initial=0))


class Log:
    """`ends` are the bytes up to each offset. Reads follow Log.read and LogSegment.read of Kafka.

    `told_high_watermark` and `is_throttled` are for tests that need an answer which no leader would give by itself.
    """

    __slots__ = (
        "appended_at",
        "caught_up",
        "ends",
        "error_code",
        "fetched_at",
        "first_live",
        "high_watermark",
        "is_throttled",
        "isr",
        "key",
        "seen_at",
        "sizes",
        "told_high_watermark",
    )

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        key: Key = (b"", 0),
        ends: Sequence[int] | None = None,
        told_high_watermark: int | None = None,
        error_code: int = 0,
    ) -> None:
        """`sizes` are those of its batches, in bytes."""
        self.key = key
        self.ends = list(accumulate(sizes, initial=0) if ends is None else ends)
        self.sizes = set(sizes)
        self.error_code = error_code
        self.isr: dict[int, int] = {}  # followers in the ISR, each with its fetch offset
        self.seen_at: dict[int, float] = {}  # until when each of them had all
        self.fetched_at: dict[int, tuple[float, int]] = {}  # when each last asked, and where the end was then
        self.caught_up: dict[int, tuple[int, float]] = {}  # followers that were: with which high watermark, and when
        self.high_watermark = len(self.ends) - 1
        self.told_high_watermark = told_high_watermark  # in place of its own
        self.is_throttled = False  # Kafka's own throttle keeps its records back, without an error
        self.first_live = self.high_watermark
        self.appended_at: list[float] = []  # of the offsets from `first_live` on

    @classmethod
    def of_pattern(cls, key: Key, pattern: tuple[int, ...], count: int, last: tuple[int, ...] = ()) -> Log:
        """A long one: batches of these sizes over and over, `count` in all, and then the last ones."""
        return cls(pattern + last, key=key, ends=_ends(pattern, count, last))

    @property
    def end(self) -> int:
        """The offset that comes next."""
        return len(self.ends) - 1

    def append(self, size: int, now: float = -math.inf) -> None:
        """A producer's batch. Without a time no follower leaves the ISR by it."""
        self.shrink_isr(now)
        self.ends.append(self.ends[-1] + size)
        self.sizes.add(size)
        self.appended_at.append(now)
        if not self.isr:
            self.high_watermark = self.end

    def shrink_isr(self, now: float) -> None:
        """Followers that have not had all for too long leave the ISR."""
        for replica, at in list(self.seen_at.items()):
            if now - at > LEAVES_ISR_SECONDS and self.isr[replica] < self.end:
                self.leave_isr(replica)

    def leave_isr(self, replica: int) -> None:
        """A follower leaves the ISR, as when its broker ends: the high watermark waits for it no more."""
        self.isr.pop(replica, None)
        self.seen_at.pop(replica, None)
        self.fetched_at.pop(replica, None)
        self.high_watermark = max(self.high_watermark, min(self.isr.values(), default=self.end))

    def extend(self, sizes: Iterable[int]) -> None:
        """Several batches."""
        for size in sizes:
            self.append(size)

    def fetched(self, replica: int, offset: int, now: float) -> None:
        """A follower asks from `offset` on: it has all before.

        Whoever has what was there when it asked last, had all then, as in Replica.updateFetchStateOrThrow of Kafka: a
        follower that finds a new record in each answer stays in the ISR.
        """
        if offset >= self.high_watermark:
            self.caught_up[replica] = self.high_watermark, now
        if replica in self.isr or offset >= self.high_watermark:
            self.isr[replica] = offset
            asked_at, end = self.fetched_at.get(replica, (now, 0))
            if offset >= self.end:
                self.seen_at[replica] = now
            elif offset >= end:
                self.seen_at[replica] = asked_at
            self.fetched_at[replica] = now, self.end
            self.high_watermark = max(self.high_watermark, min(min(self.isr.values()), self.end))

    def read(self, partition: int, offset: int, limit: int, at_least_one: bool, version: int) -> RecordsSeen | None:
        """What a fetch gets; None where it gets nothing."""
        ends = self.ends
        end = len(ends) - 1
        if offset >= end or self.is_throttled:
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
        return RecordsSeen(partition, size, complete, batches, size - complete, smallest, largest, next_size)

    def _spread(self, ends: Sequence[int]) -> tuple[int, int]:
        if len(self.sizes) == 1:
            (size,) = self.sizes
            return size, size
        sizes = [after - before for before, after in pairwise(ends)]
        return min(sizes), max(sizes)

"""One sample as it is written, and what samples are written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from quota.sampling import SampleKey


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as it is written: `chunks` are JSON lines, some whole lines each. `ended_at` is UTC."""

    key: SampleKey
    ended_at: datetime
    chunks: Sequence[bytes]

    @property
    def size(self) -> int:
        """Bytes of all lines."""
        return sum(map(len, self.chunks))


class SampleSink(Protocol):
    """Something that samples are written to."""

    def offer(self, sample: Sample) -> None:
        """Take a sample over, or drop and count it; at once, whatever state the sink is in."""

    def count_failed(self) -> None:
        """Count a sample as dropped that could not be made, or that `offer` raised on."""

    async def close(self, seconds: float) -> None:
        """Write what was taken, in at most `seconds`; count what was not written as dropped."""

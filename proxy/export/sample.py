"""A sample as it is written, and the interface of what it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from weir.samples.lines import SampleKey


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as it is written. Each of `chunks` is some whole JSON lines; `ended_at` is UTC."""

    key: SampleKey
    ended_at: datetime
    chunks: Sequence[bytes]

    @property
    def size(self) -> int:
        """The bytes of all lines."""
        return sum(map(len, self.chunks))


class SampleSink(Protocol):
    """Something that samples are written to."""

    def offer(self, sample: Sample) -> None:
        """Take over a sample, or drop and count it. Returns at once, in whatever state the sink is."""

    def count_failed(self) -> None:
        """Count as dropped a sample that could not be made, or for which `offer` raised."""

    async def close(self, seconds: float) -> None:
        """Write what was taken over, within `seconds`. What was not written counts as dropped."""

# SPDX-License-Identifier: Apache-2.0
"""A sample, what takes it, and what is counted of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from weir.samples.lines import SampleKey

Sink = Literal["file", "kafka"]

DROP_REASONS: dict[Sink, tuple[str, ...]] = {
    "file": ("failed", "write_failed", "busy", "disk_bound", "closed"),
    "kafka": ("failed", "buffer_full", "refused", "closed"),
}
"""All reasons for dropping a sample. Shown as 0 from the start: Prometheus's rate() needs a sample before the first
event.

- `failed`: it could not be made or taken over, which is a bug.
- `write_failed`: the file system refused it (full, no permission).
- `busy`: the sink has not taken earlier ones yet.
- `disk_bound`: it was written long ago, and made room for newer ones.
- `buffer_full`: it made room for newer ones before the topic accepted it.
- `refused`: the brokers will never accept it.
- `closed`: it was not written when the sidecar ended.
"""


@dataclass(slots=True)
class ExportStats:
    """Counts of samples (one per interval) by sink."""

    written: Counter[Sink] = field(default_factory=Counter)
    dropped: Counter[tuple[Sink, str]] = field(default_factory=Counter)
    lost: dict[Sink, str] = field(default_factory=dict)
    """Why the last sample was lost, by sink; nothing where it was not."""

    def add_sink(self, sink: Sink) -> None:
        """Show a sink's counts from now on."""
        self.written[sink] += 0
        for reason in DROP_REASONS[sink]:
            self.dropped[sink, reason] += 0


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

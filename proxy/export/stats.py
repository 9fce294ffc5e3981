"""What becomes of samples, as plain integers, which the metrics collector reads at each scrape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

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

"""What becomes of samples, as plain integers: the metrics collector reads them when it is scraped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Sink = Literal["file", "kafka"]

DROP_REASONS: dict[Sink, tuple[str, ...]] = {
    "file": ("failed", "write_failed", "busy", "disk_bound", "closed"),
    "kafka": ("failed", "buffer_full", "refused", "closed"),
}
"""All that there are, shown from the start at 0: a rate needs the sample before the first event.

`failed`: it could not be made or taken over, for a bug. `write_failed`: the file system refused it (full, no
permission). `busy`: it still has not taken the ones before.
`disk_bound`: written long ago, and dropped for newer ones. `buffer_full`: dropped for newer ones before the topic took
it. `refused`: the brokers will never take it. `closed`: not out when the sidecar ended.
"""


@dataclass(slots=True)
class ExportStats:
    """Counts of samples (one an interval) by sink."""

    written: Counter[Sink] = field(default_factory=Counter)
    dropped: Counter[tuple[Sink, str]] = field(default_factory=Counter)

    def add_sink(self, sink: Sink) -> None:
        """Show a sink from now on."""
        self.written[sink] += 0
        for reason in DROP_REASONS[sink]:
            self.dropped[sink, reason] += 0

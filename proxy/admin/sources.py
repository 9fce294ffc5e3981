"""What a whole process counts, beside its sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weir.proxy.event_loop import LoopLoad
from weir.proxy.export.sample import ExportStats
from weir.quota.topic_names import TopicNames


@dataclass(slots=True)
class ProcessStats:
    """The counters of the whole process. `reloads` is by result: `ok` or `refused`."""

    version: str
    topic_names: TopicNames
    is_ready: bool = False
    is_captured: bool | None = None
    """Whether brokers' connections are captured now; None without `[capture]`."""
    expired: Counter[str] = field(default_factory=Counter)
    """Changes over HTTP whose lease has ended: `throttle_expired` and `limits_expired`."""
    reloads: Counter[str] = field(default_factory=Counter)
    reload_refused: str | None = None
    """Why the file was refused when it was loaded last; None where it was not."""
    export: ExportStats = field(default_factory=ExportStats)
    load: LoopLoad = field(default_factory=LoopLoad)
    worker_loads: Callable[[], Sequence[tuple[float, float]]] = tuple
    """Returns, for each process that does TLS, the parts of time (0 to 1) in which it works, and is late."""

"""What the history behind the page costs while nobody looks: `python -m bench.page_history`."""

from __future__ import annotations

import sys
import time
import tracemalloc

from bench.table import Report, parser
from weir.limits.clients import Clients
from weir.proxy.admin.history import KEPT_SAMPLES, History
from weir.proxy.admin.metrics import SideSource
from weir.proxy.config.tables import SIDES
from weir.proxy.relay.stats import RelayStats
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle

SAMPLES = 20_000
MOST_OF_A_CORE = 0.0005
MOST_BYTES = 1_000_000
COLUMNS = {"other brokers": 0, "CPU a second, us": 1, "of a core, %": 4, "ten minutes, kB": 0}


def main() -> int:
    """Measure and print; 1 when it costs more than it may."""
    options = parser("bench.page_history", "Measure what the history behind the page costs.")
    report = Report(options.parse_args().json)
    rows = [(peers, *measured(peers)) for peers in (3, 30, 300)]
    shown = [(peers, cpu * 1e6, cpu * 100, size / 1e3) for peers, cpu, size in rows]
    report.table("History of both sides, a sample a second", COLUMNS, shown)
    report.bound("of a core", max(cpu for _, cpu, _ in rows), most=MOST_OF_A_CORE)
    report.bound("bytes of ten minutes", max(size for _, _, size in rows), most=MOST_BYTES)
    return report.status


def measured(peers: int) -> tuple[float, int]:
    """Return the CPU seconds of one sample of both sides, and the bytes of ten minutes, with so many other brokers."""
    sides = [
        SideSource(Throttle(side, 1, time.monotonic, ThrottleSettings(rate=5)), RelayStats(side)) for side in SIDES
    ]
    for side in sides:
        for peer in range(peers):
            side.throttle.stats.count_replication(peer, True, 1_000_000_007 * peer)
            side.throttle.stats.count_replication(peer, False, 1_000_000_007 * peer)
    history = History(sides, Clients(time.monotonic, lambda *fault: None), time.monotonic)
    tracemalloc.start()
    for _ in range(KEPT_SAMPLES):
        history.take()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    begun = time.process_time()
    for _ in range(SAMPLES):
        history.take()
    return (time.process_time() - begun) / SAMPLES, size


if __name__ == "__main__":
    sys.exit(main())

"""The metric families of TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weir.proxy.admin.exposition import Family
from weir.proxy.tls.stats import KNOWN_RESULTS, Peer, TlsStats
from weir.proxy.tls_workers.pool import TlsWorkers
from weir.quota.settings import SideName

_SIDES: Final[tuple[SideName, ...]] = ("leader", "follower")
_ENDS: Final[tuple[Peer, ...]] = ("client", "upstream")


def tls_families(stats: TlsStats, seconds_left: Mapping[str, float], workers: TlsWorkers) -> Iterator[Family]:
    """Yield the families. `seconds_left` is how long each certificate is valid, by the name of its table."""
    yield Family(
        "weir_tls_handshakes",
        "counter",
        "TLS handshakes with clients and upstreams, by result.",
        ("side", "end", "result"),
        [
            ((side, end, result), stats.handshakes[side, end, result])
            for side in _SIDES
            for end in _ENDS
            for result in KNOWN_RESULTS
        ],
    )
    yield Family(
        "weir_tls_plaintext",
        "counter",
        "Connections to upstreams without TLS although it is preferred.",
        ("side",),
        [((side,), stats.plaintext[side]) for side in _SIDES],
    )
    yield Family(
        "weir_tls_reloads",
        "counter",
        "Changed files of keys, by whether they could be used.",
        ("result",),
        [((result,), stats.reloads[result]) for result in ("ok", "refused")],
    )
    yield Family(
        "weir_tls_certificate_expiry_seconds",
        "gauge",
        "How long each certificate is valid from now on; below 0 where it has expired.",
        ("keys",),
        [((name,), round(left)) for name, left in seconds_left.items()],
    )
    yield Family(
        "weir_tls_workers_ended",
        "counter",
        "Worker processes that ended and were started again: their connections broke.",
        (),
        [((), workers.ended)],
    )
    yield Family(
        "weir_tls_worker_busy_ratio",
        "gauge",
        "The share of the last 10 s in which a worker process worked, or waited for a core to work on.",
        ("worker",),
        [((str(number),), busy) for number, (busy, _) in enumerate(workers.loads())],
    )
    yield Family(
        "weir_tls_worker_cpu_seconds",
        "counter",
        "CPU time of each worker process.",
        ("worker",),
        [((str(worker.number),), worker.cpu_seconds()) for worker in workers.workers],
    )

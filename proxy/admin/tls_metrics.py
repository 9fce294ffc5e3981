# SPDX-License-Identifier: Apache-2.0
"""The metric families of TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import get_args

from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.config.tables import SIDES
from weir.proxy.tls.results import KNOWN_RESULTS, Peer, TlsStats
from weir.proxy.tls_workers.pool import TlsWorkers


def tls_families(stats: TlsStats, seconds_left: Mapping[str, float], workers: TlsWorkers) -> Iterator[Family]:
    """Yield the families. `seconds_left` is how long each certificate is valid, by the name of its table."""
    ends = product(SIDES, get_args(Peer), KNOWN_RESULTS)
    yield counter(
        "weir_tls_handshakes",
        "TLS handshakes with clients and upstreams, by result.",
        [(labels, stats.handshakes[labels]) for labels in ends],
        "side end result",
    )
    plaintext = {side: stats.plaintext[side] for side in SIDES}
    yield counter(
        "weir_tls_plaintext", "Connections to upstreams without TLS although it is preferred.", plaintext, "side"
    )
    reloads = {result: stats.reloads[result] for result in ("ok", "refused")}
    yield counter("weir_tls_reloads", "Changed files of keys, by whether they could be used.", reloads, "result")
    yield gauge(
        "weir_tls_certificate_expiry_seconds",
        "How long each certificate is valid from now on; below 0 where it has expired.",
        {name: round(left) for name, left in seconds_left.items()},
        "keys",
    )
    yield counter(
        "weir_tls_workers_ended",
        "Worker processes that ended and were started again: their connections broke.",
        workers.ended,
    )
    yield gauge(
        "weir_tls_worker_busy_ratio",
        "The share of the last 10 s in which a worker process worked, or waited for a core to work on.",
        {str(number): busy for number, (busy, _) in enumerate(workers.loads())},
        "worker",
    )
    cpu_seconds = {str(worker.number): worker.cpu_seconds() for worker in workers.workers}
    yield counter("weir_tls_worker_cpu_seconds", "CPU time of each worker process.", cpu_seconds, "worker")

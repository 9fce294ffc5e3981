# SPDX-License-Identifier: Apache-2.0
"""The metrics of TLS: the names of docs/tls.md."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families as parse_text

from weir.proxy.admin.exposition import render
from weir.proxy.admin.tls_metrics import tls_families
from weir.proxy.log import EventLog
from weir.proxy.tls.results import TlsStats
from weir.proxy.tls_workers.pool import TlsWorkers


async def test_metrics_of_tls_are_shown_from_the_start() -> None:
    stats = TlsStats()
    stats.handshakes["leader", "client", "wrong_name"] += 2
    stats.plaintext["follower"] += 3
    workers = TlsWorkers(2, (), EventLog())
    workers.ended += 4
    parts = render(tls_families(stats, {"ingress[0].tls": 7.2}, workers))
    text = b"".join(parts).decode()
    shown = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }
    handshakes, ends = "weir_tls_handshakes_total", (("end", "client"),)
    assert shown[handshakes, *ends, ("result", "wrong_name"), ("side", "leader")] == 2
    assert shown[handshakes, *ends, ("result", "ok"), ("side", "leader")] == 0
    assert shown["weir_tls_plaintext_total", ("side", "follower")] == 3
    assert shown["weir_tls_reloads_total", ("result", "refused")] == 0
    assert shown["weir_tls_certificate_expiry_seconds", ("keys", "ingress[0].tls")] == 7
    assert shown["weir_tls_workers_ended_total",] == 4
    assert shown["weir_tls_worker_cpu_seconds_total", ("worker", "1")] == 0
    assert shown["weir_tls_worker_busy_ratio", ("worker", "1")] == 0

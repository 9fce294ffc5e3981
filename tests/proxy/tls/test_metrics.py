"""The metrics of TLS: the names of docs/tls.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse_text

from proxy.admin.exposition import render
from proxy.admin.tls_metrics import tls_families
from proxy.tls.keys import KeyFiles, load_server_keys
from proxy.tls.live_keys import KeyWatch, LiveKeys
from proxy.tls.stats import TlsStats
from tests.fakes.pki import Authority
from tests.fakes.relaying import logged


async def test_metrics_of_tls_are_shown_where_there_are_keys(tmp_path: Path) -> None:
    files = KeyFiles(certificate=Authority(tmp_path).issue("broker-1.test", days=3).together)
    stats = TlsStats()
    with logged() as (log, _):
        assert list(tls_families(stats, KeyWatch([], stats, log))) == []
        keys = LiveKeys("ingress[0].tls", files, partial(load_server_keys, files, "none"))
        watch = KeyWatch([keys], stats, log, now=lambda: (keys.keys.expires_at or 0) - 7)
        stats.handshakes["leader", "client", "wrong_name"] += 2
        stats.plaintext["follower"] += 3
        text = b"".join([part async for part in render(tls_families(stats, watch), "")]).decode()
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

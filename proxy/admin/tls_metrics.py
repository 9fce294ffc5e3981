"""The metric families of TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weir.proxy.admin.exposition import Family
from weir.proxy.tls.stats import KNOWN_RESULTS, Peer, TlsStats
from weir.quota.settings import SideName

_SIDES: Final[tuple[SideName, ...]] = ("leader", "follower")
_ENDS: Final[tuple[Peer, ...]] = ("client", "upstream")


def tls_families(stats: TlsStats, seconds_left: Mapping[str, float]) -> Iterator[Family]:
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

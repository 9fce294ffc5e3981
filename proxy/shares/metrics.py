"""The metric families of shared rates."""

from __future__ import annotations

from collections.abc import Iterator

from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.shares.exchange import Exchange

MOST_PEERS = 1000


def share_families(exchange: Exchange) -> Iterator[Family]:
    """Yield what is shared, and how the others are heard."""
    shares, now = list(exchange.shares.items()), exchange.now()
    used = {name: round(share.current(), 1) for name, share in shares}
    yield gauge(
        "weir_share_bytes_per_second", "What this sidecar may use now of a rate that several share.", used, "rate"
    )
    yield gauge(
        "weir_share_wanted_bytes_per_second",
        "What this sidecar would use of a rate that several share.",
        {name: round(share.demand, 1) for name, share in shares},
        "rate",
    )
    yield gauge(
        "weir_share_sidecars_without_rate",
        "Sidecars that do not have a rate which this one divides; their part goes to the others.",
        {name: len(share.without) for name, share in shares},
        "rate",
    )
    yield gauge(
        "weir_share_report_age_seconds",
        "Since when the sidecar of another broker, with which a rate is shared, was not heard.",
        {str(peer): round(now - at, 3) for peer, at in sorted(exchange.heard_at.items())[:MOST_PEERS]},
        "peer",
    )
    yield counter(
        "weir_share_reports_refused",
        "What other sidecars said of shared rates and counts for nothing, by reason.",
        exchange.refused,
        "reason",
    )

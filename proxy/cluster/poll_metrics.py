"""The metrics of the polls of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.cluster.poll_stats import PollStats


def poll_families(polled: PollStats, now: float) -> Iterator[Family]:
    """Yield every metric family of the polls; `now` is in clock seconds."""
    yield counter(
        "weir_cluster_polls",
        "Questions to the cluster, by what was asked for and the result.",
        sorted(polled.polls.items()),
        "what result",
    )
    seconds = {what: round(seconds, 6) for what, seconds in sorted(polled.seconds.items())}
    yield gauge("weir_cluster_poll_seconds", "How long the last question took.", seconds, "what")
    sizes = dict(sorted(polled.bytes.items()))
    yield counter("weir_cluster_poll_bytes", "Bytes sent and received for questions.", sizes, "what")
    yield gauge("weir_cluster_view_age_seconds", "How old what is known of topics is.", _age(polled.confirmed_at, now))
    yield gauge(
        "weir_kafka_throttle_age_seconds",
        "How old what is known of Kafka's own throttle is; the last that was read stays in force.",
        _age(polled.throttle_read_at, now),
    )


def _age(at: float | None, now: float) -> list[tuple[tuple[()], float]]:
    return [] if at is None else [((), round(now - at, 3))]

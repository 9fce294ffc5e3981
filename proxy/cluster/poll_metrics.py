"""The metrics of the polls of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from weir.proxy.admin.exposition import Family
from weir.proxy.cluster.poll_stats import PollStats


def poll_families(polled: PollStats, now: float) -> Iterator[Family]:
    """Yield every metric family of the polls; `now` is in clock seconds."""
    yield Family(
        "weir_cluster_polls",
        "counter",
        "Questions to the cluster, by what was asked for and the result.",
        ("what", "result"),
        sorted(polled.polls.items()),
    )
    yield Family(
        "weir_cluster_poll_seconds",
        "gauge",
        "How long the last question took.",
        ("what",),
        [((what,), round(seconds, 6)) for what, seconds in sorted(polled.seconds.items())],
    )
    yield Family(
        "weir_cluster_poll_bytes",
        "counter",
        "Bytes sent and received for questions.",
        ("what",),
        [((what,), size) for what, size in sorted(polled.bytes.items())],
    )
    yield Family(
        "weir_cluster_view_age_seconds",
        "gauge",
        "How old what is known of topics is.",
        (),
        [] if polled.confirmed_at is None else [((), round(now - polled.confirmed_at, 3))],
    )
    yield Family(
        "weir_kafka_throttle_age_seconds",
        "gauge",
        "How old what is known of Kafka's own throttle is; the last that was read stays in force.",
        (),
        [] if polled.throttle_read_at is None else [((), round(now - polled.throttle_read_at, 3))],
    )

# SPDX-License-Identifier: Apache-2.0
"""Two tables: how exactly quotas were kept, and which replicas took the longest to get in sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weir.pipeline.page.contents import Accuracy, Away, QuotaAccuracy, SlowReplica, SlowReplicas
from weir.pipeline.page.markup import Child, Element, element, left_out_note, reaching_note, table
from weir.pipeline.page.texts import show_count, show_ratio, show_seconds
from weir.pipeline.page.timeline import Timeline
from weir.planning.units import show_rate, show_size

PROMISED: Final = 1.04
"""The most that passes in any second, over the quota, but for what rounds it up to whole batches."""
LARGEST_BATCH: Final = 1_048_588
"""Kafka's default of message.max.bytes."""


def accuracy_table(accuracy: Accuracy, timeline: Timeline) -> Iterator[Element]:
    """Yield the table of quotas, the one with the worst second first."""
    columns = (
        ("broker", False),
        ("side", False),
        ("quota", True),
        ("policy", False),
        ("held back for", True),
        ("mean then / quota", True),
        ("worst 1\N{NO-BREAK SPACE}s / quota", True),
        ("worst 10\N{NO-BREAK SPACE}s / quota", True),
        ("seconds over", True),
        ("bytes left out", True),
        ("in force for", True),
        ("from", False),
        ("to", False),
    )
    yield table(columns, (_quota(quota, timeline) for quota in accuracy.shown), "How exactly quotas were kept")
    yield from left_out_note(len(accuracy.shown), accuracy.count, "quotas", "with the worst second")
    yield from reaching_note(accuracy.reaching_out, "quota")


def _quota(of: QuotaAccuracy, timeline: Timeline) -> tuple[Child, ...]:
    return (
        element("span", {"title": of.quota_id}, str(of.broker_id)),
        of.side,
        show_rate(of.rate),
        of.policy,
        show_seconds(of.seconds_left_out),
        show_ratio(of.mean_left_out),
        _over(show_ratio(of.worst_1s), _is_broken(of, of.worst_1s, 1)),
        _over(show_ratio(of.worst_10s), _is_broken(of, of.worst_10s, 10)),
        f"{of.seconds_over:,.0f}",
        show_size(of.bytes_left_out),
        show_seconds(of.seconds),
        timeline.time(of.start),
        timeline.time(of.end),
    )


def _is_broken(of: QuotaAccuracy, worst: float | None, seconds: int) -> bool:
    """Whether more passed in some seconds than the policy `strict` promises; the other policy promises none."""
    if worst is None or of.policy != "strict":
        return False
    return worst * of.rate * seconds > PROMISED * of.rate * seconds + LARGEST_BATCH


def _over(text: str, is_over: bool) -> Child:
    return element("strong", {"class": "over"}, text) if is_over else text


def slow_table(slow: SlowReplicas, timeline: Timeline) -> Iterator[Element]:
    """Yield the table of replicas out of sync, the longest span first."""
    columns = (
        ("replica", False),
        ("time to in-sync", True),
        ("out of sync since", False),
        ("in sync", False),
        ("most messages behind", True),
        ("times without bytes", True),
        ("nothing came for", True),
    )
    yield table(columns, (_replica(replica, timeline) for replica in slow.shown), "Slowest replicas")
    yield from left_out_note(len(slow.shown), slow.count, "spans out of sync", "longest")
    yield from reaching_note(slow.reaching_out, "span out of sync", "spans out of sync")


def away_table(away: Sequence[Away], timeline: Timeline) -> Iterator[Element]:
    """Yield the table of brokers that were away, the longest first."""
    columns = (("broker", False), ("away for", True), ("last fetch", False), ("came back", False))
    rows = (
        (
            str(of.broker_id),
            _over(f"> {show_seconds(of.seconds)}", True) if of.end is None else show_seconds(of.seconds),
            timeline.time(of.start),
            "not seen" if of.end is None else timeline.time(of.end),
        )
        for of in away
    )
    yield table(columns, rows, "Brokers that were away")


def _replica(of: SlowReplica, timeline: Timeline) -> tuple[Child, ...]:
    return (
        str(of.replica),
        _over(f"> {show_seconds(of.seconds)}", True) if of.end is None else show_seconds(of.seconds),
        timeline.time(of.start),
        "not seen" if of.end is None else timeline.time(of.end),
        show_count(of.max_lag_messages),
        _over(show_count(of.stuck_spans), of.stuck_spans > 0),
        show_seconds(of.stuck_seconds),
    )

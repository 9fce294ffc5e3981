# SPDX-License-Identifier: Apache-2.0
"""What `weir status` says of bytes that pass a sidecar without a throttle, beside what is throttled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weir.cli.sidecars import Reply
from weir.planning.units import show_size

_OF_CONNECTIONS = frozenset({"tls", "sasl", "not_kafka", "not_a_replica"})
"""Reasons that clients cause too: their connections count while they are open, if at all."""


def sentences(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for each way in which bytes pass unthrottled now, or have passed undecoded."""
    for reply in replies:
        if reply.error is None:
            yield from _of(reply.value)


def _of(status: dict[str, Any]) -> Iterator[str]:
    broker = f"Broker {status['broker_id']}"
    for name, side in status["sides"].items():
        passed = side.get("not_throttled", {})  # a sidecar of an earlier version does not tell
        if size := passed.get("catch_up_bytes_in_ten_minutes"):
            yield (
                f"{broker}, {name} side: beside the throttle {show_size(size)} of replicas that are behind passed"
                " unthrottled in the last ten minutes; `weir throttle show` tells what is throttled."
            )
        if opaque := passed.get("opaque_connections"):
            count = sum(opaque.values())
            noun = "connection is" if count == 1 else "connections are"
            yield f"{broker}, {name} side: {count} open {noun} not decoded, and not throttled ({_counts(opaque)})."
        passed = {
            reason: count for reason, count in side.get("passthrough", {}).items() if reason not in _OF_CONNECTIONS
        }
        if passed:
            yield f"{broker}, {name} side: undecoded since the start, and not throttled: {_counts(passed)}."
    if unknown := status.get("topic_ids_unknown"):
        ids, them = ("1 topic id has", "it") if unknown == 1 else (f"{unknown} topic ids have", "them")
        yield f"{broker}: {ids} no name that is known, so any list or pattern of topics throttles {them}."


def _counts(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(by_reason.items()))

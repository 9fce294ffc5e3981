# SPDX-License-Identifier: Apache-2.0
"""The content of `GET /v1/status`: rates, quotas, links, partitions left out, and lag."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

from weir.proxy.admin.held_up import Facts, Limit, held_up_by
from weir.proxy.admin.history import Trend
from weir.proxy.config.reader import struct_fields
from weir.proxy.config.tables import ThrottleTable
from weir.proxy.layers import EffectiveThrottle
from weir.proxy.relay.side import Side
from weir.quota.fetch.link import ReplicaLink
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ThrottledReplicas

_ROWS_PER_SLICE = 500
_WORST_SHOWN = 20


async def side_status(side: Side, trend: Trend) -> dict[str, Any]:
    """Return one side's state as plain JSON values, in bytes and bytes/s. The event loop runs in between."""
    throttle, relay = side.throttle, side.stats
    settings, stats = throttle.settings, throttle.stats
    now = throttle.clock()
    rate = throttle.quotas[0].measured.rate()
    lag, stuck = await _lag_status(side, trend)
    waiting = {link.partitions.peer for link in throttle.links if link.unanswered_since is not None}
    facts = Facts(
        lag["partitions_behind"],
        min(lag["partitions_behind"], sum([_waiting(link) for link in throttle.links])),
        lag["partitions_stuck"],
        tuple(_limits(side.throttle)),
        tuple(sorted(waiting)),
        tuple(sorted(stuck)),
    )
    return {
        "policy": settings.policy,
        "order": settings.order,
        "quota_bytes_per_second": settings.rate,
        "throttled_rate_bytes_per_second": round(rate, 1),
        "mode": "observe" if settings.is_observed else "enforce",
        "quotas": [
            {
                "name": quota.name,
                "bytes_per_second": quota.rate,
                "rate_bytes_per_second": round(quota.measured.rate(), 1),
                "mode": "observe" if quota.is_observed else "enforce",
                "would_leave_out": stats.would_leave_out[quota.name],
            }
            for quota in throttle.quotas
        ],
        "throttled_topics": sorted(topic for topic, replicas in settings.replicas.items() if replicas),
        "connections": relay.connections,
        "relayed_bytes": relay.relayed._asdict(),
        "held_fetches": len(side.held),
        "fetches_held": relay.fetches_held,
        "fetches_answered": relay.fetches_answered,
        "fetch_requests": {str(version): count for version, count in sorted(relay.fetch_requests.items())},
        "passthrough": dict(relay.passthrough),
        "not_throttled": {
            "catch_up_bytes_in_ten_minutes": trend.catch_up_bytes,
            "opaque_connections": dict(+relay.opaque),
        },
        "protocol_errors": dict(relay.protocol_errors),
        "partitions_left_out": stats.partitions_left_out,
        "offset_probes": stats.offset_probes,
        "fetch_sessions": throttle.open_sessions,
        "full_fetches": {"follower": stats.full_fetches_received, "sidecar": stats.full_fetches_sent},
        "cut_bytes": stats.cut_bytes,
        "taken_out_bytes": stats.taken_out_bytes,
        "replication": [
            {"peer": peer, "throttled": throttled, "bytes": size}
            for (peer, throttled), size in sorted(stats.replication_bytes.items())
        ],
        "links": [_link_status(link, now) for link in sorted(throttle.links, key=lambda link: link.partitions.peer)],
        "lag": lag,
        "held_up_by": held_up_by(facts)._asdict(),
    }


def _limits(throttle: Throttle) -> Iterator[Limit]:
    """Yield the quotas that may hold something back. That of the listed replicas does so where there are any."""
    listed, *others = throttle.quotas
    if listed.rate is not None and listed.limits and throttle.settings.replicas:
        yield Limit("", listed.rate, listed.measured.rate())
    for quota in others:
        if quota.rate is not None and quota.limits:
            yield Limit(quota.name, quota.rate, quota.measured.rate())


def rate_settings(effective: EffectiveThrottle, now: float) -> dict[str, dict[str, Any]]:
    """Return the settings in force that are no topic's, each with its layer and what is left of its lease."""
    found = {}
    for field in struct_fields(ThrottleTable):
        part = effective.parts.get((field.encode_name,))
        if part is not None and not isinstance(part.value, ThrottledReplicas):
            lease = part.lease
            left = (
                {} if lease.expires_at == math.inf else {"ends_in_seconds": round(max(0.0, lease.expires_at - now), 1)}
            )
            said = {name: text for name, text in (("owner", lease.owner), ("reason", lease.reason)) if text}
            found[field.encode_name] = {"value": part.value, "source": part.source, **left, **said}
    return found


def _waiting(link: ReplicaLink) -> int:
    """How many partitions are throttled and not known to be in sync."""
    return link.partitions.behind_count + link.partitions.unknown_count


def _link_status(link: ReplicaLink, now: float) -> dict[str, Any]:
    since = link.unanswered_since
    return {
        "peer": link.partitions.peer,
        "replica_id": link.partitions.replica_id,
        "throttled_partitions_behind": _waiting(link),
        "left_out_for_seconds": None if since is None else round(now - since, 3),
    }


async def _lag_status(side: Side, trend: Trend) -> tuple[dict[str, Any], set[int]]:
    """Return the lag, and the replicas with stuck partitions."""
    behind = stuck = 0
    stuck_replicas: set[int] = set()
    max_seconds = 0.0
    worst: list[dict[str, Any]] = []
    for number, row in enumerate(side.throttle.lag.rows(), start=1):
        if row.lag_messages or row.stuck:
            behind += bool(row.lag_messages)
            if row.stuck:
                stuck += 1
                stuck_replicas.add(row.replica)
            max_seconds = max(max_seconds, row.lag_seconds)
            worst.append(
                {
                    "topic": row.topic.decode("utf-8", "replace"),
                    "partition": row.partition,
                    "replica": row.replica,
                    "lag_seconds": round(row.lag_seconds, 3),
                    "lag_messages": row.lag_messages,
                    "stuck": row.stuck,
                }
            )
        if number % _ROWS_PER_SLICE == 0:
            worst = _longest(worst)
            await asyncio.sleep(0)
    messages, falls = side.throttle.lag.sum_messages(), trend.falls_per_second
    lag = {
        "messages": messages,
        "partitions_behind": behind,
        "partitions_stuck": stuck,
        "max_seconds": round(max_seconds, 3),
        "falls_per_second": None if falls is None else round(falls, 1),
        "time_left_seconds": round(messages / falls, 1) if messages and falls is not None and falls > 0 else None,
        "stands_still": trend.stands_still,
        "none_for_seconds": round(trend.none_for_seconds, 1),
        "worst": _longest(worst),
    }
    return lag, stuck_replicas


def _longest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["lag_seconds"], reverse=True)[:_WORST_SHOWN]

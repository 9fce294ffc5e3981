"""The content of `GET /v1/status`: rates, quotas, links, partitions left out, and lag."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.admin.metrics import SideSource
from quota.fetch.link import ReplicaLink

_ROWS_PER_SLICE = 500
_WORST_SHOWN = 20


async def side_status(side: SideSource) -> dict[str, Any]:
    """Return one side's state as plain JSON values, in bytes and bytes/s. The event loop runs in between."""
    throttle, relay = side.throttle, side.relay
    settings, stats = throttle.settings, throttle.stats
    now = throttle.clock()
    return {
        "policy": settings.policy,
        "order": settings.order,
        "quota_bytes_per_second": settings.rate,
        "throttled_rate_bytes_per_second": round(throttle.throttled_rate.rate(), 1),
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
        "held_fetches": relay.held,
        "fetches_held": relay.fetches_held,
        "fetches_answered": relay.fetches_answered,
        "fetch_requests": {str(version): count for version, count in sorted(relay.fetch_requests.items())},
        "passthrough": dict(relay.passthrough),
        "protocol_errors": dict(relay.protocol_errors),
        "partitions_left_out": stats.partitions_left_out,
        "offset_probes": stats.offset_probes,
        "fetch_sessions": throttle.open_sessions,
        "full_fetches": {"follower": stats.full_fetches_received, "sidecar": stats.full_fetches_sent},
        "cut_bytes": stats.cut_bytes,
        "replication": [
            {"peer": peer, "throttled": throttled, "bytes": size}
            for (peer, throttled), size in sorted(stats.replication_bytes.items())
        ],
        "links": [_link_status(link, now) for link in sorted(throttle.links, key=lambda link: link.peer)],
        "lag": await _lag_status(side),
    }


def _link_status(link: ReplicaLink, now: float) -> dict[str, Any]:
    since = link.unanswered_since
    return {
        "peer": link.peer,
        "replica_id": link.replica_id,
        "throttled_partitions_behind": link.partitions.behind_count,
        "left_out_for_seconds": None if since is None else round(now - since, 3),
    }


async def _lag_status(side: SideSource) -> dict[str, Any]:
    behind = stuck = 0
    max_seconds = 0.0
    worst: list[dict[str, Any]] = []
    for number, row in enumerate(side.throttle.lag.rows(), start=1):
        if row.lag_messages or row.stuck:
            behind += bool(row.lag_messages)
            stuck += row.stuck
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
    return {
        "messages": side.throttle.lag.sum_messages(),
        "partitions_behind": behind,
        "partitions_stuck": stuck,
        "max_seconds": round(max_seconds, 3),
        "worst": _longest(worst),
    }


def _longest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["lag_seconds"], reverse=True)[:_WORST_SHOWN]

"""The metric families of a sidecar, over the plain integers that the data path counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from weir.proxy.admin.exposition import Family
from weir.proxy.admin.partition_metrics import partition_families
from weir.proxy.admin.sources import ProcessStats, SideSource
from weir.proxy.relay.admission import KNOWN_REFUSALS
from weir.proxy.relay.stats import OTHER_PEERS, RelayStats

# Shown as 0 from the start: Prometheus's rate() needs a sample before the first event.
KNOWN_PASSTHROUGH = (
    *("fetch_version", "fetch_too_large", "fetch_malformed", "too_many_topics", "too_many_partitions"),
    "not_a_replica",
    *("tls", "sasl", "not_kafka"),
)
KNOWN_OPAQUE = ("tls", "sasl", "not_kafka")
KNOWN_PROTOCOL_ERRORS = (
    *("invalid_frame_size", "frame_too_large", "malformed_frame"),
    *("unexpected_response", "correlation_mismatch", "fetch_memory", "fetch_stalled", "tls"),
)
KNOWN_UPSTREAM_FAILURES = ("refused", "unreachable", "timeout")


def families(sides: Sequence[SideSource], process: ProcessStats, *, by_partition: bool = True) -> Iterator[Family]:
    """Yield every metric family of the sidecar; those with a series for each partition only where they are wanted."""
    yield from _rate_families(sides)
    if by_partition:
        yield from partition_families(side.throttle for side in sides)
    yield from _relay_families(sides)
    yield Family("weir_build_info", "gauge", "The running version.", ("version",), [((process.version,), 1)])
    yield Family(
        "weir_ready",
        "gauge",
        "Whether GET /readyz is answered with 200, as of the last 10 s.",
        (),
        [((), int(process.is_ready))],
    )
    yield Family(
        "weir_loop_busy_ratio",
        "gauge",
        "The share of the last 10 s in which the event loop worked, or waited for a core to work on.",
        (),
        [((), process.load.busy)],
    )
    yield Family(
        "weir_loop_delay_seconds",
        "gauge",
        "How late the event loop calls back: the 99th percentile of the last 10 s.",
        (),
        [((), process.load.late_seconds)],
    )
    yield _counted(
        "weir_config_reloads", "Reloads of the file, by result.", "result", process.reloads, ("ok", "refused")
    )
    yield Family(
        "weir_throttle_expired",
        "counter",
        "Changes of the throttle over HTTP whose lease has ended.",
        (),
        [((), process.expired["throttle_expired"])],
    )
    yield Family(
        "weir_limits_expired",
        "counter",
        "Limits of clients set over HTTP whose lease has ended.",
        (),
        [((), process.expired["limits_expired"])],
    )
    if process.is_captured is not None:
        yield Family(
            "weir_captured",
            "gauge",
            "Whether brokers' connections are captured now.",
            (),
            [((), int(process.is_captured))],
        )
    yield _counted("weir_samples_written", "Samples written, by sink.", "sink", dict(process.export.written.items()))
    yield Family(
        "weir_samples_dropped",
        "counter",
        "Samples lost, by sink and reason.",
        ("sink", "reason"),
        list(process.export.dropped.items()),
    )
    yield Family(
        "weir_topic_ids_unknown",
        "gauge",
        "Topic ids in fetches whose name is not known now: throttled as far as any list or pattern may cover them.",
        (),
        [((), process.topic_names.unknown_count)],
    )


def _rate_families(sides: Sequence[SideSource]) -> Iterator[Family]:
    def lasted(side: SideSource, since: float | None) -> float:
        return 0 if since is None else round(side.throttle.clock() - since, 3)

    quotas = [
        (side.throttle.side, "" if quota is side.throttle.quotas[0] else quota.name, quota)
        for side in sides
        for quota in side.throttle.quotas
    ]
    yield Family(
        "weir_throttled_rate_bytes_per_second",
        "gauge",
        "Rate of throttled replicas' bytes, in Kafka's window; `quota` names those beside the listed replicas' own.",
        ("side", "quota"),
        (((side, name), quota.measured.rate()) for side, name, quota in quotas),
    )
    yield Family(
        "weir_quota_bytes_per_second",
        "gauge",
        "The quota in force; +Inf when none.",
        ("side", "quota"),
        (((side, name), math.inf if quota.rate is None else quota.rate) for side, name, quota in quotas),
    )
    yield Family(
        "weir_would_leave_out",
        "counter",
        "Partitions with records that a quota which only observes would have left out.",
        ("side", "quota"),
        (
            ((side.throttle.side, "" if quota is side.throttle.quotas[0] else quota.name), left_out[quota.name])
            for side in sides
            for left_out in [side.throttle.stats.would_leave_out]
            for quota in side.throttle.quotas
            if quota.is_observed
        ),
    )
    yield _by_side(
        "weir_partitions_under_min_isr",
        "gauge",
        "Waiting partitions with fewer replicas in sync than min.insync.replicas, as the cluster told last.",
        sides,
        lambda side: len(side.throttle.under_min_isr),
    )
    yield _by_side(
        "weir_throttle_in_force_seconds",
        "gauge",
        "How long replicas have been throttled without a break since the start; 0 when none is.",
        sides,
        lambda side: lasted(side, side.throttle.in_force_since),
    )
    yield _by_side(
        "weir_throttle_set_by_hand_seconds",
        "gauge",
        "How long a throttle that is neither the file's nor leased has been in force; 0 when none is.",
        sides,
        lambda side: lasted(side, side.by_hand_since),
    )
    yield Family(
        "weir_cluster_facts_unknown",
        "gauge",
        "What the cluster has not told, of reassignments, racks and Kafka's throttle: 1 while all that may count does.",
        ("side", "what"),
        [
            ((side.throttle.side, what), int(is_lacking))
            for side in sides
            for what, is_lacking in side.throttle.rules.untold().items()
        ],
    )
    yield Family(
        "weir_replication_bytes",
        "counter",
        "Record bytes of replica fetches, by the other broker and whether the partition was throttled.",
        ("side", "peer", "throttled"),
        (
            ((side.throttle.side, _peer(peer), "true" if throttled else "false"), size)
            for side in sides
            for (peer, throttled), size in list(side.throttle.stats.replication_bytes.items())
        ),
    )
    yield _by_side(
        "weir_catch_up_beside_throttle_bytes",
        "counter",
        "Record bytes of replicas behind that no quota covers, while a quota is in force on this side.",
        sides,
        lambda side: side.throttle.stats.catch_up_beside_throttle,
    )
    yield _by_side(
        "weir_cut_bytes",
        "counter",
        "Record bytes that a follower throws away: batches cut by a cap, on the leader's side in answers above 1 MiB.",
        sides,
        lambda side: side.throttle.stats.cut_bytes,
    )
    yield _by_side(
        "weir_taken_out_bytes",
        "counter",
        "Record bytes above a grant that the broker returned and its sidecar did not send on.",
        sides,
        lambda side: side.throttle.stats.taken_out_bytes,
    )
    yield _by_side(
        "weir_partitions_left_out",
        "counter",
        "Partitions left out of a replica fetch for want of quota.",
        sides,
        lambda side: side.throttle.stats.partitions_left_out,
    )
    yield _by_side(
        "weir_fetches_held",
        "counter",
        "Replica fetches held back until there was budget.",
        sides,
        lambda side: side.relay.fetches_held,
    )
    yield _by_side(
        "weir_offset_probes",
        "counter",
        "Fetches that asked the leader for offsets and errors only: offset probes.",
        sides,
        lambda side: side.throttle.stats.offset_probes,
    )
    yield Family(
        "weir_full_fetches",
        "counter",
        "Replica fetches from v7 on that listed every partition, by who sent them; none in the steady state.",
        ("side", "sender"),
        (
            ((side.throttle.side, sender), count)
            for side in sides
            for sender, count in (
                ("follower", side.throttle.stats.full_fetches_received),
                ("sidecar", side.throttle.stats.full_fetches_sent),
            )
        ),
    )
    yield _by_side(
        "weir_fetch_sessions",
        "gauge",
        "Fetch sessions kept for followers.",
        sides,
        lambda side: side.throttle.open_sessions,
    )
    yield _by_side(
        "weir_fetch_session_evictions",
        "counter",
        "Fetch sessions of followers that gave way to another follower's (KIP-227).",
        sides,
        lambda side: side.throttle.stats.sessions_evicted,
    )
    yield _by_side(
        "weir_replica_lag_messages_sum",
        "gauge",
        "Messages behind the high watermark, over all replicas.",
        sides,
        lambda side: side.throttle.lag.sum_messages(),
    )
    yield _by_side(
        "weir_replica_lag_limit_seconds",
        "gauge",
        "replica_lag_time_max_ms: a replica that lags for longer is not in sync (KIP-16).",
        sides,
        lambda side: side.throttle.lag.replica_lag_time_max,
    )
    yield _by_side(
        "weir_lag_evicted",
        "counter",
        "Partitions of replicas whose lag is not told for want of room: dropped, or not taken.",
        sides,
        lambda side: side.throttle.lag.evicted,
    )
    yield _by_side(
        "weir_replica_ids_refused",
        "counter",
        "Replica ids that the cluster's metadata does not know, or that are too many: they have no series.",
        sides,
        lambda side: side.throttle.brokers.refused,
    )


def _relay_families(sides: Sequence[SideSource]) -> Iterator[Family]:
    yield _by_side("weir_connections", "gauge", "Connections open now.", sides, lambda side: side.relay.connections)
    yield _by_side(
        "weir_connections_accepted",
        "counter",
        "Connections accepted.",
        sides,
        lambda side: side.relay.connections_accepted,
    )
    yield _by_side_and(
        "weir_connections_refused",
        "Connections closed at once, as there were too many.",
        "reason",
        sides,
        lambda relay: relay.connections_refused,
        KNOWN_REFUSALS,
    )
    yield _by_side(
        "weir_connections_dismissed",
        "counter",
        "Connections closed because no request came.",
        sides,
        lambda side: side.relay.connections_dismissed,
    )
    yield _by_side(
        "weir_connections_silent",
        "counter",
        "Connections that ended without a byte from their client: of who only looks whether the port is open.",
        sides,
        lambda side: side.relay.connections_silent,
    )
    yield _by_side(
        "weir_links_of_other_peers",
        "counter",
        "Connections of replica ids beyond the first 1,000, which are counted as one peer.",
        sides,
        lambda side: side.relay.links_of_other_peers,
    )
    yield _by_side(
        "weir_fetches_waiting", "gauge", "Replica fetches held back now.", sides, lambda side: side.relay.held
    )
    yield _by_side(
        "weir_fetches_answered",
        "counter",
        "Replica fetches that the sidecar answered itself.",
        sides,
        lambda side: side.relay.fetches_answered,
    )
    yield _by_side(
        "weir_stranger_fetches",
        "counter",
        "Fetches with a broker's id from an address that is not known to be its own: throttled, as a stranger's.",
        sides,
        lambda side: side.relay.stranger_fetches,
    )
    yield _by_side_and(
        "weir_relayed_bytes",
        "Bytes relayed, replication and all else: requests to the upstream, and answers to clients.",
        "what",
        sides,
        lambda relay: relay.relayed._asdict(),
    )
    yield _by_side_and(
        "weir_fetch_requests",
        "Fetch requests of replicas, by version.",
        "api_version",
        sides,
        lambda relay: relay.fetch_requests,
    )
    yield _by_side_and(
        "weir_passthrough",
        "What passed undecoded, by reason.",
        "reason",
        sides,
        lambda relay: relay.passthrough,
        KNOWN_PASSTHROUGH,
    )
    yield _by_side_and(
        "weir_opaque_connections",
        "Connections open now whose bytes are not understood, and not throttled, by reason.",
        "reason",
        sides,
        lambda relay: relay.opaque,
        KNOWN_OPAQUE,
        kind="gauge",
    )
    yield _by_side_and(
        "weir_protocol_errors",
        "Connections closed because of a peer's bytes.",
        "kind",
        sides,
        lambda relay: relay.protocol_errors,
        KNOWN_PROTOCOL_ERRORS,
    )
    yield _by_side_and(
        "weir_upstream_failures",
        "Connections that the upstream did not take.",
        "reason",
        sides,
        lambda relay: relay.upstream_failures,
        KNOWN_UPSTREAM_FAILURES,
    )
    yield _by_side_and(
        "weir_internal_errors",
        "Unexpected errors of the sidecar itself.",
        "where",
        sides,
        lambda relay: {
            "throttle": relay.throttle_errors,
            "relay": relay.relay_errors,
            "accept": relay.accept_errors,
        },
    )


def _by_side(
    name: str,
    kind: Literal["counter", "gauge"],
    documentation: str,
    sides: Sequence[SideSource],
    value: Callable[[SideSource], float],
) -> Family:
    return Family(name, kind, documentation, ("side",), [((side.throttle.side,), value(side)) for side in sides])


def _by_side_and(
    name: str,
    documentation: str,
    label: str,
    sides: Sequence[SideSource],
    counts: Callable[[RelayStats], Mapping[Any, int]],
    known: Iterable[str] = (),
    kind: Literal["counter", "gauge"] = "counter",
) -> Family:
    samples = []
    for side in sides:
        shown = dict.fromkeys(known, 0) | {str(key): count for key, count in counts(side.relay).items()}
        samples += [((side.throttle.side, key), count) for key, count in shown.items()]
    return Family(name, kind, documentation, ("side", label), samples)


def _counted(name: str, documentation: str, label: str, counts: Mapping[str, int], known: Iterable[str] = ()) -> Family:
    shown = {**dict.fromkeys(known, 0), **counts}
    return Family(name, "counter", documentation, (label,), [((key,), count) for key, count in shown.items()])


def _peer(peer: int) -> str:
    return "other" if peer == OTHER_PEERS else str(peer)

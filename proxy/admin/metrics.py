# SPDX-License-Identifier: Apache-2.0
"""The metric families of a sidecar, over the plain integers that the data path counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.event_loop import LoopLoad
from weir.proxy.export.sample import ExportStats
from weir.proxy.relay.admission import KNOWN_REFUSALS
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import OTHER_PEERS
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames


@dataclass(slots=True)
class ProcessStats:
    """The counters of the whole process. `reloads` is by result: `ok` or `refused`."""

    version: str
    topic_names: TopicNames
    is_ready: bool = False
    is_captured: bool | None = None
    """Whether brokers' connections are captured now; None without `[capture]`."""
    expired: Counter[str] = field(default_factory=Counter)
    """Changes over HTTP whose lease has ended: `throttle_expired` and `limits_expired`."""
    reloads: Counter[str] = field(default_factory=Counter)
    reload_refused: str | None = None
    """Why the file was refused when it was loaded last; None where it was not."""
    admin_refused: Mapping[str, int] = field(default_factory=dict)
    """Requests to the admin HTTP that were refused, by reason."""
    export: ExportStats = field(default_factory=ExportStats)
    load: LoopLoad = field(default_factory=LoopLoad)
    worker_loads: Callable[[], Sequence[tuple[float, float]]] = tuple
    """Returns, for each process that does TLS, the parts of time (0 to 1) in which it works, and is late."""


def partition_families(throttles: Iterable[Throttle]) -> Iterator[Family]:
    """Yield the families with a series for each partition. Their samples are read one by one, between fetches."""
    sides = list(throttles)
    yield counter(
        "weir_partition_bytes",
        "Record bytes of replica fetches, by partition.",
        (
            ((throttle.side, _text(topic), str(partition)), sizes[partition])
            for throttle in sides
            for topic, sizes in list(throttle.stats.partition_bytes.items())
            for partition in list(sizes)  # only the keys: 20,000 new pairs would take 3 ms
        ),
        "side topic partition",
    )
    yield gauge(
        "weir_replica_lag_seconds",
        "Since when a replica has not caught up with the high watermark (KIP-16).",
        (
            ((throttle.side, _text(row.topic), str(row.partition), str(row.replica)), round(row.lag_seconds, 3))
            for throttle in sides
            for row in throttle.lag.rows()
        ),
        "side topic partition replica",
    )
    yield gauge(
        "weir_replica_throttled",
        "1 for each replica that is behind, and that a quota in force holds to its rate.",
        (
            ((throttle.side, _text(topic), str(partition), str(replica)), 1)
            for throttle in sides
            for topic, partition, replica in throttle.held_to_a_rate()
        ),
        "side topic partition replica",
    )


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


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


def families(sides: Sequence[Side], process: ProcessStats, *, by_partition: bool = True) -> Iterator[Family]:
    """Yield every metric family of the sidecar; those with a series for each partition only where they are wanted."""
    yield from _rate_families(sides)
    if by_partition:
        yield from partition_families(side.throttle for side in sides)
    yield from _relay_families(sides)
    yield from _process_families(process)


def _process_families(process: ProcessStats) -> Iterator[Family]:
    yield gauge("weir_build_info", "The running version.", {process.version: 1}, "version")
    is_ready, load = int(process.is_ready), process.load
    yield gauge("weir_ready", "Whether GET /readyz is answered with 200, as of the last 10 s.", is_ready)
    yield gauge(
        "weir_loop_busy_ratio",
        "The share of the last 10 s in which the event loop worked, or waited for a core to work on.",
        load.busy,
    )
    yield gauge(
        "weir_loop_delay_seconds",
        "How late the event loop calls back: the 99th percentile of the last 10 s.",
        load.late_seconds,
    )
    reloads = {"ok": 0, "refused": 0, **process.reloads}
    yield counter("weir_config_reloads", "Reloads of the file, by result.", reloads, "result")
    refused = dict(process.admin_refused)
    yield counter("weir_admin_refused", "Requests to the admin HTTP that were refused, by reason.", refused, "reason")
    expired = process.expired["throttle_expired"]
    yield counter("weir_throttle_expired", "Changes of the throttle over HTTP whose lease has ended.", expired)
    expired = process.expired["limits_expired"]
    yield counter("weir_limits_expired", "Limits of clients set over HTTP whose lease has ended.", expired)
    if process.is_captured is not None:
        yield gauge("weir_captured", "Whether brokers' connections are captured now.", int(process.is_captured))
    written = dict(process.export.written)
    yield counter("weir_samples_written", "Samples written, by sink.", written, "sink")
    dropped = list(process.export.dropped.items())
    yield counter("weir_samples_dropped", "Samples lost, by sink and reason.", dropped, "sink reason")
    yield gauge(
        "weir_topic_ids_unknown",
        "Topic ids in fetches whose name is not known now: throttled as far as any list or pattern may cover them.",
        process.topic_names.unknown_count,
    )


def _rate_families(sides: Sequence[Side]) -> Iterator[Family]:
    def lasted(side: Side, since: float | None) -> float:
        return 0 if since is None else round(side.throttle.clock() - since, 3)

    of = _Sides(sides)
    quotas = [
        ((side.throttle.side, "" if quota is side.throttle.quotas[0] else quota.name), side, quota)
        for side in sides
        for quota in side.throttle.quotas
    ]
    yield gauge(
        "weir_throttled_rate_bytes_per_second",
        "Rate of throttled replicas' bytes, in Kafka's window; `quota` names those beside the listed replicas' own.",
        ((labels, quota.measured.rate()) for labels, _, quota in quotas),
        "side quota",
    )
    yield gauge(
        "weir_quota_bytes_per_second",
        "The quota in force; +Inf when none.",
        ((labels, math.inf if quota.rate is None else quota.rate) for labels, _, quota in quotas),
        "side quota",
    )
    yield counter(
        "weir_would_leave_out",
        "Partitions with records that a quota which only observes would have left out.",
        (
            (labels, side.throttle.stats.would_leave_out[quota.name])
            for labels, side, quota in quotas
            if quota.is_observed
        ),
        "side quota",
    )
    yield of.gauge(
        "weir_partitions_under_min_isr",
        "Waiting partitions with fewer replicas in sync than min.insync.replicas, as the cluster told last.",
        lambda side: len(side.throttle.under_min_isr),
    )
    yield of.gauge(
        "weir_throttle_in_force_seconds",
        "How long replicas have been throttled without a break since the start; 0 when none is.",
        lambda side: lasted(side, side.throttle.in_force_since),
    )
    yield of.gauge(
        "weir_throttle_set_by_hand_seconds",
        "How long a throttle that is neither the file's nor leased has been in force; 0 when none is.",
        lambda side: lasted(side, side.by_hand_since),
    )
    yield gauge(
        "weir_cluster_facts_unknown",
        "What the cluster has not told, of reassignments, racks and Kafka's throttle: 1 while all that may count does.",
        of.pairs(lambda side: {what: int(lacks) for what, lacks in side.throttle.rules.untold().items()}),
        "side what",
    )
    yield counter(
        "weir_replication_bytes",
        "Record bytes of replica fetches, by the other broker and whether the partition was throttled.",
        (
            ((side.throttle.side, _peer(peer), "true" if throttled else "false"), size)
            for side in sides
            for (peer, throttled), size in list(side.throttle.stats.replication_bytes.items())
        ),
        "side peer throttled",
    )
    yield of.counter(
        "weir_catch_up_beside_throttle_bytes",
        "Record bytes of replicas behind that no quota covers, while a quota is in force on this side.",
        lambda side: side.throttle.stats.catch_up_beside_throttle,
    )
    yield of.counter(
        "weir_cut_bytes",
        "Record bytes that a follower throws away: batches cut by a cap, on the leader's side in answers above 1 MiB.",
        lambda side: side.throttle.stats.cut_bytes,
    )
    yield of.counter(
        "weir_taken_out_bytes",
        "Record bytes above a grant that the broker returned and its sidecar did not send on.",
        lambda side: side.throttle.stats.taken_out_bytes,
    )
    yield of.counter(
        "weir_partitions_left_out",
        "Partitions left out of a replica fetch for want of quota.",
        lambda side: side.throttle.stats.partitions_left_out,
    )
    yield of.counter(
        "weir_fetches_held", "Replica fetches held back until there was budget.", lambda side: side.stats.fetches_held
    )
    yield of.counter(
        "weir_offset_probes",
        "Fetches that asked the leader for offsets and errors only: offset probes.",
        lambda side: side.throttle.stats.offset_probes,
    )
    yield counter(
        "weir_full_fetches",
        "Replica fetches from v7 on that listed every partition, by who sent them; none in the steady state.",
        of.pairs(
            lambda side: {
                "follower": side.throttle.stats.full_fetches_received,
                "sidecar": side.throttle.stats.full_fetches_sent,
            }
        ),
        "side sender",
    )
    yield of.gauge(
        "weir_fetch_sessions", "Fetch sessions kept for followers.", lambda side: side.throttle.open_sessions
    )
    yield of.gauge(
        "weir_replica_lag_messages_sum",
        "Messages behind the high watermark, over all replicas.",
        lambda side: side.throttle.lag.sum_messages(),
    )
    yield of.gauge(
        "weir_replica_lag_limit_seconds",
        "replica_lag_time_max_ms: a replica that lags for longer is not in sync (KIP-16).",
        lambda side: side.throttle.lag.replica_lag_time_max,
    )
    yield of.counter(
        "weir_lag_evicted",
        "Partitions of replicas whose lag is not told for want of room: dropped, or not taken.",
        lambda side: side.throttle.lag.evicted,
    )
    yield of.counter(
        "weir_replica_ids_refused",
        "Replica ids that the cluster's metadata does not know, or that are too many: they have no series.",
        lambda side: side.throttle.brokers.refused,
    )


def _relay_families(sides: Sequence[Side]) -> Iterator[Family]:
    of = _Sides(sides)
    yield of.gauge("weir_connections", "Connections open now.", lambda side: side.stats.connections)
    yield of.counter("weir_connections_accepted", "Connections accepted.", lambda side: side.stats.connections_accepted)
    yield counter(
        "weir_connections_refused",
        "Connections closed at once, as there were too many.",
        of.pairs(lambda side: side.stats.connections_refused, KNOWN_REFUSALS),
        "side reason",
    )
    yield of.counter(
        "weir_connections_dismissed",
        "Connections closed because no request came.",
        lambda side: side.stats.connections_dismissed,
    )
    yield of.counter(
        "weir_connections_silent",
        "Connections that ended without a byte from their client: of who only looks whether the port is open.",
        lambda side: side.stats.connections_silent,
    )
    yield of.counter(
        "weir_links_of_other_peers",
        "Connections of replica ids beyond the first 1,000, which are counted as one peer.",
        lambda side: side.stats.links_of_other_peers,
    )
    yield of.gauge("weir_fetches_waiting", "Replica fetches held back now.", lambda side: len(side.held))
    yield of.counter(
        "weir_fetches_answered",
        "Replica fetches that the sidecar answered itself.",
        lambda side: side.stats.fetches_answered,
    )
    yield of.counter(
        "weir_stranger_fetches",
        "Fetches with a broker's id from an address that is not known to be its own: throttled, as a stranger's.",
        lambda side: side.stats.stranger_fetches,
    )
    yield counter(
        "weir_relayed_bytes",
        "Bytes relayed, replication and all else: requests to the upstream, and answers to clients.",
        of.pairs(lambda side: side.stats.relayed._asdict()),
        "side what",
    )
    versions = of.pairs(lambda side: side.stats.fetch_requests)
    yield counter("weir_fetch_requests", "Fetch requests of replicas, by version.", versions, "side api_version")
    passed = of.pairs(lambda side: side.stats.passthrough, KNOWN_PASSTHROUGH)
    yield counter("weir_passthrough", "What passed undecoded, by reason.", passed, "side reason")
    yield gauge(
        "weir_opaque_connections",
        "Connections open now whose bytes are not understood, and not throttled, by reason.",
        of.pairs(lambda side: side.stats.opaque, KNOWN_OPAQUE),
        "side reason",
    )
    errors = of.pairs(lambda side: side.stats.protocol_errors, KNOWN_PROTOCOL_ERRORS)
    yield counter("weir_protocol_errors", "Connections closed because of a peer's bytes.", errors, "side kind")
    failures = of.pairs(lambda side: side.stats.upstream_failures, KNOWN_UPSTREAM_FAILURES)
    yield counter("weir_upstream_failures", "Connections that the upstream did not take.", failures, "side reason")
    bugs = of.pairs(
        lambda side: {
            "throttle": side.stats.throttle_errors,
            "relay": side.stats.relay_errors,
            "accept": side.stats.accept_errors,
        }
    )
    yield counter("weir_internal_errors", "Unexpected errors of the sidecar itself.", bugs, "side where")


class _Sides:
    """Makes families of which each side has samples."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides

    def gauge(self, name: str, documentation: str, value: Callable[[Side], float]) -> Family:
        """Return a gauge with a sample for each side."""
        return gauge(name, documentation, {side.throttle.side: value(side) for side in self._sides}, "side")

    def counter(self, name: str, documentation: str, value: Callable[[Side], float]) -> Family:
        """Return a counter with a sample for each side."""
        return counter(name, documentation, {side.throttle.side: value(side) for side in self._sides}, "side")

    def pairs(
        self, counts: Callable[[Side], Mapping[Any, int]], known: Iterable[str] = ()
    ) -> list[tuple[tuple[str, ...], float]]:
        """Return the samples of a family with a second label; 0 for what is `known` and has not come yet."""
        found = ((side.throttle.side, {**dict.fromkeys(known, 0), **counts(side)}) for side in self._sides)
        return [((side, str(key)), count) for side, shown in found for key, count in shown.items()]


def _peer(peer: int) -> str:
    return "other" if peer == OTHER_PEERS else str(peer)

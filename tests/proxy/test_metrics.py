# SPDX-License-Identifier: Apache-2.0
"""The metrics: the names of docs/running.md, both formats, and no long hold of the event loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from tests.fakes.clock import MovedClock
from tests.proxy.loop_gaps import longest_gaps
from weir.protocol.errors import ProtocolError, TooMany, UnsupportedVersion
from weir.proxy.admin import exposition
from weir.proxy.admin.exposition import Family, Scrapes, content_type, render
from weir.proxy.admin.metrics import KNOWN_PROTOCOL_ERRORS, ProcessStats, families
from weir.proxy.log import EventLog
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import OTHER_PEERS, RelayStats
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas
from weir.quota.topic_names import TopicNames

OPENMETRICS = "application/openmetrics-text;version=1.0.0"

# docs/running.md, "Metrics": name, kind, labels.
PROMISED = [
    ("weir_throttled_rate_bytes_per_second", "gauge", {"side"}),
    ("weir_quota_bytes_per_second", "gauge", {"side"}),
    ("weir_replication_bytes_total", "counter", {"side", "peer", "throttled"}),
    ("weir_cut_bytes_total", "counter", {"side"}),
    ("weir_taken_out_bytes_total", "counter", {"side"}),
    ("weir_offset_probes_total", "counter", {"side"}),
    ("weir_partition_bytes_total", "counter", {"side", "topic", "partition"}),
    ("weir_replica_lag_messages_sum", "gauge", {"side"}),
    ("weir_replica_lag_seconds", "gauge", {"side", "topic", "partition", "replica"}),
    ("weir_partitions_left_out_total", "counter", {"side"}),
    ("weir_fetches_held_total", "counter", {"side"}),
    ("weir_full_fetches_total", "counter", {"side", "sender"}),
    ("weir_fetch_sessions", "gauge", {"side"}),
    ("weir_fetch_requests_total", "counter", {"side", "api_version"}),
    ("weir_passthrough_total", "counter", {"side", "reason"}),
    ("weir_protocol_errors_total", "counter", {"side", "kind"}),
    ("weir_connections", "gauge", {"side"}),
    ("weir_connections_refused_total", "counter", {"side", "reason"}),
    ("weir_connections_dismissed_total", "counter", {"side"}),
    ("weir_connections_silent_total", "counter", {"side"}),
    ("weir_ready", "gauge", set()),
    ("weir_relayed_bytes_total", "counter", {"side", "what"}),
]


def source(side: SideName, rate: int | None = None) -> Side:
    return Side(Throttle(side, 1, MovedClock(), ThrottleSettings(rate=rate)), RelayStats(side), EventLog())


def busy_sides() -> list[Side]:
    leader, follower = source("leader", 5_000_000), source("follower")
    leader.throttle.stats.replication_bytes[2, True] = 300
    leader.throttle.stats.replication_bytes[2, False] = 40
    leader.throttle.stats.partition_bytes[b"orders"][7] = 340
    leader.throttle.stats.replication_bytes[OTHER_PEERS, False] = 50
    leader.throttle.stats.cut_bytes = 11
    leader.throttle.stats.partitions_left_out = 12
    leader.throttle.stats.full_fetches_received = 15
    leader.throttle.stats.full_fetches_sent = 16
    leader.throttle.link(2).sessions.follower.begin(leader.throttle.new_session_id())
    asker = leader.throttle.lag.asker()
    asker.fetched(1000.0)
    lag = asker.topic(2, b"orders")
    leader.throttle.lag.evicted, leader.throttle.brokers.refused = 5, 6
    lag.update(7, 100, 115, 999.0)
    lag.update(7, 100, 115, 1000.0)
    leader.stats.fetches_held = 13
    leader.stats.links_of_other_peers = 2
    leader.stats.fetch_requests[3] = 14
    leader.stats.passthrough["tls"] = 1
    follower.stats.passthrough["tls"] = 2
    follower.stats.protocol_errors["malformed_frame"] = 3
    leader.stats.connections = 5
    return [leader, follower]


def process_stats() -> ProcessStats:
    names = TopicNames(lambda: 1000.0)
    names.name_of(b"a" * 16)
    names.name_of(b"b" * 16)
    process = ProcessStats("1.2.3", names)
    process.export.add_sink("file")
    process.export.written["file"] += 5
    process.export.dropped["file", "busy"] += 6
    return process


async def text_of(sides: list[Side], accept: str = "") -> str:
    return b"".join(render(families(sides, process_stats()), accept)).decode()


async def samples_of(sides: list[Side]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(await text_of(sides))
        for sample in family.samples
    }


async def test_metrics_promised_names_have_their_kind_and_labels() -> None:
    shown = {}
    for family in parse_text(await text_of(busy_sides())):
        for sample in family.samples:
            shown[sample.name] = (sample.name, family.type, set(sample.labels))
    assert [shown.get(name) for name, *_ in PROMISED] == PROMISED


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("weir_quota_bytes_per_second", {"side": "leader"}, 5_000_000),
        ("weir_quota_bytes_per_second", {"side": "follower"}, math.inf),
        ("weir_replication_bytes_total", {"side": "leader", "peer": "2", "throttled": "true"}, 300),
        ("weir_replication_bytes_total", {"side": "leader", "peer": "2", "throttled": "false"}, 40),
        ("weir_replication_bytes_total", {"side": "leader", "peer": "other", "throttled": "false"}, 50),
        ("weir_links_of_other_peers_total", {"side": "leader"}, 2),
        ("weir_passthrough_total", {"side": "leader", "reason": "not_a_replica"}, 0),
        ("weir_cut_bytes_total", {"side": "leader"}, 11),
        ("weir_partition_bytes_total", {"side": "leader", "topic": "orders", "partition": "7"}, 340),
        ("weir_replica_lag_messages_sum", {"side": "leader"}, 15),
        ("weir_replica_lag_limit_seconds", {"side": "leader"}, 30),
        ("weir_lag_evicted_total", {"side": "leader"}, 5),
        ("weir_replica_ids_refused_total", {"side": "leader"}, 6),
        ("weir_partitions_left_out_total", {"side": "leader"}, 12),
        ("weir_fetches_held_total", {"side": "leader"}, 13),
        ("weir_full_fetches_total", {"side": "leader", "sender": "follower"}, 15),
        ("weir_full_fetches_total", {"side": "leader", "sender": "sidecar"}, 16),
        ("weir_full_fetches_total", {"side": "follower", "sender": "sidecar"}, 0),
        ("weir_fetch_sessions", {"side": "leader"}, 1),
        ("weir_fetch_sessions", {"side": "follower"}, 0),
        ("weir_fetch_requests_total", {"side": "leader", "api_version": "3"}, 14),
        ("weir_passthrough_total", {"side": "follower", "reason": "tls"}, 2),
        ("weir_passthrough_total", {"side": "leader", "reason": "fetch_version"}, 0),
        ("weir_passthrough_total", {"side": "leader", "reason": "too_many_topics"}, 0),
        ("weir_passthrough_total", {"side": "leader", "reason": "too_many_partitions"}, 0),
        ("weir_protocol_errors_total", {"side": "follower", "kind": "malformed_frame"}, 3),
        ("weir_protocol_errors_total", {"side": "leader", "kind": "fetch_memory"}, 0),
        ("weir_upstream_failures_total", {"side": "follower", "reason": "refused"}, 0),
        ("weir_connections", {"side": "leader"}, 5),
        ("weir_build_info", {"version": "1.2.3"}, 1),
        ("weir_samples_written_total", {"sink": "file"}, 5),
        ("weir_samples_dropped_total", {"sink": "file", "reason": "busy"}, 6),
        ("weir_samples_dropped_total", {"sink": "file", "reason": "write_failed"}, 0),
        ("weir_topic_ids_unknown", {}, 2),
    ],
)
async def test_metrics_counted_values_are_shown(name: str, labels: dict[str, str], value: float) -> None:
    assert (await samples_of(busy_sides()))[name, frozenset(labels.items())] == value


def test_metrics_show_every_protocol_error_from_the_start() -> None:
    """Shown is each that closes a connection."""
    never = {UnsupportedVersion.kind, TooMany.kind}  # whoever decodes asks first, and what is too much passes
    assert (
        set(KNOWN_PROTOCOL_ERRORS) - {"fetch_memory", "fetch_stalled", "tls"}
        == {one.kind for one in ProtocolError.__subclasses__()} - never
    )


async def test_metrics_lag_grows_at_scrape_time_without_a_fetch() -> None:
    sides = busy_sides()
    key = (
        "weir_replica_lag_seconds",
        frozenset({"side": "leader", "topic": "orders", "partition": "7", "replica": "2"}.items()),
    )
    before = (await samples_of(sides))[key]
    clock = sides[0].throttle.clock
    assert isinstance(clock, MovedClock)
    clock.now += 40
    assert (await samples_of(sides))[key] == before + 40


async def test_metrics_throttle_is_in_force_with_a_rate_and_a_replica() -> None:
    side = source("leader", 5)
    clock = side.throttle.clock
    assert isinstance(clock, MovedClock)
    listed = {"orders": ThrottledReplicas.parse("0:1")}
    seen = []
    for settings in (
        ThrottleSettings(rate=5),
        ThrottleSettings(rate=5, replicas={"orders": ThrottledReplicas.parse("0:2")}),  # of another broker
        ThrottleSettings(replicas=listed),
        ThrottleSettings(rate=0, replicas=listed),
        ThrottleSettings(rate=7, replicas={"payments": ALL_REPLICAS}),  # another throttle, without a break
        ThrottleSettings(),
        ThrottleSettings(rate=5, replicas=listed),
    ):
        side.throttle.configure(settings)
        clock.now += 10
        seen.append((await samples_of([side]))["weir_throttle_in_force_seconds", frozenset({("side", "leader")})])
    assert seen == [0, 0, 0, 10, 20, 0, 10]


async def test_metrics_throttle_set_by_hand_is_told_apart() -> None:
    """Its seconds count only while it is in force."""
    side = source("leader", 5)
    clock = side.throttle.clock
    assert isinstance(clock, MovedClock)
    seen = []
    for replicas, is_set in (
        ({}, True),
        ({"orders": ALL_REPLICAS}, False),
        *[({"orders": ALL_REPLICAS}, True)] * 2,
        ({}, True),
    ):
        side.throttle.configure(ThrottleSettings(rate=5, replicas=replicas))
        side.note_set_by_hand(is_set)
        clock.now += 10
        samples = await samples_of([side])
        seen.append(samples["weir_throttle_set_by_hand_seconds", frozenset({("side", "leader")})])
    assert seen == [0, 0, 10, 20, 0]


async def test_metrics_series_by_partition_may_be_left_out() -> None:
    text = b"".join(render(families(busy_sides(), process_stats(), by_partition=False))).decode()
    assert "partition=" not in text
    assert "weir_replica_lag_messages_sum" in text


async def test_metrics_process_memory_and_cpu_are_shown() -> None:
    names = {name for name, _ in await samples_of([])}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= names


async def test_metrics_openmetrics_is_valid_and_ends_once() -> None:
    text = await text_of(busy_sides(), OPENMETRICS)
    assert text.count("# EOF") == 1
    parsed = parse_openmetrics(text)  # type: ignore[no-untyped-call]
    assert {family.name for family in parsed} > {"weir_replication_bytes", "weir_connections"}


@pytest.mark.parametrize(
    ("accept", "shown"),
    [("", "text/plain"), ("*/*", "text/plain"), (OPENMETRICS, "application/openmetrics-text")],
)
def test_metrics_content_type_is_what_accept_asks_for(accept: str, shown: str) -> None:
    assert content_type(accept).startswith(shown)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@pytest.mark.parametrize("kind", ["counter", "gauge"])
def test_metrics_are_written_as_prometheus_client_writes_them(accept: str, kind: Literal["counter", "gauge"]) -> None:
    names = "z", "a", "partition"
    odd = ["", "t", "a b", 'q"', "b\\", "n\n", "\\n", "über-t.o_p", ",}{="]
    values = [0, 1, 7.25, 1e6, 12_345_678, 1e21, math.inf, -math.inf, 0.1]
    samples = [((one, odd[-at], str(at)), value) for at, (one, value) in enumerate(zip(odd, values, strict=True))]
    metric = Metric("weir_odd", 'Says "what" \\ it is.', kind)
    for texts, value in [*samples, (("", "", ""), math.nan)]:
        labels = {name: text for name, text in zip(names, texts, strict=True) if text}
        metric.add_sample("weir_odd_total" if kind == "counter" else "weir_odd", labels, value)
    registry = CollectorRegistry()
    registry.register(Collected(metric))
    family = Family(metric.name, kind, metric.documentation, names, [*samples, (("", "", ""), math.nan)])
    encode, _ = choose_encoder(accept)
    assert next(render([family], accept)) == encode(registry).removesuffix(b"# EOF\n")


class Collected(Collector):
    """One metric, as prometheus-client takes it."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_metrics_family_of_many_slices_has_one_header(monkeypatch: pytest.MonkeyPatch, accept: str) -> None:
    monkeypatch.setattr(exposition, "SAMPLES_PER_SLICE", 3)
    side = source("leader")
    for partition in range(10):
        side.throttle.stats.partition_bytes[b"orders"][partition] = partition
    text = await text_of([side], accept)
    assert text.count("# TYPE weir_partition_bytes") == text.count("# HELP weir_partition_bytes") == 1
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("weir_partition_bytes")] == [
        f"{partition}.0" for partition in range(10)
    ]


async def test_metrics_counters_that_grow_between_slices_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new topic may come while a scrape is under way."""
    monkeypatch.setattr(exposition, "SAMPLES_PER_SLICE", 2)
    side = busy_sides()[0]
    text = ""
    for number, part in enumerate(render(families([side], process_stats()))):
        text += part.decode()
        side.throttle.stats.partition_bytes[b"new"][number] += 1
        side.throttle.lag.asker().topic(2, b"new").update(number, 0, 1, 1000.0)
        side.stats.fetch_requests[number + 100] += 1
    assert list(parse_text(text))


@pytest.mark.long
async def test_metrics_at_20000_partitions_never_hold_the_loop() -> None:
    """The longest step takes less than 5 ms."""
    side = source("leader", 1)
    for number in range(200):
        topic = b"topic-%d" % number
        asker = side.throttle.lag.asker()
        asker.fetched(1000.0)
        lag = asker.topic(2, topic)
        for partition in range(100):
            side.throttle.stats.partition_bytes[topic][partition] = 1_000_000 + partition
            lag.update(partition, 5, 10, 1000.0)

    async def rendered_lines() -> int:
        lines = 0

        async def write(piece: bytes) -> None:
            nonlocal lines
            lines += piece.count(b"\n")

        await Scrapes(lambda accept: render(families([side], process_stats()), accept)).write("", write)
        return lines

    found = [await longest_gaps(rendered_lines()) for _ in range(3)]
    assert min(lines for lines, _ in found) > 40_000
    # The best of three, for a machine that does other work too.
    assert min(gaps[0] for _, gaps in found) < 0.005
    assert min(gaps[5] for _, gaps in found) < 0.004

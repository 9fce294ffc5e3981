"""Kafka's own ProducerPerformance and ConsumerPerformance, and what they print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.processes import Process


@dataclass(frozen=True, slots=True)
class Produced:
    """The closing line of ProducerPerformance: latencies in milliseconds, rates by second; MB is 2**20 bytes."""

    records: int
    records_per_second: float
    mib_per_second: float
    average_ms: float
    largest_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(frozen=True, slots=True)
class Consumed:
    """The line of ConsumerPerformance: MB is 2**20 bytes; `fetch_mib_per_second` leaves the join of the group out."""

    mib: float
    mib_per_second: float
    messages: int
    fetch_mib_per_second: float


def produce(
    cluster: Cluster,
    topic: str,
    records: int,
    record_bytes: int,
    *,
    records_per_second: int = -1,
    properties: Mapping[str, object] | None = None,
    seconds: float = 600,
) -> Produced:
    """Run ProducerPerformance to its end (random letters, partitions of its own choice) and return its figures."""
    tool = start_produce(cluster, topic, records, record_bytes, records_per_second, properties)
    return produced(tool, seconds)


def start_produce(
    cluster: Cluster,
    topic: str,
    records: int,
    record_bytes: int,
    records_per_second: int = -1,
    properties: Mapping[str, object] | None = None,
) -> Process:
    """Start ProducerPerformance beside other work; `produced` waits for it."""
    settled = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        **cluster.client_properties,
        **(properties or {}),
    }
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    arguments += ["--throughput", str(records_per_second), "--producer-props"]
    arguments += [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settled.items()]
    main_class = "org.apache.kafka.tools.ProducerPerformance"
    return cluster.java_tool("producer-performance", main_class, arguments, seconds=None)


def produced(tool: Process, seconds: float = 600) -> Produced:
    """Wait for a ProducerPerformance and return what it measured. Raises ProcessFailed, Timeout or LabError."""
    if status := tool.wait(seconds):
        raise tool.failure(f"ended with status {status}.")
    return parse_produced(tool.output())


def parse_produced(said: str) -> Produced:
    """Return the figures of the closing line, the only one with quantiles. Raises LabError when there is none."""
    number = r"([\d.]+)"
    match = re.search(
        rf"(\d+) records sent, {number} records/sec \({number} MB/sec\), {number} ms avg latency, "
        rf"{number} ms max latency, {number} ms 50th, {number} ms 95th, {number} ms 99th, {number} ms 99\.9th",
        said,
    )
    if match is None:
        raise LabError(f"ProducerPerformance printed no closing line: {said[-300:]}")
    return Produced(int(match.group(1)), *map(float, match.groups()[1:]))


def consume(
    cluster: Cluster, topic: str, messages: int, *, bootstrap_servers: str | None = None, seconds: float = 600
) -> Consumed:
    """Run ConsumerPerformance from the topic's beginning and return what it measured."""
    servers = bootstrap_servers or ",".join(cluster.bootstrap_servers)
    arguments = ["--bootstrap-server", servers, "--topic", topic, "--messages", str(messages)]
    main_class = "org.apache.kafka.tools.ConsumerPerformance"
    tool = cluster.java_tool("consumer-performance", main_class, arguments, heap_mb=512, seconds=seconds)
    return parse_consumed(tool.output())


def parse_consumed(said: str) -> Consumed:
    """Return the figures under the heading that ConsumerPerformance prints. Raises LabError when there are none."""
    heading: list[str] = []
    for line in said.splitlines():
        row = [cell.strip() for cell in line.split(",")]
        if "fetch.MB.sec" in row:
            heading = row
        elif heading and len(row) == len(heading):  # log lines may come in between
            cells = dict(zip(heading, row, strict=True))
            return Consumed(
                mib=float(cells["data.consumed.in.MB"]),
                mib_per_second=float(cells["MB.sec"]),
                messages=int(cells["data.consumed.in.nMsg"]),
                fetch_mib_per_second=float(cells["fetch.MB.sec"]),
            )
    raise LabError(f"ConsumerPerformance printed no figures: {said[-300:]}")

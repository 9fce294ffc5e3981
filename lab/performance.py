# SPDX-License-Identifier: Apache-2.0
"""Kafka's own ConsumerPerformance, and what it prints."""

from __future__ import annotations

from dataclasses import dataclass

from weir.lab.cluster import Cluster
from weir.lab.errors import LabError


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a consumer read. `fetch_mib_per_second` is 2**20 bytes/s, the join of its group left out."""

    messages: int
    fetch_mib_per_second: float


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
                messages=int(cells["data.consumed.in.nMsg"]),
                fetch_mib_per_second=float(cells["fetch.MB.sec"]),
            )
    raise LabError(f"ConsumerPerformance printed no figures: {said[-300:]}")

# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.shared_link`: a link that a move and clients share, without and with captured connections.

Three hosts with a Kafka broker each. The leader's link has 20 MB/s. Records are produced with acks=all at 5 MB/s, and
their replication takes as much of the link. Then a move begins: first on its own, later with sidecars put in beside the
running brokers. It needs root, nft and tc, and takes about three minutes.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.table import begin, parser, run
from weir.lab.capture_chart import draw_shared_link
from weir.lab.errors import LabError
from weir.lab.hosted import HostedCluster
from weir.lab.hosts import missing
from weir.lab.produce import LiveProducer, LiveRecord, fill, latency
from weir.lab.progress import MEGABYTE

LEADER, PEER, FOLLOWER = 1, 2, 3
LINK: Final = 20 * MEGABYTE
QUOTA: Final = 8 * MEGABYTE
PARTITIONS: Final = 10
RECORD_BYTES: Final = 10_000
RECORDS_PER_SECOND: Final = 500
_CALM_SECONDS: Final = 5
_SETTLE_SECONDS: Final = 2


class Way(NamedTuple):
    """What was seen: for each second what was moved (bytes) and the slowest record (s), and all records' latencies."""

    moved: list[float]
    slowest: list[float]
    before: list[LiveRecord]
    meanwhile: list[LiveRecord]


def main() -> int:
    """Try both ways, draw them, and print their figures."""
    options = parser("shared_link", "Measure a link that a move and clients share, without weir and with it.")
    options.add_argument("--chart", type=Path, default=Path("out/shared-link.png"))
    options.add_argument("--seconds", type=int, default=15, help="of a move (15)")
    chosen, report = begin(options)
    if (reason := missing()) is not None:
        raise LabError(f"The hosts cannot be made here: {reason}.")
    with HostedCluster() as cluster:
        for topic in ("first", "second"):
            cluster.create_topic(topic, {partition: [LEADER] for partition in range(PARTITIONS)})
            fill(
                cluster.bootstrap_servers, topic, dict.fromkeys(range(PARTITIONS), LINK * chosen.seconds // PARTITIONS)
            )
        cluster.create_topic("live", {0: [LEADER, PEER]})
        shaped = ("tbf", "rate", f"{LINK * 8}bit", "burst", "256k", "latency", "50ms")
        cluster.hosts.run(LEADER, "tc", "qdisc", "add", "dev", "eth0", "root", *shaped)
        ways = {"without weir": _tried(cluster, "first", chosen.seconds)}
        replicas = {"leader.replication.throttled.replicas": "*"}
        throttle = {"leader.replication.throttled.rate": QUOTA, "topics": {"second": replicas}}
        cluster.put_in(LEADER, {}, {"throttle": throttle})
        cluster.sidecars[LEADER].wait_until("/readyz", 30)
        time.sleep(_SETTLE_SECONDS)
        ways[f"with weir, {QUOTA // MEGABYTE} MB/s"] = _tried(cluster, "second", chosen.seconds)
    chosen.chart.parent.mkdir(parents=True, exist_ok=True)
    drawn = {name: (way.moved, way.slowest) for name, way in ways.items()}
    draw_shared_link(chosen.chart, drawn, _CALM_SECONDS, LINK)
    rows = []
    for name, way in ways.items():
        moved = sum(way.moved[_CALM_SECONDS + 1 :]) / (chosen.seconds - 1) / MEGABYTE
        slow = (
            1000 * latency(some, q) for some, q in ((way.meanwhile, 0.5), (way.meanwhile, 0.99), (way.before, 0.99))
        )
        rows.append((name, moved, *slow))
    columns = "way | moved, MB/s .1 | p50, ms | p99, ms | p99 before the move, ms"
    report.table(f"a link of {LINK // MEGABYTE} MB/s", columns, rows)
    report.say(f"\nchart: {chosen.chart}")
    alone, kept = (latency(way.meanwhile, 0.99) for way in ways.values())
    report.bound("p99 of produce with weir / without", kept / alone, most=0.5)
    return report.status


def _tried(cluster: HostedCluster, topic: str, seconds: int) -> Way:
    """Produce for a while, then move a topic meanwhile; what is left of the move then goes on by itself."""
    partitions = [(topic, partition) for partition in range(PARTITIONS)]
    producer = LiveProducer(
        cluster.bootstrap_servers,
        "live",
        [0],
        rate=RECORDS_PER_SECOND,
        message_bytes=RECORD_BYTES,
        linger_ms=2,
        batch_bytes=50 * RECORD_BYTES,  # a client waits for one batch at a time: with small ones it is the limit
    )
    with producer, cluster.received_bytes(FOLLOWER, partitions) as received:
        time.sleep(_CALM_SECONDS)
        cluster.reassign({key: [LEADER, FOLLOWER] for key in partitions})
        time.sleep(seconds)
    series, acked = received.series(), producer.acked
    for sidecar in cluster.sidecars.values():
        sidecar.delete_throttle()
    cluster.admin.wait_for_reassignments(120)
    slowest = [0.0] * (_CALM_SECONDS + seconds)
    for record in acked:
        second = min(record.number // RECORDS_PER_SECOND, len(slowest) - 1)
        slowest[second] = max(slowest[second], record.latency)
    edges = [series.times[0] + second for second in range(len(slowest) + 1)]
    moved = [series.total_at(end) - series.total_at(start) for start, end in itertools.pairwise(edges)]
    begins = _CALM_SECONDS * RECORDS_PER_SECOND
    before = [record for record in acked if record.number < begins]
    return Way(moved, slowest, before, [record for record in acked if record.number >= begins])


if __name__ == "__main__":
    run(main)

"""What sidecars hold in memory while large responses stream through them: `python -m bench.memory`.

300 MB are replicated without a throttle through both hops, with replica.fetch.response.max.bytes of 1 MB and of 10 MB.
Responses are scanned as they pass and never collected, so their size must not show.
"""

from __future__ import annotations

import statistics
import sys
from typing import NamedTuple

from bench.table import Report, parser
from weir.lab.errors import LabError
from weir.lab.modes import MODES, Mode
from weir.lab.produce import fill
from weir.lab.settings import Route

TOPIC = "orders"
PARTITIONS = range(20)
SMALL, LARGE = 1_000_000, 10_485_760  # bytes of a response; the larger is Kafka's default
SIDES = {1: "leader", 2: "follower"}
MOST_RESIDENT_MB = 80.0
MOST_GROWTH_MB = 3.0  # between two processes that did the same: what the allocator makes of it
LEAST_OF_SIZE = 0.6  # x the limit, on average: the last responses of a move are smaller
MB = 1e6


class Row(NamedTuple):
    """One sidecar's figures for one move; megabytes."""

    sidecar: str
    limit: float
    mean: float
    before: float
    peak: float
    rate: float


COLUMNS = {
    "sidecar": 0,
    "responses up to, MB": 1,
    "mean response, MB": 2,
    "RSS before, MB": 1,
    "peak RSS, MB": 1,
    "moved at, MB/s": 0,
}


def main() -> int:
    """Measure and print; 1 when a sidecar grows beyond its bound, or with its responses."""
    options = parser("bench.memory", "Measure sidecars' memory while large replica fetches pass.")
    options.add_argument("--rounds", type=int, default=3, help="moves of each response size (3)")
    options.add_argument("--bytes", type=int, default=300_000_000, help="moved each time (300,000,000)")
    options.add_argument("--mode", choices=MODES, default="zookeeper-0.10.1", help="of the cluster (zookeeper-0.10.1)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    mode = MODES[chosen.mode]
    rows = [
        row
        for number in range(chosen.rounds)
        for limit in ((SMALL, LARGE), (LARGE, SMALL))[number % 2]
        for row in _move(mode, limit, chosen.bytes)
    ]
    report.table(
        f"{chosen.bytes / MB:,.0f} MB replicated without a throttle, two hops, Fetch v{mode.fetch_version}",
        COLUMNS,
        rows,
    )
    for side in SIDES.values():
        peaks = {
            limit: [row.peak for row in rows if (row.sidecar, row.limit) == (side, limit / MB)]
            for limit in (SMALL, LARGE)
        }
        report.bound(f"peak RSS of the {side}'s sidecar, MB", max(map(max, peaks.values())), most=MOST_RESIDENT_MB)
        growth = statistics.median(peaks[LARGE]) - statistics.median(peaks[SMALL])
        report.bound(f"growth of the {side}'s with the response size, MB", growth, most=MOST_GROWTH_MB)
    return report.status


def _move(mode: Mode, limit: int, size: int) -> list[Row]:
    """Move a topic to broker 2 on a cluster of its own, with responses of at most `limit` bytes."""
    properties = {"replica.fetch.response.max.bytes": limit}
    with mode.cluster(2, routes={1: Route.INGRESS, 2: Route.EGRESS}, properties=properties) as cluster:
        cluster.create_topic(TOPIC, {partition: [1] for partition in PARTITIONS})
        fill(cluster.bootstrap_servers, TOPIC, dict.fromkeys(PARTITIONS, size // len(PARTITIONS)))
        cluster.assert_no_native_throttle()
        before = {broker: cluster.sidecars[broker].resident_bytes()[0] for broker in SIDES}
        moved = [(TOPIC, partition) for partition in PARTITIONS]
        with cluster.received_bytes(2, moved) as received:
            cluster.reassign({partition: [1, 2] for partition in moved}, seconds=120)
        for partition in moved:
            cluster.compare_segments(*partition, 1, 2)
        cluster.check_logs()
        rate = received.series().mean_rate() / MB
        rows = []
        for broker, side in SIDES.items():
            metrics = cluster.sidecars[broker].metrics()
            fetches = metrics.value("weir_fetch_requests_total", side=side, api_version=mode.fetch_version)
            mean = metrics.value("weir_replication_bytes_total", side=side) / fetches
            if mean < LEAST_OF_SIZE * limit:
                raise LabError(f"Responses had {mean:,.0f} bytes on average: that shows nothing of {limit:,}.")
            peak = cluster.sidecars[broker].resident_bytes()[1]
            rows.append(Row(side, limit / MB, mean / MB, before[broker] / MB, peak / MB, rate))
        return rows


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.memory: {error}")

"""What sidecars cost unthrottled replication: `python -m bench.replication`.

The same amount moves from one broker to another directly, and between two more through both their sidecars, in one
cluster and in turns; the figure is the median of each round's ratio. The first round is not counted: it warms up, and
the kernel's counts of bytes by port show which way they went, whatever version the fetches have.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping

from bench.table import Report, parser
from bench.tcp_bytes import SentBytes
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES
from weir.lab.produce import fill
from weir.lab.settings import Route

DIRECT, SIDECARS = "direct", "two sidecars"
WAYS = {DIRECT: (3, 4), SIDECARS: (1, 2)}  # leader and follower
ROUTES = {1: Route.INGRESS, 2: Route.EGRESS}
PARTITIONS = range(20)
LEAST_OF_DIRECT = 0.95
LEAST_OF_BYTES = 0.9  # seen on the way's own ports; the last ones may go between two samples
MOVE_SECONDS = 120.0
MB = 1e6


def main() -> int:
    """Measure and print; 1 when the sidecars make replication slower than they may."""
    options = parser("bench.replication", "Measure unthrottled replication through two sidecars.")
    options.add_argument("--rounds", type=int, default=7, help="counted rounds (7)")
    options.add_argument("--bytes", type=int, default=1_500_000_000, help="moved each time (1,500,000,000)")
    options.add_argument("--mode", choices=MODES, default="zookeeper-0.10.1", help="of the cluster (zookeeper-0.10.1)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    with MODES[chosen.mode].cluster(4, routes=ROUTES) as cluster:
        for way, (leader, _) in WAYS.items():
            cluster.create_topic(topic_of(way), {partition: [leader] for partition in PARTITIONS})
            sizes = dict.fromkeys(PARTITIONS, chosen.bytes // len(PARTITIONS))
            fill(cluster.bootstrap_servers, topic_of(way), sizes)
        cluster.assert_no_native_throttle()
        _prove(report, cluster, chosen.bytes)
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(chosen.rounds):
            for way in list(WAYS)[:: 1 if number % 2 else -1]:
                rates[way].append(move(cluster, topic_of(way), *WAYS[way]) / MB)
                print(f"round {number + 1}, {way}: {rates[way][-1]:.0f} MB/s", file=sys.stderr, flush=True)
        cluster.check_logs()
    _report(report, f"{chosen.bytes / MB:,.0f} MB replicated without a throttle, {chosen.mode}", rates)
    return report.status


def topic_of(way: str) -> str:
    """The topic that moves this way."""
    return f"orders-{list(WAYS).index(way)}"


def move(cluster: Cluster, topic: str, leader: int, follower: int, *, compare: bool = False) -> float:
    """Give every partition of `topic` a replica on `follower`, and take it away; returns bytes/s, first to last byte.

    With `compare`, look that every replica is its leader's, byte for byte.
    """
    moved = [(topic, partition) for partition in PARTITIONS]
    with cluster.received_bytes(follower, moved) as received:
        cluster.reassign({partition: [leader, follower] for partition in moved}, seconds=MOVE_SECONDS)
    if compare:
        for partition in moved:
            cluster.compare_segments(*partition, leader, follower)
    cluster.reassign({partition: [leader] for partition in moved}, seconds=60)
    cluster.wait_for("the replicas' end", lambda: not any(cluster.segments(*one, follower) for one in moved), 30)
    return received.series().mean_rate()


def _prove(report: Report, cluster: Cluster, size: int) -> None:
    """Show by the kernel's counts that each way's bytes come from its own ports alone. Raises LabError."""
    # How often a move's bytes are sent from a port: both sidecars listen on the leader's advertised one.
    leader, plain = cluster.places[WAYS[SIDECARS][0]], cluster.places[WAYS[DIRECT][0]]
    expected = {SIDECARS: {leader.listener: 1, leader.advertised: 2}, DIRECT: {plain.listener: 1}}
    names = {
        leader.listener: "the leader behind them",
        leader.advertised: "sidecars",
        plain.listener: "the other leader",
    }
    rows = []
    for way in WAYS:
        with SentBytes() as sent:
            move(cluster, topic_of(way), *WAYS[way], compare=True)
        found = sent.by_port()
        rows.append((way, *(found[port] / MB for port in names)))
        for port in names:
            times = expected[way].get(port, 0)
            if found[port] < LEAST_OF_BYTES * times * size or (not times and found[port] > 0.01 * size):
                raise LabError(f"{found[port]:,} of {size:,} bytes came from port {port}: that is not the way {way}.")
    columns = {"moved": 0, **{f"sent by {name}, MB": 0 for name in names.values()}}
    report.table("The way of the bytes in the round that warms up", columns, rows)


def _report(report: Report, title: str, rates: Mapping[str, list[float]]) -> None:
    columns = {"way": 0, "median MB/s": 0, "lowest": 0, "highest": 0}
    rows = [(way, statistics.median(found), min(found), max(found)) for way, found in rates.items()]
    report.table(f"{title}, {len(rates[DIRECT])} alternating rounds", columns, sorted(rows))
    ratios = [ours / direct for ours, direct in zip(rates[SIDECARS], rates[DIRECT], strict=True)]
    columns = {"median": 2, "lowest": 2, "highest": 2}
    report.table(f"{SIDECARS} / {DIRECT}, by round", columns, [(statistics.median(ratios), min(ratios), max(ratios))])
    report.bound(f"median of {SIDECARS} / {DIRECT}", statistics.median(ratios), least=LEAST_OF_DIRECT)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.replication: {error}")

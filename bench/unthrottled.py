# SPDX-License-Identifier: Apache-2.0
"""What sidecars cost replication without a throttle, and what they hold in memory: `python -m bench.unthrottled`.

- Rates: the same amount moves from one broker to another directly, and between two more through both their sidecars, in
  one cluster and by turns. The first round is not counted: it warms up, and every replica is compared.
- A consumer: ConsumerPerformance reads the same topic directly, and through the leader's sidecar, whose address that
  broker advertises on its listener for brokers: a consumer that begins there stays there. In ZooKeeper mode there is no
  other listener.
- Memory: sidecars' before, and at most, while answers are up to 1 MB (`replica.fetch.response.max.bytes`), and up to
  10 MB. They are scanned as they pass and never collected, so their size must not show.
"""

from __future__ import annotations

from collections import defaultdict

from bench.table import SPREAD, begin, by_round, parser, progress, run, spread_of, turned
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.java import OPTIMIZED
from weir.lab.modes import MODES, NEWEST, Mode
from weir.lab.performance import consume
from weir.lab.produce import fill
from weir.lab.settings import Route

DIRECT, SIDECARS = "direct", "two sidecars"
WAYS = {DIRECT: (3, 4), SIDECARS: (1, 2)}  # leader and follower
SIDES = {1: "leader", 2: "follower"}
ROUTES = {1: Route.INGRESS, 2: Route.EGRESS}
CONSUMED = ("consumer, direct", "consumer, sidecar")
FIRST = {DIRECT: DIRECT, SIDECARS: DIRECT, CONSUMED[0]: CONSUMED[0], CONSUMED[1]: CONSUMED[0]}
"""The way that each way is compared with."""
PARTITIONS = range(20)
SMALL, LARGE = 1_000_000, 10_485_760  # bytes of an answer; the larger is Kafka's default
LEAST = {SIDECARS: 0.95, CONSUMED[1]: 0.9}
LEAST_PASSED = 0.98  # of the bytes: no way leads past the sidecars
LEAST_OF_SIZE = 0.6  # x the limit, in the mean: the last answers of a move are smaller
MOST_RESIDENT_MB = 80.0
MOST_GROWTH_MB = 3.0  # between two processes that did the same: what the allocator makes of it
MOVE_SECONDS = 120.0
MB = 1e6


def main() -> int:
    """Measure and print; 1 when sidecars cost more than they may."""
    options = parser("unthrottled", "Measure unthrottled replication through two sidecars, and their memory.")
    options.add_argument("--rounds", type=int, default=7, help="counted rounds (7)")
    options.add_argument("--bytes", type=int, default=1_500_000_000, help="moved each time (1,500,000,000)")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    chosen, report = begin(options)
    mode = MODES[chosen.mode]
    rates: dict[str, list[float]] = defaultdict(list)
    memory = [
        *_measure(mode, LARGE, chosen.bytes, chosen.rounds, rates),
        *_measure(mode, SMALL, chosen.bytes, 0, rates),
    ]
    title = f"{chosen.bytes / MB:,.0f} MB without a throttle, {mode.name} (Fetch v{mode.fetch_version}), MB/s, by turns"
    report.table(title, f"way | {SPREAD}", [(way, *spread_of(some, rates[FIRST[way]])) for way, some in rates.items()])
    for way, least in LEAST.items():
        if way in rates:
            report.bound(f"{way} / {FIRST[way]}", by_round(rates[way], rates[FIRST[way]]), least=least)
    columns = "sidecar | answers up to, MB .1 | mean answer, MB .2 | RSS before, MB .1 | peak RSS, MB .1"
    report.table("Memory", columns, memory)
    for side in SIDES.values():
        large, small = (one[-1] for one in memory if one[0] == side)
        report.bound(f"peak RSS of the {side}'s sidecar, MB", max(large, small), most=MOST_RESIDENT_MB)
        report.bound(f"growth of the {side}'s with the size of answers, MB", large - small, most=MOST_GROWTH_MB)
    return report.status


def _measure(
    mode: Mode, limit: int, size: int, rounds: int, rates: dict[str, list[float]]
) -> list[tuple[str, float, float, float, float]]:
    """Move by turns, and add to `rates`, MB/s. Returns the memory of both sidecars, all in MB."""
    properties = {"replica.fetch.response.max.bytes": limit}
    with mode.cluster(4, routes=ROUTES, properties=properties, jvm_flags=OPTIMIZED) as cluster:
        ways = WAYS if rounds else {SIDECARS: WAYS[SIDECARS]}
        messages = 0
        for way, (leader, _) in ways.items():
            cluster.create_topic(_topic(way), {partition: [leader] for partition in PARTITIONS})
            messages = fill(cluster.bootstrap_servers, _topic(way), dict.fromkeys(PARTITIONS, size // len(PARTITIONS)))
        cluster.assert_no_native_throttle()
        before = {broker: cluster.sidecars[broker].resident_bytes()[0] for broker in SIDES}
        for way in ways:
            _move(cluster, way, compare=True)
        means = {broker: _mean_answer(cluster, broker, mode.fetch_version, limit, size) for broker in SIDES}
        for number in range(rounds):
            for way in turned(list(ways), number):
                rates[way].append(_move(cluster, way) / MB)
                progress(f"round {number + 1}, {way}: {rates[way][-1]:.0f} MB/s")
            for way in turned(CONSUMED, number) if not mode.zookeeper else ():
                rates[way].append(_consume(cluster, way, messages) / MB)
                progress(f"round {number + 1}, {way}: {rates[way][-1]:.0f} MB/s")
        cluster.check_logs()
        peaks = {broker: cluster.sidecars[broker].resident_bytes()[1] for broker in SIDES}
        return [
            (side, limit / MB, means[broker] / MB, before[broker] / MB, peaks[broker] / MB)
            for broker, side in SIDES.items()
        ]


def _topic(way: str) -> str:
    return f"orders-{list(WAYS).index(way)}"


def _move(cluster: Cluster, way: str, *, compare: bool = False) -> float:
    """Give every partition a replica on the follower, and take it away; returns bytes/s, first to last byte."""
    leader, follower = WAYS[way]
    moved = [(_topic(way), partition) for partition in PARTITIONS]
    with cluster.received_bytes(follower, moved) as received:
        cluster.reassign({partition: [leader, follower] for partition in moved}, seconds=MOVE_SECONDS)
    for partition in moved if compare else ():
        cluster.compare_segments(*partition, leader, follower)
    cluster.reassign({partition: [leader] for partition in moved}, seconds=60)
    cluster.wait_for("the replicas' end", lambda: not any(cluster.segments(*one, follower) for one in moved), 30)
    return received.series().mean_rate()


def _mean_answer(cluster: Cluster, broker: int, version: int, limit: int, size: int) -> float:
    """Bytes of an answer in the mean, after one move. Raises LabError where they did not all pass, or in small ones."""
    side, metrics = SIDES[broker], cluster.sidecars[broker].metrics()
    passed = metrics.value("weir_replication_bytes_total", side=side)
    mean = passed / metrics.value("weir_fetch_requests_total", side=side, api_version=version)
    if passed < LEAST_PASSED * size or mean < LEAST_OF_SIZE * limit:
        said = f"{passed:,.0f} of {size:,} bytes passed the {side}'s sidecar, in answers of {mean:,.0f} bytes"
        raise LabError(f"{said}: that shows nothing of answers up to {limit:,}.")
    return mean


def _consume(cluster: Cluster, way: str, messages: int) -> float:
    """Bytes/s of a consumer of the leader's topic, the join of its group left out."""
    place = cluster.places[WAYS[SIDECARS][0]]
    server = place.client_address if way == CONSUMED[0] else place.advertised_address
    read = consume(cluster, _topic(SIDECARS), messages, bootstrap_servers=server)
    if read.messages != messages:
        raise LabError(f"The consumer read {read.messages:,} messages of {messages:,}.")
    return read.fetch_mib_per_second * 2**20


if __name__ == "__main__":
    run(main)

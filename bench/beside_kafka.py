"""Which part of Kafka's own rate a sidecar should keep to, where both throttle: `python -m bench.beside_kafka`.

Kafka's throttle is set at a rate, the sidecar's at a part of it, on the same replicas. All parts are measured on one
cluster, one after the other, so that the machine's noise is shared. Printed are the mean and the worst sliding second
of what the follower received, as parts of Kafka's rate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from bench.table import Report, parser
from weir.lab.cluster import Cluster
from weir.lab.modes import MODES, NEWEST
from weir.lab.produce import fill
from weir.quota.setting_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS

MEGABYTE = 1_000_000
MESSAGE_BYTES = 10_240
PARTITIONS = 20
PARTS = (1.0, 0.99, 0.98, 0.97, 0.95)
RATES = (1, 5, 20)
SIDES = ("leader", "follower", "both")
SETTLING_SECONDS = 2.0
"""After the move begins; credit that gathered while nothing moved then has been spent."""
LEAST_MEAN = 0.98
MOST_WORST = 1.05
BEST_PART = 0.98
"""The default of `[cluster] followed_part`, for which the bounds are checked."""

_NAMES = {"leader": (LEADER_RATE, LEADER_REPLICAS, 1), "follower": (FOLLOWER_RATE, FOLLOWER_REPLICAS, 2)}
_COLUMNS = {"MB/s": 0, "sides": 0, "part": 2, "mean": 3, "of the part": 3, "worst second": 3, "seconds": 1}


def main() -> int:
    """Measure; 1 where the default's part misses a bound."""
    options = parser("bench.beside_kafka", "Measure sidecars beside Kafka's own throttle.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--seconds", type=float, default=12.0, help="how long a move is to take (12)")
    options.add_argument("--rates", type=int, nargs="+", default=RATES, metavar="MB", help="MB/s (1 5 20)")
    options.add_argument("--sides", choices=SIDES, nargs="+", default=SIDES, help="where the rate is set (all)")
    options.add_argument("--parts", type=float, nargs="+", default=PARTS, help="of Kafka's rate (1 to 0.95)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    with MODES[chosen.mode].cluster(2, sidecars=True) as cluster:
        version = MODES[chosen.mode].fetch_version
        rows = list(_measured(cluster, chosen.rates, chosen.sides, chosen.parts, chosen.seconds))
    report.table(f"{chosen.mode}, Fetch v{version}", _COLUMNS, rows)
    for rate, sides, part, _, of_part, worst, _ in rows:
        if part == BEST_PART:
            batch = MESSAGE_BYTES / (rate * MEGABYTE)
            report.bound(f"{rate} MB/s, {sides}, mean of the part", of_part, least=LEAST_MEAN)
            report.bound(f"{rate} MB/s, {sides}, worst second of Kafka's rate", worst, most=MOST_WORST + batch)
    return report.status


def _measured(
    cluster: Cluster, rates: Sequence[int], sides: Sequence[str], parts: Sequence[float], seconds: float
) -> Iterator[tuple[int, str, float, float, float, float, float]]:
    done, count = 0, len(rates) * len(sides) * len(parts)
    for rate in rates:
        for side in sides:
            for part in parts:
                mean, worst, took = _move(cluster, done, rate * MEGABYTE, side, part, seconds)
                done += 1
                left = (count - done) * (seconds + 3)
                print(
                    f"{done}/{count}: {rate} MB/s, {side}, {part:g}: {mean:.3f}, about {left:.0f} s left",
                    file=sys.stderr,
                )
                yield rate, side, part, mean, mean / part, worst, took


def _move(
    cluster: Cluster, number: int, rate: int, side: str, part: float, seconds: float
) -> tuple[float, float, float]:
    """Return the mean and the worst second as parts of `rate`, and how long the move took."""
    topic = f"orders-{number}"  # in ZooKeeper mode a deleted topic's name is not free at once
    throttled = [_NAMES[one] for one in ("leader", "follower") if side in (one, "both")]
    cluster.create_topic(topic, {partition: [1] for partition in range(PARTITIONS)})
    sizes = dict.fromkeys(range(PARTITIONS), int(rate * part * seconds) // PARTITIONS)
    fill(cluster.bootstrap_servers, topic, sizes, message_bytes=MESSAGE_BYTES, batch_bytes=MESSAGE_BYTES)
    lists = {topic: {replicas: "*" for _, replicas, _ in throttled}}
    for name, replicas, broker in throttled:
        cluster.sidecars[broker].put_throttle({name: int(rate * part), "topics": {topic: {replicas: "*"}}})
    cluster.admin.set_native_throttle({broker: {name: rate} for name, _, broker in throttled}, lists)
    moved = sorted(cluster.admin.partitions([topic]))
    with cluster.received_bytes(2, moved) as received:
        took = cluster.reassign(dict.fromkeys(moved, (1, 2)), seconds=seconds * 4 + 60)
    cluster.admin.clear_native_throttle([1, 2], [topic])
    for sidecar in cluster.sidecars.values():
        sidecar.delete_throttle()
    for _, partition in moved:
        cluster.compare_segments(topic, partition, 1, 2)
    cluster.admin.delete_topic(topic)
    cluster.wait_for("the topic's end", lambda: not cluster.admin.partitions(), 30)
    series = received.series()
    begin, end = series.span
    settled = min(begin + SETTLING_SECONDS, end)
    mean = (series.total_at(end) - series.total_at(settled)) / max(end - settled, 0.001) / rate
    return mean, series.worst_window()[0] / rate, took


if __name__ == "__main__":
    sys.exit(main())

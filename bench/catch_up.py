"""How soon the partitions of a throttled move are in sync: `python -m bench.catch_up`.

Equal partitions move under one leader quota, by turns in weir's urgent-first order, in its round-robin order, and by
Kafka's own throttle (KIP-73, on both sides as its tools set it). A partition's time runs from the order to move until
its new replica is in the ISR, as the cluster's metadata tell it.

Then one large partition, the last in that order, gets below min.insync.replicas in the middle of the move, because
another broker stops. Its time runs from when the ISR is told without that broker until the new replica is in it.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from bench.table import Report, parser
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES, NEWEST
from weir.lab.produce import fill
from weir.lab.segments import replica_size

LEADER, FOLLOWER, STOPPED = 1, 2, 3
URGENT_FIRST, ROUND_ROBIN, KAFKA = "urgent-first", "round-robin", "Kafka's own"
MOVED, LARGE = "orders", "payments"
MOST_OF_ROUND_ROBIN = 0.6  # (n + 1) / 2n is as good as can be: 0.525 of 20 partitions
MOST_OF_REMAINING = 1.3
MB = 1e6
_POLL_SECONDS = 0.05
_CLUSTER_POLL_SECONDS = 0.25  # of the sidecars: how late they may know of an ISR
_MOST_SECONDS = 300
_LARGE_BYTES = 5  # x the bytes of another partition


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("bench.catch_up", "Measure how soon partitions are in sync.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--rounds", type=int, default=3, help="of each way (3)")
    options.add_argument("--partitions", type=int, default=20, help="that move (20)")
    options.add_argument("--bytes", type=int, default=4_000_000, help="of each partition (4,000,000)")
    options.add_argument("--rate", type=int, default=4_000_000, help="the leader's quota, bytes/s (4,000,000)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    tables = {"quota": {"order": URGENT_FIRST}, "cluster": {"poll_seconds": _CLUSTER_POLL_SECONDS}}
    times: dict[str, list[list[float]]] = defaultdict(list)
    with MODES[chosen.mode].cluster(sidecars=True, poll_isr=True, sidecar_tables=tables) as cluster:
        partitions = range(chosen.partitions)
        cluster.create_topic(MOVED, {partition: [LEADER] for partition in partitions})
        fill(cluster.bootstrap_servers, MOVED, dict.fromkeys(partitions, chosen.bytes))
        ways = [URGENT_FIRST, ROUND_ROBIN, KAFKA]
        for number in range(chosen.rounds):
            for way in ways[number % 3 :] + ways[: number % 3]:
                _throttle(cluster, [MOVED], way, chosen.rate)
                found = _move(cluster, partitions)
                times[way].append(found)
                said = f"mean {statistics.mean(found):.2f} s, first {min(found):.2f} s, last {max(found):.2f} s"
                print(f"round {number + 1}, {way}: {said}", file=sys.stderr, flush=True)
        remaining, seconds = _below_min_isr(cluster, partitions, chosen.bytes, chosen.rate)
        cluster.check_logs(allow={"Shrinking ISR"})
    size = chosen.partitions * chosen.bytes
    title = f"{chosen.mode}, {chosen.partitions} x {chosen.bytes / MB:g} MB at {chosen.rate / MB:g} MB/s, to in-sync"
    _report(report, title, size, times)
    ideal = remaining / chosen.rate
    report.table(
        "Below min.insync.replicas in the middle of a move",
        {"MB remaining": 1, "remaining / quota, s": 2, "s to in-sync": 2},
        [(remaining / MB, ideal, seconds)],
    )
    report.bound("below min.insync.replicas, x remaining / quota", seconds / ideal, most=MOST_OF_REMAINING)
    return report.status


def _report(report: Report, title: str, size: int, times: Mapping[str, list[list[float]]]) -> None:
    columns = {"way": 0, "mean s": 2, "lowest mean of a round": 2, "highest": 2, "first, s": 2, "last, s": 2, "MB/s": 2}
    rows = []
    for way, rounds in times.items():
        means = [statistics.mean(one) for one in rounds]
        first, last = (statistics.mean(edge(one) for one in rounds) for edge in (min, max))
        rows.append((way, statistics.mean(means), min(means), max(means), first, last, size / MB / last))
    report.table(title, columns, rows)
    means_of = {way: statistics.mean(statistics.mean(one) for one in rounds) for way, rounds in times.items()}
    report.bound(
        f"{URGENT_FIRST} / {ROUND_ROBIN}", means_of[URGENT_FIRST] / means_of[ROUND_ROBIN], most=MOST_OF_ROUND_ROBIN
    )
    report.say(f"{URGENT_FIRST} / {KAFKA}: {means_of[URGENT_FIRST] / means_of[KAFKA]:.3f}")


def _throttle(cluster: Cluster, topics: Collection[str], way: str, rate: int) -> None:
    """Let only this way throttle the next move of `topics`."""
    sidecar = cluster.sidecars[LEADER]
    sides = ("leader", "follower")
    if way == KAFKA:
        sidecar.delete_throttle()
        lists = {f"{side}.replication.throttled.replicas": "*" for side in sides}
        rates = {
            broker: {f"{side}.replication.throttled.rate": rate}
            for broker, side in zip((LEADER, FOLLOWER), sides, strict=True)
        }
        cluster.admin.set_native_throttle(rates, dict.fromkeys(topics, lists))
        return
    cluster.admin.clear_native_throttle((LEADER, FOLLOWER), topics)
    cluster.assert_no_native_throttle()
    text = sidecar.config.read_text()
    for other in (URGENT_FIRST, ROUND_ROBIN):
        text = text.replace(f'"order" = "{other}"', f'"order" = "{way}"')
    sidecar.config.write_text(text)
    sidecar.send(signal.SIGHUP)
    cluster.wait_for(f"the order {way}", lambda: sidecar.status()["sides"]["leader"]["order"] == way, 10)
    lists = {"leader.replication.throttled.replicas": "*"}
    sidecar.put_throttle({"leader.replication.throttled.rate": rate, "topics": dict.fromkeys(topics, lists)})


def _move(cluster: Cluster, partitions: Collection[int]) -> list[float]:
    """Give every partition its replica, and take it away; returns the seconds after which each was in sync."""
    begun = time.monotonic()
    found: dict[int, float] = {}
    _reassign(cluster, partitions, [LEADER, FOLLOWER])

    def all_found() -> bool:
        for partition in _in_sync(cluster, MOVED) - found.keys():
            found[partition] = time.monotonic() - begun
        return len(found) == len(partitions)

    cluster.wait_for("every partition in sync", all_found, _MOST_SECONDS, _POLL_SECONDS)
    cluster.admin.wait_for_reassignments(30)
    for partition in partitions:
        cluster.compare_segments(MOVED, partition, LEADER, FOLLOWER)
    _reassign(cluster, partitions, [LEADER])
    homes = [cluster.brokers[FOLLOWER].data / f"{MOVED}-{partition}" for partition in partitions]
    cluster.wait_for("the replicas' end", lambda: not any(home.exists() for home in homes), 30)
    return list(found.values())


def _below_min_isr(cluster: Cluster, partitions: Collection[int], partition_bytes: int, rate: int) -> tuple[int, float]:
    """Return (bytes that the large partition had to go, seconds to in-sync), both from when its ISR was too small."""
    cluster.create_topic(LARGE, {0: [LEADER, STOPPED]}, {"min.insync.replicas": "2"})
    fill(cluster.bootstrap_servers, LARGE, {0: _LARGE_BYTES * partition_bytes})
    _throttle(cluster, (MOVED, LARGE), URGENT_FIRST, rate)
    cluster.reassign({(LARGE, 0): [LEADER, STOPPED, FOLLOWER]})
    _reassign(cluster, partitions, [LEADER, FOLLOWER])
    cluster.wait_for("the first partitions in sync", lambda: len(_in_sync(cluster, MOVED)) > 1, _MOST_SECONDS)
    cluster.stop_broker(STOPPED)
    cluster.wait_for("an ISR of one", lambda: _isr_of(cluster, LARGE) == {0: {LEADER}}, _MOST_SECONDS, _POLL_SECONDS)
    begun = time.monotonic()
    size, arrived = (replica_size(cluster.brokers[one].data, LARGE, 0) for one in (LEADER, FOLLOWER))
    cluster.wait_for("an ISR of two", lambda: _in_sync(cluster, LARGE) == {0}, _MOST_SECONDS, _POLL_SECONDS)
    return size - arrived, time.monotonic() - begun


def _reassign(cluster: Cluster, partitions: Collection[int], replicas: Sequence[int]) -> None:
    cluster.reassign({(MOVED, partition): replicas for partition in partitions})


def _in_sync(cluster: Cluster, topic: str) -> set[int]:
    """The partitions that have the follower in their ISR."""
    return {partition for partition, isr in _isr_of(cluster, topic).items() if FOLLOWER in isr}


def _isr_of(cluster: Cluster, topic: str) -> dict[int, set[int]]:
    states = cluster.admin.partitions([topic])
    return {partition: set(state.in_sync_replicas) for (_, partition), state in states.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.catch_up: {error}")

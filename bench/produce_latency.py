"""What a throttled move costs producers: `python -m bench.produce_latency`.

A producer waits for acks=all of a partition that broker 2 holds in sync, while other partitions move from the same
leader to broker 2 at a quota: both ride in the same replica fetches, through the same two sidecars. Rounds with a move
and rounds without one take turns.

The producer is aiokafka in a process of its own, which keeps every record's latency: ProducerPerformance rounds to
milliseconds, counts its JVM's warm-up, and gives no records to pool.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.table import Report, parser
from lab.cluster import Cluster
from lab.errors import LabError
from lab.modes import ZooKeeperCluster
from lab.produce import LiveProducer, LiveRecord, fill, latency
from lab.received import ReceivedBytes
from lab.settings import Route

LIVE, MOVED = "live", "orders"
PARTITIONS = range(20)
WARM_UP_SECONDS = 2.0  # of each round: the producer connects, and the move begins
SPARE_SECONDS = 3.0  # how much longer than the produce a move would take
STALL_SECONDS = 0.035  # TCP's delayed acknowledgement takes 0.04
MOST_RATIO = 1.25
LEAST_RATE = 0.9  # x quota while it is measured, or there was no move to speak of


@dataclass(slots=True)
class Kind:
    """Rounds with a move, or without."""

    name: str
    rounds: list[list[LiveRecord]] = field(default_factory=list)

    @property
    def pooled(self) -> list[LiveRecord]:
        """The records of all rounds."""
        return [record for one in self.rounds for record in one]

    def p99s(self) -> list[float]:
        """Each round's p99 in milliseconds."""
        return [1000 * latency(one, 0.99) for one in self.rounds]

    def row(self) -> tuple[object, ...]:
        """The row of the table; milliseconds."""
        pooled, p99s = self.pooled, self.p99s()
        middle = [1000 * latency(pooled, quantile) for quantile in (0.5, 0.95, 0.99, 0.999)]
        stalled = sum(record.latency > STALL_SECONDS for record in pooled)
        return (self.name, len(pooled), statistics.median(p99s), min(p99s), max(p99s), *middle, stalled)


COLUMNS = {
    "produce": 0,
    "records": 0,
    "median of the rounds' p99 ms": 2,
    "lowest": 2,
    "highest": 2,
    "all p50 ms": 2,
    "all p95 ms": 2,
    "all p99 ms": 2,
    "all p99.9 ms": 2,
    "above 35 ms": 0,
}


def main() -> int:
    """Measure and print; 1 when a move costs more than it may."""
    options = parser("bench.produce_latency", "Measure acks=all produce beside a throttled move.")
    options.add_argument("--rounds", type=int, default=6, help="of each kind (6)")
    options.add_argument("--seconds", type=float, default=10.0, help="measured in each round (10)")
    options.add_argument("--rate", type=int, default=5_000_000, help="the move's quota, bytes/s (5,000,000)")
    options.add_argument("--produce-rate", type=float, default=400.0, help="records/s of 1 KB (400)")
    options.add_argument("--property", action="append", default=[], help="KEY=VALUE for the brokers; may be repeated")
    chosen = options.parse_args()
    properties = dict(one.split("=", 1) for one in chosen.property)
    report = Report(chosen.json)
    still, moving = Kind("no move"), Kind("throttled move")
    routes = {1: Route.INGRESS, 2: Route.BOTH}
    with ZooKeeperCluster(brokers=2, routes=routes, properties=properties) as cluster, _producer() as pool:
        _prepare(cluster, int(chosen.rate * (chosen.seconds + WARM_UP_SECONDS + SPARE_SECONDS)), chosen.rate)
        produced = (cluster.bootstrap_servers, chosen.produce_rate, chosen.seconds)
        for number in range(chosen.rounds + 1):
            for kind in (still, moving) if number % 2 else (moving, still):
                with _move(cluster, chosen.rate, chosen.seconds) if kind is moving else _no_move():
                    found = pool.submit(_produce, *produced).result()
                if number:  # the first ones warm the brokers up
                    kind.rounds.append(found)
                p99 = 1000 * latency(found, 0.99)
                print(f"round {number}, {kind.name}: p99 {p99:.2f} ms", file=sys.stderr, flush=True)
        # A replica that is taken back has stopped fetching a moment before its leader hears of it.
        cluster.check_logs(allow={"Shrinking ISR"})
    title = f"acks=all, {chosen.produce_rate:g} records/s of 1 KB, move at {chosen.rate / 1e6:g} MB/s"
    if chosen.property:
        title += f", {', '.join(chosen.property)}"
    report.table(title, COLUMNS, [still.row(), moving.row()])
    ratio = statistics.median(moving.p99s()) / statistics.median(still.p99s())
    report.bound("median p99 with a move / without", ratio, most=MOST_RATIO)
    pooled = latency(moving.pooled, 0.99) / latency(still.pooled, 0.99)
    report.bound("pooled p99 with a move / without", pooled, most=MOST_RATIO)
    return report.status


def _prepare(cluster: Cluster, size: int, rate: int) -> None:
    cluster.create_topic(MOVED, {partition: [1] for partition in PARTITIONS})
    fill(cluster.bootstrap_servers, MOVED, dict.fromkeys(PARTITIONS, size // len(PARTITIONS)))
    cluster.create_topic(LIVE, {0: [1, 2]})
    cluster.assert_no_native_throttle()
    topic = {"leader.replication.throttled.replicas": "*"}
    cluster.sidecars[1].put_throttle({"leader.replication.throttled.rate": rate, "topics": {MOVED: topic}})


@contextmanager
def _move(cluster: Cluster, rate: int, seconds: float) -> Iterator[None]:
    """A move that is under way for all of the block's measured seconds; it is taken back afterwards."""
    moved = [(MOVED, partition) for partition in PARTITIONS]
    with cluster.received_bytes(2, moved, interval=0.25) as received:
        cluster.reassign({partition: [1, 2] for partition in moved})
        yield
        received.stop()
    _check(received, rate, seconds)
    cluster.admin.wait_for_reassignments(60)
    cluster.reassign({partition: [1] for partition in moved}, seconds=60)
    cluster.wait_for("the moved replicas' end", lambda: not any(cluster.segments(*one, 2) for one in moved), 30)


def _check(received: ReceivedBytes, rate: int, seconds: float) -> None:
    series = received.series()
    end = series.times[-1]
    reached = (series.total_at(end) - series.total_at(end - seconds)) / seconds
    if reached < LEAST_RATE * rate:
        raise LabError(f"The move took {reached:,.0f} bytes/s while produce was measured, not {rate:,}.")


@contextmanager
def _no_move() -> Iterator[None]:
    yield


@contextmanager
def _producer() -> Iterator[ProcessPoolExecutor]:
    """A process to produce in: other threads here would show in its latencies."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def _produce(servers: list[str], rate: float, seconds: float) -> list[LiveRecord]:
    """Produce for one round and return the records measured."""
    gc.collect()
    gc.disable()
    with LiveProducer(servers, LIVE, [0], rate=rate) as producer:
        time.sleep(WARM_UP_SECONDS + seconds)
    gc.enable()
    if producer.failed:
        raise LabError(f"{producer.failed} records were not acknowledged.")
    return [record for record in producer.acked if record.number >= rate * WARM_UP_SECONDS]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.produce_latency: {error}")

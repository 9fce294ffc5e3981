"""What a throttled move costs producers: `python -m bench.produce_latency`.

A producer waits for acks=all of a partition that broker 2 holds in sync, while other partitions move from the same
leader to broker 2 at a quota: both ride in the same replica fetches, through the same two sidecars. Rounds with a move,
rounds without one, and rounds with the same move to broker 3 instead take turns. The last share no fetch with what is
produced: they show what the machine, on which all of this runs, adds by itself.

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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from bench.table import Report, parser
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES
from weir.lab.produce import LiveProducer, LiveRecord, fill, latency
from weir.lab.received import ReceivedBytes
from weir.lab.settings import Route

IN_SYNC, OTHER = 2, 3  # the live topic's follower, and a broker that has none of it
LIVE, MOVED = "live", "orders"
PARTITIONS = range(20)
WARM_UP_SECONDS = 2.0  # of each round: the producer connects, and the move begins
SPARE_SECONDS = 3.0  # how much longer than the produce a move would take
WARM_UP_ROUNDS = 2  # until the JVMs have compiled what runs
STALL_SECONDS = 0.035  # TCP's delayed acknowledgement takes 0.04
MOST_RATIO = 1.25
LEAST_RATE = 0.9  # x quota while it is measured, or there was no move to speak of


@dataclass(slots=True)
class Kind:
    """Rounds with a move to a broker, or without one."""

    name: str
    to: int | None = None
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
    options.add_argument("--mode", choices=MODES, default="zookeeper-0.10.1", help="of the cluster (zookeeper-0.10.1)")
    options.add_argument("--rounds", type=int, default=6, help="of each kind (6)")
    options.add_argument("--seconds", type=float, default=10.0, help="measured in each round (10)")
    options.add_argument("--rate", type=int, default=5_000_000, help="the move's quota, bytes/s (5,000,000)")
    options.add_argument("--produce-rate", type=float, default=400.0, help="records/s of 1 KB (400)")
    options.add_argument("--property", action="append", default=[], help="KEY=VALUE for the brokers; may be repeated")
    chosen = options.parse_args()
    properties = dict(one.split("=", 1) for one in chosen.property)
    report = Report(chosen.json)
    still = Kind("no move")
    moving = Kind("throttled move", to=IN_SYNC)
    elsewhere = Kind("throttled move to another follower", to=OTHER)
    turns = [still, moving, elsewhere]
    routes = {1: Route.INGRESS, IN_SYNC: Route.BOTH, OTHER: Route.BOTH}
    mode = MODES[chosen.mode]
    with mode.cluster(3, routes=routes, properties=properties) as cluster, _producer() as pool:
        _prepare(cluster, int(chosen.rate * (chosen.seconds + WARM_UP_SECONDS + SPARE_SECONDS)), chosen.rate)
        produced = (cluster.bootstrap_servers, chosen.produce_rate, chosen.seconds)
        for number in range(-WARM_UP_ROUNDS, chosen.rounds):
            for kind in turns:
                with _move(cluster, kind.to, chosen.rate, chosen.seconds) if kind.to else nullcontext():
                    found = pool.submit(_produce, *produced).result()
                if number >= 0:
                    kind.rounds.append(found)
                p99 = 1000 * latency(found, 0.99)
                print(f"round {number + 1}, {kind.name}: p99 {p99:.2f} ms", file=sys.stderr, flush=True)
            turns.append(turns.pop(0))
        # A replica that is taken back has stopped fetching a moment before its leader hears of it.
        cluster.check_logs(allow={"Shrinking ISR"})
    produce = f"{chosen.produce_rate:g} records/s of 1 KB with acks=all"
    title = f"{mode.name} (Fetch v{mode.fetch_version}): {produce}, move at {chosen.rate / 1e6:g} MB/s"
    if chosen.property:
        title += f", {', '.join(chosen.property)}"
    report.table(title, COLUMNS, [still.row(), moving.row(), elsewhere.row()])
    by_median, pooled = _ratios(moving, still)
    report.bound("median p99 with a move / without", by_median, most=MOST_RATIO)
    report.bound("pooled p99 with a move / without", pooled, most=MOST_RATIO)
    for kind, base in ((elsewhere, still), (moving, elsewhere)):
        by_median, pooled = _ratios(kind, base)
        report.say(f"{kind.name} / {base.name}: median {by_median:.3f}, pooled {pooled:.3f}")
    return report.status


def _ratios(kind: Kind, base: Kind) -> tuple[float, float]:
    """The p99 of one kind over another's: of the medians of their rounds, and of all their records."""
    by_median = statistics.median(kind.p99s()) / statistics.median(base.p99s())
    return by_median, latency(kind.pooled, 0.99) / latency(base.pooled, 0.99)


def _prepare(cluster: Cluster, size: int, rate: int) -> None:
    cluster.create_topic(MOVED, {partition: [1] for partition in PARTITIONS})
    fill(cluster.bootstrap_servers, MOVED, dict.fromkeys(PARTITIONS, size // len(PARTITIONS)))
    cluster.create_topic(LIVE, {0: [1, IN_SYNC]})
    cluster.assert_no_native_throttle()
    topic = {"leader.replication.throttled.replicas": "*"}
    cluster.sidecars[1].put_throttle({"leader.replication.throttled.rate": rate, "topics": {MOVED: topic}})


@contextmanager
def _move(cluster: Cluster, to: int, rate: int, seconds: float) -> Iterator[None]:
    """A move that is under way for all of the block's measured seconds; it is taken back afterwards."""
    moved = [(MOVED, partition) for partition in PARTITIONS]
    with cluster.received_bytes(to, moved, interval=0.25) as received:
        cluster.reassign({partition: [1, to] for partition in moved})
        yield
        received.stop()
    _check(received, rate, seconds)
    cluster.admin.wait_for_reassignments(60)
    cluster.reassign({partition: [1] for partition in moved}, seconds=60)
    cluster.wait_for("the moved replicas' end", lambda: not any(cluster.segments(*one, to) for one in moved), 30)


def _check(received: ReceivedBytes, rate: int, seconds: float) -> None:
    series = received.series()
    end = series.times[-1]
    reached = (series.total_at(end) - series.total_at(end - seconds)) / seconds
    if reached < LEAST_RATE * rate:
        raise LabError(f"The move took {reached:,.0f} bytes/s while produce was measured, not {rate:,}.")


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

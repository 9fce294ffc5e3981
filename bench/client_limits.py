# SPDX-License-Identifier: Apache-2.0
"""How well clients are held to limits, on real brokers: `python -m bench.client_limits PART`. A part takes minutes.

- `sink-1`, `source-1`: a confluent-kafka client at each limit, through one sidecar; at least 50 polls and 30 s.
- `sink-3`, `source-3`: the same through three sidecars; broker 1 has four of six partitions.
- `settle`: how long shares take to follow demand, and what becomes of a limit when a sidecar is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.sockets import worst_second
from bench.table import Report, add_parts, begin, parser, run
from tests.integration import limited_clients
from tests.integration.limited_clients import Client
from weir.lab.cluster import Cluster
from weir.lab.connect import through_sidecar
from weir.lab.modes import KraftCluster
from weir.lab.settings import Route

LIMITS = (100, 1_000, 50_000)
SECONDS = 32.0
POLLS_A_SECOND = 20  # so one poll is a twentieth of the limit
WARM_UP = {1: 3.0, 3: 12.0}  # seconds before figures count, by brokers
LEADERS = {1: (1, 1), 3: (1, 1, 1, 1, 2, 3)}  # of each partition, by brokers
LEAST, MOST = 0.97, 1.005
RUNS = 3  # of demand that moves
LIMIT = 1_000  # where demand moves
BATCH = LIMIT // POLLS_A_SECOND

Arrivals = Sequence[tuple[float, int]]


class Bench:
    """A cluster with a sidecar in front of each broker, and clients that go through them."""

    def __init__(self, cluster: Cluster, report: Report, limits: Sequence[int], seconds: float) -> None:
        self.cluster = cluster
        self.report = report
        self.limits = limits
        self.seconds = seconds
        self.brokers = len(cluster.brokers)
        self._topics = 0

    def limit(self, *entries: Mapping[str, Any]) -> None:
        """Put limits in force at every sidecar."""
        for sidecar in self.cluster.sidecars.values():
            if sidecar.alive:
                status, body = sidecar.http("PUT", "/v1/limits", {"client": list(entries)})
                assert status == 200, body

    def topic(self, batch: int, records: int) -> str:
        """Make a topic; each partition gets so many records in batches of `batch`."""
        self._topics += 1
        name = f"t{self._topics}"
        self.cluster.create_topic(name, {number: [leader] for number, leader in enumerate(LEADERS[self.brokers])})
        if records:
            servers, partitions = ",".join(self.cluster.bootstrap_servers), range(len(LEADERS[self.brokers]))
            options = {"batch": batch, "records": records}
            self.finish(limited_clients.start("fill", servers, "fill", name, partitions, **options))
        return name

    def start(self, kind: str, topic: str, client_id: str, **options: object) -> Client:
        """Start a client; its options are those of tests.integration.limited_clients."""
        partitions = options.pop("partitions", range(len(LEADERS[self.brokers])))
        assert isinstance(partitions, Sequence)
        return limited_clients.start(kind, through_sidecar(self.cluster, 1), client_id, topic, partitions, **options)

    def client(self, kind: str, topic: str, client_id: str, **options: object) -> Arrivals:
        """Run a client to its end."""
        return self.finish(self.start(kind, topic, client_id, **options))

    def finish(self, client: Client) -> Arrivals:
        """Wait for a client's end; returns what it had when."""
        try:
            out, _ = client.communicate(timeout=300)
        except BaseException:
            client.kill()
            raise
        assert client.returncode == 0, f"a client ended with {client.returncode}"
        return [(at, records) for at, records in json.loads(out)]


def part_of(arrivals: Arrivals, since: float, until: float = float("inf")) -> Arrivals:
    """What came from `since` to `until`, seconds after the first of all."""
    begin = arrivals[0][0]
    return [(at, records) for at, records in arrivals if begin + since <= at < begin + until]


def rate(arrivals: Arrivals) -> float:
    """Records/s between the first and the last arrival."""
    seconds = arrivals[-1][0] - arrivals[0][0] if arrivals else 0.0
    return sum(records for _, records in arrivals[1:]) / seconds if seconds else 0.0


def used_from(arrivals: Arrivals, begin: float, least: float) -> float:
    """How many seconds after `begin` a second begins that has `least` records."""
    part = [(at, records) for at, records in arrivals if at >= begin]
    for index, (at, _) in enumerate(part):
        if sum(records for later, records in part[index:] if later < at + 1) >= least:
            return at - begin
    return float("inf")


def held(bench: Bench, kind: str) -> None:
    """A client at each limit."""
    rows = []
    warm_up = WARM_UP[bench.brokers]
    for limit in bench.limits:
        batch = limit // POLLS_A_SECOND
        client_id = f"connector-{'consumer' if kind == 'sink' else 'producer'}-held-{limit}"
        bench.limit({"client_id": client_id, "record.rate.limit": limit})
        seconds = warm_up + bench.seconds
        topic = bench.topic(batch, int(limit * seconds * 0.7) if kind == "sink" else 0)
        options = {"batch": batch} if kind == "source" else {}
        arrivals = bench.client(kind, topic, client_id, seconds=seconds + 2, **options)
        mean = rate(part_of(arrivals, warm_up, seconds)) / limit
        worst = worst_second(part_of(arrivals, warm_up)) / limit
        rows.append((limit, mean, worst))
        name = f"{kind}, {bench.brokers} sidecar(s), {limit:,}/s"
        bench.report.bound(f"{name}: mean x limit", mean, least=LEAST, most=MOST)
        bench.report.bound(f"{name}: worst second x limit", worst, most=1.1)
    columns = "limit, records/s | mean, x limit .4 | worst second, x limit .3"
    bench.report.table(f"A {kind} through {bench.brokers} sidecar(s)", columns, rows)


def settle(bench: Bench) -> None:
    """Demand at broker 1 alone, then at broker 2 alone; then a sidecar is lost."""
    rows: list[tuple[object, ...]] = []
    bench.limit({"client_id": "connector-*", "record.rate.limit": LIMIT})
    topic = bench.topic(BATCH, LIMIT * 40)
    for number in range(RUNS):
        client_id = f"connector-consumer-settle-{number}"
        options = {"partitions": [0, 1, 2, 3], "move_to": [4], "move_after": 15, "seconds": 30}
        arrivals = bench.client("sink", topic, client_id, **options)
        begin = arrivals[0][0]
        first, second = (used_from(arrivals, begin + after, 0.9 * LIMIT) for after in (0, 15))
        rows.append((number, first, second, worst_second(arrivals) / LIMIT))
        bench.report.bound("settled after demand moved, s", second, most=6)
    columns = "run | from the first record, s .1 | after demand moved, s .1 | worst second, x limit .3"
    bench.report.table("Until a second has 0.9 of the limit", columns, rows)
    running = bench.start("sink", topic, "connector-consumer-lost-0", seconds=40)
    time.sleep(18)
    bench.cluster.kill_sidecar(2)
    killed_at = time.monotonic()
    after_kill = [(at, records) for at, records in bench.finish(running) if at >= killed_at]
    worst = worst_second(after_kill) / LIMIT
    back = used_from(after_kill, after_kill[0][0] + 1, 0.9 * LIMIT) + 1
    columns = "worst second, x limit .3 | 0.9 of the limit again after, s .1"
    bench.report.table("One of three sidecars is killed", columns, [(worst, back)])
    bench.report.bound("worst second after a sidecar is lost, x limit", worst, most=1 + 1 / 3 + 0.1)


PARTS: Mapping[str, tuple[int, Callable[[Bench], None]]] = {
    "sink-1": (1, lambda bench: held(bench, "sink")),
    "source-1": (1, lambda bench: held(bench, "source")),
    "sink-3": (3, lambda bench: held(bench, "sink")),
    "source-3": (3, lambda bench: held(bench, "source")),
    "settle": (3, settle),
}


def main() -> int:
    """Run the parts asked for; 1 where a figure missed its bound."""
    options = parser("client_limits", "Measure how well clients are held to limits.")
    add_parts(options, PARTS)
    options.add_argument("--limits", type=int, nargs="+", default=LIMITS)
    options.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    chosen, report = begin(options)
    for brokers in (1, 3):
        parts = [PARTS[name] for name in chosen.parts if PARTS[name][0] == brokers]
        if parts:
            with KraftCluster(brokers=brokers, routes=Route.INGRESS, poll_isr=True) as cluster:
                bench = Bench(cluster, report, chosen.limits, chosen.seconds)
                for _, part in parts:
                    part(bench)
    return report.status


if __name__ == "__main__":
    run(main)

"""How well clients are held to limits, on real brokers: `python -m bench.client_limits PART`. A part takes minutes.

- `sink-1`, `source-1`: a confluent-kafka client at each limit, through one sidecar; at least 50 polls and 30 s.
- `sink-3`, `source-3`: the same through three sidecars; broker 1 has four of six partitions.
- `two`: two limiters; the tighter one alone rules.
- `free`: a client without a limit beside a limited one, and alone.
- `settle`: how long shares take to follow demand, and what becomes of a limit when a sidecar is lost.
- `kafka-python`: what that client reaches without a limit, and with one of 50,000.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.table import Report, parser
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

Arrivals = Sequence[tuple[float, int]]


class Bench:
    """A cluster with a sidecar in front of each broker, and clients that go through them."""

    def __init__(self, cluster: Cluster, report: Report, seconds: float) -> None:
        self.cluster = cluster
        self.report = report
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
            servers = ",".join(self.cluster.bootstrap_servers)
            self.finish(self.start("fill", name, "fill", servers=servers, batch=batch, records=records))
        return name

    def start(self, kind: str, topic: str, client_id: str, **options: Any) -> subprocess.Popen[str]:
        """Start a client; its options are those of bench.limited_clients."""
        named = {
            "servers": through_sidecar(self.cluster, 1),
            "partitions": range(len(LEADERS[self.brokers])),
            **options,
        }
        arguments = [kind, "--topic", topic, "--client-id", client_id]
        for key, value in named.items():
            arguments.append(f"--{key.replace('_', '-')}")
            if value is not True:
                arguments += [str(one) for one in value] if isinstance(value, (list, tuple, range)) else [str(value)]
        command = [sys.executable, "-m", "bench.limited_clients", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def client(self, kind: str, topic: str, client_id: str, **options: Any) -> Arrivals:
        """Run a client to its end."""
        return self.finish(self.start(kind, topic, client_id, **options))

    def finish(self, client: subprocess.Popen[str]) -> Arrivals:
        """Wait for a client's end; returns what it had when."""
        try:
            out, _ = client.communicate(timeout=300)
        except BaseException:
            client.kill()
            raise
        assert client.returncode == 0, f"a client ended with {client.returncode}"
        return [(at, records) for at, records in json.loads(out)]


def rate(arrivals: Arrivals, since: float, until: float = float("inf")) -> float:
    """Records/s between the first and the last arrival from `since` to `until`, seconds after the first of all."""
    begin = arrivals[0][0]
    part = [(at, records) for at, records in arrivals if begin + since <= at < begin + until]
    return sum(records for _, records in part[1:]) / (part[-1][0] - part[0][0]) if len(part) > 1 else 0.0


def worst_second(arrivals: Arrivals, since: float) -> float:
    """The most records in any second from then on, wherever it begins."""
    part = [(at, records) for at, records in arrivals if at >= arrivals[0][0] + since]
    worst = now = first = 0
    for at, records in part:
        now += records
        while part[first][0] <= at - 1:
            now -= part[first][1]
            first += 1
        worst = max(worst, now)
    return float(worst)


def used_from(arrivals: Arrivals, since: float, least: float) -> float:
    """How many seconds after `since` (of the first arrival) a second begins that has `least` records."""
    begin = arrivals[0][0] + since
    part = [(at, records) for at, records in arrivals if at >= begin]
    for index, (at, _) in enumerate(part):
        if sum(records for later, records in part[index:] if later < at + 1) >= least:
            return at - begin
    return float("inf")


def held(bench: Bench, kind: str, limits: Sequence[int]) -> None:
    """A client at each limit."""
    rows = []
    warm_up = WARM_UP[bench.brokers]
    for limit in limits:
        batch = limit // POLLS_A_SECOND
        client_id = f"connector-{'consumer' if kind == 'sink' else 'producer'}-held-{limit}"
        bench.limit({"client_id": client_id, "record.rate.limit": limit})
        seconds = warm_up + bench.seconds
        topic = bench.topic(batch, int(limit * seconds * 0.7) if kind == "sink" else 0)
        arrivals = bench.client(kind, topic, client_id, seconds=seconds + 2, batch=batch)
        mean, worst = rate(arrivals, warm_up, seconds) / limit, worst_second(arrivals, warm_up) / limit
        rows.append((limit, f"{mean:.4f}", f"{worst:.3f}"))
        name = f"{kind}, {bench.brokers} sidecar(s), {limit:,}/s"
        bench.report.bound(f"{name}: mean x limit", mean, least=LEAST, most=MOST)
        bench.report.bound(f"{name}: worst second x limit", worst, most=1.1)
    columns = {"limit, records/s": 0, "mean, x limit": 4, "worst second, x limit": 3}
    bench.report.table(f"A {kind} through {bench.brokers} sidecar(s)", columns, rows)


def two(bench: Bench) -> None:
    """Two limiters for one client, and two entries for one client."""
    rows = []
    cases: Mapping[str, tuple[Mapping[str, float], ...]] = {
        "1,000 records, 5 batches of 50": ({"record.rate.limit": 1000, "record.batch.rate.limit": 5},),
        "250 records, 100 batches of 50": ({"record.rate.limit": 250, "record.batch.rate.limit": 100},),
        "entries of 250 and 1,000 records": ({"record.rate.limit": 250}, {"record.rate.limit": 1000}),
    }
    for number, (name, limits) in enumerate(cases.items()):
        client_id = f"connector-consumer-two{number}-0"
        patterns = client_id, "connector-consumer-two*"
        bench.limit(*[{"client_id": pattern, **one} for pattern, one in zip(patterns, limits, strict=False)])
        topic = bench.topic(50, 250 * 20)
        arrivals = bench.client("sink", topic, client_id, seconds=22)
        mean = rate(arrivals, 2, 22) / 250
        rows.append((name, mean))
        bench.report.bound(f"{name}: mean x 250", mean, least=LEAST, most=MOST)
    bench.report.table("Two limiters, the tighter one is 250 records/s", {"limits": 0, "mean, x 250": 4}, rows)


def free(bench: Bench, rounds: int = 5) -> None:
    """A client without a limit reads all it can, by turns beside one that is held, and beside none."""
    topic, held_topic = bench.topic(1000, 1_500_000), bench.topic(50, 20_000)
    found: dict[str, list[float]] = {"no limits": [], "beside a held client": []}
    for number in range(2 * rounds + 2):
        name = list(found)[number % 2]
        bench.limit(*([] if name == "no limits" else [{"client_id": "connector-*", "record.rate.limit": 1000}]))
        beside = None
        if name != "no limits":
            beside = bench.start("sink", held_topic, f"connector-consumer-beside-{number}", seconds=7)
            time.sleep(2)
        arrivals = bench.client("sink", topic, f"free-{number}", seconds=4, large=True)
        if beside is not None:
            bench.finish(beside)
        if number >= 2:
            found[name].append(rate(arrivals, 0.5))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    bench.report.table("A client without a limit, records/s", dict.fromkeys(medians, 0), [tuple(medians.values())])
    first, second = medians.values()
    bench.report.bound("a free client beside a held one / alone", second / first, least=0.97)


def settle(bench: Bench) -> None:
    """Demand at broker 1 alone, then at broker 2 alone; then a sidecar is lost."""
    limit = 1000
    rows: list[tuple[object, ...]] = []
    batch = limit // POLLS_A_SECOND
    bench.limit({"client_id": "connector-*", "record.rate.limit": limit})
    topic = bench.topic(batch, limit * 40)
    for number in range(3):
        client_id = f"connector-consumer-settle-{number}"
        options = {"partitions": [0, 1, 2, 3], "move_to": [4], "move_after": 15, "seconds": 30}
        arrivals = bench.client("sink", topic, client_id, **options)
        first, second = used_from(arrivals, 0, 0.9 * limit), used_from(arrivals, 15, 0.9 * limit)
        worst = worst_second(arrivals, 0) / limit
        rows.append((number, first, second, worst))
        bench.report.bound("settled after demand moved, s", second, most=6)
    columns = {"run": 0, "from the first record, s": 1, "after demand moved, s": 1, "worst second, x limit": 3}
    bench.report.table("Until a second has 0.9 of the limit", columns, rows)
    client_id = "connector-consumer-lost-0"
    running = bench.start("sink", topic, client_id, seconds=40)
    time.sleep(18)
    bench.cluster.kill_sidecar(2)
    killed_at = time.monotonic()
    arrivals = bench.finish(running)
    after = [(at, records) for at, records in arrivals if at >= killed_at]
    worst, back = worst_second(after, 0) / limit, used_from(after, 1, 0.9 * limit) + 1
    columns = {"worst second, x limit": 3, "0.9 of the limit again after, s": 1}
    bench.report.table("One of three sidecars is killed", columns, [(worst, back)])
    bench.report.bound("worst second after a sidecar is lost, x limit", worst, most=1 + 1 / 3 + 0.1)


def kafka_python(bench: Bench) -> None:
    """kafka-python alone, and with a limit that it may not reach."""
    limit = 50_000
    rows: list[tuple[str, float, float]] = []
    batch, seconds = limit // POLLS_A_SECOND, 10
    topic = bench.topic(batch, limit * 15)
    entry = {"client_id": "connector-*", "record.rate.limit": limit}
    for number in range(8):
        name = ("no limit, an answer has a batch", "limit, an answer has a batch", "no limit", "limit")[number % 4]
        bench.limit(*[entry] * (number % 2))
        options = {"large": True} if number % 4 >= 2 else {}
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        arrivals = bench.client("python-sink", topic, f"connector-consumer-kp-{number}", seconds=seconds, **options)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        rows.append((name, rate(arrivals, 2, seconds) / limit, cpu / seconds))
    bench.report.table("kafka-python", {"way": 0, "x 50,000": 3, "CPU of one core": 2}, rows)


@contextlib.contextmanager
def running(brokers: int) -> Iterator[Cluster]:
    """Brokers, each with a sidecar that knows the others."""
    with KraftCluster(brokers=brokers, routes=Route.INGRESS, poll_isr=True) as cluster:
        yield cluster


PARTS: Mapping[str, tuple[int, Callable[[Bench, Sequence[int]], None]]] = {
    "sink-1": (1, lambda bench, limits: held(bench, "sink", limits)),
    "source-1": (1, lambda bench, limits: held(bench, "source", limits)),
    "sink-3": (3, lambda bench, limits: held(bench, "sink", limits)),
    "source-3": (3, lambda bench, limits: held(bench, "source", limits)),
    "two": (1, lambda bench, _: two(bench)),
    "free": (1, lambda bench, _: free(bench)),
    "settle": (3, lambda bench, _: settle(bench)),
    "kafka-python": (1, lambda bench, _: kafka_python(bench)),
}


def main() -> int:
    """Run the parts asked for; 1 where a figure missed its bound."""
    options = parser("bench.client_limits", "Measure how well clients are held to limits.")
    options.add_argument("parts", nargs="+", choices=PARTS)
    options.add_argument("--limits", type=int, nargs="+", default=LIMITS)
    options.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    chosen = options.parse_args()
    report = Report(chosen.json)
    for brokers in (1, 3):
        parts = [part for name, (needs, part) in PARTS.items() if name in chosen.parts and needs == brokers]
        if parts:
            with running(brokers) as cluster:
                bench = Bench(cluster, report, chosen.seconds)
                for part in parts:
                    part(bench, chosen.limits)
    return report.status


if __name__ == "__main__":
    sys.exit(main())

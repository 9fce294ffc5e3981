"""A Java consumer's throughput through one sidecar: `python -m bench.consumer`.

ConsumerPerformance reads the same topic of one broker directly, through the sidecar, and through HAProxy in TCP mode.
The broker has a listener for each way, which advertises what stands before it: a consumer that begins at the sidecar's
or HAProxy's address is led back to it by the metadata, and every byte takes that way. The first round is not counted:
it warms up, and the kernel's counts of bytes by port show which way they went.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.processes import haproxy
from bench.table import Report, parser
from bench.tcp_bytes import SentBytes
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import KraftCluster
from weir.lab.network import LOOPBACK, Ports
from weir.lab.performance import consume
from weir.lab.produce import fill
from weir.lab.settings import Place, Route

TOPIC = "orders"
DIRECT, SIDECAR, HAPROXY = "direct", "sidecar", "HAProxy"
LEAST_OF_DIRECT, LEAST_OF_HAPROXY = 0.9, 1.0
MOST_RESIDENT_MB = 80.0
LEAST_OF_BYTES = 0.9  # seen on the way's own ports; the last ones may go between two samples
MB, MIB = 1e6, 2**20


class ThreeWays(KraftCluster):
    """One broker with a third listener, for HAProxy, which advertises `haproxy_port`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(brokers=1, routes=Route.INGRESS, **options)
        self.haproxy_port = self.haproxy_upstream = 0

    def _prepare(self, ports: Ports) -> None:
        super()._prepare(ports)
        self.haproxy_port, self.haproxy_upstream = ports.take(), ports.take()

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        own = super()._properties_of(place, data)
        more = {
            "listeners": f"HAPROXY://{LOOPBACK}:{self.haproxy_upstream}",
            "advertised.listeners": f"HAPROXY://localhost:{self.haproxy_port}",
            "listener.security.protocol.map": "HAPROXY:PLAINTEXT",
        }
        return {**own, **{name: f"{own[name]},{value}" for name, value in more.items()}}

    def ports(self) -> dict[str, tuple[int, int]]:
        """By way: the port that clients connect to, and the broker's own."""
        place = self.places[1]
        return {
            DIRECT: (place.client, place.client),
            SIDECAR: (place.advertised, place.listener),
            HAPROXY: (self.haproxy_port, self.haproxy_upstream),
        }


def main() -> int:
    """Measure and print; 1 when the sidecar is slower or larger than it may be."""
    options = parser("bench.consumer", "Measure ConsumerPerformance through a sidecar.")
    options.add_argument("--rounds", type=int, default=6, help="counted rounds (6)")
    options.add_argument("--bytes", type=int, default=1_500_000_000, help="read in each round (1,500,000,000)")
    options.add_argument("--partitions", type=int, default=6, help="of the topic (6)")
    options.add_argument("--message-bytes", type=int, default=10_240, help="of one message (10,240)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    with ThreeWays(heap_mb=512) as cluster:
        cluster.create_topic(TOPIC, {partition: [1] for partition in range(chosen.partitions)})
        sizes = dict.fromkeys(range(chosen.partitions), chosen.bytes // chosen.partitions)
        messages = fill(cluster.bootstrap_servers, TOPIC, sizes, message_bytes=chosen.message_bytes)
        with haproxy(cluster.haproxy_port, cluster.haproxy_upstream) as relay:
            ways = cluster.ports()
            if relay is None:
                del ways[HAPROXY]
                report.say("HAProxy is not installed (Debian: apt-get install haproxy): not measured.")
            resident = [cluster.sidecars[1].resident_bytes()[0] / MB]
            _prove(report, cluster, ways, messages, messages * chosen.message_bytes)
            speeds = _measure(cluster, ways, messages, chosen.rounds)
            resident.append(cluster.sidecars[1].resident_bytes()[1] / MB)
    title = f"ConsumerPerformance, {chosen.bytes / MB:,.0f} MB of {chosen.message_bytes:,} bytes a message, MiB/s"
    _report(report, f"{title}, {chosen.rounds} alternating rounds", speeds)
    report.table("Resident memory of the sidecar, MB", {"before": 1, "peak": 1}, [resident])
    report.bound("peak resident MB of the sidecar", resident[1], most=MOST_RESIDENT_MB)
    return report.status


def _prove(report: Report, cluster: Cluster, ways: Mapping[str, tuple[int, int]], messages: int, size: int) -> None:
    """Show by the kernel's counts that each way's bytes come from its own ports alone. Raises LabError."""
    ports = sorted({port for both in ways.values() for port in both})
    rows = []
    for way, own in ways.items():
        with SentBytes() as sent:
            consume(cluster, TOPIC, messages, bootstrap_servers=f"{LOOPBACK}:{own[0]}")
        found = sent.by_port()
        rows.append((way, *(found[port] / MB for port in ports)))
        for port in ports:
            if found[port] < LEAST_OF_BYTES * size if port in own else found[port] > 0.01 * size:
                raise LabError(f"{found[port]:,} of {size:,} bytes came from port {port}: that is not the way {way}.")
    names = {port: f"{way}'s {'broker' if port == own[1] else 'own'}" for way, own in ways.items() for port in own}
    columns = {"read": 0, **{f"from {names[port]} port, MB": 0 for port in ports}}
    report.table("The way of the bytes in the round that warms up", columns, rows)


def _measure(
    cluster: Cluster, ways: Mapping[str, tuple[int, int]], messages: int, rounds: int
) -> dict[str, list[float]]:
    """MiB/s by way, the join of the group left out."""
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            read = consume(cluster, TOPIC, messages, bootstrap_servers=f"{LOOPBACK}:{ways[way][0]}")
            if read.messages != messages:
                raise LabError(f"The consumer read {read.messages:,} messages of {messages:,} through {way}.")
            speeds[way].append(read.fetch_mib_per_second)
            print(f"round {number + 1}, {way}: {speeds[way][-1]:.0f} MiB/s", file=sys.stderr, flush=True)
    return speeds


def _report(report: Report, title: str, speeds: Mapping[str, list[float]]) -> None:
    medians = {way: statistics.median(found) for way, found in speeds.items()}
    columns = {"way": 0, "median": 0, "lowest": 0, "highest": 0, "x direct": 2}
    rows = [(way, medians[way], min(speeds[way]), max(speeds[way]), medians[way] / medians[DIRECT]) for way in speeds]
    report.table(title, columns, rows)
    report.bound("sidecar / direct", medians[SIDECAR] / medians[DIRECT], least=LEAST_OF_DIRECT)
    if HAPROXY in medians:
        report.bound("sidecar / HAProxy", medians[SIDECAR] / medians[HAPROXY], least=LEAST_OF_HAPROXY)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.consumer: {error}")

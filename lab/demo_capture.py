# SPDX-License-Identifier: Apache-2.0
"""`weir demo --capture`: sidecars are put beside brokers that run, throttle a move, are killed and taken out."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.console import Console

from weir.lab.capture_chart import draw_phases
from weir.lab.errors import LabError, Timeout
from weir.lab.hosted import HostedCluster
from weir.lab.hosts import missing
from weir.lab.produce import LiveProducer, fill, latency, read_numbers
from weir.lab.progress import MEGABYTE
from weir.lab.received import ReceivedBytes, Series

LEADER, PEER, FOLLOWER = 1, 2, 3
RATE: Final = 5 * MEGABYTE
LINK: Final = 25 * MEGABYTE
PARTITIONS: Final = 10
TOTAL: Final = 300 * MEGABYTE
MESSAGE_BYTES: Final = 10_240
_SETTLE_SECONDS: Final = 4.0  # a phase begins with reconnections
_MOST_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the move, from `begin` to `end` (seconds of the series). `is_throttled`: weir is in the path."""

    name: str
    begin: float
    end: float
    is_throttled: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen: the bytes received, the phases, and what was promised with whether it held."""

    received: Series
    phases: list[Phase]
    promises: list[tuple[str, bool]]


def run(console: Console, chart: Path) -> int:
    """Run the demo. Returns 0 only if every promise was held."""
    if (reason := missing()) is not None:
        raise LabError(f"weir demo --capture makes three hosts of this machine, and here {reason}.")
    outcome = _run(console)
    draw_phases(chart, outcome.received, [(one.name, one.begin, one.end) for one in outcome.phases], RATE, LINK)
    for phase in outcome.phases:
        rate = _rate(outcome.received, phase.begin, phase.end) / MEGABYTE
        console.print(f"  {phase.name:<34} {phase.end - phase.begin:5.1f} s  {rate:5.1f} MB/s", highlight=False)
    for sentence, held in outcome.promises:
        console.print(f"  {'[green]held[/green]  ' if held else '[red]BROKEN[/red]'} {sentence}", highlight=False)
    console.print(f"  chart  {chart}", highlight=False, soft_wrap=True)
    return 0 if all(held for _, held in outcome.promises) else 1


def _run(console: Console) -> Outcome:
    with HostedCluster() as cluster:
        console.print(
            f"Three Kafka {cluster.version} brokers run, each on a host of its own, with one listener at port 9092."
            f" The leader's link has {LINK / MEGABYTE:g} MB/s.",
            soft_wrap=True,
            highlight=False,
        )
        cluster.create_topic("orders", {partition: [LEADER] for partition in range(PARTITIONS)})
        sizes = dict.fromkeys(range(PARTITIONS), TOTAL // PARTITIONS)
        fill(cluster.bootstrap_servers, "orders", sizes, message_bytes=MESSAGE_BYTES, batch_bytes=MESSAGE_BYTES)
        cluster.create_topic("live", {0: [PEER, FOLLOWER]})
        _shape(cluster)
        shrunk = _shrinks(cluster)
        with LiveProducer(cluster.bootstrap_servers, "live", [0], rate=100) as producer:
            received, phases = _move(cluster, console)
        compared = sum(cluster.compare_segments("orders", one, LEADER, FOLLOWER) for one in range(PARTITIONS))
        read = read_numbers(cluster.bootstrap_servers, "live", [0])
        once = all(read.count(record.number) == 1 for record in producer.acked)
        promises = [
            *[_kept(received, phase) for phase in phases if phase.is_throttled],
            (f"{compared:,} moved bytes compared with the leader's: identical", compared >= TOTAL),
            (
                f"{len(producer.acked):,} live records acked by acks=all, each in the log once;"
                f" p99 {latency(producer.acked, 0.99):.2f} s",
                once,
            ),
            ("no replica left the ISR", _shrinks(cluster) == shrunk),
            ("no rule is left in any kernel", not any(_tables(cluster, one) for one in cluster.broker_ids)),
        ]
        return Outcome(received, phases, promises)


def _move(cluster: HostedCluster, console: Console) -> tuple[Series, list[Phase]]:
    """Move a topic, while sidecars come and go. Returns what the follower received, and the phases."""
    moments: list[tuple[str, float, bool]] = []

    @contextmanager
    def phase(name: str, is_throttled: bool) -> Iterator[None]:
        console.print(f"{time.monotonic() - begun:5.1f} s  {name}", highlight=False)
        yield
        moments.append((name, received.series().times[-1], is_throttled))

    partitions = [("orders", partition) for partition in range(PARTITIONS)]
    with cluster.received_bytes(FOLLOWER, partitions) as received:
        begun = time.monotonic()
        cluster.reassign({partition: [LEADER, FOLLOWER] for partition in partitions})
        with phase("weir is not there", False):
            _wait_for(cluster, received, 40)
        with phase("put in beside two running brokers", True):
            _put_in(cluster, LEADER, FOLLOWER)
            time.sleep(10)
        with phase("the leader's sidecar is killed", False):
            cluster.sidecars[LEADER].kill()
            _wait_for(cluster, received, received.total / MEGABYTE + 60)
        with phase("put in again", True):
            _put_in(cluster, LEADER)
            time.sleep(8)
        with phase("taken out", False):
            for sidecar in cluster.sidecars.values():
                if sidecar.alive:
                    sidecar.send(signal.SIGTERM)
            cluster.admin.wait_for_reassignments(_MOST_SECONDS)
        for sidecar in cluster.sidecars.values():
            if sidecar.alive:
                sidecar.wait(20)
    series = received.series()
    first = series.span[0]
    edges = [first, *[moment for _, moment, _ in moments]]
    named = [(name, is_throttled) for name, _, is_throttled in moments]
    return series, [Phase(n, a, b, t) for (n, t), (a, b) in zip(named, pairwise(edges), strict=True)]


def _put_in(cluster: HostedCluster, *brokers: int) -> None:
    throttle = {
        "leader.replication.throttled.rate": RATE,
        "topics": {"orders": {"leader.replication.throttled.replicas": "*"}},
    }
    for broker in brokers:
        cluster.put_in(broker, {}, {"throttle": throttle})
    for broker in brokers:
        cluster.sidecars[broker].wait_until("/readyz", 20)


def _kept(received: Series, phase: Phase) -> tuple[str, bool]:
    mean = _rate(received, phase.begin + _SETTLE_SECONDS, phase.end) / RATE
    return f"{phase.name}: mean {mean:.3f} x quota (0.93 to 1.02)", 0.93 <= mean <= 1.02


def _rate(received: Series, begin: float, end: float) -> float:
    return (received.total_at(end) - received.total_at(begin)) / (end - begin) if end > begin else 0.0


def _wait_for(cluster: HostedCluster, received: ReceivedBytes, megabytes: float) -> None:
    cluster.wait_for(f"{megabytes:g} MB", lambda: received.total > megabytes * MEGABYTE, _MOST_SECONDS)


def _shape(cluster: HostedCluster) -> None:
    """Give the leader's host a link of LINK bytes/s, as a network card has."""
    shaped = ("tbf", "rate", f"{LINK * 8}bit", "burst", "256k", "latency", "50ms")
    cluster.hosts.run(LEADER, "tc", "qdisc", "add", "dev", "eth0", "root", *shaped)


def _shrinks(cluster: HostedCluster) -> int:
    return sum(broker.log.read_text().count("Shrinking ISR") for broker in cluster.brokers.values())


def _tables(cluster: HostedCluster, broker: int) -> bool:
    try:
        return "weir" in cluster.hosts.run(broker, "nft", "list", "tables")
    except LabError as error:
        raise Timeout("nft's answer", 0, str(error)) from error

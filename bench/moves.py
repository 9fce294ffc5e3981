# SPDX-License-Identifier: Apache-2.0
"""Throttled moves between real brokers against their quotas: `python -m bench.moves`.

Received bytes are read from the followers' segment files every 20 ms, bytes on the wire from the sidecars' metrics.
Every moved replica is compared with its leader's byte for byte, the brokers' logs are searched for bad signs, and a
move counts only if the sidecars decoded all of its fetches, and no session of theirs had to begin anew.

How soon a partition is in sync is what the cluster's metadata tell of its ISR. With produce, records with acks=all go
to replicas in sync whose fetches the move shares: their latency is told before the move, and beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from fnmatch import fnmatch
from pathlib import Path

from bench.move_scenarios import MEGABYTE, MESSAGE_BYTES, Scenario, scenarios
from bench.table import Report, parser, progress, run
from weir.control.cluster_admin import Partition
from weir.lab.chart import draw_rates
from weir.lab.cluster import Cluster
from weir.lab.java import OPTIMIZED
from weir.lab.modes import MODES
from weir.lab.produce import LiveProducer, fill, latency
from weir.lab.received import ReceivedBytes, Series
from weir.protocol.fetch_session import FIRST_SESSION_VERSION

_LARGEST_SHARE_SECONDS = 0.15  # of quota: one response of the sidecars' own making
_ENTRY_BYTES = 64  # what a message's or batch's head adds in the log, at most
_STEADY_SECONDS = 2.0  # until the followers of the live topic have begun their sessions, and producers are warm
_PRODUCE_SECONDS = 5.0  # before the move
_PRODUCED_BATCH_BYTES = 50 * MESSAGE_BYTES  # a client waits for one batch at a time: with small ones it is the limit
FOLLOWED_PART = 0.98
"""The default of `[cluster] followed_part`."""

COLUMNS = (
    "move | MB moved | seconds .1 | mean .3 | on the wire .3 | worst second .3 | allowed .3 | cut, % .3 | "
    "fetches/s a link .1 | inbound .3 | its worst second .3 | in sync after, mean s .1 | "
    "p99 of acks=all before, ms .1 | beside, ms .1"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one move reached; rates as parts of the lowest quota."""

    name: str
    moved: float
    seconds: float
    mean: float
    wire: float | None
    worst: float
    allowed: float | None
    cut: float | None
    fetches_per_second: float
    inbound: float
    worst_inbound: float
    in_sync_after: float
    p99_before: float | None
    p99_beside: float | None


def main() -> int:
    """Measure the chosen moves; 1 when one misses what it must reach."""
    options = parser("moves", "Measure throttled moves.")
    options.add_argument("--only", action="append", help="moves whose name matches this pattern; may be repeated")
    options.add_argument("--mode", choices=MODES, default="zookeeper-0.10.1", help="of the cluster (zookeeper-0.10.1)")
    options.add_argument("--seconds", type=float, default=30.0, help="how long a move is to take (30)")
    options.add_argument("--part", type=float, default=FOLLOWED_PART, help="kept to beside Kafka's own rate (0.98)")
    options.add_argument("--charts", type=Path, default=Path("out"), help="folder for the charts (out)")
    asked = options.parse_args()
    wanted = asked.only or ["*"]
    every = scenarios(asked.seconds, asked.part)
    chosen = [one for one in every if any(fnmatch(one.name, pattern) for pattern in wanted)]
    if not chosen:
        options.error(f"no move is named {' or '.join(wanted)}")
    report = Report(asked.json)
    drawn: dict[int, dict[str, Series]] = {}
    mode = MODES[asked.mode]

    def measured() -> Iterator[Sequence[object]]:
        begun = time.monotonic()
        for number, scenario in enumerate(chosen):
            left = (time.monotonic() - begun) / max(number, 1) * (len(chosen) - number)
            progress(f"{number + 1}/{len(chosen)}: {scenario.name}, about {left:.0f} s left")
            policy = "kip73" if scenario.by == "kip73" else None
            tables = {"quota": {"order": scenario.order}}
            with mode.cluster(sidecars=True, policy=policy, sidecar_tables=tables, jvm_flags=OPTIMIZED) as cluster:
                measurement = _Measurement(scenario, cluster)
                figures, series = measurement.run()
            drawn.setdefault(scenario.bounding.rate, {})[scenario.name] = series
            for what, (figure, least, most) in measurement.bounds.items():
                report.bound(f"{scenario.name}: {what}", figure, least=least, most=most)
            yield astuple(figures)

    report.table(f"{mode.name} (Fetch v{mode.fetch_version}), x quota", COLUMNS, measured())
    _draw(drawn, asked.charts)
    return report.status


class _Measurement:
    """One move on a cluster of its own."""

    def __init__(self, scenario: Scenario, cluster: Cluster) -> None:
        self.bounds: dict[str, tuple[float, float | None, float | None]] = {}
        """Figures, each with the least and the most that it may be."""
        self._scenario = scenario
        self._cluster = cluster
        self._ours = scenario.by != "kafka"
        self._moved = {
            Partition(f"orders-{number}", partition): move
            for number, move in enumerate(scenario.moves)
            for partition in range(move.partitions)
        }

    def run(self) -> tuple[Figures, Series]:
        """Return the figures and the curve of what was moved."""
        scenario, cluster, quota = self._scenario, self._cluster, self._scenario.bounding
        self._create()
        moved = [(cluster.brokers[move.target].data, *key) for key, move in self._moved.items()]
        live = [(cluster.brokers[move.target].data, "live", number) for number, move in enumerate(scenario.moves)]
        sidecar = cluster.sidecars[quota.broker]
        records = scenario.produced * quota.rate / MESSAGE_BYTES
        with ExitStack() as stack:
            producer = None
            if records:
                size, partitions = MESSAGE_BYTES - 100, range(len(live))
                producer = LiveProducer(
                    cluster.bootstrap_servers,
                    "live",
                    partitions,
                    rate=records,
                    message_bytes=size,
                    batch_bytes=_PRODUCED_BATCH_BYTES,
                )
                stack.enter_context(producer)
            time.sleep(_STEADY_SECONDS + _PRODUCE_SECONDS * bool(records))
            inbound = stack.enter_context(ReceivedBytes(live))  # its times are within milliseconds of the other's
            received = stack.enter_context(ReceivedBytes([*moved, *live]))
            before, full_before = sidecar.metrics(), self._full_fetches()
            sent_before = producer.sent if producer else 0
            self._throttle()
            in_sync_after = self._move()
            after, full = sidecar.metrics(), self._full_fetches() - full_before
        for key, move in self._moved.items():
            cluster.compare_segments(*key, move.source, move.target)
        cluster.check_logs()
        series, live_series = received.series(), inbound.series()
        of_move = Series(
            series.times,
            tuple(int(b - live_series.total_at(t)) for t, b in zip(series.times, series.totals, strict=True)),
        )
        first, last = of_move.span
        span = last - first

        def counted(name: str, **labels: str) -> float:
            return after.value(name, side=quota.side, **labels) - before.value(name, side=quota.side, **labels)

        def rate(some: Series) -> tuple[float, float]:
            """The mean and the worst second while it was moved, x quota."""
            kept = [index for index, moment in enumerate(some.times) if first <= moment <= last]
            times, begun = (tuple(column[index] for index in kept) for column in (some.times, some.begun))
            within = Series(times, tuple(some.totals[index] for index in kept), begun)
            total = some.total_at(last) - some.total_at(first)
            return total / span / quota.rate, within.worst_window()[0] / quota.rate

        wire = counted("weir_replication_bytes_total", throttled="true") if self._ours else 0.0
        links = len({move.source if quota.side == "follower" else move.target for move in scenario.moves})
        mean, worst = rate(series)
        batch = (scenario.batch_bytes + _ENTRY_BYTES) / quota.rate
        limits = scenario.bounds
        warm = records * _STEADY_SECONDS
        acked = producer.acked if producer else []
        latencies = (
            [one for one in acked if warm <= one.number < sent_before],
            [one for one in acked if one.number >= sent_before],
        )
        p99s = [1000 * latency(some, 0.99) if some else None for some in latencies]
        figures = Figures(
            name=scenario.name,
            moved=of_move.received / MEGABYTE,
            seconds=span,
            mean=mean,
            wire=wire / span / quota.rate if wire and not records else None,
            worst=worst,
            allowed=None if limits.worst is None else limits.worst + batch,
            cut=100 * counted("weir_cut_bytes_total") / wire if wire else None,
            fetches_per_second=counted("weir_fetch_requests_total") / span / links,
            inbound=rate(live_series)[0],
            worst_inbound=rate(live_series)[1],
            in_sync_after=in_sync_after,
            p99_before=p99s[0],
            p99_beside=p99s[1],
        )
        self._judge(figures, wire, after.value("weir_passthrough_total"), full)
        return figures, of_move

    def _judge(self, figures: Figures, wire: float, passed: float, full: int) -> None:
        limits, one_response = self._scenario.bounds, _LARGEST_SHARE_SECONDS / figures.seconds
        self.bounds["mean, x quota"] = figures.mean, limits.mean[0], limits.mean[1] + one_response
        self.bounds["requests that passed undecoded"] = passed, None, 0
        if figures.allowed is not None:
            self.bounds["worst second, x quota"] = figures.worst, None, figures.allowed
        if figures.cut is not None:
            self.bounds["% of the bytes that were cut"] = figures.cut, None, 100 * limits.cut
        if limits.wire and figures.wire is not None:
            self.bounds["on the wire, x quota"] = figures.wire, limits.wire[0], limits.wire[1] + one_response
        if (self._cluster.fetch_version or 0) >= FIRST_SESSION_VERSION:
            self.bounds["full fetches in sessions that had begun"] = full, None, 0
        if self._ours:
            self.bounds["MB that were throttled"] = wire / MEGABYTE, figures.moved, None

    def _create(self) -> None:
        """Create and fill a topic for each move, and one for producers."""
        scenario, servers = self._scenario, self._cluster.bootstrap_servers
        for number, move in enumerate(scenario.moves):
            topic, partitions = f"orders-{number}", range(move.partitions)
            self._cluster.create_topic(topic, {partition: [move.source] for partition in partitions})
            fill(
                servers,
                topic,
                dict.fromkeys(partitions, scenario.total // len(self._moved)),
                message_bytes=MESSAGE_BYTES,
                compression=scenario.compression,
                batch_bytes=scenario.batch_bytes,
            )
        self._cluster.create_topic("live", {n: [move.source, move.target] for n, move in enumerate(scenario.moves)})

    def _throttle(self) -> None:
        scenario, cluster = self._scenario, self._cluster
        replicas = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
        topics = dict.fromkeys(["live", *sorted({key.topic for key in self._moved})], replicas)
        rates: dict[int, dict[str, int]] = {}
        for quota in scenario.quotas:
            rates.setdefault(quota.broker, {})[f"{quota.side}.replication.throttled.rate"] = quota.rate
        if scenario.by in ("kafka", "both"):
            cluster.admin.set_native_throttle(rates, topics)
        else:
            cluster.assert_no_native_throttle()
        for broker, table in rates.items() if self._ours else ():
            kept = {name: int(rate * scenario.part) for name, rate in table.items()}
            cluster.sidecars[broker].put_throttle({**kept, "topics": topics})

    def _move(self) -> float:
        """Move all; returns the seconds after which a partition was in sync, in the mean."""
        cluster, moved = self._cluster, self._moved
        topics = {key.topic for key in moved}
        in_sync: dict[Partition, float] = {}
        begun = time.monotonic()
        cluster.reassign({key: [move.source, move.target] for key, move in moved.items()})

        def all_in_sync() -> bool:
            for key, state in cluster.admin.partitions(topics).items():
                if moved[key].target in state.in_sync_replicas:
                    in_sync.setdefault(key, time.monotonic() - begun)
            return len(in_sync) == len(moved)

        cluster.wait_for("every partition in sync", all_in_sync, self._scenario.seconds * 4 + 60)
        cluster.admin.wait_for_reassignments(60)
        return statistics.mean(in_sync.values())

    def _full_fetches(self) -> int:
        """Return the full fetches that all sidecars have counted so far."""
        sidecars = self._cluster.sidecars.values()
        return sum(int(one.value) for each in sidecars for one in each.metrics().samples("weir_full_fetches_total"))


def _draw(drawn: dict[int, dict[str, Series]], folder: Path) -> None:
    """A chart for each quota at which ours and Kafka's own throttle were measured."""
    for rate, moves in drawn.items():
        name = f"{rate // MEGABYTE} MB/s"
        beside = {key: moves[key] for key in (f"leader {name}", f"kip73 {name}", f"Kafka's own {name}") if key in moves}
        if f"Kafka's own {name}" in moves and len(beside) > 1:
            folder.mkdir(parents=True, exist_ok=True)
            chart = folder / f"moves-{rate // MEGABYTE}.png"
            draw_rates(chart, beside, rate)
            progress(f"chart: {chart}")


if __name__ == "__main__":
    run(main)

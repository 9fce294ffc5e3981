"""Throttled moves between real brokers against their quotas: `python -m bench.moves`.

Received bytes are read from the followers' segment files every 20 ms, bytes on the wire from the sidecars' metrics.
Every moved replica is compared with its leader's byte for byte, the brokers' logs are searched for bad signs, and a
move counts only if the sidecars decoded all of its fetches, and no session of theirs had to begin anew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from bench.move_scenarios import MEGABYTE, MESSAGE_BYTES, Scenario, scenarios
from weir.lab.chart import draw_rates
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES
from weir.lab.performance import start_produce
from weir.lab.processes import Process
from weir.lab.produce import fill
from weir.lab.received import ReceivedBytes, Series
from weir.lab.segments import replica_size
from weir.protocol.fetch_session import FIRST_SESSION_VERSION

_LARGEST_SHARE_SECONDS = 0.15  # of quota: one response of the sidecars' own making
_DEFAULT_MODE = "zookeeper-0.10.1"
_ENTRY_BYTES = 64  # what a message's or batch's head adds in the log, at most


@dataclass(frozen=True, slots=True)
class Figures:
    """What one move reached; rates as parts of the quota that rules."""

    name: str
    moved_bytes: int
    seconds: float
    mean: float
    wire: float | None
    worst: float
    worst_allowed: float | None
    cut: float | None
    fetches_per_second: float | None
    inbound: float
    worst_inbound: float
    missed: list[str]


def main() -> int:
    """Measure the chosen moves; 1 when one misses what it must reach."""
    parser = argparse.ArgumentParser(prog="python -m bench.moves", description="Measure throttled moves.")
    parser.add_argument(
        "--only", action="append", help="measure moves whose name matches this pattern; may be repeated"
    )
    parser.add_argument("--mode", choices=MODES, default=_DEFAULT_MODE, help=f"of the cluster ({_DEFAULT_MODE})")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long a move is to take (30)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--charts", type=Path, default=Path("out"), help="folder for the charts (out)")
    options = parser.parse_args()
    wanted = options.only or ["*"]
    chosen = [one for one in scenarios(options.seconds) if any(fnmatch(one.name, pattern) for pattern in wanted)]
    if not chosen:
        parser.error(f"no move is named {' or '.join(wanted)}")
    if not options.json:
        print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} cores")
        print(f"{options.mode}: Fetch v{MODES[options.mode].fetch_version}\n")
        print(
            "| move | MB | seconds | mean | on the wire | worst second (allowed) | cut "
            "| fetches/s a link | inbound (its worst second) |"
        )
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
    begun = time.monotonic()
    drawn: dict[int, dict[str, Series]] = {}
    failed = 0
    for number, scenario in enumerate(chosen):
        left = (time.monotonic() - begun) / max(number, 1) * (len(chosen) - number)
        print(f"{number + 1}/{len(chosen)}: {scenario.name}, about {left:.0f} s left", file=sys.stderr, flush=True)
        figures, series = measure(scenario, options.mode)
        drawn.setdefault(scenario.bounding.rate, {})[scenario.name] = series
        failed += bool(figures.missed)
        print(json.dumps(asdict(figures)) if options.json else _row(figures), flush=True)
        for missed in figures.missed:
            print(f"{scenario.name}: {missed}", file=sys.stderr, flush=True)
    _draw(drawn, options.charts)
    return 1 if failed else 0


def measure(scenario: Scenario, mode: str) -> tuple[Figures, Series]:
    """Run one move on a cluster of its own and return its figures and its curve."""
    with MODES[mode].cluster(sidecars=True, policy=_policy(scenario)) as cluster:
        return _measure(scenario, cluster)


def _measure(scenario: Scenario, cluster: Cluster) -> tuple[Figures, Series]:
    topics = _create(scenario, cluster)
    quota = scenario.bounding
    moved = [(cluster.brokers[target].data, topic, p) for topic, (_, target, count) in topics for p in range(count)]
    live = [(cluster.brokers[move.target].data, "live", number) for number, move in enumerate(scenario.moves)]
    sidecar = cluster.sidecars[quota.broker]
    with ExitStack() as stack:
        if scenario.produced:
            stack.callback(_start_produce(scenario, cluster).kill)
            cluster.wait_for("produced records", lambda: all(replica_size(*one) > 0 for one in live), 60)
        time.sleep(2)  # to be steady: the followers of the live topic have just begun their sessions
        inbound = stack.enter_context(ReceivedBytes(live))  # its times are within milliseconds of the other's
        received = stack.enter_context(ReceivedBytes([*moved, *live]))
        before = sidecar.metrics()
        full_before = _full_fetches(cluster)
        _throttle(scenario, cluster)
        cluster.reassign(
            {(topic, p): [source, target] for topic, (source, target, count) in topics for p in range(count)},
            seconds=scenario.seconds * 4 + 60,
        )
        after = sidecar.metrics()
        full = _full_fetches(cluster) - full_before
    for topic, (source, target, count) in topics:
        for p in range(count):
            cluster.compare_segments(topic, p, source, target)
    cluster.check_logs()
    series, live_series = received.series(), inbound.series()
    moved_series = Series(
        series.times,
        tuple(int(b - live_series.total_at(t)) for t, b in zip(series.times, series.totals, strict=True)),
    )
    first, last = moved_series.span
    total = series.total_at(last) - series.total_at(first)
    inbound_bytes = live_series.total_at(last) - live_series.total_at(first)

    def counted(name: str, **labels: str) -> float:
        return after.value(name, side=quota.side, **labels) - before.value(name, side=quota.side, **labels)

    ours = scenario.by != "kafka"
    wire_bytes = counted("weir_replication_bytes_total", throttled="true") if ours else None
    links = len({move.source if quota.side == "follower" else move.target for move in scenario.moves})
    batch = scenario.batch_bytes + _ENTRY_BYTES
    worst, _ = _within(series, first, last).worst_window()
    span = last - first
    figures = Figures(
        name=scenario.name,
        moved_bytes=moved_series.received,
        seconds=round(span, 1),
        mean=round(total / span / quota.rate, 4),
        wire=None if wire_bytes is None or scenario.produced else round(wire_bytes / span / quota.rate, 4),
        worst=round(worst / quota.rate, 3),
        worst_allowed=None if scenario.bounds.worst is None else round(scenario.bounds.worst + batch / quota.rate, 3),
        cut=round(counted("weir_cut_bytes_total") / wire_bytes, 5) if wire_bytes else None,
        fetches_per_second=round(counted("weir_fetch_requests_total") / span / links, 1),
        inbound=round(inbound_bytes / span / quota.rate, 3),
        worst_inbound=round(_within(live_series, first, last).worst_window()[0] / quota.rate, 3),
        missed=[],
    )
    figures.missed.extend(_missed(scenario, figures))
    if passed := after.value("weir_passthrough_total"):
        figures.missed.append(f"{passed:.0f} requests passed undecoded")
    if cluster.fetch_version is not None and cluster.fetch_version >= FIRST_SESSION_VERSION and full:
        figures.missed.append(f"full fetches in sessions that had begun: {dict(full)}")
    if ours and wire_bytes is not None and wire_bytes < figures.moved_bytes:
        figures.missed.append(f"only {wire_bytes:.0f} bytes of it were throttled")
    return figures, moved_series


def _create(scenario: Scenario, cluster: Cluster) -> list[tuple[str, tuple[int, int, int]]]:
    """Create and fill a topic for each move; returns (topic, (source, target, partitions))."""
    topics = []
    every = sum(move.partitions for move in scenario.moves)
    for number, move in enumerate(scenario.moves):
        topic = f"orders-{number}"
        cluster.create_topic(topic, {p: [move.source] for p in range(move.partitions)})
        fill(
            cluster.bootstrap_servers,
            topic,
            dict.fromkeys(range(move.partitions), scenario.total // every),
            message_bytes=MESSAGE_BYTES,
            compression=scenario.compression,
            batch_bytes=scenario.batch_bytes,
        )
        topics.append((topic, (move.source, move.target, move.partitions)))
    cluster.create_topic("live", {n: [move.source, move.target] for n, move in enumerate(scenario.moves)})
    return topics


def _throttle(scenario: Scenario, cluster: Cluster) -> None:
    topics = ["live", *(f"orders-{number}" for number in range(len(scenario.moves)))]
    replicas = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    rates: dict[int, dict[str, int]] = {}
    for quota in scenario.quotas:
        rates.setdefault(quota.broker, {})[f"{quota.side}.replication.throttled.rate"] = quota.rate
    if scenario.by == "kafka":
        cluster.admin.set_native_throttle(rates, dict.fromkeys(topics, replicas))
        return
    cluster.assert_no_native_throttle()
    for broker, table in rates.items():
        cluster.sidecars[broker].put_throttle({**table, "topics": dict.fromkeys(topics, replicas)})


def _full_fetches(cluster: Cluster) -> Counter[str]:
    """Those of all followers and all sidecars so far, by where they were counted."""
    return Counter(
        {
            f"broker {broker}, {sample.labels['side']} side, of the {sample.labels['sender']}": int(sample.value)
            for broker, sidecar in cluster.sidecars.items()
            for sample in sidecar.metrics().samples("weir_full_fetches_total")
        }
    )


def _start_produce(scenario: Scenario, cluster: Cluster) -> Process:
    """Kafka's own producer at the scenario's steady rate, for longer than the move can take."""
    rate = round(scenario.bounding.rate * scenario.produced / MESSAGE_BYTES)
    records = int(rate * (scenario.seconds * 4 + 60))
    properties = {"acks": "all", "batch.size": 65_536, "linger.ms": 0}
    return start_produce(cluster, "live", records, MESSAGE_BYTES - 100, rate, properties)


def _policy(scenario: Scenario) -> str | None:
    return "kip73" if scenario.by == "kip73" else None


def _within(series: Series, first: float, last: float) -> Series:
    kept = [index for index, moment in enumerate(series.times) if first <= moment <= last]
    return Series(
        times=tuple(series.times[index] for index in kept),
        totals=tuple(series.totals[index] for index in kept),
        begun=tuple(series.begun[index] for index in kept),
    )


def _missed(scenario: Scenario, figures: Figures) -> list[str]:
    """What a move did not reach, a sentence each."""
    bounds = scenario.bounds
    one_response = _LARGEST_SHARE_SECONDS / figures.seconds
    found = []
    lowest, highest = bounds.mean
    if not lowest <= figures.mean <= highest + one_response:
        found.append(f"mean {figures.mean:.3f} x quota, must be {lowest} to {highest}")
    if figures.worst_allowed is not None and figures.worst > figures.worst_allowed:
        found.append(f"worst second {figures.worst:.3f} x quota, at most {figures.worst_allowed:.3f} is allowed")
    if figures.cut is not None and figures.cut > bounds.cut:
        found.append(f"{figures.cut:.2%} of the bytes were cut, at most {bounds.cut:.1%} is allowed")
    if bounds.wire and figures.wire is not None and not bounds.wire[0] <= figures.wire <= bounds.wire[1] + one_response:
        found.append(f"{figures.wire:.3f} x quota on the wire, must be {bounds.wire[0]} to {bounds.wire[1]}")
    return found


def _row(figures: Figures) -> str:
    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    allowed = f" ({figures.worst_allowed:.3f})" if figures.worst_allowed is not None else ""
    cells: Sequence[str] = (
        figures.name,
        f"{figures.moved_bytes / MEGABYTE:.0f}",
        f"{figures.seconds:.1f}",
        f"{figures.mean:.3f}",
        shown(figures.wire, ".3f"),
        f"{figures.worst:.3f}{allowed}",
        shown(figures.cut, ".3%"),
        shown(figures.fetches_per_second, ".1f"),
        f"{figures.inbound:.3f} ({figures.worst_inbound:.3f})" if figures.inbound else "",
    )
    return f"| {' | '.join(cells)} |" + (" MISSED" if figures.missed else "")


def _draw(drawn: dict[int, dict[str, Series]], folder: Path) -> None:
    """A chart for each quota at which ours and Kafka's own throttle were measured."""
    for rate, moves in drawn.items():
        if any(name.startswith("Kafka's own") for name in moves) and len(moves) > 1:
            name = f"{rate // MEGABYTE} MB/s"
            beside = {
                key: moves[key] for key in (f"leader {name}", f"kip73 {name}", f"Kafka's own {name}") if key in moves
            }
            folder.mkdir(parents=True, exist_ok=True)
            draw_rates(folder / f"moves-{rate // MEGABYTE}.png", beside, rate)
            print(f"chart: {folder / f'moves-{rate // MEGABYTE}.png'}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.moves: {error}")

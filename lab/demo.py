# SPDX-License-Identifier: Apache-2.0
"""`weir demo`: a throttled move between real brokers to watch, and then the same move with Kafka's own throttle."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weir.control.errors import ControlError
from weir.lab import demo_capture, demo_connect
from weir.lab.chart import draw_rates
from weir.lab.cluster import Cluster
from weir.lab.demo_report import exported_bytes, write_page
from weir.lab.errors import LabError, Timeout
from weir.lab.java import find_java
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveConsumer, LiveProducer, LiveRecord, fill, latency
from weir.lab.progress import MEGABYTE, Moment, Progress, Traffic, sparkline
from weir.lab.received import Series
from weir.lab.segments import replica_size
from weir.lab.sidecar import Metrics
from weir.quota.figures import CREDIT_SECONDS, LARGEST_SHARE_SECONDS

MODE: Final = NEWEST
MESSAGE_BYTES: Final = 10_240  # of the data moved; each message is a batch of its own
LEAST_MEAN, MOST_MEAN = 0.96, 1.02  # x quota, as read from segment files
LEAST_FAST_MEAN: Final = 0.85
MOST_IN_A_SECOND: Final = 1.05  # x quota, plus one message
STOOD_STILL_SECONDS: Final = 0.3  # without a byte: more than two grants take

Kind = Literal["move", "capture", "connect"]

_MOST_SECONDS: Final = 180.0
_REDRAW_SECONDS: Final = 0.25
_WARM_UP_SECONDS: Final = 3.0
_SAMPLE_SECONDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the demo moves: `total` bytes at `rate` bytes/s, beside `live_rate` records/s.

    The mean has to reach `least_mean` x rate: the begin and end of a short move take a larger part of its time.
    """

    total: int = 200_000_000
    rate: int = 5_000_000
    partitions: int = 20
    live_rate: float = 100
    least_mean: float = LEAST_MEAN
    chart: Path
    page: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetches:
    """What the sidecars have counted of replica fetches up to a moment.

    - `by_version`: fetches by api_version, and `full`: those that listed every partition; on all sidecars and sides.
    - `undecoded`: fetches that passed undecoded.
    - `throttled_bytes`, `held_back` (partitions left out plus fetches held): of the leader's quota.
    """

    by_version: dict[str, int]
    full: int
    undecoded: int
    throttled_bytes: int
    held_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move, as seen by the follower's segment files, and by the records of the live topic meanwhile.

    `early` and `end` are the sidecars' counts when the first second's bytes had come, and at the end.
    """

    received: Series
    p99: float
    early: Fetches
    end: Fetches


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that weir promises, in figures, and whether it was held."""

    sentence: str
    held: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both moves by the name of their throttle, and which promises were held."""

    moves: Mapping[str, Move]
    promises: Sequence[Promise]

    @property
    def held(self) -> bool:
        """Whether every promise was held."""
        return all(promise.held for promise in self.promises)


def plan_for(out: Path, *, fast: bool) -> Plan:
    """Return what is moved, less of it if `fast`; a chart and a page are left in the folder `out`."""
    made = Plan(chart=out / "demo.png", page=out / "demo.html")
    return replace(made, total=30_000_000, least_mean=LEAST_FAST_MEAN) if fast else made


def main(kind: Kind, out: Path, *, fast: bool = False, as_json: bool = False) -> int:
    """Run a demo. Returns 0 only if every promise was held. With `as_json`, only the results go to stdout."""
    console = Console(stderr=as_json)
    try:
        find_java()
        out.mkdir(parents=True, exist_ok=True)
        if kind == "capture":
            return demo_capture.run(console, out / "demo-capture.png")
        if kind == "connect":
            return demo_connect.run(console, demo_connect.Plan(chart=out / "demo-connect.png"))
        plan = plan_for(out, fast=fast)
        outcome = run(plan, console)
        if as_json:
            print(json.dumps(_plain(outcome, plan)))
        return 0 if outcome.held else 1
    except (LabError, ControlError) as error:
        _say(console, f"[red]The demo failed:[/red] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        _say(console, "Stopped: the brokers and their sidecars have ended, their files are gone.")
        raise


def run(plan: Plan, console: Console) -> Outcome:
    """Start the brokers, make both moves, and show which promises were held."""
    with TemporaryDirectory(prefix="weir-demo-") as folder:
        return _run(plan, console, Path(folder))


def _run(plan: Plan, console: Console, folder: Path) -> Outcome:
    samples = folder / "samples"
    export = {"export": {"interval_seconds": _SAMPLE_SECONDS, "directory": str(samples)}}
    with MODE.cluster(sidecars=True, sidecar_tables=export) as cluster:
        _say(
            console,
            f"Three Kafka {MODE.kafka} brokers (KRaft) are up, a weir sidecar beside each; replicas fetch with"
            f" Fetch v{MODE.fetch_version}.",
        )
        topics = {"orders": 2, "orders-native": 3}  # each with the broker that it is moved to
        partitions = range(plan.partitions)
        for topic in topics:
            cluster.create_topic(topic, {partition: [1] for partition in partitions})
            sizes = dict.fromkeys(partitions, plan.total // plan.partitions)
            fill(cluster.bootstrap_servers, topic, sizes, message_bytes=MESSAGE_BYTES, batch_bytes=MESSAGE_BYTES)
        cluster.create_topic("live", {0: [1, 3]})
        cluster.assert_no_native_throttle()
        at_rate = f"{plan.total / MEGABYTE:g} MB at {plan.rate / MEGABYTE:g} MB/s"
        live = cluster.bootstrap_servers, "live", [0]
        with LiveConsumer(*live) as consumer, LiveProducer(*live, rate=plan.live_rate) as producer:
            # A broker's first requests are slow in any case.
            warm = _WARM_UP_SECONDS * plan.live_rate
            cluster.wait_for("live traffic", lambda: len(consumer.consumed) >= warm, 10 * _WARM_UP_SECONDS)
            _say(console, f"Moving topic orders to broker 2 by weir: {at_rate}, while a live topic is used.")
            _throttle_by_weir(cluster, "orders", plan.rate)
            ours = _move(cluster, plan, "orders", topics["orders"], producer, consumer, console)
            _say(console, f"The same move of a copy to broker 3 by Kafka {MODE.kafka}'s own throttle: {at_rate}.")
            _throttle_by_kafka(cluster, "orders-native", topics["orders-native"], plan.rate)
            theirs = _move(cluster, plan, "orders-native", topics["orders-native"], producer, consumer, console)
        compared = sum(cluster.compare_segments("orders", partition, 1, topics["orders"]) for partition in partitions)
        cluster.check_logs()
        for sidecar in cluster.sidecars.values():  # they write the last samples when they end
            sidecar.stop()
    _say(console, "The samples that the sidecars exported meanwhile go through the Spark job into a page.")
    write_page(samples, folder / "tables", plan.page)
    moves = {"weir": ours, "Kafka's own": theirs}
    draw_rates(plan.chart, {name: move.received for name, move in moves.items()}, plan.rate)
    console.print(_summary(moves, plan.rate), _seconds(moves, plan.rate), sep="\n")
    promises = [
        promised_mean(ours.received, plan.rate, plan.least_mean),
        promised_worst_second(ours.received, plan.rate),
        Promise(f"{compared:,} moved bytes compared with the leader's: identical", compared >= plan.total),
        promised_delivery(
            [record.number for record in producer.acked], [record.number for record in consumer.consumed]
        ),
        promised_fetches(ours.end, compared),
        promised_sessions(ours.early, ours.end),
        promised_samples(exported_bytes(samples, "orders"), compared),
    ]
    for promise in promises:
        _say(console, f"  {'[green]held[/green]  ' if promise.held else '[red]BROKEN[/red]'} {promise.sentence}")
    _say(console, f"  chart  {plan.chart}")
    _say(console, f"  page   {plan.page}")
    return Outcome(moves, promises)


def promised_mean(received: Series, quota: int, least: float = LEAST_MEAN) -> Promise:
    """Check that the move's mean is neither below nor above the quota.

    A short move may have what was saved before it, too.
    """
    begin, end = received.span
    mean, most = received.mean_rate() / quota, max(MOST_MEAN, 1 + CREDIT_SECONDS / max(1.0, end - begin))
    return Promise(f"mean rate {mean:.3f} x quota ({least} to {most:.2f})", least <= mean <= most)


def promised_worst_second(received: Series, quota: int) -> Promise:
    """Check that no second, wherever it begins, has more than the quota, a little slack and one message.

    A follower that stood still wrote later what it had received, together with the next grant.
    """
    worst, start = received.worst_window()
    begun, _ = received.span
    pause = received.longest_pause(start - 1.0, start + 1.0)
    stood_still = pause > STOOD_STILL_SECONDS
    most = MOST_IN_A_SECOND + LARGEST_SHARE_SECONDS * stood_still
    reason = f"; the follower wrote nothing for {pause:.2f} s" if stood_still else ""
    return Promise(
        f"worst second {worst / quota:.3f} x quota, from {max(0.0, start - begun):.1f} s on"
        f" (at most {most:g} and a message of {MESSAGE_BYTES:,} bytes{reason})",
        worst <= most * quota + MESSAGE_BYTES,
    )


def promised_delivery(acked: Sequence[int], consumed: Sequence[int]) -> Promise:
    """Check that every acknowledged record was consumed exactly once; both arguments are record numbers."""
    times = Counter(consumed)
    missing = sum(times[number] == 0 for number in acked)
    repeated = sum(times[number] > 1 for number in acked)
    found = "each consumed once" if not missing and not repeated else f"{missing} not consumed, {repeated} repeated"
    return Promise(
        f"{len(acked):,} live records acked by acks=all, {found} while the data moved",
        bool(acked) and not missing and not repeated,
    )


def promised_fetches(fetches: Fetches, moved: int) -> Promise:
    """Check that all replica fetches were decoded and of the mode's version, and that the quota held back the move."""
    versions = ", ".join(f"{count:,} of v{version}" for version, count in sorted(fetches.by_version.items()))
    return Promise(
        f"replica fetches: {versions or 'none'}, {fetches.undecoded} undecoded;"
        f" {fetches.throttled_bytes:,} bytes throttled, held back {fetches.held_back:,} times",
        set(fetches.by_version) == {str(MODE.fetch_version)}
        and not fetches.undecoded
        and fetches.throttled_bytes >= moved
        and fetches.held_back > 0,
    )


def promised_sessions(early: Fetches, end: Fetches) -> Promise:
    """Check that full fetches opened the sessions, and that none came between `early` and `end`."""
    full = end.full - early.full
    fetches = sum(end.by_version.values()) - sum(early.by_version.values())
    return Promise(
        f"full fetches: {early.full} up to the move's first second,"
        f" {full or 'none'} in the {fetches:,} replica fetches after it",
        early.full > 0 and fetches > 0 and not full,
    )


def promised_samples(exported: int, moved: int) -> Promise:
    """Check that the samples have each byte that the follower wrote once (bytes of whole batches)."""
    return Promise(f"{exported:,} bytes of the move in the exported samples", exported == moved)


def counted_fetches(scrapes: Sequence[Metrics]) -> Fetches:
    """Sum what the sidecars' metrics have of replica fetches."""

    def leader(name: str, **labels: str) -> int:
        return round(sum(metrics.value(name, side="leader", **labels) for metrics in scrapes))

    by_version: Counter[str] = Counter()
    for metrics in scrapes:
        for sample in metrics.samples("weir_fetch_requests_total"):
            by_version[sample.labels["api_version"]] += round(sample.value)
    return Fetches(
        by_version=dict(by_version),
        full=round(sum(metrics.value("weir_full_fetches_total") for metrics in scrapes)),
        undecoded=round(sum(metrics.value("weir_passthrough_total") for metrics in scrapes)),
        throttled_bytes=leader("weir_replication_bytes_total", throttled="true"),
        held_back=leader("weir_partitions_left_out_total") + leader("weir_fetches_held_total"),
    )


def _throttle_by_weir(cluster: Cluster, topic: str, rate: int) -> None:
    throttled = {"leader.replication.throttled.replicas": "*"}
    cluster.sidecars[1].put_throttle({"leader.replication.throttled.rate": rate, "topics": {topic: throttled}})


def _throttle_by_kafka(cluster: Cluster, topic: str, target: int, rate: int) -> None:
    sides = {1: "leader", target: "follower"}
    cluster.admin.set_native_throttle(
        {broker: {f"{side}.replication.throttled.rate": rate} for broker, side in sides.items()},
        {topic: {f"{side}.replication.throttled.replicas": "*" for side in sides.values()}},
    )


def _move(
    cluster: Cluster,
    plan: Plan,
    topic: str,
    target: int,
    producer: LiveProducer,
    consumer: LiveConsumer,
    console: Console,
) -> Move:
    """Give each of a topic's partitions a replica on `target`, and show progress until it is in sync."""
    partitions = [(topic, partition) for partition in range(plan.partitions)]
    size = sum(replica_size(cluster.brokers[1].data, *partition) for partition in partitions)
    consumed_before = len(consumer.consumed)

    def p99() -> float:
        seen: list[LiveRecord] = consumer.consumed[consumed_before:]
        return latency(seen, 0.99) if seen else 0.0

    def moment() -> Moment:
        traffic = Traffic(producer.sent, len(producer.acked), len(consumer.consumed), p99())
        return Moment(received.series(), size, plan.rate, traffic)

    def fetches() -> Fetches:
        return counted_fetches([sidecar.metrics() for sidecar in cluster.sidecars.values()])

    early: Fetches | None = None
    with ExitStack() as stack:
        received = stack.enter_context(cluster.received_bytes(target, partitions))
        progress = stack.enter_context(Progress(console))
        begun = time.monotonic()
        cluster.reassign({partition: [1, target] for partition in partitions})
        while cluster.admin.reassignments():
            if time.monotonic() - begun > _MOST_SECONDS:
                raise Timeout(f"the end of {topic}'s move", _MOST_SECONDS)
            progress.show(now := moment())
            if early is None and now.received.received >= plan.rate:
                early = fetches()
            time.sleep(_REDRAW_SECONDS)
        progress.show(moment())
    end = fetches()
    return Move(received=received.series(), p99=p99(), early=early or end, end=end)


def _figures(move: Move, quota: int) -> dict[str, float]:
    begin, end = move.received.span
    worst, _ = move.received.worst_window()
    return {
        "mean_over_quota": move.received.mean_rate() / quota,
        "worst_second_over_quota": worst / quota,
        "seconds": end - begin,
        "live_p99_ms": move.p99 * 1000,
    }


def _plain(outcome: Outcome, plan: Plan) -> dict[str, object]:
    return {
        "throttles": [{"throttle": name, **_figures(move, plan.rate)} for name, move in outcome.moves.items()],
        "promises": [asdict(promise) for promise in outcome.promises],
        "chart": str(plan.chart),
        "page": str(plan.page),
    }


def _summary(moves: Mapping[str, Move], quota: int) -> Table:
    table = Table("throttle", "mean / quota", "worst second / quota", "seconds", "live p99, ms")
    for name, move in moves.items():
        mean, worst, seconds, p99 = _figures(move, quota).values()
        table.add_row(name, f"{mean:.3f}", f"{worst:.3f}", f"{seconds:.1f}", f"{p99:.0f}")
    return table


def _seconds(moves: Mapping[str, Move], quota: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, move in moves.items():
        table.add_row(f"  {name}", sparkline(move.received.per_second(), quota))
    table.add_row("", "second by second; ▄ is the quota")
    return table


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)

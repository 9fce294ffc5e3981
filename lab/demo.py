"""`weir demo`: a throttled move between real brokers to watch, then the same move by Kafka's own throttle."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from lab.chart import draw_rates
from lab.cluster import Cluster
from lab.errors import LabError
from lab.modes import ZooKeeperCluster
from lab.produce import LiveProducer, fill, read_numbers
from lab.received import ReceivedBytes, Series

RATE = 5_000_000  # bytes/s
TOTAL = 200_000_000  # bytes
PARTITIONS = range(20)
CHART = Path("out/demo.png")
_MOST_SECONDS = 180.0
_LEAST_MEAN, _MOST_MEAN = 0.96, 1.02  # x quota, read from segment files
MEGABYTE = 1_000_000


def main(arguments: list[str]) -> int:
    """Run the demo; returns 0 only if every promise held."""
    console = Console()
    if arguments:
        console.print(
            "weir demo takes no options: it moves 200 MB between three brokers on this machine, in 2 minutes."
        )
        return 0 if arguments == ["--help"] else 2
    try:
        with ZooKeeperCluster("3.9.1", inter_broker_protocol_version="0.10.1", sidecars=True) as cluster:
            return 0 if _show(cluster, console) else 1
    except LabError as error:
        console.print(f"[red]The demo failed: {error}[/red]")
        return 1


def _show(cluster: Cluster, console: Console) -> bool:
    console.print("Three Kafka 3.9.1 brokers with Fetch v3 replication are up, a weir sidecar beside each.")
    for topic in ("orders", "orders-native"):
        cluster.create_topic(topic, {partition: [1] for partition in PARTITIONS})
        fill(cluster.bootstrap_servers, topic, {partition: TOTAL // len(PARTITIONS) for partition in PARTITIONS})
    cluster.create_topic("live", {0: [1, 3]})
    cluster.assert_no_native_throttle()
    cluster.sidecars[1].put_throttle(
        {
            "leader.replication.throttled.rate": RATE,
            "topics": {"orders": {"leader.replication.throttled.replicas": "*"}},
        }
    )
    console.print(f"Moving {TOTAL // MEGABYTE} MB of topic orders to broker 2 at {RATE / MEGABYTE:g} MB/s by weir:")
    with LiveProducer(cluster.bootstrap_servers, "live", [0], rate=100) as producer:
        ours = _move(cluster, "orders", 2, console)
    acked = sorted(record.number for record in producer.acked)
    read = sorted(read_numbers(cluster.bootstrap_servers, "live", [0]))
    size = sum(cluster.compare_segments("orders", partition, 1, 2) for partition in PARTITIONS)
    cluster.check_logs()
    console.print("The same move of a copy to broker 3 by Kafka's own throttle:")
    cluster.admin.set_native_throttle(
        {1: {"leader.replication.throttled.rate": RATE}, 3: {"follower.replication.throttled.rate": RATE}},
        {
            "orders-native": {
                "leader.replication.throttled.replicas": "*",
                "follower.replication.throttled.replicas": "*",
            }
        },
    )
    theirs = _move(cluster, "orders-native", 3, console)
    CHART.parent.mkdir(parents=True, exist_ok=True)
    draw_rates(CHART, {"weir": ours, "Kafka's own throttle": theirs}, RATE)
    console.print(_summary({"weir": ours, "Kafka's own": theirs}))
    mean = ours.mean_rate() / RATE
    promises = {
        f"mean rate {mean:.3f} x quota": _LEAST_MEAN <= mean <= _MOST_MEAN,
        f"{size:,} moved bytes identical": size >= TOTAL,
        f"{len(acked):,} records acked by acks=all, all read back once": bool(acked) and acked == read,
    }
    for promise, held in promises.items():
        console.print(f"  {'[green]held[/green]  ' if held else '[red]BROKEN[/red]'} {promise}")
    console.print(f"  chart   {CHART}")
    return all(promises.values())


def _move(cluster: Cluster, topic: str, target: int, console: Console) -> Series:
    partitions = [(topic, partition) for partition in PARTITIONS]
    failed: list[Exception] = []

    def reassign() -> None:
        try:
            cluster.reassign({partition: [1, target] for partition in partitions}, seconds=_MOST_SECONDS)
        except LabError as error:
            failed.append(error)

    with cluster.received_bytes(target, partitions) as received:
        mover = threading.Thread(target=reassign, name="mover")
        mover.start()
        with Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as live:
            while mover.is_alive():
                live.update(_progress(received))
                time.sleep(0.25)
            mover.join()
            live.update(_progress(received))
    if failed:
        raise failed[0]
    return received.series()


def _progress(received: ReceivedBytes) -> Table:
    series = received.series()
    seconds = series.times[-1]
    last = series.total_at(seconds) - series.total_at(max(0.0, seconds - 1.0))
    left = (TOTAL - series.received) / RATE
    table = Table.grid(padding=(0, 2))
    table.add_row(
        ProgressBar(total=TOTAL, completed=series.received, width=30),
        f"{series.received / MEGABYTE:6.1f} MB",
        f"last second {last / MEGABYTE:5.2f} MB of {RATE / MEGABYTE:g}",
        f"{max(0.0, left):3.0f} s left",
    )
    return table


def _summary(moves: dict[str, Series]) -> Table:
    table = Table("throttle", "mean / quota", "worst second / quota", "seconds")
    for name, series in moves.items():
        begin, end = series.span
        worst, _ = series.worst_window()
        table.add_row(name, f"{series.mean_rate() / RATE:.3f}", f"{worst / RATE:.2f}", f"{end - begin:.1f}")
    return table

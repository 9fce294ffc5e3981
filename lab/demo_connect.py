# SPDX-License-Identifier: Apache-2.0
"""`weir demo --connect`: two sinks of a Kafka Connect worker read the same topic, and one of them is held to a rate."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from rich.console import Console

from weir.lab.cluster import Cluster
from weir.lab.connect import VERSION, file_sink, start_connect, through_sidecar
from weir.lab.connect_chart import draw_sinks
from weir.lab.modes import KraftCluster
from weir.lab.processes import Process
from weir.lab.produce import in_own_loop
from weir.lab.progress import sparkline
from weir.lab.received import Series
from weir.lab.settings import Route

TOPIC: Final = "orders"
LIMITED, FREE = "limited", "unlimited"
PER_BATCH: Final = 25
LINE_BYTES: Final = 7  # of a record in a sink's file: six digits, and the line's end
POLL_RECORDS: Final = 100  # max.poll.records: what a task puts at once

MOST_MEAN: Final = 1.02  # x limit
MOST_IN_A_SECOND: Final = 1.05  # x limit, plus a poll
LEAST_FREE: Final = 3  # x limit: what the other sink has to reach for the limit to be what holds the first one

_SAMPLE_SECONDS: Final = 0.05
_LINE_SECONDS: Final = 2.5
_MOST_SECONDS: Final = 120.0
_SMALL_ANSWERS: Final = {
    # An answer of the broker is one batch of each partition, so records come evenly.
    "consumer.override.max.partition.fetch.bytes": 1000,
    "consumer.override.fetch.max.bytes": 1000,
    "consumer.override.max.poll.records": POLL_RECORDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the sinks read: `records`, of which one sink may write `limit` a second, and is to write nearly as many."""

    records: int = 20_000
    limit: int = 1000
    least_mean: float = 0.93  # x limit
    chart: Path


@dataclass(frozen=True, slots=True)
class Seen:
    """What the sinks wrote: the records in each file over time, the files' lines, and the worker's log.

    `waited` is the part of the time in which the sidecar kept each sink waiting, as its metrics tell.
    """

    written: dict[str, Series]
    lines: dict[str, list[str]]
    log: str
    waited: dict[str, float]


def run(console: Console, plan: Plan) -> int:
    """Run the demo. Returns 0 only if every promise was held."""
    with TemporaryDirectory(prefix="weir-demo-") as folder:
        seen = _run(console, plan, Path(folder))
    draw_sinks(plan.chart, seen.written, plan.limit)
    for name in (LIMITED, FREE):
        bars = sparkline(seen.written[name].per_second(), plan.limit)
        console.print(f"  {name:<10}", bars, highlight=False)
    console.print(f"  {'':<10} second by second; ▄ is {plan.limit:,} records", highlight=False)
    found = promises(seen, plan)
    for sentence, held in found:
        console.print(
            f"  {'[green]held[/green]  ' if held else '[red]BROKEN[/red]'} {sentence}", highlight=False, soft_wrap=True
        )
    console.print(f"  chart  {plan.chart}", highlight=False, soft_wrap=True)
    return 0 if all(held for _, held in found) else 1


def promises(seen: Seen, plan: Plan) -> list[tuple[str, bool]]:
    """Return what is promised, in figures, and whether each was held."""
    limited, free = seen.written[LIMITED], seen.written[FREE]
    mean, (worst, _) = limited.mean_rate() / plan.limit, limited.worst_window()
    free_mean = free.mean_rate() / plan.limit
    begin, end = limited.span
    seconds = end - begin
    most = MOST_IN_A_SECOND * plan.limit + POLL_RECORDS
    times = {name: Counter(lines) for name, lines in seen.lines.items()}
    expected = {_value(number) for number in range(plan.records)}
    once = all(set(found) == expected and max(found.values()) == 1 for found in times.values())
    joined = [len(re.findall(rf"groupId=connect-{name}\] Successfully joined group", seen.log)) for name in times]
    gave_up = re.search(r"TimeoutException|Disconnect|was lost|Rebalance failed", seen.log)
    return [
        (
            f"the limited sink wrote {mean:.3f} x {plan.limit:,} records/s ({plan.least_mean} to {MOST_MEAN},"
            f" and a poll of {POLL_RECORDS})",
            # the first poll takes its time only after it has come
            plan.least_mean <= mean and limited.received <= MOST_MEAN * plan.limit * seconds + POLL_RECORDS,
        ),
        (
            f"worst second {worst:,.0f} records (at most {MOST_IN_A_SECOND} x the limit and a poll of {POLL_RECORDS})",
            worst <= most,
        ),
        (
            f"the unlimited sink beside it wrote {free_mean:.1f} x as many a second (at least {LEAST_FREE})",
            free_mean >= LEAST_FREE,
        ),
        (f"each of {plan.records:,} records is in both files once", once),
        (
            f"the sidecar kept the limited sink waiting for {seen.waited.get(LIMITED, 0.0):.0%} of the time,"
            " and never the other",
            seen.waited.get(LIMITED, 0.0) > 0.5 and not seen.waited.get(FREE),
        ),
        ("each sink joined its group once: no rebalance, no time-out", set(joined) == {1} and gave_up is None),
    ]


def _run(console: Console, plan: Plan, folder: Path) -> Seen:
    with KraftCluster(brokers=1, routes=Route.INGRESS) as cluster:
        cluster.create_topic(TOPIC, {0: [1], 1: [1]})
        in_own_loop(_fill(cluster.bootstrap_servers, plan.records))
        entry = {"client_id": f"connector-consumer-{LIMITED}-*", "record.rate.limit": plan.limit}
        status, answer = cluster.sidecars[1].http("PUT", "/v1/limits", {"client": [entry]})
        assert status == 200, answer  # noqa: S101 - a limit of the demo's own
        _say(
            console,
            f"A Kafka {cluster.version} broker is up with a weir sidecar before it, and a topic of {plan.records:,}"
            f" records. A Connect {VERSION} worker with two file sinks of it starts: one is held to {plan.limit:,}"
            " records/s.",
        )
        files = {name: folder / f"{name}.txt" for name in (LIMITED, FREE)}
        sinks = [file_sink(name, TOPIC, file, **_SMALL_ANSWERS) for name, file in files.items()]
        worker = start_connect(cluster, through_sidecar(cluster, 1), folder / "connect", sinks)
        written = _watch(console, cluster, worker, plan, files)
        metrics = cluster.sidecars[1].metrics()
        waited = {
            name: metrics.value("weir_task_throttled_ratio", client_id=f"connector-consumer-{name}-0")
            for name in files
            if metrics.samples("weir_task_throttled_ratio", client_id=f"connector-consumer-{name}-0")
        }
        worker.stop()
        lines = {name: file.read_text().split() for name, file in files.items()}
        return Seen(written, lines, worker.output(), waited)


def _watch(
    console: Console, cluster: Cluster, worker: Process, plan: Plan, files: dict[str, Path]
) -> dict[str, Series]:
    """Read the files' sizes until both sinks have written all records; show a line every few seconds."""
    begun = time.monotonic()
    times: list[float] = []
    totals: dict[str, list[int]] = {name: [] for name in files}
    shown: tuple[float, dict[str, int]] | None = None  # when the last line was shown, and its records

    def all_written() -> bool:
        nonlocal shown
        if not worker.alive:
            raise worker.failure("Kafka Connect ended")
        now = time.monotonic() - begun
        times.append(now)
        for name, file in files.items():
            totals[name].append(file.stat().st_size // LINE_BYTES if file.exists() else 0)
        counts = {name: of_file[-1] for name, of_file in totals.items()}
        is_done = min(counts.values()) >= plan.records
        if shown is None:
            shown = (now, counts) if any(counts.values()) else None
        elif is_done or now >= shown[0] + _LINE_SECONDS:
            since, before = shown
            parts = [
                f"{name} {counts[name]:>7,}, {(counts[name] - before[name]) / (now - since):>6,.0f}/s"
                for name in counts
            ]
            _say(console, f"{now:6.1f} s  {'   '.join(parts)}")
            shown = now, counts
        return is_done

    cluster.wait_for("every record in both files", all_written, _MOST_SECONDS, _SAMPLE_SECONDS)
    return {name: Series(tuple(times), tuple(of_file)) for name, of_file in totals.items()}


async def _fill(bootstrap_servers: Sequence[str], records: int) -> None:
    """Append the numbers from 0 on to both partitions by turns, in small batches."""
    producer = AIOKafkaProducer(bootstrap_servers=list(bootstrap_servers))
    sent: list[asyncio.Future[Any]] = []
    async with producer:
        for begin in range(0, records, PER_BATCH):
            batch = producer.create_batch()
            for number in range(begin, min(begin + PER_BATCH, records)):
                batch.append(value=_value(number).encode(), key=None, timestamp=None)
            sent.append(await producer.send_batch(batch, TOPIC, partition=begin // PER_BATCH % 2))
        await asyncio.gather(*sent)


def _value(number: int) -> str:
    return f"{number:06d}"


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)

# SPDX-License-Identifier: Apache-2.0
"""Takes a sample every interval, and hands it to sinks that never make the data path wait.

The counts are cut off in one step. Their lines are made and encoded in slices, between which the event loop runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from weir.limits.clients import Client
from weir.proxy.config.keys import connection_options
from weir.proxy.config.tables import Export
from weir.proxy.export.sample import ExportStats, Sample, SampleSink
from weir.proxy.log import EventLog, innermost_frame
from weir.proxy.relay.open_link import Relayed
from weir.proxy.relay.stats import RelayStats
from weir.proxy.slices import stopped
from weir.quota.counters import IntervalCounts
from weir.quota.throttle import Throttle
from weir.samples.limit_lines import ClientCounts, cut_clients, limit_lines
from weir.samples.lines import SampleKey, lines, touch_behind
from weir.samples.schema import IntervalLine, LimitLine, LinkLine, PartitionsLine, QuotaLine, encode_lines, kind_of

Line = PartitionsLine | LinkLine | QuotaLine | LimitLine

PARTITIONS_PER_SLICE = 100
"""About 0.1 ms of work; other connections have to wait for it."""
LINES_PER_SLICE = 20
"""About 0.5 ms of work, where each of the lines is of many partitions."""

CLOSE_SECONDS = 5.0
"""How long the sinks have to write the last samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What samples are of: both sides' throttles, and the clients that are limited.

    `cluster_id` gives the cluster's id, None while it is not known. `relay` counts what clients' links on the leader's
    side relay, None where none can come. `clock` is the throttles': monotonic seconds.
    """

    broker_id: int
    version: str
    throttles: Sequence[Throttle]
    clients: Iterable[Client] = ()
    cluster_id: Callable[[], str | None] = lambda: None
    relay: RelayStats | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(eq=False)
class Exporter:
    """Takes samples from `start` to `close`. `_utc` gives the time of day in seconds since 1970."""

    _interval_seconds: float
    _sampled: Sampled
    _sinks: Sequence[SampleSink]
    _log: EventLog
    _start_id: str
    _utc: Callable[[], float] = time.time
    _sequence: int = 0
    _began_at: float = 0.0
    _relayed_before: Relayed = field(default_factory=Relayed)
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to count, and take a sample at the end of each interval."""
        self._began_at = self._sampled.clock()
        for throttle in self._sampled.throttles:
            throttle.cut_interval(self._began_at)
        cut_clients(self._sampled.clients)
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Take a last sample, of the interval that has not ended, and have everything written."""
        if self._running is None:
            return
        await stopped(self._running)
        self._running = None
        await self._take_safely()
        await asyncio.gather(*(sink.close(CLOSE_SECONDS) for sink in self._sinks))

    async def take(self) -> None:
        """Take one sample now."""
        async with self._taking:
            # no await until both sides are cut off: a sample has one interval
            now, utc, sampled = self._sampled.clock(), self._utc(), self._sampled
            cut = [(throttle, counts) for throttle in sampled.throttles if (counts := throttle.cut_interval(now))]
            limited = cut_clients(sampled.clients)
            self._sequence += 1
            begin, self._began_at = self._began_at, now
            ended_at = datetime.fromtimestamp(utc, UTC)
            end_utc = f"{ended_at:%Y-%m-%dT%H:%M:%S}.{ended_at.microsecond // 1000:03}Z"
            key = SampleKey(sampled.broker_id, self._start_id, self._sequence, begin, now, end_utc)
            try:
                sample = Sample(key, ended_at, await self._encoded(key, cut, limited))
            except Exception:
                for sink in self._sinks:
                    sink.count_failed()
                raise
            for sink in self._sinks:
                self._offer(sink, sample)

    async def _run(self) -> None:
        due = self._began_at
        while True:
            # a late sample does not shift the later ones
            due = max(due + self._interval_seconds, self._sampled.clock())
            await asyncio.sleep(due - self._sampled.clock())
            # shielded from a close that comes meanwhile: counts that were cut off would be lost
            await asyncio.shield(self._take_safely())

    async def _take_safely(self) -> None:
        try:
            await self.take()
        except Exception as error:  # noqa: BLE001 - a bug in one sample may not end all later ones
            self._log_failed(error)

    def _offer(self, sink: SampleSink, sample: Sample) -> None:
        try:
            sink.offer(sample)
        except Exception as error:  # noqa: BLE001 - a bug in one sink may not cost the others their samples
            sink.count_failed()
            self._log_failed(error)

    def _log_failed(self, error: Exception) -> None:
        self._log.error("sample_failed", error=repr(error), at=innermost_frame(error))

    def _cut_relayed(self) -> Relayed | None:
        """Return what clients' links have relayed since the last cut."""
        if self._sampled.relay is None:
            return None
        before = self._relayed_before
        self._relayed_before = now = self._sampled.relay.of_clients
        return Relayed(max(0, now.requests - before.requests), max(0, now.answers - before.answers))

    async def _encoded(
        self, key: SampleKey, cut: Sequence[tuple[Throttle, IntervalCounts]], limited: Sequence[ClientCounts]
    ) -> list[bytes]:
        relayed = self._cut_relayed()
        behind = chain.from_iterable(touch_behind(throttle, counts) for throttle, counts in cut)
        for number, _ in enumerate(behind):
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
        chunks: list[bytes] = []
        made = (lines(throttle, counts, key) for throttle, counts in cut)
        found = Counter[str]()
        for batch in _slices(chain(chain.from_iterable(made), limit_lines(limited, key))):
            for line in batch:
                found[kind_of(type(line))] += 1
                if isinstance(line, PartitionsLine):
                    found["in columns"] += len(line.columns.partition)
            if batch:
                chunks.append(encode_lines(batch))
            await asyncio.sleep(0)
        end = IntervalLine(
            **key._asdict(),
            version=self._sampled.version,
            interval_seconds=self._interval_seconds,
            partitions=found["in columns"],
            links=found["link"],
            quotas=found["quota"],
            limits=found["limit"],
            cluster_id=self._sampled.cluster_id(),
            client_bytes_in=None if relayed is None else relayed.requests,
            client_bytes_out=None if relayed is None else relayed.answers,
        )
        return [*chunks, encode_lines([end])]


def new_start_id(utc_seconds: float) -> str:
    """Return an id for one start of a process. Later ones sort after it; no other process has the same."""
    return f"{datetime.fromtimestamp(utc_seconds, UTC):%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"


def new_exporter(
    config: Export, sampled: Sampled, stats: ExportStats, log: EventLog, *, strict_tls: bool = True
) -> Exporter:
    """Return an Exporter to the sinks that `config` names; ConfigError where the topic's properties cannot be used."""
    start_id, broker_id = new_start_id(time.time()), sampled.broker_id
    sinks: list[SampleSink] = []
    if config.directory is not None:
        from weir.proxy.export.files import FileSink, Folder

        directory, most = Path(config.directory), config.max_disk_bytes
        folder = Folder(directory, broker_id, start_id, most, config.rotate_seconds, config.rotate_bytes)
        sinks.append(FileSink(folder, stats, log))
    if config.kafka is not None:
        # imported here: aiokafka costs memory that most sidecars can save
        from weir.proxy.export.kafka import KafkaSink

        options = connection_options(config.kafka, strict=strict_tls)
        sinks.append(KafkaSink(config.kafka, broker_id, stats, log, options))
    topic = None if config.kafka is None else config.kafka.topic
    log.info("exporting", seconds=config.interval_seconds, directory=config.directory, topic=topic)
    return Exporter(config.interval_seconds, sampled, sinks, log, start_id)


def _slices(lines: Iterator[Line | None]) -> Iterator[list[Line]]:
    """Yield what is made in one turn of the event loop: until a None, or LINES_PER_SLICE lines."""
    batch: list[Line] = []
    for line in lines:
        if line is not None:
            batch.append(line)
        if line is None or len(batch) == LINES_PER_SLICE:
            yield batch
            batch = []
    yield batch

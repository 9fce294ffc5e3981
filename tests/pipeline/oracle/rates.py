# SPDX-License-Identifier: Apache-2.0
"""The tables of rates, and of limited clients, by minute and hour: `partition_rates`, `broker_rates`, `limits`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from tests.pipeline.oracle.lines import Day, Sample
from weir.pipeline.tables import WINDOW_SECONDS
from weir.samples.schema import LimitLine, LinkLine, PartitionLine

Row = dict[str, Any]
_LEAST_SECONDS = 1.0
_OF_CLIENT = ("role", "connector", "task", "entry", "limit_group", "record_rate_limit")


def _windows(day: Day) -> Iterator[tuple[str, datetime, dict[int, list[Sample]]]]:
    """Yield each window in which something was sampled, with its samples by broker."""
    for window, seconds in WINDOW_SECONDS.items():
        found: defaultdict[datetime, defaultdict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for sample in day.whole:
            found[sample.window(seconds)][sample.broker_id].append(sample)
        for start, by_broker in found.items():
            yield window, start, by_broker


class _OfBroker:
    """What one broker moved of something in each sample of a window; those that tell nothing of it count as 0."""

    def __init__(self, samples: Sequence[Sample], sizes: dict[int, int]) -> None:
        self.seconds = sum(sample.seconds for sample in samples)
        self.bytes = sum(sizes.values())
        rates = sorted(sizes.get(id(sample), 0) / max(sample.seconds, _LEAST_SECONDS) for sample in samples)
        self.mean = self.bytes / self.seconds
        self.highest = rates[-1]
        self.p95 = rates[math.ceil(0.95 * len(rates)) - 1]


def partition_rates(day: Day) -> Iterator[Row]:
    """Yield a row for each partition and side that lines of a window tell of."""
    for window, start, by_broker in _windows(day):
        told: defaultdict[tuple[str, str, int], defaultdict[int, defaultdict[int, int]]]
        told = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
        for broker_id, samples in by_broker.items():
            for sample in samples:
                for line in sample.lines:
                    if isinstance(line, PartitionLine):
                        sizes = told[line.side, line.topic, line.partition][broker_id]
                        sizes[id(sample)] += line.bytes_throttled + line.bytes_unthrottled
        for (side, topic, partition), sizes_by_broker in told.items():
            of = [_OfBroker(by_broker[broker_id], sizes) for broker_id, sizes in sizes_by_broker.items()]
            size = sum(broker.bytes for broker in of)
            if side == "follower":
                mean = sum(broker.mean for broker in of)
                highest, p95 = sum(broker.highest for broker in of), sum(broker.p95 for broker in of)
            else:
                mean = size / _seconds_of_leaders([by_broker[broker_id] for broker_id in sizes_by_broker])
                highest, p95 = max(broker.highest for broker in of), max(broker.p95 for broker in of)
            yield {
                "window_start": start,
                "window": window,
                "side": side,
                "topic": topic,
                "partition": partition,
                "mean_bytes_per_second": mean,
                "max_bytes_per_second": highest,
                "p95_bytes_per_second": p95,
                "bytes": size,
            }


def _seconds_of_leaders(by_leader: Sequence[Sequence[Sample]]) -> float:
    """From the first to the last sample of all leaders, or all their seconds together where that is less."""
    each = [sum(sample.seconds for sample in samples) for samples in by_leader]
    samples = [sample for samples in by_leader for sample in samples]
    first = min(sample.at(sample.begin) for sample in samples)
    last = max(sample.ended for sample in samples)
    return max(*each, 0.0, min(sum(each), (last - first).total_seconds()))


def broker_rates(day: Day) -> Iterator[Row]:
    """Yield two rows, throttled and not, for each broker and side that lines of a window tell of."""
    for window, start, by_broker in _windows(day):
        for broker_id, samples in by_broker.items():
            for side in ("leader", "follower"):
                links = [
                    (id(sample), line)
                    for sample in samples
                    for line in sample.lines
                    if isinstance(line, LinkLine) and line.side == side
                ]
                if not links:
                    continue
                for throttled in (True, False):
                    sizes: defaultdict[int, int] = defaultdict(int)
                    for key, link in links:
                        sizes[key] += link.bytes_throttled if throttled else link.bytes_unthrottled
                    broker = _OfBroker(samples, sizes)
                    yield {
                        "window_start": start,
                        "window": window,
                        "broker_id": broker_id,
                        "side": side,
                        "throttled": throttled,
                        "mean_bytes_per_second": broker.mean,
                        "max_bytes_per_second": broker.highest,
                        "p95_bytes_per_second": broker.p95,
                        "bytes": broker.bytes,
                    }


def broker_samples(day: Day) -> Iterator[Row]:
    """Yield each sample of each side."""
    for sample in day.whole:
        for side in ("leader", "follower"):
            links = [line for line in sample.lines if isinstance(line, LinkLine) and line.side == side]
            yield {
                "broker_id": sample.broker_id,
                "side": side,
                "start": sample.at(sample.begin),
                "end": sample.ended,
                "bytes_throttled": sum(link.bytes_throttled for link in links),
                "bytes_unthrottled": sum(link.bytes_unthrottled for link in links),
            }


def client_rates(day: Day) -> Iterator[Row]:
    """Yield what clients moved at each broker in each minute of which any sample tells."""
    for window, start, by_broker in _windows(day):
        for broker_id, samples in by_broker.items() if window == "minute" else ():
            told = [(sample, end) for sample in samples if (end := sample.interval) and end.client_bytes_in is not None]
            if told:
                yield {
                    "window_start": start,
                    "broker_id": broker_id,
                    "seconds": sum(sample.seconds for sample, _ in told),
                    "bytes_in": sum(end.client_bytes_in or 0 for _, end in told),
                    "bytes_out": sum(end.client_bytes_out or 0 for _, end in told),
                }


def _greatest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def limits(day: Day) -> Iterator[Row]:
    """Yield a row for each client and window: what it did at all brokers, and the greatest limit that is told."""
    for window, start, by_broker in _windows(day):
        told: defaultdict[str, defaultdict[int, list[tuple[Sample, LimitLine]]]]
        told = defaultdict(lambda: defaultdict(list))
        for broker_id, samples in by_broker.items():
            for sample in samples:
                for line in sample.lines:
                    if isinstance(line, LimitLine):
                        told[line.client_id][broker_id].append((sample, line))
        for client_id, of in told.items():
            seconds = {broker_id: sum(sample.seconds for sample in by_broker[broker_id]) for broker_id in of}
            lines = [pair for pairs in of.values() for pair in pairs]
            yield {
                "window_start": start,
                "window": window,
                "client_id": client_id,
                **{name: _greatest(getattr(line, name) for _, line in lines) for name in _OF_CLIENT},
                "records": sum(line.records for _, line in lines),
                "mean_records_per_second": sum(
                    sum(line.records for _, line in pairs) / seconds[broker_id] for broker_id, pairs in of.items()
                ),
                "max_records_per_second": max(line.record_rate_max for _, line in lines),
                "throttled_ratio": max(
                    sum(line.throttled_ratio * sample.seconds for sample, line in pairs) / seconds[broker_id]
                    for broker_id, pairs in of.items()
                ),
            }

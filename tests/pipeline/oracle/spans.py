# SPDX-License-Identifier: Apache-2.0
"""Spans in which replicas were behind: `moves`, `replica_lag`, `behind_minutes`."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

from tests.pipeline.oracle.lines import Day, Sample
from tests.pipeline.oracle.rates import Row
from weir.samples.schema import PartitionLine, QuotaLine

OUT_OF_SYNC = 30.0
STUCK = 30.0

_Number = TypeVar("_Number", int, float)


class Replica(NamedTuple):
    topic: str
    partition: int
    replica: int
    side: str


@dataclass(slots=True)
class _Told:
    """What one sample tells of a replica: of all peers together."""

    sample: Sample
    bytes: int = 0
    bytes_throttled: int = 0
    lag_seconds: float | None = None
    lag_messages: int | None = None


class _Stall(NamedTuple):
    end: float
    seconds: float
    ends_with: _Told


@dataclass(slots=True)
class _Span:
    replica: Replica
    process: list[Sample]
    began: float
    told: list[_Told] = field(default_factory=list)
    is_over: bool = False

    @property
    def max_lag(self) -> float:
        return max(told.lag_seconds or 0.0 for told in self.told)

    @property
    def counts(self) -> bool:
        return self.max_lag > OUT_OF_SYNC or any(told.bytes_throttled for told in self.told)

    @property
    def started(self) -> datetime:
        first = next(told for told in self.told if told.lag_seconds)
        return first.sample.at(self.began)

    @property
    def ended(self) -> datetime | None:
        return self.told[-1].sample.ended if self.is_over else None

    @property
    def seconds(self) -> float:
        """How long it was, as far as was sampled."""
        return self._sampled(self.began, self.told[-1].sample.end)

    def place(self) -> Row:
        return {
            "topic": self.replica.topic,
            "partition": self.replica.partition,
            "replica": self.replica.replica,
            "broker_id": self.process[0].broker_id,
            "side": self.replica.side,
            "start": self.started,
        }

    def stalls(self) -> list[_Stall]:
        """The times in which nothing came, with how long each was as far as was sampled."""
        found, since = [], self.began
        for told in self.told:
            if told.bytes:
                found.append(_Stall(told.sample.begin, self._sampled(since, told.sample.begin), told))
                since = told.sample.end
        last = self.told[-1]
        if not last.bytes:
            found.append(_Stall(last.sample.end, self._sampled(since, last.sample.end), last))
        return found

    def _sampled(self, begin: float, end: float) -> float:
        """The seconds between two times that samples tell of."""
        first = bisect.bisect_right(self.process, begin, key=lambda sample: sample.end)
        last = bisect.bisect_left(self.process, end, key=lambda sample: sample.begin)
        micros = sum(
            round((min(end, sample.end) - max(begin, sample.begin)) * 1e6) for sample in self.process[first:last]
        )
        return micros / 1e6

    def quota(self) -> int | None:
        """The rate of the throttle's own quota that was the last one in force in samples that tell of the replica."""
        name = f"{self.replica.side}.replication.throttled.rate"
        found = [
            line
            for told in self.told
            for line in told.sample.lines
            if isinstance(line, QuotaLine) and (line.quota, line.side, line.mode) == (name, self.replica.side, None)
        ]
        return max(found, key=lambda line: line.in_force_from_seconds).rate if found else None


def _told(samples: list[Sample]) -> dict[Replica, list[_Told]]:
    found: defaultdict[Replica, dict[int, _Told]] = defaultdict(dict)
    for sample in samples:
        for line in sample.lines:
            if isinstance(line, PartitionLine):
                replica = Replica(
                    line.topic, line.partition, line.peer if line.side == "leader" else sample.broker_id, line.side
                )
                told = found[replica].setdefault(sample.sequence, _Told(sample))
                told.bytes += line.bytes_throttled + line.bytes_unthrottled
                told.bytes_throttled += line.bytes_throttled
                told.lag_seconds = _greater(told.lag_seconds, line.lag_seconds)
                told.lag_messages = _greater(told.lag_messages, line.lag_messages)
    return {replica: list(by_sample.values()) for replica, by_sample in found.items()}


def _greater(one: _Number | None, other: _Number | None) -> _Number | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _spans(day: Day) -> Iterator[_Span]:
    """Yield the spans in which a replica was behind, also those that no table tells of."""
    for samples in day.processes().values():
        for replica, told in _told(samples).items():
            span = None
            unknown: list[_Told] = []
            for now in told:
                if now.lag_seconds is None:
                    if now.bytes:
                        (unknown if span is None else span.told).append(now)
                    continue
                if span is None and now.lag_seconds:
                    span = _Span(replica, samples, now.sample.end - now.lag_seconds)
                    span.told = [before for before in unknown if before.sample.end - span.began > 1e-6]
                unknown = []
                if span is None:
                    continue
                span.told.append(now)
                if now.lag_seconds == 0:
                    span.is_over = True
                    yield span
                    span = None
            if span is not None:
                yield span


def moves(day: Day) -> Iterator[Row]:
    """Yield each span that is a move."""
    for span in _spans(day):
        if not span.counts:
            continue
        size = sum(told.bytes for told in span.told)
        yield {
            **span.place(),
            "end": span.ended,
            "bytes": size,
            "bytes_throttled": sum(told.bytes_throttled for told in span.told),
            "mean_bytes_per_second": size / span.seconds,
            "quota_bytes_per_second": span.quota(),
            "longest_stall_seconds": max((stall.seconds for stall in span.stalls()), default=0.0),
        }


def replica_lag(day: Day) -> Iterator[Row]:
    """Yield each span in which the replica was out of sync."""
    for span in _spans(day):
        if span.max_lag <= OUT_OF_SYNC:
            continue
        stuck = [stall.seconds for stall in span.stalls() if stall.seconds > STUCK]
        yield {
            **span.place(),
            "end": span.ended,
            "seconds_to_in_sync": span.told[-1].sample.end - span.began if span.is_over else None,
            "max_lag_messages": _most_messages(span.told),
            "max_lag_seconds": span.max_lag,
            "stuck_spans": len(stuck),
            "stuck_seconds": sum(stuck, 0.0),
        }


def behind_minutes(day: Day) -> Iterator[Row]:
    """Yield the minutes of all these spans in which samples tell of the replica."""
    for span in _spans(day):
        if not span.counts:
            continue
        stalls = span.stalls()
        for minute in dict.fromkeys(told.sample.window(60) for told in span.told):
            of = [told for told in span.told if told.sample.window(60) == minute]
            ended = [stall for stall in stalls if stall.ends_with.sample.window(60) == minute]
            stuck = [stall.seconds for stall in ended if stall.seconds > STUCK]
            longest = max(ended, key=lambda stall: (stall.seconds, stall.end), default=None)
            yield {
                "window_start": minute,
                **span.place(),
                "bytes": sum(told.bytes for told in of),
                "bytes_throttled": sum(told.bytes_throttled for told in of),
                "max_lag_messages": _most_messages(of),
                "longest_stall_seconds": longest.seconds if longest else 0.0,
                "stall_end": longest.ends_with.sample.at(longest.end) if longest and longest.seconds > 0 else None,
                "stuck_spans": len(stuck),
                "stuck_seconds": sum(stuck, 0.0),
            }


def _most_messages(told: list[_Told]) -> int | None:
    return max((now.lag_messages for now in told if now.lag_messages is not None), default=None)

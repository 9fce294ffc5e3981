# SPDX-License-Identifier: Apache-2.0
"""How exactly quotas were kept: `throttle_accuracy`, `throttle_minutes`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tests.pipeline.oracle.lines import Day, Sample
from tests.pipeline.oracle.rates import Row
from weir.samples.schema import LinkLine, QuotaLine

NO_BOUND = ("observe", "shared")
_TEN = 10


@dataclass(slots=True)
class _Part:
    """One line of a quota, with its sample."""

    sample: Sample
    line: QuotaLine

    @property
    def seconds(self) -> float:
        return self.line.in_force_until_seconds - self.line.in_force_from_seconds

    @property
    def left_out(self) -> bool:
        return any(
            isinstance(line, LinkLine) and line.side == self.line.side and line.left_out > 0
            for line in self.sample.lines
        )

    @property
    def bytes_left_out(self) -> int:
        return math.floor(self.line.rate * self.seconds) - self.line.bytes if self.left_out else 0


@dataclass(slots=True)
class _Span:
    """A quota while it stayed the same, without a gap."""

    parts: list[_Part] = field(default_factory=list)

    @property
    def start(self) -> datetime:
        return min(part.sample.at(part.line.in_force_from_seconds) for part in self.parts)

    @property
    def end(self) -> datetime:
        return max(part.sample.at(part.line.in_force_until_seconds) for part in self.parts)

    def goes_on(self, part: _Part) -> bool:
        line, last = part.line, self.parts[-1].line
        return (
            (line.rate, line.policy) == (last.rate, last.policy)
            and line.in_force_from_seconds == last.in_force_until_seconds
            and part.sample.sequence - self.parts[-1].sample.sequence <= 1
        )

    def by_second(self) -> dict[int, tuple[int, datetime]]:
        """The bytes of each second, and the latest minute of the lines that tell of it."""
        found: dict[int, tuple[int, datetime]] = {}
        for part in self.parts:
            for second, size in enumerate(part.line.bytes_by_second, start=part.line.first_second):
                before, minute = found.get(second, (0, part.sample.window(60)))
                found[second] = (before + size, max(minute, part.sample.window(60)))
        return found


def _spans(day: Day) -> Iterator[_Span]:
    for samples in day.processes().values():
        parts: defaultdict[tuple[str, str], list[_Part]] = defaultdict(list)
        for sample in samples:
            for line in sample.lines:
                if isinstance(line, QuotaLine) and line.mode not in NO_BOUND:
                    parts[line.side, line.quota].append(_Part(sample, line))
        for of in parts.values():
            of.sort(key=lambda part: part.line.in_force_from_seconds)
            span = _Span()
            for part in of:
                if span.parts and not span.goes_on(part):
                    yield span
                    span = _Span()
                span.parts.append(part)
            yield span


def _over(size: float, allowed: float) -> float | None:
    return size / allowed if allowed else None


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def throttle_accuracy(day: Day) -> Iterator[Row]:
    """Yield each span of a quota that is a bound."""
    for span in _spans(day):
        line = span.parts[0].line
        seconds = sum(part.seconds for part in span.parts)
        by_second = {second: size for second, (size, _) in span.by_second().items()}
        tens = _tens(by_second)
        yield {
            "quota_id": line.quota,
            "broker_id": span.parts[0].sample.broker_id,
            "side": line.side,
            "rate_bytes_per_second": line.rate,
            "policy": line.policy,
            "start": span.start,
            "end": span.end,
            "seconds": seconds,
            "mean_over_quota": _over(sum(part.line.bytes for part in span.parts), line.rate * seconds),
            "worst_1s_over_quota": _worst(_over(size, line.rate) for size in by_second.values()),
            "worst_10s_over_quota": _worst(_over(size, line.rate * n) for _, size, n in tens),
            "seconds_over": float(sum(size > line.rate for size in by_second.values())),
            "seconds_left_out": sum((part.seconds for part in span.parts if part.left_out), 0.0),
            "bytes_left_out": max(0, sum(part.bytes_left_out for part in span.parts)),
        }


def _tens(by_second: dict[int, int]) -> list[tuple[int, int, int]]:
    """The last second of each 10 seconds, their bytes, and how many count: fewer in a span that is shorter."""
    count = min(_TEN, len(by_second))
    return [(last, sum(by_second.get(last - n, 0) for n in range(_TEN)), count) for last in by_second]


def throttle_minutes(day: Day) -> Iterator[Row]:
    """Yield each minute of these spans."""
    for span in _spans(day):
        line = span.parts[0].line
        by_second = span.by_second()
        tens = _tens({second: size for second, (size, _) in by_second.items()})
        for minute in dict.fromkeys(part.sample.window(60) for part in span.parts):
            parts = [part for part in span.parts if part.sample.window(60) == minute]
            sizes = [size for size, of in by_second.values() if of == minute]
            yield {
                "window_start": minute,
                "quota_id": line.quota,
                "broker_id": parts[0].sample.broker_id,
                "side": line.side,
                "start": span.start,
                "seconds": sum(part.seconds for part in parts),
                "bytes": sum(part.line.bytes for part in parts),
                "worst_1s_over_quota": _worst(_over(size, line.rate) for size in sizes),
                "worst_10s_over_quota": _worst(
                    _over(size, line.rate * n) for last, size, n in tens if by_second[last][1] == minute
                ),
                "seconds_over": float(sum(size > line.rate for size in sizes)),
                "seconds_left_out": sum((part.seconds for part in parts if part.left_out), 0.0),
                "bytes_left_out": sum(part.bytes_left_out for part in parts),
            }

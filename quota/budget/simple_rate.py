# SPDX-License-Identifier: Apache-2.0
"""A rate over a window of samples, exactly as Kafka measures `byte-rate` for KIP-73 (SimpleRate.java)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct


class Sample(Struct):
    """What came in one window. Times are in milliseconds of the clock."""

    start_ms: int
    last_event_ms: int
    value: int = 0


class SimpleRate:
    """Units per second over the last `samples` windows of `window_seconds`: their sum by the time since the oldest
    began.

    Where less than one window has gone by, it is divided by one: Kafka's fixed first window. Times are whole
    milliseconds as in Kafka: sums of float seconds drift, and a sample would end one event too early or too late.
    """

    __slots__ = ("_clock", "_expire_ms", "_samples", "_window_ms")

    def __init__(self, clock: Callable[[], float], samples: int = 11, window_seconds: float = 1.0) -> None:
        if samples < 1:
            raise ValueError(f"A rate needs at least 1 sample, not {samples}.")
        if window_seconds < 0.001:
            raise ValueError(f"A rate's window must be at least 0.001 seconds, not {window_seconds}.")
        self._clock = clock
        self._window_ms = round(window_seconds * 1000)
        self._expire_ms = samples * self._window_ms
        # One more than the window has: the oldest may have begun before the window and still reach into it.
        self._samples: deque[Sample] = deque(maxlen=samples + 1)

    @property
    def window_seconds(self) -> float:
        """How long one sample is."""
        return self._window_ms / 1000

    def record(self, n: int) -> None:
        """Add `n` units now."""
        now_ms = self._now_ms()
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._window_ms:
            samples.append(Sample(now_ms, now_ms))
        sample = samples[-1]
        sample.value += n
        sample.last_event_ms = now_ms

    def hand_over(self) -> list[Sample]:
        """Return the samples, for the rate of another process, which reads the same clock. It keeps none of them."""
        samples = list(self._samples)
        self._samples.clear()
        return samples

    def take_over(self, samples: Iterable[Sample]) -> None:
        """Measure what another rate has, too."""
        both = sorted([*samples, *self._samples], key=lambda sample: sample.start_ms)
        self._samples = deque(both, self._samples.maxlen)

    def rate(self) -> float:
        """Return units per second up to now. This changes state, as in Kafka: see `_measure`."""
        total, elapsed_ms = self._measure(self._now_ms())
        return total / (elapsed_ms / 1000)

    def falls_to(self, bound: float) -> float:
        """Return when the rate may have fallen to `bound` (> 0) at the earliest, or when to ask again."""
        now_ms = self._now_ms()
        total, elapsed_ms = self._measure(now_ms)
        if total / (elapsed_ms / 1000) <= bound:
            return now_ms / 1000
        begin_ms = min(sample.start_ms for sample in self._samples)
        leaves_ms = min(sample.last_event_ms for sample in self._samples if sample.value) + self._expire_ms
        return min(begin_ms + total * 1000 / bound, leaves_ms) / 1000

    def _measure(self, now_ms: int) -> tuple[int, int]:
        """Return the sum of the samples in the window, and the milliseconds that it is spread over.

        It changes state, as in Kafka: a sample older than the whole window is set back to zero and begins now, and the
        first look at an empty rate begins its first sample.
        """
        samples = self._samples
        if not samples:
            samples.append(Sample(now_ms, now_ms))
        total = 0
        begin_ms = now_ms
        for sample in samples:
            if now_ms - sample.last_event_ms >= self._expire_ms:
                sample.start_ms, sample.last_event_ms, sample.value = now_ms, now_ms, 0
            total += sample.value
            if sample.start_ms < begin_ms:
                begin_ms = sample.start_ms
        return total, max(now_ms - begin_ms, self._window_ms)

    def _now_ms(self) -> int:
        # Rounded, not cut off: 2.3 s is 2299.9999999999995 ms in floats.
        return round(self._clock() * 1000)

# SPDX-License-Identifier: Apache-2.0
"""SimpleRate against Kafka's SimpleRate: its scenarios, its own figures, and a model of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from weir.quota.budget.simple_rate import SimpleRate


def test_rate_first_window_is_of_fixed_size() -> None:
    clock = MovedClock(50.0)
    rate = SimpleRate(clock)
    rate.record(100)
    assert rate.rate() == 100
    clock.move(0.999)
    assert rate.rate() == 100
    clock.move(1.001)
    assert rate.rate() == 50


def test_rate_when_nothing_was_recorded_is_zero() -> None:
    assert SimpleRate(MovedClock(3.0)).rate() == 0.0


def test_rate_first_look_begins_the_first_sample() -> None:
    """A rate asked for at 0 s and fed at 4 s is spread over 4 s; one never asked for begins when it is fed."""
    clock = MovedClock(0.0)
    asked, unasked = SimpleRate(clock), SimpleRate(clock)
    asked.rate()
    clock.move(4.0)
    asked.record(100)
    unasked.record(100)
    assert (asked.rate(), unasked.rate()) == (25.0, 100.0)


def test_rate_sample_reaching_into_the_window_is_kept_whole() -> None:
    """A sample leaves when its last event is as old as the window, not when its first is."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=2, window_seconds=1.0)
    rate.record(10)
    clock.now = 0.9
    rate.record(10)
    clock.now = 2.5
    rate.record(5)
    clock.now = 2.899
    assert rate.rate() == 25 / 2.899
    clock.now = 2.9
    assert rate.rate() == 5.0


def test_rate_emptied_sample_stays_as_the_oldest() -> None:
    """Kafka starts an obsolete sample again in place; a later measurement is spread over the time since then."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=2, window_seconds=1.0)
    rate.record(10)
    clock.now = 1.5
    rate.record(10)
    clock.now = 2.0
    assert rate.rate() == 10.0
    clock.now = 3.5
    rate.record(30)
    assert rate.rate() == 30 / 1.5


def test_rate_more_samples_than_kept_drops_the_oldest() -> None:
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=1, window_seconds=1.0)
    for second, n in enumerate((100, 10, 1)):
        clock.now = second * 1.0
        rate.record(n)
    clock.now = 2.0
    assert rate.rate() == 1.0


def test_record_at_the_windows_float_end_begins_a_sample() -> None:
    """0.1 s ten times is 0.9999999999999999 s in floats; Kafka's milliseconds make it one window exactly."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=1, window_seconds=1.0)
    rate.record(1)
    for _ in range(10):
        clock.move(0.1)
    assert clock.now < 1.0
    rate.record(1)
    assert rate.rate() == 1.0


# What org.apache.kafka.common.metrics.stats.SimpleRate of kafka-clients 3.9.1 returned, 3 samples of 1 s.
KAFKA_3_9_1 = [
    ("record", 0.1, 500),
    ("rate", 0.1, 500.0),
    ("rate", 0.35, 500.0),
    ("record", 0.35, 250),
    ("rate", 1.099, 750.0),
    ("record", 1.1, 1000),
    ("rate", 1.1, 1750.0),
    ("record", 2.7, 4000),
    ("rate", 3.2, 1854.8387096774193),
    ("rate", 4.099, 1667.2224074691562),
    ("record", 4.1, 7),
    ("rate", 4.1, 2862.1428571428573),
    ("rate", 5.699, 1336.1120373457818),
    ("rate", 5.7, 4.372267332916927),
    ("record", 5.701, 900),
    ("rate", 5.701, 566.5209244222361),
    ("rate", 7.1, 642.8571428571429),
    ("record", 7.15, 60),
    ("rate", 9.0, 31.578947368421055),
    ("rate", 12.0, 0.0),
    ("record", 12.0, 10),
    ("rate", 12.5, 10.0),
]


def test_rate_of_a_recorded_run_is_what_kafka_measured() -> None:
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=3, window_seconds=1.0)
    for step, now, value in KAFKA_3_9_1:
        clock.now = now
        if step == "record":
            rate.record(int(value))
        else:
            assert rate.rate() == value, now


class RingOfSamples:
    """Kafka's algorithm as an array and an index, in milliseconds: slots of [begin, last event, sum]."""

    def __init__(self, count: int, window_ms: int) -> None:
        self.count, self.window_ms = count, window_ms
        self.slots: list[list[int]] = []
        self.index = 0

    def record(self, now_ms: int, n: int) -> None:
        if not self.slots:
            self.slots.append([now_ms, now_ms, 0])
        elif now_ms - self.slots[self.index][0] >= self.window_ms:
            self.index = (self.index + 1) % (self.count + 1)
            self.slots[self.index : self.index + 1] = [[now_ms, now_ms, 0]]
        self.slots[self.index][1] = now_ms
        self.slots[self.index][2] += n

    def rate(self, now_ms: int) -> float:
        if not self.slots:
            self.slots.append([now_ms, now_ms, 0])
        self.slots = [
            [now_ms, now_ms, 0] if now_ms - slot[1] >= self.count * self.window_ms else slot for slot in self.slots
        ]
        elapsed_ms = max(now_ms - min(slot[0] for slot in self.slots), self.window_ms)
        return sum(slot[2] for slot in self.slots) / (elapsed_ms / 1000)


_WINDOWS = st.sampled_from([1, 7, 100, 1000])
# Steps in sevenths of a window and a millisecond more or less, so that ends of windows and of the whole span are hit.
_STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(-1, 1), st.one_of(st.none(), st.integers(0, 10_000_000))), max_size=60
)


@given(st.integers(1, 4), _WINDOWS, _STEPS)
def test_rate_of_any_run_is_the_model_s(count: int, window_ms: int, steps: list[tuple[int, int, int | None]]) -> None:
    now_ms = 1_000
    clock = MovedClock(0.0)
    rate, model = SimpleRate(clock, count, window_ms / 1000), RingOfSamples(count, window_ms)
    for sevenths, nudge, n in steps:
        now_ms += max(0, sevenths * window_ms // 7 + nudge)
        clock.now = now_ms / 1000
        if n is None:
            assert rate.rate() == model.rate(now_ms)
        else:
            rate.record(n)
            model.record(now_ms, n)


@given(st.integers(1, 4), _WINDOWS, _STEPS, st.floats(1.0, 1e8))
def test_falls_to_is_never_after_the_rate_fell(
    count: int, window_ms: int, steps: list[tuple[int, int, int | None]], bound: float
) -> None:
    """A millisecond before the time given, with nothing recorded since, the rate is still above the bound."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, count, window_ms / 1000)
    for sevenths, nudge, n in steps:
        clock.move(max(0, sevenths * window_ms // 7 + nudge) / 1000)
        rate.record(n or 0)
    started = clock.now
    falls_at = rate.falls_to(bound)
    if falls_at > started + 0.002:
        clock.now = falls_at - 0.001
        assert rate.rate() > bound


def test_falls_to_asked_again_ends_at_a_rate_within_the_bound() -> None:
    """Two samples leave the window, each asked about when it does; then the last one is spread over 2.5 s."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=3)
    for second in range(5):
        clock.now = second * 1.0
        rate.record(1000)
    asked_at = []
    while rate.rate() > 400:
        clock.now = rate.falls_to(400)
        asked_at.append(clock.now)
    assert rate.rate() == 400
    assert asked_at == [5.0, 6.0, 6.5]
    assert rate.falls_to(400) == clock.now


def test_falls_to_waits_for_bytes_if_an_empty_sample_is_first() -> None:
    """The look at 0 s begins a sample that stays empty; when it leaves, at 10 s, nothing gets less."""
    clock = MovedClock(0.0)
    rate = SimpleRate(clock, samples=10)
    rate.rate()
    clock.now = 1.0
    rate.record(1500)
    assert rate.falls_to(100) == 11.0


def test_sampled_rate_without_a_sample_or_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 sample, not 0"):
        SimpleRate(MovedClock(0.0), samples=0)
    with pytest.raises(ValueError, match=r"at least 0\.001 seconds, not 0\."):
        SimpleRate(MovedClock(0.0), window_seconds=0)

# SPDX-License-Identifier: Apache-2.0
"""The built-in limiters: the shortest pause that keeps to the limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from tests.limits.limiters import LIMITS, batches
from weir.limits.built_in import BUILT_IN, LATE_SECONDS, RecordBatchRateLimiter, RecordRateLimiter
from weir.limits.rate_limiter import Batch, RateLimiter
from weir.limits.slowed_clock import SlowedClock


def started(name: str, limit: float | None, clock: Callable[[], float]) -> RateLimiter:
    limiter = BUILT_IN[name]()
    assert [option.name for option in limiter.config()] == [LIMITS[name]]
    limiter.configure({LIMITS[name]: limit})
    limiter.start(clock)
    return limiter


@pytest.mark.parametrize(
    ("name", "limit", "pause"),
    [("RecordRateLimiter", 1000, 0.5), ("RecordBatchRateLimiter", 4, 0.25), ("ByteRateLimiter", 50_000, 1.0)],
)
def test_a_pause_is_what_the_batch_takes_at_the_limit(name: str, limit: float, pause: float) -> None:
    clock = MovedClock()
    limiter = started(name, limit, clock)
    assert limiter.throttle_time() == 0
    limiter.accumulate([Batch("a", 300, 40_000), Batch("b", 200, 10_000)])
    assert limiter.throttle_time() == pytest.approx(pause)
    clock.move(pause / 2)
    assert limiter.throttle_time() == pytest.approx(pause / 2)
    clock.move(pause)
    assert limiter.throttle_time() == 0
    limiter.close()


@pytest.mark.parametrize("name", LIMITS)
def test_without_a_limit_there_is_no_pause(name: str) -> None:
    limiter = started(name, None, MovedClock())
    limiter.accumulate(batches(10**9))
    assert limiter.throttle_time() == 0


def test_answers_without_records_are_no_batches() -> None:
    limiter = started("RecordBatchRateLimiter", 1, MovedClock())
    limiter.accumulate([])
    limiter.accumulate([Batch("a", 0, 70)])
    assert limiter.throttle_time() == 0


def test_one_batch_above_the_limit_is_no_fault_but_is_paid_for() -> None:
    """A limit is not a hard one for one batch (KIP-731)."""
    clock = MovedClock()
    limiter = started("RecordRateLimiter", 100, clock)
    limiter.accumulate(batches(5000))
    assert limiter.throttle_time() == pytest.approx(50)


def test_an_idle_client_gains_nothing() -> None:
    clock = MovedClock()
    limiter = started("RecordRateLimiter", 100, clock)
    limiter.accumulate(batches(10))
    clock.move(3600)
    limiter.accumulate(batches(10))
    assert limiter.throttle_time() == pytest.approx(0.1)


@pytest.mark.parametrize(("new", "pause"), [(1000.0, 0.4), (50.0, 8.0), (None, 0.0)])
def test_limit_changed_in_a_pause_spreads_what_is_owed_anew(new: float | None, pause: float) -> None:
    clock = MovedClock()
    limiter = started("RecordRateLimiter", 100, clock)
    limiter.accumulate(batches(500))
    clock.move(1)
    limiter.configure({"record.rate.limit": new})
    assert limiter.throttle_time() == pytest.approx(pause)


@pytest.mark.long
@given(
    limit=st.sampled_from([100.0, 1_000.0, 50_000.0]),
    polls=st.lists(st.tuples(st.floats(0.6, 1), st.floats(0, LATE_SECONDS * 0.9)), min_size=60, max_size=120),
)
def test_polls_of_a_tenth_of_the_limit_reach_and_never_pass_it(limit: float, polls: list[tuple[float, float]]) -> None:
    """Each poll comes as late as given after the pause before it: the way to the broker and back."""
    clock = MovedClock()
    limiter = RecordRateLimiter()
    limiter.configure({"record.rate.limit": limit})
    limiter.start(clock)
    start, came = clock(), []
    for part, late in polls:
        clock.move(limiter.throttle_time() + late)
        records = max(1, int(part * limit / 10))
        came.append((clock(), records))
        limiter.accumulate(batches(records))
    clock.move(limiter.throttle_time())
    rate = sum(records for _, records in came) / (clock() - start - polls[0][1])
    assert 0.97 * limit - 1 <= rate <= limit * 1.0001
    for begin, _ in came:
        second = [records for at, records in came if begin <= at < begin + 1]
        assert sum(second) <= limit * (1 + LATE_SECONDS) + max(second) + 1


@given(
    kind=st.sampled_from(["RecordRateLimiter", "RecordBatchRateLimiter", "ByteRateLimiter"]),
    polls=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 0.4)), min_size=10, max_size=150),
    speed=st.sampled_from([1.0, 1 / 3]),
)
@example("RecordRateLimiter", [(10, 0.0), (10, 0.24), *[(10, 0.0)] * 120], 1.0)
@example("RecordRateLimiter", [(5, 0.0), (5, 0.14), *[(5, 0.0)] * 120], 1 / 3)
def test_no_second_has_over_a_limit_and_a_poll_however_uneven(
    kind: str, polls: list[tuple[int, float]], speed: float
) -> None:
    """With a part of the limit, the part holds for real seconds."""
    clock = MovedClock()
    limit = 1000.0 if kind != "RecordBatchRateLimiter" else 20.0
    limiter = started(kind, limit, SlowedClock(clock, speed))
    came = []
    for records, late in polls:
        clock.move(limiter.throttle_time() / speed + late)
        came.append((clock(), 1 if kind == "RecordBatchRateLimiter" else records))
        limiter.accumulate(batches(records, size=records))
    for begin, _ in came:
        second = [units for at, units in came if begin <= at < begin + 1]
        assert sum(second) <= speed * limit * (1 + LATE_SECONDS) + max(second) + 1e-6


@pytest.mark.parametrize(("late", "pause"), [(0.0, 0.1), (0.03, 0.07), (0.06, 0.05), (0.24, 0.05), (0.26, 0.1)])
def test_late_batch_gains_a_little_and_one_after_idle_nothing(late: float, pause: float) -> None:
    clock = MovedClock()
    limiter = started("RecordRateLimiter", 100, clock)
    limiter.accumulate(batches(10))
    clock.move(0.1 + late)
    limiter.accumulate(batches(10))
    assert limiter.throttle_time() == pytest.approx(pause)


def test_polls_are_batches_whatever_is_in_them() -> None:
    clock = MovedClock()
    limiter = RecordBatchRateLimiter()
    limiter.configure({"record.batch.rate.limit": 10})
    limiter.start(clock)
    for records in (1, 5000, 20):
        limiter.accumulate(batches(records))
    assert limiter.throttle_time() == pytest.approx(0.3)

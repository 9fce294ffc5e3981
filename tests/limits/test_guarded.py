# SPDX-License-Identifier: Apache-2.0
"""A limiter that does something wrong loses its effect, and stops nobody."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.fakes.clock import MovedClock
from tests.limits.limiters import Scripted, batches
from weir.limits.built_in import BUILT_IN
from weir.limits.guarded import ABSURD_SECONDS, GuardedLimiter


def guarded(limiter: Scripted) -> tuple[GuardedLimiter, list[tuple[str, str]]]:
    faults: list[tuple[str, str]] = []
    made = GuardedLimiter("theirs", lambda: limiter, {}, MovedClock(), lambda *fault: faults.append(fault))
    return made, faults


@pytest.mark.parametrize("pause", [math.nan, math.inf, -math.inf, -0.001, ABSURD_SECONDS + 1])
def test_a_throttle_time_that_is_none_disables_it_once(pause: float) -> None:
    theirs = Scripted(pause)
    limiter, faults = guarded(theirs)
    assert [limiter.throttle_time() for _ in range(3)] == [0, 0, 0]
    limiter.accumulate(batches(5))
    assert limiter.is_disabled
    assert faults == [("theirs", f"throttle_time returned {pause}")]
    assert theirs.calls == ["configure", "start", "throttle_time", "close"]


@pytest.mark.parametrize("pause", [None, "soon", [1]])
def test_a_throttle_time_of_another_type_disables_it(pause: object) -> None:
    limiter, faults = guarded(Scripted(pause))  # type: ignore[arg-type]
    assert limiter.throttle_time() == 0
    assert len(faults) == 1


class _Unshown(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no text either")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError, GeneratorExit, _Unshown])
@pytest.mark.parametrize("fails_in", ["configure", "start", "accumulate", "throttle_time", "close"])
def test_any_exception_anywhere_is_told_once_and_stops_nothing(fails_in: str, error: type[BaseException]) -> None:
    limiter, faults = guarded(Scripted(error(), fails_in))
    limiter.accumulate(batches(5))
    limiter.configure({})
    if fails_in != "close":
        assert limiter.throttle_time() == 0
    limiter.close()
    assert len(faults) == 1
    assert error.__name__ in faults[0][1]
    assert limiter.is_disabled


class _EndsTwice(Scripted):
    def close(self) -> None:
        raise SystemExit(4)


def test_limiter_that_exits_when_closed_for_a_fault_is_stopped() -> None:
    limiter, faults = guarded(_EndsTwice(SystemExit(2)))
    assert limiter.throttle_time() == 0
    assert faults == [("theirs", "throttle_time raised SystemExit(2)")]


@pytest.mark.parametrize("fails_in", ["start", "throttle_time"])
def test_an_interrupt_by_the_keyboard_is_no_fault(fails_in: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        guarded(Scripted(KeyboardInterrupt(), fails_in))[0].throttle_time()


def test_a_settings_change_that_raises_disables_it() -> None:
    theirs = Scripted()
    limiter, faults = guarded(theirs)
    theirs.pause, theirs.fails_in = ValueError("no"), "configure"
    limiter.configure({})
    assert faults == [("theirs", "configure raised ValueError('no')")]


def test_a_pause_that_is_allowed_is_given() -> None:
    limiter, faults = guarded(Scripted(ABSURD_SECONDS))
    assert limiter.throttle_time() == ABSURD_SECONDS
    limiter.close()
    assert (limiter.throttle_time(), faults) == (0, [])


def test_a_built_in_limiter_may_ask_for_any_pause() -> None:
    faults: list[tuple[str, str]] = []
    limiter = GuardedLimiter(
        *("RecordRateLimiter", BUILT_IN["RecordRateLimiter"], {"record.rate.limit": 0.001}, MovedClock()),
        lambda *fault: faults.append(fault),
        is_trusted=True,
    )
    limiter.accumulate(batches(50_000))
    assert limiter.throttle_time() == pytest.approx(5e7)
    assert faults == []

# SPDX-License-Identifier: Apache-2.0
"""A limiter behind a guard: what it does wrong costs its own effect, and never a client's traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from weir.limits.built_in import PacedLimiter
from weir.limits.rate_limiter import Batch, RateLimiter

T = TypeVar("T")

Take = Callable[[Sequence[Batch], int, int], float]
"""Accounts for batches, all of whose records and bytes are told; returns how many seconds of its clock they take, as
far as that is known."""

ABSURD_SECONDS: Final = 86_400.0
"""A limiter of others that asks for a longer pause than this is taken for broken."""


class GuardedLimiter:
    """One limiter of one client. After its first fault it is closed, and asks for no pause any more.

    A fault is an exception of any kind, or a throttle time that is no number, negative, or absurd. `on_fault` is told
    of it once, with the limiter's name and one sentence. The built-in ones may ask for any pause: a limit of 1 is one.
    """

    __slots__ = ("_is_trusted", "_limiter", "_on_fault", "name")

    def __init__(
        self,
        name: str,
        limiter: Callable[[], RateLimiter],
        settings: Mapping[str, object],
        clock: Callable[[], float],
        on_fault: Callable[[str, str], None],
        *,
        is_trusted: bool = False,
    ) -> None:
        self.name = name
        self._on_fault = on_fault
        self._is_trusted = is_trusted
        self._limiter: RateLimiter | None = None
        self._limiter = self._called("the start", lambda: _started(limiter, settings, clock))

    @property
    def is_disabled(self) -> bool:
        """Whether a fault, or `close`, has ended it."""
        return self._limiter is None

    @property
    def take(self) -> Take:
        """What accounts for batches. Where it is trusted it is the limiter's own call, and so is `ask`."""
        return self._limiter.take if self._is_trusted and isinstance(self._limiter, PacedLimiter) else self._take

    @property
    def ask(self) -> Callable[[], float]:
        """The limiter's own function that returns the pause (seconds) before the next request."""
        return self._limiter.throttle_time if self._is_trusted and self._limiter is not None else self.throttle_time

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take changed settings."""
        if (limiter := self._limiter) is not None:
            self._called("configure", lambda: limiter.configure(settings))

    def owe(self, seconds: float) -> None:
        """Owe at least so many seconds of its clock. A limiter that users wrote can't be told, and owes no more."""
        if isinstance(self._limiter, PacedLimiter):
            self._limiter.owe(seconds)

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Account for batches."""
        if (limiter := self._limiter) is not None:
            self._called("accumulate", lambda: limiter.accumulate(batches))

    def _take(self, batches: Sequence[Batch], _records: int, _size: int) -> float:
        before = self.throttle_time()
        self.accumulate(tuple(batches))
        return max(0.0, self.throttle_time() - before)

    def throttle_time(self) -> float:
        """Return the pause in seconds of its clock: 0 or more, and finite."""
        if (limiter := self._limiter) is None:
            return 0.0
        seconds = self._called("throttle_time", lambda: float(limiter.throttle_time()))
        if seconds is None:
            return 0.0
        if math.isfinite(seconds) and seconds >= 0 and (seconds <= ABSURD_SECONDS or self._is_trusted):
            return seconds
        self._disable(f"throttle_time returned {seconds}")
        return 0.0

    def close(self) -> None:
        """End it; what it raises no longer matters."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            self._called("close", limiter.close)

    def _called(self, name: str, call: Callable[[], T]) -> T | None:
        """Return what a call of the limiter returns; None where it raised, which disables the limiter.

        Somebody else's code may raise anything: sys.exit() in it may not end the sidecar. Only KeyboardInterrupt is not
        its own. (Nor can asyncio's CancelledError be the loop's here, as nothing in these calls awaits.)
        """
        try:
            return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001
            self._disable(f"{name} raised {_shown(error)}")
            return None

    def _disable(self, reason: str) -> None:
        limiter, self._limiter = self._limiter, None
        self._on_fault(self.name, reason)
        if limiter is not None:
            try:
                limiter.close()
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001, S110 - the first fault was told, and is the one that matters
                pass


def _started(
    limiter: Callable[[], RateLimiter], settings: Mapping[str, object], clock: Callable[[], float]
) -> RateLimiter:
    made = limiter()
    made.configure(settings)
    made.start(clock)
    return made


def _shown(error: BaseException) -> str:
    try:
        return repr(error)[:200]
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - an exception of somebody else's may not even have a text
        return type(error).__name__

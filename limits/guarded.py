"""A limiter behind a guard: what it does wrong costs its own effect, and never a client's traffic."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from limits.rate_limiter import Batch, RateLimiter

ABSURD_SECONDS: Final = 86_400.0
"""A limiter of others that asks for a longer pause than this is taken for broken."""


class GuardedLimiter:
    """One limiter of one client. After its first fault it is closed, and asks for no pause any more.

    A fault is an exception, or a throttle time that is no number, negative, or absurd. `on_fault` is told of it once,
    with the limiter's name and one sentence. The built-in ones may ask for any pause: a limit of 1 is one.
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
        try:
            made = limiter()
            made.configure(settings)
            made.start(clock)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            self._disable(f"it raised {_shown(error)} when it was started")
        else:
            self._limiter = made

    @property
    def is_disabled(self) -> bool:
        """Whether a fault, or `close`, has ended it."""
        return self._limiter is None

    @property
    def used_seconds(self) -> float | None:
        """The time at its limit that all units so far take; None where the limiter does not tell."""
        return getattr(self._limiter, "used_seconds", None) if self._is_trusted else None

    @property
    def ask(self) -> Callable[[], float]:
        """What returns the pause: the limiter's own call where it is trusted, as this is done for every request."""
        return self._limiter.throttle_time if self._is_trusted and self._limiter is not None else self.throttle_time

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take changed settings."""
        if self._limiter is None:
            return
        try:
            self._limiter.configure(settings)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            self._disable(f"configure raised {_shown(error)}")

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Account for batches."""
        if self._limiter is None:
            return
        try:
            self._limiter.accumulate(batches)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            self._disable(f"accumulate raised {_shown(error)}")

    def throttle_time(self) -> float:
        """Return the pause in seconds of its clock: 0 or more, and finite."""
        if self._limiter is None:
            return 0.0
        try:
            seconds = float(self._limiter.throttle_time())
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            self._disable(f"throttle_time raised {_shown(error)}")
            return 0.0
        if math.isfinite(seconds) and seconds >= 0 and (seconds <= ABSURD_SECONDS or self._is_trusted):
            return seconds
        self._disable(f"throttle_time returned {seconds}")
        return 0.0

    def close(self) -> None:
        """End it; what it raises no longer matters."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            try:
                limiter.close()
            except Exception as error:  # noqa: BLE001 - it is somebody else's code
                self._on_fault(self.name, f"close raised {_shown(error)}")

    def _disable(self, reason: str) -> None:
        limiter, self._limiter = self._limiter, None
        self._on_fault(self.name, reason)
        if limiter is not None:
            with contextlib.suppress(Exception):  # the first fault was told, and is the one that matters
                limiter.close()


def _shown(error: Exception) -> str:
    return repr(error)[:200]

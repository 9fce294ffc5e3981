# SPDX-License-Identifier: Apache-2.0
"""A limiter that fails, for a sidecar to disable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weir.limits.rate_limiter import Batch, Option


class FailingLimiter:
    """A RateLimiter whose first client is one too many."""

    def config(self) -> Sequence[Option]:
        """It has no settings."""
        return ()

    def configure(self, settings: Mapping[str, object]) -> None:
        """It takes none."""

    def start(self, clock: Callable[[], float]) -> None:
        """It begins."""

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Fail."""
        raise RuntimeError("a bug of somebody's")

    def throttle_time(self) -> float:
        """Never ask for a pause."""
        return 0.0

    def close(self) -> None:
        """It ends."""

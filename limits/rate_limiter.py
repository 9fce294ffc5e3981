# SPDX-License-Identifier: Apache-2.0
"""The interface of a rate limiter, KIP-731's `RateLimiter`: for the built-in ones and for those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Batch(NamedTuple):
    """The records of one topic in one Fetch answer or Produce request."""

    topic: str
    """Its name; empty where only an id is known."""
    records: int
    size: int
    """In bytes as on the wire: compressed where the records are."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that a limiter has. `kind` is int, float, str or bool; an int is taken for a float too."""

    name: str
    kind: type[int] | type[float] | type[str] | type[bool]
    doc: str
    default: int | float | str | bool | None = None
    least: float | None = None
    """The least number that is allowed."""


class RateLimiter(Protocol):
    """Says how long a client is to pause.

    There is one object for each client and each `[[limits.client]]` that names it. It is made without arguments. The
    calls come in this order: `config`, `configure`, `start`, any number of `accumulate` and `throttle_time`, `close`.
    None of them may block: they run on the data path.
    """

    def config(self) -> Sequence[Option]:
        """Return the settings that it has. Their names are keys in `[[limits.client]]`."""

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take its settings: a value for each of its options, the default where none was set.

        It is called again, at any time after `start`, when they are changed.
        """

    def start(self, clock: Callable[[], float]) -> None:
        """Begin. `clock` gives seconds.

        It runs slower than real time where only a part of the limit is to be used here, so no limiter has to know that.
        """

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Account for one Fetch answer or one Produce request that has passed whole."""

    def throttle_time(self) -> float:
        """Return how many seconds of its clock the client is to pause from now on; 0 for not at all."""

    def close(self) -> None:
        """End: it is not asked again."""

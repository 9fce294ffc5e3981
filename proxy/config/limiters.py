# SPDX-License-Identifier: Apache-2.0
"""The limiters that an entry may name: the built-in ones, and those that reading a file has loaded (`plugins.py`).

Here they are only looked up. So whatever comes over HTTP or from another process has nothing imported or called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from weir.limits.built_in import BUILT_IN
from weir.limits.rate_limiter import Option, RateLimiter


class LimiterNotFound(Exception):
    """No limiter can be made of a name; the text is one sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What makes a limiter, and the options that it declares."""

    make: Callable[[], RateLimiter]
    options: Sequence[Option]


KNOWN: Final[dict[str, Loaded | str]] = {name: Loaded(make, list(make().config())) for name, make in BUILT_IN.items()}
"""By name. Of one that could not be loaded: why, as a LimiterNotFound tells it."""


def find_limiter(name: str) -> Loaded:
    """Return the limiter of this name; LimiterNotFound where none was loaded."""
    found = KNOWN.get(name)
    if found is None:
        known = ", ".join(sorted(name for name, one in list(KNOWN.items()) if isinstance(one, Loaded)))
        why = "a package has to announce it, or the file to name it, before it is used over HTTP"
        raise LimiterNotFound(f'"{name}" is not known here; known are {known}: {why}')
    if isinstance(found, str):
        raise LimiterNotFound(found)
    return found

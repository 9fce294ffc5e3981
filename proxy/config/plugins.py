# SPDX-License-Identifier: Apache-2.0
"""Loads limiters that are not built in: those that packages announce, and any class by its dotted name.

What it loads runs code that others wrote. So only who reads a file calls it: whoever can write that may run code here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

from weir.limits.built_in import BUILT_IN
from weir.limits.rate_limiter import RateLimiter
from weir.proxy.config.limiters import KNOWN, LimiterNotFound, Loaded

ENTRY_POINTS: Final = "weir.rate_limiters"
"""The group of entry points under which a package announces its limiters."""


def load_limiters(names: Iterable[str]) -> None:
    """Load those that packages announce, and those of `names`. What fails is tried again the next time.

    Whatever one raises, sys.exit() in it too, is kept for whoever names it: it harms neither the start nor the others.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    loads: dict[str, Callable[[], Any]] = {name: partial(_imported, name, points) for name in names}
    loads |= {name: point.load for name, point in points.items()}
    for name, load in loads.items():
        if not isinstance(KNOWN.get(name), Loaded):
            try:
                KNOWN[name] = _loaded(name, load)
            except LimiterNotFound as error:
                KNOWN[name] = str(error)


def _loaded(name: str, load: Callable[[], Any]) -> Loaded:
    with _not_found(f'"{name}" cannot be loaded'):
        found = load()
    if not callable(found):
        raise LimiterNotFound(f'"{name}" cannot be used: it is no class')
    make: Callable[[], RateLimiter] = found
    with _not_found(f'"{name}" cannot be used'):
        options = list(make().config())
        are_named = all(isinstance(option.name, str) for option in options)
    if not are_named:
        raise LimiterNotFound(f'"{name}" cannot be used: the name of an option is no text')
    return Loaded(make, options)


def _imported(name: str, announced: Iterable[str]) -> Any:
    module, dot, attribute = name.rpartition(".")
    if not dot:
        known = ", ".join(sorted({*BUILT_IN, *announced}))
        raise LimiterNotFound(f'"{name}" is not known here; known are {known}, and dotted names of classes')
    return getattr(importlib.import_module(module), attribute)


@contextmanager
def _not_found(why: str) -> Iterator[None]:
    """Within the block, turn whatever is raised into LimiterNotFound."""
    try:
        yield
    except (KeyboardInterrupt, LimiterNotFound):
        raise
    except BaseException as error:
        raise LimiterNotFound(f"{why}: {_shown(error)}") from error


def _shown(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__

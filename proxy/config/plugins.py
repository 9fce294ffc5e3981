"""Finds limiters by name: the built-in ones, those that packages announce, and any class by its dotted name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final

from weir.limits.built_in import BUILT_IN
from weir.limits.rate_limiter import Option, RateLimiter

ENTRY_POINTS: Final = "weir.rate_limiters"
"""The group of entry points under which a package announces its limiters."""


class LimiterNotFound(Exception):
    """No limiter can be made of a name; the text is one sentence without its full stop."""


def find_limiter(name: str) -> tuple[Callable[[], RateLimiter], list[Option]]:
    """Return what makes a limiter, and its options. Raises LimiterNotFound.

    `name` is that of a built-in limiter or of an entry point, or `package.module.Class`. Whatever that raises,
    sys.exit() in it too, means that it cannot be used: limits are also set while the sidecar runs.
    """
    found = BUILT_IN.get(name) or _announced(name) or _imported(name)
    with _not_found(f'"{name}" cannot be used'):
        options = list(found().config())
        names = [option.name for option in options]
    if not all(isinstance(one, str) for one in names):
        raise LimiterNotFound(f'"{name}" cannot be used: the name of an option is no text')
    return found, options


def _announced(name: str) -> Callable[[], RateLimiter] | None:
    for point in entry_points(group=ENTRY_POINTS, name=name):
        with _not_found(f'"{name}" cannot be loaded'):
            found: Callable[[], RateLimiter] = point.load()
            return found
    return None


def _imported(name: str) -> Callable[[], RateLimiter]:
    module, dot, attribute = name.rpartition(".")
    if not dot:
        known = sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})
        raise LimiterNotFound(f'"{name}" is not known here; known are {", ".join(known)}, and dotted names of classes')
    with _not_found(f'"{name}" cannot be loaded'):
        found: Any = getattr(importlib.import_module(module), attribute)
    if not callable(found):
        raise LimiterNotFound(f'"{name}" cannot be used: it is no class')
    made: Callable[[], RateLimiter] = found
    return made


@contextmanager
def _not_found(why: str) -> Iterator[None]:
    """Within the block, turn whatever is raised into LimiterNotFound."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise LimiterNotFound(f"{why}: {_shown(error)}") from error


def _shown(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def defaults(options: list[Option]) -> Mapping[str, object]:
    """Return the values of options that are not set."""
    return {option.name: option.default for option in options}

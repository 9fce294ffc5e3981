# SPDX-License-Identifier: Apache-2.0
"""Options that belong together, as one object: a dataclass with a field for each of them. And what their texts say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from weir.cli.errors import WRONG_USAGE, CommandError

_T = TypeVar("_T")


def option(name: str, metavar: str | None, help_: str, default: Any = None, **bounds: Any) -> Any:
    """Return a field that is an option. `metavar` None leaves that to typer. `bounds` are typer's `min` and `max`."""
    return field(default=default, metadata={"option": typer.Option(name, metavar=metavar, help=help_, **bounds)})


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command as typer takes it: each field of an option object is an option of its own, in its place.

    All parameters of `command` are given by name.
    """
    wanted = inspect.signature(command, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> int:
        return command(**{name: _taken(one.annotation, name, given) for name, one in wanted.items()})

    spread = [found for one in wanted.values() for found in _spread(one)]
    run.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]  # what typer reads
    return run


def _spread(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the options that a parameter stands for. An object may have others in it."""
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for one in fields(parameter.annotation):
        default = Parameter.empty if one.default is MISSING else one.default
        hint = Annotated[hints[one.name], one.metadata["option"]] if one.metadata else hints[one.name]
        yield from _spread(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))


def _taken(kind: Any, name: str, given: dict[str, Any]) -> Any:
    """Return what was given for a parameter: the option's value, or the object with the values of its fields."""
    if not is_dataclass(kind):
        return given[name]
    hints = get_type_hints(kind)
    make: Callable[..., Any] = kind  # type: ignore[assignment]  # it is the class, and none of its objects
    return make(**{one.name: _taken(hints[one.name], one.name, given) for one in fields(kind)})


def parsed(name: str, parse: Callable[[str], _T], text: str | None) -> _T | None:
    """Parse an option's text; None where it was not given. CommandError says what is wrong with it."""
    return None if text is None else parse_given(name, parse, text)


def parse_given(name: str, parse: Callable[[str], _T], text: str) -> _T:
    """Parse an option's text. CommandError says what is wrong with it."""
    try:
        return parse(text)
    except ValueError as error:
        raise CommandError(f"{name}: {str(error).removesuffix('.')}.", WRONG_USAGE) from error

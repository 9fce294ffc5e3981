# SPDX-License-Identifier: Apache-2.0
"""`[[limits.client]]`: what it may say, and the rules that it makes.

Beside the keys that every entry has, those of its limiters are allowed: each limiter declares its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from weir.limits.built_in import BUILT_IN
from weir.limits.rate_limiter import Option
from weir.limits.rules import INTERNAL_TOPICS, NamedLimiter, Rule
from weir.proxy.config.limiters import LimiterNotFound, find_limiter
from weir.proxy.config.reader import ConfigError, join, read_table, shown, struct_fields

MOST_RULES: Final = 100
"""The most entries: each request of a new client is compared with all of them."""

_ClientPattern = Annotated[
    str,
    Meta(min_length=1, max_length=255, description="a client id of 1 to 255 characters; it may have *, ? and [...]"),
]
_TopicPattern = Annotated[
    str, Meta(min_length=1, max_length=249, description="a topic's name; it may have *, ? or [...]")
]
_LimiterName = Annotated[str, Meta(min_length=1, max_length=200, description="the name of a limiter")]
_KINDS: Final = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


class ClientLimitTable(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `options` has what is set of its limiters' own keys."""

    client_id: _ClientPattern
    per: Literal["task", "connector"] = "task"
    rate_limiters: tuple[_LimiterName, ...] = field(default=tuple(BUILT_IN), name="rate.limiters")
    exempt_topics: tuple[_TopicPattern, ...] = field(default=INTERNAL_TOPICS, name="exempt.topics")
    priority: tuple[_ClientPattern, ...] = ()
    options: dict[str, Any] = {}

    @classmethod
    def read(cls, value: object, path: str) -> ClientLimitTable:
        """Read a plain table; ConfigError names what is wrong, also that a limiter was not or cannot be loaded."""
        if not isinstance(value, Mapping):
            raise ConfigError(path, f"must be a table, not {shown(value)}")
        known = {one.encode_name for one in struct_fields(cls)} - {"options"}
        named = read_table(cls, {key: one for key, one in value.items() if key in known}, path)
        declared = _options(named.rate_limiters, join(path, "rate.limiters"))
        plain = {key: one for key, one in value.items() if key not in known}
        for key, one in plain.items():
            if key not in declared:
                # a key that nobody declares: the reader says which one was meant
                read_table(_table_of([*known, *declared]), {key: one}, path)
            _check(declared[key], one, join(path, key))
        return msgspec.structs.replace(named, options=plain)

    def as_plain(self) -> dict[str, Any]:
        """Return it as in JSON, without what is as by default."""
        plain: dict[str, Any] = {"client_id": self.client_id}
        for one in struct_fields(ClientLimitTable):
            value = getattr(self, one.name)
            if one.name != "options" and not one.required and value != one.default:
                plain[one.encode_name] = list(value) if isinstance(value, tuple) else value
        return {**plain, **self.options}


def read_client_limits(value: object, path: str) -> tuple[ClientLimitTable, ...]:
    """Read the list of entries, as in the file or over HTTP."""
    if not isinstance(value, list):
        raise ConfigError(path, f"must be a list, not {shown(value)}")
    _check_count(value, path)  # before each is read
    tables = tuple(ClientLimitTable.read(one, f"{path}[{index}]") for index, one in enumerate(value))
    check_client_limits(tables, path)
    return tables


def check_client_limits(tables: Sequence[ClientLimitTable], path: str) -> None:
    """Check what one entry alone does not tell."""
    _check_count(tables, path)
    seen: set[tuple[str, str]] = set()
    for index, table in enumerate(tables):
        if (table.client_id, table.per) in seen:
            reason = f'"{table.client_id}" has another entry per {table.per} too: make one of both'
            raise ConfigError(f"{path}[{index}].client_id", reason)
        seen.add((table.client_id, table.per))
        if len(set(table.rate_limiters)) < len(table.rate_limiters):
            raise ConfigError(f"{path}[{index}].rate.limiters", "names a limiter twice")


def _check_count(entries: Sequence[object], path: str) -> None:
    if len(entries) > MOST_RULES:
        raise ConfigError(path, f"has {len(entries)} entries: at most {MOST_RULES} are allowed")


def rules_of(tables: Sequence[ClientLimitTable]) -> list[Rule]:
    """Return the rules that entries which were read make."""
    return [Rule(table.client_id, _limiters(table), table.per, table.exempt_topics, table.priority) for table in tables]


def _limiters(table: ClientLimitTable) -> tuple[NamedLimiter, ...]:
    found = []
    for name in table.rate_limiters:
        limiter = find_limiter(name)
        settings = {option.name: table.options.get(option.name, option.default) for option in limiter.options}
        found.append(NamedLimiter(name, limiter.make, settings, is_built_in=name in BUILT_IN))
    return tuple(found)


def _options(limiters: Sequence[str], path: str) -> dict[str, Option]:
    declared: dict[str, Option] = {}
    for name in limiters:
        try:
            declared |= {option.name: option for option in find_limiter(name).options}
        except LimiterNotFound as error:
            raise ConfigError(path, str(error)) from error
    return declared


def _check(option: Option, value: object, path: str) -> None:
    allowed: tuple[type, ...] = (int, float) if option.kind is float else (option.kind,)
    is_kind = isinstance(value, allowed) and (option.kind is bool or not isinstance(value, bool))
    least = option.least
    if is_kind and (least is None or (isinstance(value, (int, float)) and least <= value <= _MOST)):
        return
    bound = "" if least is None else f" from {least:g} to {_MOST:g}"
    raise ConfigError(path, f"must be {_KINDS.get(option.kind, 'a value')}{bound}: {option.doc}; not {shown(value)}")


_MOST: Final = 1e15


def _table_of(names: Sequence[str]) -> type[msgspec.Struct]:
    fields = [(f"field_{index}", Any, field(default=None, name=name)) for index, name in enumerate(names)]
    return msgspec.defstruct("AnyLimit", fields, kw_only=True)

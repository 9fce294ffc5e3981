# SPDX-License-Identifier: Apache-2.0
"""Reads plain tables (TOML or JSON) into msgspec structs; every error names the path of the field that is wrong.

msgspec converts single values. The tables are walked here, and not by `msgspec.convert` with its hooks: what that
raises tells a type and a path, but not the value, the sentence of a field's description, or the key that was meant.
"""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

Table = TypeVar("Table", bound=msgspec.Struct)

MOST_ITEMS = 10_000
"""The most items of a list: each is read at once, and names something that is then compared with what passes."""

_SHOWN_VALUE_LENGTH = 60
_SHOWN_KEY_LENGTH = 250  # a topic's name has at most 249 characters
_MOST_IN_WORDS = 500
_LEAST_SHARED_PART = 3

struct_fields = functools.cache(msgspec.structs.fields)
"""The fields of a struct type. Cached, as msgspec evaluates the annotations at each call."""


class ConfigError(Exception):
    """A setting cannot be used. `field` is its path, `reason` a sentence, `file` the file that it is in, if any."""

    def __init__(self, field: str, reason: str, file: str | None = None) -> None:
        super().__init__(field, reason, file)
        self.field = field
        self.reason = reason
        self.file = file

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.reason) if part)

    def sentence(self) -> str:
        """Return the whole sentence, with its full stop unless it ends with a question."""
        text = str(self)
        return text if text.endswith("?") else f"{text}."


def read_table(table_type: type[Table], value: object, path: str = "") -> Table:
    """Read one table; ConfigError names the first wrong field by its path below `path`.

    A field's type may be a struct, one with a class method `read(value, path)`, `tuple[T, ...]`, `dict[str, T]`,
    `T | None` (absent), a type with a class method `parse(text)` that raises ValueError with a sentence, or any type
    that msgspec converts. The latter's `Meta(description=...)` completes the sentence "must be ...".
    """
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"must be a table, not {shown(value)}")
    fields = {field.encode_name: field for field in struct_fields(table_type)}
    for key in value:
        if key not in fields:
            raise _unknown_key(key, value[key], fields, path)
    known: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            known[field.name] = read(field.type, value[name], join(path, name))
        elif field.required:
            raise ConfigError(join(path, name), "is missing")
    return table_type(**known)


def join(path: str, key: str) -> str:
    """Return the path of `key` in the table at `path`; one line, whatever the key is."""
    shown_key = key if len(key) <= _SHOWN_KEY_LENGTH else f"{key[:_SHOWN_KEY_LENGTH]}..."
    shown_key = shown_key if shown_key.isprintable() else repr(shown_key)
    return f"{path}.{shown_key}" if path else shown_key


def shown(value: object) -> str:
    """Show a value in a sentence: as in TOML, cut to one line's length."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    try:
        text = repr(value)
    except ValueError:  # raised for more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_VALUE_LENGTH else f"{text[:_SHOWN_VALUE_LENGTH]}..."


def in_words(value: object) -> str:
    """Show a value that was read in the log of changes: a text as it is, all else in JSON, cut to _MOST_IN_WORDS."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_IN_WORDS else f"{text[:_MOST_IN_WORDS]}..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like `word`, by spelling or by a shared part; None where none is like it."""
    candidates = list(known)
    close = difflib.get_close_matches(word.casefold(), candidates, n=1, cutoff=0.5)
    if close:
        return close[0]
    part = word.casefold()
    if len(part) < _LEAST_SHARED_PART:
        return None
    return next((name for name in candidates if part in name or name in part), None)


def read(expected: Any, value: object, path: str) -> Any:
    origin = get_origin(expected)
    if origin is Union or origin is types.UnionType:
        expected = next(arm for arm in get_args(expected) if arm is not types.NoneType)
        origin = get_origin(expected)
    if origin is tuple:
        return _read_list(get_args(expected)[0], value, path)
    if origin is dict:
        return _read_names(get_args(expected), value, path)
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return expected.read(value, path) if hasattr(expected, "read") else read_table(expected, value, path)
    if hasattr(expected, "parse"):
        return _parse(expected, value, path)
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError:
        raise ConfigError(path, f"must be {_described(expected)}, not {shown(value)}") from None


def _read_list(item: Any, value: object, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) and hasattr(item, "parse"):
        return tuple(_parse(item, part.strip(), path) for part in value.split(","))  # Kafka's own way to write lists
    if not isinstance(value, list):
        raise ConfigError(path, f"must be a list, not {shown(value)}")
    if len(value) > MOST_ITEMS:
        raise ConfigError(path, f"has {len(value)} items: at most {MOST_ITEMS} are allowed")
    return tuple(read(item, element, f"{path}[{index}]") for index, element in enumerate(value))


def _read_names(key_and_item: tuple[Any, ...], value: object, path: str) -> dict[str, Any]:
    key_type, item = key_and_item
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"must be a table, not {shown(value)}")
    names = {}
    for name, element in value.items():
        try:
            msgspec.convert(name, key_type)
        except msgspec.ValidationError:
            raise ConfigError(join(path, name), f"must be {_described(key_type)}") from None
        names[name] = read(item, element, join(path, name))
    return names


def _parse(parsed_type: Any, value: object, path: str) -> Any:
    if not isinstance(value, str):
        raise ConfigError(path, f"must be a string, not {shown(value)}")
    try:
        return parsed_type.parse(value)
    except ValueError as error:
        text = str(error).removesuffix(".")
        if len(text) > _MOST_IN_WORDS:  # it tells the value first, and then what is wrong with it
            text = f"{text[:_SHOWN_VALUE_LENGTH]}...{text[-_SHOWN_KEY_LENGTH:]}"
        raise ConfigError(path, text) from error


def _described(expected: Any) -> str:
    if get_origin(expected) is Annotated:
        for meta in get_args(expected)[1:]:
            if isinstance(meta, msgspec.Meta) and meta.description:
                return meta.description
    if arms := get_args(expected):
        return " or ".join(f'"{arm}"' for arm in arms)  # a Literal
    return {bool: "true or false", str: "a string"}.get(expected, str(expected))


def _unknown_key(key: object, value: object, known: Iterable[str], path: str) -> ConfigError:
    word = str(key)[: _SHOWN_KEY_LENGTH + 1]  # a longer one resembles none, and is not shown whole
    # An unquoted key with dots arrives as nested tables: put its parts together again.
    dotted = word
    while isinstance(value, Mapping) and value:
        if path and all(inner in known for inner in value):
            name = f"{path.rpartition('.')[2]}.{dotted}"
            return ConfigError(join(path, dotted), f'a name with dots must be quoted: "{name}"')
        if len(value) > 1 or len(dotted) > _SHOWN_KEY_LENGTH:
            break
        inner, value = next(iter(value.items()))
        dotted = f"{dotted}.{inner}"
    if dotted in known:
        return ConfigError(join(path, dotted), f'a key with dots must be quoted: "{dotted}"')
    guess = nearest(dotted, known) or nearest(word, known)
    hint = f'; did you mean "{guess}"?' if guess else f"; known here: {', '.join(sorted(known))}"
    return ConfigError(join(path, word), f"is not a known key{hint}")

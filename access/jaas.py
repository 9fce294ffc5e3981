# SPDX-License-Identifier: Apache-2.0
"""The value of `sasl.jaas.config`, read as kafka-clients read it (JaasConfig.java, with java.io.StreamTokenizer)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
      (?P<blank>[\x00-\x20]+)
    | (?P<comment>/\*.*?(?:\*/|\Z) | /[^\r\n]*)
    | (?P<number>-?(?=[.0-9])[0-9]*\.?[0-9]*)
    | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\u00a0-\U0010ffff-]*)
    | (?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?:(?P=quote)|(?=[\r\n])|\Z)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")


class _Token(NamedTuple):
    """`text` is that of a word or of what was quoted; None for a number or a sign, which is `sign`."""

    text: str | None
    sign: str = ""


def login_options(text: str) -> dict[str, str]:
    """Return the options of the one login module. ValueError says what is wrong, and shows nothing of the text."""
    tokens = _tokens(text)
    found = []
    while next(tokens, None) is not None:
        found.append(_entry(tokens))
    if len(found) != 1:
        raise ValueError(f"has to name one login module, and names {len(found)}")
    return found[0]


def _entry(tokens: Iterator[_Token]) -> dict[str, str]:
    """Read what follows the name of a login module."""
    flag = next(tokens, _Token(None))
    if (flag.text or "").upper() not in _FLAGS:
        raise ValueError("has to have `required` after the name of the login module")
    options: dict[str, str] = {}
    for key in tokens:
        if key.sign == ";":
            return options
        is_given, value = next(tokens, None), next(tokens, _Token(None))
        if is_given != _Token(None, "=") or value.text is None:
            raise ValueError(
                'has an option whose value Kafka would not take: write name="value", and \\" for a quote in it'
            )
        options[key.text or ""] = value.text
    raise ValueError("has to end with a semicolon")


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        match match.lastgroup:
            case "word":
                yield _Token(match["word"])
            case "text":
                yield _Token(_ESCAPE.sub(_char, match["text"]))
            case "number" | "other":
                yield _Token(None, match[0])


def _char(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)

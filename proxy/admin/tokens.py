# SPDX-License-Identifier: Apache-2.0
"""Files with tokens: a token alone, or lines of `name: token`, so that the log can name who made a change."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from weir.proxy.config.reader import ConfigError

LEAST_BYTES: Final = 16
"""A shorter token can be guessed."""

_MOST_BYTES: Final = 65_536
_REFRESH_SECONDS: Final = 1.0
_LINE: Final = re.compile(rb"(?:([A-Za-z0-9._@-]{1,64}):[ \t]+)?([!-~]{%d,4096})" % LEAST_BYTES)

_Version = tuple[int, int, int, int]


class Token(NamedTuple):
    """A token, and whose it is."""

    owner: str
    secret: bytes


def tokens_in(content: bytes) -> list[Token]:
    """Return the tokens of a file; none where a line is not one. A token alone is that of `token`."""
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    found = [_LINE.fullmatch(line) for line in lines]
    tokens = [Token((match[1] or b"token").decode(), match[2]) for match in found if match is not None]
    are_named = len(lines) == 1 or all(match is not None and match[1] for match in found)
    return tokens if len(tokens) == len(lines) and are_named else []


class TokenFile:
    """The tokens of a file that may be replaced at any time: it is read again within a second.

    While the file is missing or has a wrong line, no token fits: nobody gets in by a mistake.
    """

    def __init__(self, path: str, field: str, clock: Callable[[], float]) -> None:
        """Read the file; ConfigError says what is wrong with it. `clock` gives monotonic seconds."""
        self._path = path
        self._clock = clock
        self._refreshed_at = clock()
        self._version: _Version | None = None
        self._tokens: list[Token] = []
        try:
            self._read()
        except OSError as error:
            raise ConfigError(field, f"{path} cannot be read: {error.strerror}") from error
        if not self._tokens:
            reason = f"holds no token: write at least {LEAST_BYTES} characters without a space, or lines of name: token"
            raise ConfigError(field, f"{path} {reason}")

    def current(self) -> list[Token]:
        """Return the tokens; the first is the one by which sidecars open each other."""
        now = self._clock()
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            try:
                self._read()
            except OSError:
                self._tokens, self._version = [], None
        return self._tokens

    def owner_of(self, given: bytes) -> str | None:
        """Return whose token somebody gave; None: nobody's. What is wrong in it does not show in the time taken."""
        owners = [token.owner for token in self.current() if hmac.compare_digest(token.secret, given)]
        return owners[0] if owners else None

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            version = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            if version != self._version:
                content = file.read(_MOST_BYTES + 1)
                self._version = version
                self._tokens = tokens_in(content) if len(content) <= _MOST_BYTES else []

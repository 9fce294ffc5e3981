"""The bearer tokens of the admin HTTP: one opens what is only read, the other one also what changes something."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Final

from weir.proxy.config.reader import ConfigError

LEAST_BYTES: Final = 16
"""A shorter token can be guessed."""

_MOST_BYTES: Final = 4096
_REFRESH_SECONDS: Final = 1.0

_Version = tuple[int, int, int, int]


class TokenFile:
    """A token in a file that may be replaced at any time: it is read again within a second.

    While the file is missing or holds no token, none fits: nobody gets in by a mistake.
    """

    def __init__(self, path: str, field: str, clock: Callable[[], float]) -> None:
        """Read the file; ConfigError says what is wrong with it. `clock` gives monotonic seconds."""
        self._path = path
        self._clock = clock
        self._refreshed_at = clock()
        self._version: _Version | None = None
        try:
            self._token: bytes | None = self._read()
        except OSError as error:
            raise ConfigError(field, f"{path} cannot be read: {error.strerror}") from error
        if self._token is None:
            raise ConfigError(field, f"{path} holds no token: write at least {LEAST_BYTES} characters without a space")

    def current(self) -> str | None:
        """Return the token to send to another sidecar; None while there is none."""
        self._refresh()
        return None if self._token is None else self._token.decode("ascii")

    def fits(self, given: bytes) -> bool:
        """Whether somebody gave this token. What is wrong in `given` does not show in the time that this takes."""
        self._refresh()
        return self._token is not None and hmac.compare_digest(self._token, given)

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._refreshed_at < _REFRESH_SECONDS:
            return
        self._refreshed_at = now
        try:
            self._token = self._read()
        except OSError:
            self._token, self._version = None, None

    def _read(self) -> bytes | None:
        with open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            version = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            if version == self._version:
                return self._token
            self._version = version
            token = file.read(_MOST_BYTES + 1).strip()
        printable = token.isascii() and token.decode("ascii").isprintable() and b" " not in token
        return token if LEAST_BYTES <= len(token) <= _MOST_BYTES and printable else None

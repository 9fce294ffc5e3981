"""Who may ask the admin HTTP for what.

- Health and readiness are for everybody: what starts and stops the sidecar asks for them.
- With tokens, reading takes either token and a change takes the one for changes. They come as `Authorization: Bearer`.
  A browser may give one as the password of HTTP's Basic scheme, to read only: whatever page asks sends it along.
- With TLS a certificate does what a token does, by the names in it.
- On loopback only the names of this machine are answered. A page on the web may have its own name lead to loopback, and
  would then read and change everything through its visitor's browser.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from aiohttp import web

from weir.proxy.config.address import numeric_address
from weir.proxy.config.keys import AdminKeys, owner_of
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Admin

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


MOST_FAILURES: Final = 10
"""From one address, in `FAILURE_SECONDS`: after so many wrong tokens none is looked at, right or wrong."""

FAILURE_SECONDS: Final = 60.0
_MOST_ADDRESSES: Final = 1000

_FOR_EVERYBODY: Final = frozenset({"/healthz", "/readyz"})
_READING: Final = frozenset({"GET", "HEAD"})
_SCHEMES: Final = ("Basic", "Bearer")


class Access:
    """The rule of one admin server. ConfigError where a token's file is wrong.

    `clock` gives monotonic seconds. `strict_tls` is `[tls]`'s `strict`.
    """

    def __init__(self, admin: Admin, clock: Callable[[], float], *, strict_tls: bool = False) -> None:
        self._clock = clock
        self.keys = None if admin.tls is None else AdminKeys(admin.tls, strict=strict_tls)
        """Those of its TLS; None: it has none."""
        self._read = _token(admin.read_token_file, "admin.read_token_file", clock)
        self._write = _token(admin.write_token_file, "admin.write_token_file", clock)
        self._names = frozenset(name.casefold() for name in admin.names) | {"localhost"}
        self._is_on_loopback = admin.listen.is_loopback
        self.is_open = admin.without_tokens and not self._is_on_loopback
        """Whether others than this machine may change everything without a token."""
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self.refused = 0
        """How many requests were refused."""

    @property
    def write_token(self) -> str | None:
        """The token to give to another sidecar of the same cluster, where it may be asked for more than it shows."""
        return None if self._write is None else self._write.current()

    @property
    def read_token(self) -> str | None:
        """The token to give to another sidecar of the same cluster, to read what it shows."""
        return self.write_token if self._read is None else self._read.current()

    def check(self, request: web.Request) -> str:
        """Return who asks: a user's name, `token` or `anonymous`. A web.HTTPException refuses the request."""
        try:
            self._check_host(request)
            return self._check_token(request)
        except web.HTTPException:
            self.refused += 1
            raise

    def _check_host(self, request: web.Request) -> None:
        if not self._is_on_loopback or request.path in _FOR_EVERYBODY:
            return
        name = _without_port(request.headers.get("Host", "localhost")).casefold()
        if name not in self._names and numeric_address(name) is None:
            raise web.HTTPMisdirectedRequest(
                reason="this name is not one of the sidecar's: use localhost, or set admin.names"
            )

    def _check_token(self, request: web.Request) -> str:
        is_reading = request.method in _READING
        if request.path in _FOR_EVERYBODY:
            return "anonymous"
        if self.keys is not None:
            if (owner := self._owner(request, self.keys, is_reading)) is not None:
                return owner
        elif self._read is None and (self._write is None or is_reading):
            return "anonymous"
        remote = request.remote or ""
        failures = self._recent_failures(remote)
        if len(failures) >= MOST_FAILURES:
            raise web.HTTPTooManyRequests(
                reason="too many wrong tokens came from this address: try again in a minute",
                headers={"Retry-After": str(int(FAILURE_SECONDS))},
            )
        user, token, is_basic = _given(request.headers.get("Authorization", ""))
        if token:
            if self._write is not None and self._write.fits(token) and not (is_basic and not is_reading):
                return user
            if self._read is not None and self._read.fits(token):
                if is_reading:
                    return user
                raise web.HTTPForbidden(reason="this token only reads: a change takes the one of write_token_file")
            self._note_failure(remote, failures)
        if self._read is None and self._write is None:
            raise web.HTTPForbidden(
                reason="show a certificate with a name that admin.tls has in read_names or write_names"
            )
        file = "read_token_file or write_token_file" if is_reading else "write_token_file"
        refused = web.HTTPUnauthorized(reason=f"give the token of admin.{file}, as Authorization: Bearer")
        for scheme in _SCHEMES:  # a line each: Chromium asks for no password where one line has two
            refused.headers.add("WWW-Authenticate", f'{scheme} realm="weir"')
        raise refused

    def _owner(self, request: web.Request, keys: AdminKeys, is_reading: bool) -> str | None:
        """Return whose certificate opens what is asked for; None where there is none that opens anything."""
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        right = keys.right_of(certificate)
        if right is None:
            return None
        if not is_reading and right == "read":
            raise web.HTTPForbidden(reason="this certificate only reads: its names are not in admin.tls write_names")
        if not is_reading and "Origin" in request.headers:
            # a browser shows its user's certificate also when another site's page asks
            raise web.HTTPForbidden(
                reason="a browser's certificate only reads: a change is made by weir or by a program"
            )
        return owner_of(certificate)

    def _recent_failures(self, remote: str) -> list[float]:
        before = self._clock() - FAILURE_SECONDS
        return [at for at in self._failures.get(remote, ()) if at > before]

    def _note_failure(self, remote: str, failures: list[float]) -> None:
        self._failures[remote] = [*failures, self._clock()]
        self._failures.move_to_end(remote)
        if len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)


def _token(path: str | None, field: str, clock: Callable[[], float]) -> TokenFile | None:
    return None if path is None else TokenFile(path, field, clock)


def _given(header: str) -> tuple[str, bytes, bool]:
    """Return who the header says asks, the token (empty: none), and whether it is a password of the Basic scheme."""
    scheme, _, value = header.strip().partition(" ")
    value = value.strip()
    if scheme.casefold() == "bearer":
        return "token", value.encode("utf-8", "surrogateescape"), False
    if scheme.casefold() == "basic":
        try:
            user, _, password = base64.b64decode(value, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return "", b"", True
        return user.decode("utf-8", "replace") or "token", password, True
    return "", b"", False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, _ = host.rpartition(":")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return name if colon else host
    return host

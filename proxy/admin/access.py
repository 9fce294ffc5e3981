# SPDX-License-Identifier: Apache-2.0
"""Who may ask the admin HTTP for what.

- Health and readiness are for everybody: what starts and stops the sidecar asks for them.
- With tokens, reading takes either token and a change takes the one for changes. They come as `Authorization: Bearer`.
  A browser may give one as the password of HTTP's Basic scheme.
- With TLS a certificate does what a token does, by the names in it.
- Other sidecars sign what they ask (`signatures.py`).
- A browser only reads: whatever page is open in it, it sends its user's password, certificate or address along. So a
  change has no `Origin`, and a content type that a page may not send unasked.
- Where neither token nor certificate is asked for, only known names are answered. A page on the web may have its own
  name lead here, and would then read everything through its visitor's browser.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from aiohttp import web

from weir.proxy.admin.signatures import OPENED, SCHEME, Signature, signed
from weir.proxy.admin.tokens import TokenFile
from weir.proxy.config.address import numeric_address
from weir.proxy.config.keys import AdminKeys, owner_of
from weir.proxy.config.tables import Admin

_FOR_EVERYBODY: Final = frozenset({"/healthz", "/readyz"})
_READING: Final = frozenset({"GET", "HEAD"})
_WITHOUT_BODY: Final = frozenset({"DELETE"})
"""Changes that need no content type: a page may not send them unasked, whatever type they have."""

_SCHEMES: Final = ("Basic", "Bearer")
_JSON: Final = "application/json"
_OF_OLD_SIDECARS: Final = "application/octet-stream"  # up to 0.2 they send shares as this, which no page can

Why = Literal["host", "origin", "content_type", "no_token", "wrong_token", "wrong_signature", "reads_only"]
"""Why a request is refused: the metric's label."""


class Who(NamedTuple):
    """Who asks: `name` for the log, and what was signed where another sidecar does."""

    name: str
    signature: Signature | None = None


class Refused(Exception):
    """A request may not be. `answer` says so."""

    def __init__(self, why: Why, answer: web.HTTPException) -> None:
        super().__init__(why)
        self.why = why
        self.answer = answer


class Access:
    """The rule of one admin server. ConfigError where a token's file is wrong.

    `clock` gives monotonic seconds, `now` Unix seconds. `strict_tls` is `[tls]`'s `strict`. `hosts` tells the hosts of
    the cluster's brokers, by which their sidecars ask each other.
    """

    def __init__(
        self,
        admin: Admin,
        clock: Callable[[], float],
        *,
        broker_id: int = -1,
        strict_tls: bool = False,
        hosts: Callable[[], Mapping[int, str]] = dict,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.keys = None if admin.tls is None else AdminKeys(admin.tls, strict=strict_tls)
        """Those of its TLS; None: it has none."""
        self._broker_id = broker_id
        self._now = now
        self._hosts = hosts
        self._read = _tokens(admin.read_token_file, "admin.read_token_file", clock)
        self._write = _tokens(admin.write_token_file, "admin.write_token_file", clock)
        self._names = frozenset(name.casefold() for name in admin.names) | {"localhost"}
        self._is_on_loopback = admin.listen.is_loopback
        self.is_open = admin.without_tokens and not self._is_on_loopback
        """Whether others than this machine may change everything without a token."""
        self.refused: Counter[str] = Counter(dict.fromkeys(get_args(Why), 0))
        """How many requests were refused, and why."""

    def sign(self, method: str, path: str, body: bytes, to: int | None) -> dict[str, str]:
        """Return the headers that open another sidecar of the same cluster (a Sign)."""
        tokens = self._tokens_for(method in _READING)
        return signed(tokens[0], method, path, body, to, self._now()) if tokens else {}

    def check(self, request: web.Request) -> Who:
        """Return who asks. Refused says why it may not be; nothing of the request's body is read."""
        try:
            if request.path not in _FOR_EVERYBODY:
                self._check_host(request)
            if request.method not in _READING:
                _check_is_no_page(request)
            return self._user(request)
        except Refused as refused:
            self.refused[refused.why] += 1
            raise

    def _check_host(self, request: web.Request) -> None:
        if not (self._is_on_loopback or self.is_open):
            return
        name = _without_port(request.headers.get("Host", "localhost")).casefold()
        if name in self._names or numeric_address(name) is not None:
            return
        # a name without a dot is one of this network, and nobody on the web can have it
        if self.is_open and ("." not in name or name in {host.casefold() for host in self._hosts().values()}):
            return
        reason = "this name is not one of the sidecar's: use localhost, or set admin.names"
        raise Refused("host", web.HTTPMisdirectedRequest(reason=reason))

    def _user(self, request: web.Request) -> Who:
        is_reading = request.method in _READING
        if request.path in _FOR_EVERYBODY:
            return Who("anonymous")
        if self.keys is not None:
            if (owner := _owner(request, self.keys, is_reading)) is not None:
                return Who(owner)
        elif self._read is None and (self._write is None or is_reading):
            return Who("anonymous")
        scheme, _, given = request.headers.get("Authorization", "").strip().partition(" ")
        if scheme.casefold() == SCHEME.casefold() and (self._read is not None or self._write is not None):
            return self._other_sidecar(request, Signature.parse(given.strip()), is_reading)
        token, is_basic = _given(scheme.casefold(), given.strip())
        opening = self._write if token and (is_reading or not is_basic) else None
        if opening is not None and (owner := opening.owner_of(token)) is not None:
            return Who(owner)
        if token and self._read is not None and (owner := self._read.owner_of(token)) is not None:
            if is_reading:
                return Who(owner)
            reason = "this token only reads: a change takes the one of write_token_file"
            raise Refused("reads_only", web.HTTPForbidden(reason=reason))
        if self._read is None and self._write is None:
            reason = "show a certificate with a name that admin.tls has in read_names or write_names"
            raise Refused("no_token", web.HTTPForbidden(reason=reason))
        file = "read_token_file or write_token_file" if is_reading else "write_token_file"
        refused = web.HTTPUnauthorized(reason=f"give the token of admin.{file}, as Authorization: Bearer")
        for name in _SCHEMES:  # a line each: Chromium asks for no password where one line has two
            refused.headers.add("WWW-Authenticate", f'{name} realm="weir"')
        raise Refused("wrong_token" if token else "no_token", refused)

    def _other_sidecar(self, request: web.Request, signature: Signature | None, is_reading: bool) -> Who:
        asked, secrets = (request.method, request.path), self._tokens_for(is_reading)
        is_signed = signature is not None and signature.fits(secrets, *asked, self._broker_id, self._now())
        if is_signed and asked in OPENED:
            return Who("sidecar", signature)
        reason = "not signed with this sidecar's token, for it and now, or not for what sidecars ask each other"
        raise Refused("wrong_signature", web.HTTPUnauthorized(reason=reason))

    def _tokens_for(self, is_reading: bool) -> list[bytes]:
        """Return the tokens that open it, that for reading first."""
        files = (self._read, self._write) if is_reading else (self._write,)
        return [token.secret for file in files if file is not None for token in file.current()]


def _check_is_no_page(request: web.Request) -> None:
    if "Origin" in request.headers:
        reason = "a browser only reads: a change is made by weir or by a program, without Origin"
        raise Refused("origin", web.HTTPForbidden(reason=reason))
    if request.method in _WITHOUT_BODY:
        return
    # a page may send text, forms, or no type, without being asked first whether it may
    found = request.headers.get("Content-Type", "").partition(";")[0].strip().casefold()
    if found != _JSON and (found, request.path) != (_OF_OLD_SIDECARS, "/v1/shares"):
        raise Refused("content_type", web.HTTPUnsupportedMediaType(reason=f"send Content-Type: {_JSON}"))


def _owner(request: web.Request, keys: AdminKeys, is_reading: bool) -> str | None:
    """Return whose certificate opens what is asked for; None where there is none that opens anything."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    right = keys.right_of(certificate)
    if right is None:
        return None
    if not is_reading and right == "read":
        reason = "this certificate only reads: its names are not in admin.tls write_names"
        raise Refused("reads_only", web.HTTPForbidden(reason=reason))
    return owner_of(certificate)


def _tokens(path: str | None, field: str, clock: Callable[[], float]) -> TokenFile | None:
    return None if path is None else TokenFile(path, field, clock)


def _given(scheme: str, value: str) -> tuple[bytes, bool]:
    """Return the token (empty: none), and whether it is a password of the Basic scheme."""
    if scheme == "bearer":
        return value.encode("utf-8", "surrogateescape"), False
    if scheme == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2], True
        except (binascii.Error, ValueError):
            return b"", True
    return b"", False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, _ = host.rpartition(":")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return name if colon else host
    return host

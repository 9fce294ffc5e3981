# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: how many bytes of them are kept at a time, and what is JSON. Each is judged before it costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import web

from weir.proxy.admin.signatures import Signature
from weir.proxy.config.reader import ConfigError, join

MAX_BODY_BYTES: Final = 2 << 20
"""A table of 20,000 partitions with four replicas each, whose ids have four digits, takes about 1.1 MB."""

MOST_BYTES: Final = 8 << 20
"""Of all bodies that are being received or put in force. Beyond it further ones are refused, those of `SMALL_BYTES`
not: else whoever sends slowly could keep an operator from a change."""

SMALL_BYTES: Final = 16 << 10
RECEIVE_SECONDS: Final = 10.0

MOST_CONTAINERS: Final = 100_000
"""Of objects and lists in a body. A topic's takes more than 50 bytes, so 2 MiB of them have fewer."""


class Bodies:
    """The bodies that one admin server keeps."""

    def __init__(self) -> None:
        self._kept = 0

    @asynccontextmanager
    async def received(self, request: web.Request, signature: Signature | None) -> AsyncIterator[bytes]:
        """Receive a body, and count it until the block ends. A web.HTTPException or ConfigError refuses it.

        Where there is a signature, the body has to be the one that was signed.
        """
        # A body of kilobytes may unpack to gigabytes, and its size would be known only after the work.
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType(reason="send the body uncompressed, without Content-Encoding")
        told = request.content_length
        size = MAX_BODY_BYTES if told is None and request.can_read_body else told or 0
        if size > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size)
        if size > SMALL_BYTES and self._kept + size > MOST_BYTES:
            reason = "other large bodies are being received or put in force: try again"
            raise web.HTTPServiceUnavailable(reason=reason, headers={"Retry-After": "1"})
        self._kept += size
        try:
            body = await _read(request)
            if signature is not None and not signature.covers(body):
                raise web.HTTPForbidden(reason="this is not the body that was signed")
            yield body
        finally:
            self._kept -= size


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(RECEIVE_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not come within {RECEIVE_SECONDS:g} s") from None
    except web.RequestPayloadError as error:
        raise ConfigError("body", f"cannot be read: {error}") from error


def decoded(body: bytes) -> object:
    """Return the value of a JSON body; ConfigError where it is none, or an object in it has a key twice."""
    if body.count(b"{") + body.count(b"[") > MOST_CONTAINERS:
        raise ConfigError("body", f"has more than {MOST_CONTAINERS} objects and lists")
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_without_doubles)  # msgspec takes the last of two
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigError("body", f"is not JSON: {error}") from error
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a key twice: one of its values would be dropped without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ConfigError(join("", name), "is there twice")
            seen.add(name)
    return found

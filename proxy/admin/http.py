"""The admin HTTP server: health, readiness, metrics, the throttle, the status, and a page that shows them to people.

By default it listens on loopback and asks for no token; `weir.proxy.admin.access` says who may ask for what.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from aiohttp import web

from weir.proxy.admin.access import Access
from weir.proxy.admin.exposition import Scrapes, content_type
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.history import History
from weir.proxy.admin.page.write import headers, page
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError, shown
from weir.proxy.layers import HTTP
from weir.proxy.limits.layers import LimitLayers, limits_in_words
from weir.proxy.log import EventLog
from weir.proxy.throttle.table import LayeredThrottle, changes_between

MAX_BODY_BYTES = 2 << 20
"""A table of 20,000 partitions with four replicas each, whose ids have four digits, takes about 1.1 MB."""

# connections accepted at a time: without descriptors, asyncio logs a line for each that it fails to accept
_BACKLOG = 8

_HANDSHAKE_SECONDS = 10.0

MAX_CONNECTIONS = 100
"""With more connections the oldest are closed: the brokers' connections need the descriptors."""

_USER: web.RequestKey[str] = web.RequestKey("user", str)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Administered(Protocol):
    """What the admin server shows and changes; Shown is one."""

    throttle: LayeredThrottle
    client_limits: LimitLayers
    history: History
    fleet: Fleet

    async def not_ready(self) -> list[str]:
        """Return the reasons why this sidecar is not ready, one sentence each; empty when it is ready."""

    async def status(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""

    def metrics(self, accept: str) -> Iterator[bytes]:
        """Yield the metrics in slices, between which the event loop is to run."""

    def pause_capture(self, asked: object | None) -> dict[str, Any]:
        """Step out of the path for as long as `asked` says, or back in (None); ConfigError."""

    def answer_about_shares(self, body: bytes) -> msgspec.Struct:
        """Answer another sidecar with which a rate is shared; ConfigError."""


class AdminServer:
    """Serves the admin HTTP API on one address until it is stopped."""

    def __init__(self, administered: Administered, log: EventLog, access: Access) -> None:
        self._administered = administered
        self._log = log
        self._access = access
        self._scrapes = Scrapes(administered.metrics)
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json, self._checked])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics, allow_head=False),
                web.get("/v1/throttle", self._show_throttle),
                web.put("/v1/throttle", self._change_throttle),
                web.patch("/v1/throttle", self._change_throttle),
                web.delete("/v1/throttle", self._change_throttle),
                web.get("/v1/limits", self._show_limits),
                web.put("/v1/limits", self._change_limits),
                web.patch("/v1/limits", self._change_limits),
                web.delete("/v1/limits", self._change_limits),
                web.get("/v1/status", self._status),
                web.get("/v1/history", self._history),
                web.get("/v1/fleet", self._fleet),
                web.post("/v1/shares", self._shares),
                web.post("/v1/capture/pause", self._pause_capture),
                web.post("/v1/capture/resume", self._pause_capture),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._listening: asyncio.Server | None = None

    async def start(self, address: Address, listening: socket.socket | None = None) -> Address:
        """Listen on `address`, with a socket that does so already where there is one.

        Returns the bound address, in which port 0 became a real one; OSError when it is not available.
        """
        await self.prepare()
        loop, keys = asyncio.get_running_loop(), self._access.keys
        server: Any = self._runner.server
        where: Any = {"host": address.host, "port": address.port} if listening is None else {"sock": listening}
        self._listening = await loop.create_server(
            lambda: _new_connection(server),
            **where,
            backlog=_BACKLOG,
            ssl=None if keys is None else keys.server_context(),
            ssl_handshake_timeout=None if keys is None else _HANDSHAKE_SECONDS,
        )
        host, port = self._listening.sockets[0].getsockname()[:2]
        bound = Address(host, port)
        self._log.info("listening", role="admin", listen=bound)
        if self._access.is_open:
            effect = "it has no authentication: whoever reaches it can change the throttle"
            self._log.warning("admin_not_on_loopback", listen=bound, effect=effect)
        return bound

    async def prepare(self) -> None:
        """Set up what needs no address, ahead of `start`."""
        if self._runner.server is None:
            await self._runner.setup()

    @property
    def descriptors(self) -> list[int]:
        """Those of the sockets that listen."""
        return [] if self._listening is None else [one.fileno() for one in self._listening.sockets]

    def accept_no_more(self) -> None:
        """Close the listener. Connections go on."""
        if self._listening is not None:
            self._listening.close()

    async def stop(self) -> None:
        """Close the listener. Requests that are being answered have a second to end."""
        self.accept_no_more()
        await self._runner.cleanup()

    @web.middleware
    async def _checked(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        request[_USER] = self._access.check(request)
        return await handler(request)

    def _changed(self, what: str, request: web.Request, before: Mapping[str, object], **after: object) -> None:
        """Log who changed what, from what, to what."""
        old = {f"{name}_before": value for name, value in before.items()}
        user, client = request[_USER], request.remote
        self._log.info(what, by="http", method=request.method, client=client, user=user, **after, **old)

    async def _healthz(self, request: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = await self._administered.not_ready()
        if reasons:
            return json_answer({"status": "not ready", "reasons": reasons}, status=503)
        return json_answer({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        response = web.StreamResponse(headers={"Content-Type": content_type(accept)})
        with suppress(ConnectionError):  # whoever goes away in the middle of it does not want the rest
            await response.prepare(request)
            try:
                await self._scrapes.write(accept, response.write)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()  # aborted, as what was written cannot be sent either
            await response.write_eof()
        return response

    async def _status(self, request: web.Request) -> web.Response:
        return json_answer(await self._administered.status())

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=page(), headers=headers())

    async def _history(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        try:
            return json_answer(self._administered.history.as_plain(float(after)))
        except ValueError:
            raise ConfigError("after", f"must be a number of seconds, not {shown(after)}") from None

    async def _fleet(self, request: web.Request) -> web.Response:
        fleet = self._administered.fleet
        if not fleet.is_known:
            raise ConfigError("cluster", "is not set, and [admin] fleet is not either: no other sidecar is known")
        return json_answer({"sidecars": await fleet.rows()})

    async def _shares(self, request: web.Request) -> web.Response:
        return json_answer(self._administered.answer_about_shares(await _body(request)))

    async def _pause_capture(self, request: web.Request) -> web.Response:
        body, pauses = await _body(request), request.path.endswith("pause")
        asked = (_decoded(body) if body else {}) if pauses else None
        plain = self._administered.pause_capture(asked)
        self._changed("capture_paused" if pauses else "capture_resumed", request, {}, **plain)
        return json_answer(plain)

    async def _show_throttle(self, request: web.Request) -> web.Response:
        return json_answer(await self._administered.throttle.as_plain())

    async def _show_limits(self, request: web.Request) -> web.Response:
        return json_answer(self._administered.client_limits.as_plain())

    async def _change_limits(self, request: web.Request) -> web.Response:
        limits = self._administered.client_limits
        body, before = await _body(request), limits.tables
        if request.method == "DELETE":
            if _of_http_alone(request):
                limits.forget_http(request.query.get("client_id"))
            else:
                limits.clear()
        elif request.method == "PUT":
            limits.replace(_decoded(body))
        else:
            limits.patch(_decoded(body))
        after = limits.tables
        changed = limits_in_words(before, after)
        self._changed("limits_changed", request, {"entries": len(before)}, entries=len(after), changed=changed)
        return json_answer({"client": [table.as_plain() for table in after]})

    async def _change_throttle(self, request: web.Request) -> web.Response:
        throttle = self._administered.throttle
        body = await _body(request)
        change = None if request.method == "DELETE" else _decoded(body)
        before, parts = throttle.summary(), throttle.effective
        if request.method == "DELETE":
            (throttle.forget_http if _of_http_alone(request) else throttle.clear)()
        elif request.method == "PUT":
            await throttle.replace(change)
        else:
            await throttle.merge(change)
        changed = changes_between(parts, throttle.effective)
        self._changed("throttle_changed", request, before, **throttle.summary(), changed=changed)
        return json_answer(await throttle.as_plain())


def _of_http_alone(request: web.Request) -> bool:
    """Return whether a removal is of what HTTP set alone (`?source=http`), and not of all layers."""
    source = request.query.get("source", "")
    if source not in ("", HTTP):
        raise ConfigError("source", f"must be {HTTP}, or be left out to remove everything, not {shown(source)}")
    return source == HTTP


def _new_connection(server: web.Server) -> asyncio.BaseProtocol:
    """Make room before a connection is accepted: aiohttp keeps clients that never send a request."""
    connections = server.connections  # oldest first
    for oldest in connections[: max(0, len(connections) + 1 - MAX_CONNECTIONS)]:
        if oldest.transport is not None:
            oldest.transport.abort()  # aborted, as it may take nothing that is sent either
    return server()


async def _body(request: web.Request) -> bytes:
    # A body of kilobytes may unpack to gigabytes, and its size would be known only after the work.
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="send the body uncompressed, without Content-Encoding")
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise ConfigError("body", f"cannot be read: {error}") from error


def _decoded(body: bytes) -> object:
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_without_doubles)  # msgspec takes the last of two
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError("body", f"is not JSON: {error}") from error
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a key twice: one of its values would be dropped without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ConfigError(double, "is there twice")
    return found


def json_answer(value: object, status: int = 200) -> web.Response:
    """Return an answer in JSON, a line."""
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConfigError as error:
        return json_answer({"error": error.sentence(), "field": error.field}, status=400)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = json_answer(
            {"error": f"{request.method} {request.path}: {error.reason}.", "field": None}, error.status
        )
        for name in ("Allow", "Retry-After", "WWW-Authenticate"):
            for value in error.headers.getall(name, ()):
                response.headers.add(name, value)
        return response

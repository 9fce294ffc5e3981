# SPDX-License-Identifier: Apache-2.0
"""The admin HTTP server: health, readiness, metrics, the throttle, the status, and a page that shows them to people.

By default it listens on loopback and asks for no token; `weir.proxy.admin.access` says who may ask for what.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec
from aiohttp import web

from weir.proxy.admin.access import Access, Refused, Who
from weir.proxy.admin.bodies import MAX_BODY_BYTES, Bodies, decoded
from weir.proxy.admin.exposition import Scrapes, content_type
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.history import History
from weir.proxy.admin.page.write import headers, page
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError, shown
from weir.proxy.expiry import LEASE_KEY
from weir.proxy.layers import HTTP
from weir.proxy.limits.layers import LimitLayers, limits_in_words
from weir.proxy.log import EventLog
from weir.proxy.throttle.table import LayeredThrottle, changes_between

# connections accepted at a time: without descriptors, asyncio logs a line for each that it fails to accept
_BACKLOG = 8
# that wait in the kernel to be accepted: those that say nothing keep no probe out
_QUEUED = 1024

_HANDSHAKE_SECONDS = 10.0

MAX_CONNECTIONS = 100
"""With more connections the oldest are closed: the brokers' connections need the descriptors."""

_HANDS_OVER = "a new process takes over and would not know of this change: try again in a second"

_WHO: web.RequestKey[Who] = web.RequestKey("who", Who)

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
        self._bodies = Bodies()
        self._one_change = asyncio.Lock()  # what a body is decoded to takes many times its size
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
        self._kept: socket.socket | None = None  # it listens, while another process accepts
        self._refuses_changes = False

    async def start(self, address: Address, listening: socket.socket | None = None) -> Address:
        """Listen on `address`, with a socket that does so already where there is one.

        Returns the bound address, in which port 0 became a real one; OSError when it is not available.
        """
        await self.prepare()
        where = {"host": address.host, "port": address.port} if listening is None else {"sock": listening}
        self._listening = await self._listen(where)
        host, port = self._listening.sockets[0].getsockname()[:2]
        bound = Address(host, port)
        self._log.info("listening", role="admin", listen=bound)
        if self._access.is_open:
            effect = "it has no authentication: whoever reaches it can change the throttle"
            self._log.warning("admin_not_on_loopback", listen=bound, effect=effect)
        return bound

    async def _listen(self, where: Mapping[str, Any]) -> asyncio.Server:
        loop, keys = asyncio.get_running_loop(), self._access.keys
        server: Any = self._runner.server
        listening = await loop.create_server(
            lambda: _new_connection(server),
            **where,
            backlog=_BACKLOG,
            ssl=None if keys is None else keys.server_context(),
            ssl_handshake_timeout=None if keys is None else _HANDSHAKE_SECONDS,
        )
        for one in listening.sockets:
            with socket.socket(fileno=os.dup(one.fileno())) as bare:
                bare.listen(_QUEUED)
        return listening

    async def prepare(self) -> None:
        """Set up what needs no address, ahead of `start`."""
        if self._runner.server is None:
            await self._runner.setup()

    @property
    def descriptors(self) -> list[int]:
        """Those of the sockets that listen."""
        return [] if self._listening is None else [one.fileno() for one in self._listening.sockets]

    async def refuse_changes(self) -> None:
        """Answer changes with 503 from now on, and wait until those that are being made have been."""
        self._refuses_changes = True
        async with self._one_change:
            pass

    def accept_no_more(self) -> None:
        """Accept no connection, until `go_on`. Those that stand go on."""
        if self._listening is not None:
            self._kept = self._listening.sockets[0].dup()
            self._listening.close()

    async def go_on(self) -> None:
        """Make changes again, and accept connections."""
        self._refuses_changes = False
        if self._kept is not None:
            self._listening, self._kept = await self._listen({"sock": self._kept}), None

    async def stop(self) -> None:
        """Close the listener. Requests that are being answered have a second to end."""
        if self._listening is not None:
            self._listening.close()
        if self._kept is not None:
            self._kept.close()
        await self._runner.cleanup()

    @web.middleware
    async def _checked(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            request[_WHO] = self._access.check(request)
        except Refused as refused:
            why, client, path = refused.why, request.remote, shown(request.path)
            self._log.repeated("admin_refused", why, reason=why, client=client, method=request.method, path=path)
            raise refused.answer from None
        return await handler(request)

    @asynccontextmanager
    async def _asked(self, request: web.Request) -> AsyncIterator[object]:
        """Give what a body asks for, in JSON, while no other change is made; None for a DELETE and an empty POST."""
        async with self._bodies.received(request, request[_WHO].signature) as body, self._one_change:
            if self._refuses_changes:
                raise web.HTTPServiceUnavailable(reason=_HANDS_OVER, headers={"Retry-After": "1"})
            is_none = request.method == "DELETE" or (request.method == "POST" and not body)
            yield None if is_none else decoded(body)

    def _changed(
        self, what: str, request: web.Request, asked: object, before: Mapping[str, object], **after: object
    ) -> None:
        """Log who changed what, from what, to what, and for how long."""
        old = {f"{name}_before": value for name, value in before.items()}
        found = asked.get(LEASE_KEY) if isinstance(asked, Mapping) else None
        lease = {f"lease_{name}": value for name, value in (found or {"seconds": "none"}).items()}
        user, client = request[_WHO].name, request.remote
        self._log.info(what, by="http", method=request.method, client=client, user=user, **lease, **after, **old)

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
        async with self._bodies.received(request, request[_WHO].signature) as body:
            return json_answer(self._administered.answer_about_shares(body))

    async def _pause_capture(self, request: web.Request) -> web.Response:
        pauses = request.path.endswith("pause")
        async with self._asked(request) as asked:
            plain = self._administered.pause_capture(({} if asked is None else asked) if pauses else None)
        what = "capture_paused" if pauses else "capture_resumed"
        self._changed(what, request, asked if pauses else None, {}, paused=plain["paused"])
        return json_answer(plain)

    async def _show_throttle(self, request: web.Request) -> web.Response:
        return json_answer(await self._administered.throttle.as_plain())

    async def _show_limits(self, request: web.Request) -> web.Response:
        return json_answer(self._administered.client_limits.as_plain())

    async def _change_limits(self, request: web.Request) -> web.Response:
        limits = self._administered.client_limits
        async with self._asked(request) as asked:
            before = limits.tables
            if request.method == "DELETE":
                if _of_http_alone(request):
                    limits.forget_http(request.query.get("client_id"))
                else:
                    limits.clear()
            elif request.method == "PUT":
                limits.replace(asked)
            else:
                limits.patch(asked)
            after, entries = limits.tables, {"entries": len(before)}
            changed = limits_in_words(before, after)
            self._changed("limits_changed", request, asked, entries, entries=len(after), changed=changed)
        return json_answer({"client": [table.as_plain() for table in after]})

    async def _change_throttle(self, request: web.Request) -> web.Response:
        await self._put_throttle(request)  # what was asked for is not kept any more while the answer is made
        return json_answer(await self._administered.throttle.as_plain())

    async def _put_throttle(self, request: web.Request) -> None:
        throttle = self._administered.throttle
        async with self._asked(request) as asked:
            before, parts = throttle.summary(), throttle.effective
            if request.method == "DELETE":
                (throttle.forget_http if _of_http_alone(request) else throttle.clear)()
            elif request.method == "PUT":
                await throttle.replace(asked)
            else:
                await throttle.merge(asked)
            changed = changes_between(parts, throttle.effective)
            self._changed("throttle_changed", request, asked, before, **throttle.summary(), changed=changed)


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
        if error.status == web.HTTPServiceUnavailable.status_code:
            response.force_close()  # the next try may find another process
        return response

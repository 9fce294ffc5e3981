# SPDX-License-Identifier: Apache-2.0
"""A sidecar that captures and cannot start yet: it stays out of the path, tells what is missing, and looks again.

Its broker works without it meanwhile: in a pod, a native sidecar that ended would keep its broker from starting.
"""

from __future__ import annotations

import asyncio
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from weir.proxy.admin.access import Access
from weir.proxy.admin.exposition import Family, content_type, gauge, render
from weir.proxy.admin.http import json_answer
from weir.proxy.admin.troubles import trouble_family
from weir.proxy.capture.requirements import CaptureError
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import DEFAULT_ADMIN, Config
from weir.proxy.listeners import ListenError
from weir.proxy.log import EventLog, close_log, configure_logging
from weir.proxy.server import run_sidecar
from weir.proxy.slices import wait_at_most
from weir.proxy.watchdog import Watchdog

LOOK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0  # after a start that failed: each tries all that a start does
_KIND: Final = "not_started"

Load = Callable[[], Config]
"""Reads and checks the file; ConfigError says what is missing."""


def run_when_ready(path: Path, load: Load, version: str) -> int:
    """Serve the file as `run_sidecar` does, as soon as it can be. Returns the exit status.

    What a file with listeners lacks is raised at once: it stands in its broker's path.
    """

    def checked() -> Config:
        config = load()
        Access(config.admin, time.monotonic)  # the tokens' files, which `load` does not read
        return config

    failure: Exception | None = None
    while True:
        try:
            config = checked() if failure is None else _Waiting(path, checked, version, failure).run()
            return 0 if config is None else run_sidecar(config, path, version)
        except Exception as error:  # a bug, too, may not keep a broker from starting
            if {"ingress", "egress"} & _tables(path).keys():
                raise
            failure = error


class _Waiting:
    """Waits until the file can be used, or until SIGTERM or SIGINT. SIGHUP has it look at once.

    It tells whoever asks, without a token: the one that would open it may be what is missing.
    """

    def __init__(self, path: Path, load: Load, version: str, failure: Exception) -> None:
        self._path = path
        self._load = load
        self._version = version
        self._seconds = LOOK_SECONDS if isinstance(failure, ConfigError) else _AGAIN_SECONDS
        self._reason = _words(failure)
        self._log = EventLog()

    def run(self) -> Config | None:
        """Return the file's configuration; None where the process is to end."""
        log = _tables(self._path).get("log")
        configure_logging(as_json=isinstance(log, dict) and log.get("json") is True, level="info")
        self._tell()
        try:
            with asyncio.Runner() as runner:
                return runner.run(self._run())
        finally:
            close_log()  # its thread would keep the capabilities that `run_sidecar` gives up

    async def _run(self) -> Config | None:
        end, look = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, look.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _set_all, end, look)
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", self._answer)
        server = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        watchdog = Watchdog(self._log, kills=False)
        await server.setup()
        watchdog.start()
        try:
            await self._listen(server)
            while not end.is_set():
                look.clear()
                await wait_at_most(look, self._seconds)
                try:
                    config = await asyncio.to_thread(self._load)
                except Exception as error:  # noqa: BLE001 - as above
                    if (reason := _words(error)) != self._reason:
                        self._reason, self._seconds = reason, LOOK_SECONDS
                        self._tell()
                else:
                    return None if end.is_set() else config
            return None
        finally:
            watchdog.close()
            await server.cleanup()

    async def _listen(self, server: web.AppRunner) -> None:
        """Listen where the file says, if it says so; else on all addresses, for whoever asks whether this lives."""
        admin = _tables(self._path).get("admin")
        host, port = None, DEFAULT_ADMIN.port
        with suppress(TypeError, AttributeError, KeyError, ValueError):
            address = Address.parse(dict(admin or {})["listen"])
            host, port = address.host, address.port
        try:
            await web.TCPSite(server, host, port).start()
        except OSError as error:
            self._log.warning("not_told", port=port, reason=error.strerror or str(error))

    def _tell(self) -> None:
        self._log.error(
            _KIND, reason=self._reason, effect="connections pass beside weir, unthrottled, until it is there"
        )

    async def _answer(self, request: web.Request) -> web.Response:
        match request.path if request.method in ("GET", "HEAD") else "":
            case "/healthz":
                return json_answer({"status": "ok"})
            case "/readyz":
                return json_answer({"status": "not ready", "reasons": [self._reason]}, 503)
            case "/v1/status":
                return json_answer(self._status())
            case "/metrics":
                accept = request.headers.get("Accept", "")
                body = b"".join(render(self._families(), accept))
                return web.Response(body=body, headers={"Content-Type": content_type(accept)})
        return json_answer({"error": f"The sidecar has not started: {self._reason}.", "field": None}, 503)

    def _status(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "broker_id": None,
            "state": "waiting",
            "ready": False,
            "not_ready": [self._reason],
            "troubles": {_KIND: self._reason},
            "sides": {},
        }

    def _families(self) -> Iterator[Family]:
        yield gauge("weir_build_info", "The running version.", {self._version: 1}, "version")
        yield gauge("weir_ready", "Whether GET /readyz is answered with 200.", 0)
        yield gauge("weir_captured", "Whether brokers' connections are captured now.", 0)
        yield trouble_family({_KIND: self._reason})


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError | ListenError | CaptureError) else repr(error)


def _set_all(*events: asyncio.Event) -> None:
    for event in events:
        event.set()


def _tables(path: Path) -> dict[str, Any]:
    """Return what can be read of a file that may be refused; nothing where it is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}

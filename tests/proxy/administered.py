# SPDX-License-Identifier: Apache-2.0
"""A made-up sidecar behind an admin server, and its client."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.fakes.clock import MovedClock
from tests.proxy.test_config import FULL
from weir.limits.clients import Clients
from weir.proxy.admin import exposition
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.history import History
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Config, ThrottleTable
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.shares.exchange import ShareAnswer
from weir.proxy.throttle.table import LayeredThrottle


@dataclass
class Sidecar:
    """Stands in for the sidecar: what the admin server shows and changes."""

    reasons: list[str] = field(default_factory=list)
    parts: Sequence[bytes] = (b"weir_a 1\n", b"weir_b 2\n")
    applied: list[ThrottleTable] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)
    throttle: LayeredThrottle = field(init=False)
    history: History = field(init=False)
    fleet: Fleet = field(init=False)
    client_limits: LimitLayers = field(init=False)

    def __post_init__(self) -> None:
        self.throttle = LayeredThrottle(parse_config(FULL).throttle, self.applied.append)
        self.client_limits = LimitLayers(lambda tables: None, MovedClock(5.0))
        self.history = History([], Clients(MovedClock(), lambda *fault: None), MovedClock(7.0))
        self.fleet = Fleet(Config(broker_id=1), lambda: {}, self.status, MovedClock())

    async def not_ready(self) -> list[str]:
        return self.reasons

    async def status(self) -> dict[str, Any]:
        return {"broker_id": 1}

    def metrics(self, accept: str) -> Iterator[bytes]:
        yield from self.parts

    def pause_capture(self, asked: object | None) -> dict[str, Any]:
        if asked == {"for": "10m"}:
            raise ConfigError("body", "must be empty")
        self.asked.append(asked)
        return {"paused": asked is not None}

    def answer_about_shares(self, body: bytes) -> ShareAnswer:
        if not body:
            raise ConfigError("body", "is empty")
        return ShareAnswer(broker_id=1)


@dataclass
class Client:
    sidecar: Sidecar
    base: str
    session: aiohttp.ClientSession
    scrapes: exposition.Scrapes

    async def call(self, method: str, path: str, body: object = None, raw: bytes | None = None) -> tuple[int, Any]:
        data = io.BytesIO(raw) if raw is not None else None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self.session.request(method, self.base + path, data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

# SPDX-License-Identifier: Apache-2.0
"""A sidecar as a whole in the test's own event loop, and a broker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from weir.proxy.config.load import parse_config
from weir.proxy.config.tables import Config
from weir.proxy.sidecar import Sidecar


class Broker:
    """Answers each request with ten bytes; `silent` after its sockets are accepted."""

    def __init__(self) -> None:
        self.silent = False
        self.server: asyncio.Server | None = None
        self.port = 0
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.read(1000):
                self.asked.set()
                if self.silent:
                    await self.released.wait()
                writer.write(b"\x00\x00\x00\x0a" + request[8:12] + bytes(6))
        except ConnectionError:
            pass
        finally:
            writer.close()


def configured(broker: Broker, more: str = "", throttle: str = "") -> Config:
    return parse_config(
        f"""
        broker_id = 1
        [[ingress]]
        listen = "127.0.0.1:0"
        upstream = "127.0.0.1:{broker.port}"
        [[egress]]
        peer = 2
        listen = "127.0.0.1:0"
        upstream = "127.0.0.1:{broker.port}"
        [admin]
        listen = "127.0.0.1:0"
        {more}
        [throttle]
        {throttle}
        """
    )


@dataclass
class Running:
    sidecar: Sidecar
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        url = f"http://{self.sidecar.admin_address}{path}"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self.session.request(method, url, data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def metric(self, line: str) -> float:
        async with self.session.get(f"http://{self.sidecar.admin_address}/metrics") as response:
            text = await response.text()
        return float(next(row.split()[-1] for row in text.splitlines() if row.startswith(line)))


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Running]:
    sidecar = Sidecar(config, "1.2.3")
    await sidecar.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Running(sidecar, session)
    finally:
        await sidecar.close()

# SPDX-License-Identifier: Apache-2.0
"""A capture with a packet filter that only remembers what it was told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any, cast

from tests.fakes.relaying import ScriptedThrottle, logged
from weir.proxy.capture.capture import Capture
from weir.proxy.capture.nftables import NftError
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.tables import CaptureTable
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.settings import SideName
from weir.quota.throttle import Throttle

BROKERS = {1: frozenset({ip_address("10.0.0.1")}), 2: frozenset({ip_address("10.0.0.2")})}


class FakeFilter:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuses: str | None = None

    def run(self, commands: str) -> str:
        if self.refuses is not None and not commands.startswith("delete table"):
            raise NftError(self.refuses)
        self.told.append(commands)
        return ""

    def close(self) -> None:
        self.told.append("closed")

    @property
    def is_alive(self) -> bool:
        """Whether it would capture: the last word on `alive` put the port in."""
        last = [commands for commands in self.told if " alive" in commands and "add set" not in commands]
        return bool(last) and "timeout" in last[-1]


class Dropped:
    def __init__(self) -> None:
        self.times = 0
        self.options: dict[str, Any] = {}

    def __call__(self, port: int, peers: list[str], **options: Any) -> None:
        self.times += 1
        self.options = {"port": port, "peers": peers, **options}


@contextlib.asynccontextmanager
async def capturing(
    keys: RouteKeys | None = None, **settings: Any
) -> AsyncIterator[tuple[Capture, FakeFilter, Dropped]]:
    packet_filter, dropped = FakeFilter(), Dropped()
    with logged() as (log, _):
        sides: tuple[SideName, SideName] = ("leader", "follower")
        relays = {side: Side(cast(Throttle, ScriptedThrottle()), RelayStats(side), log) for side in sides}
        table = CaptureTable(**{"port": 9092, **settings})
        capture = Capture(table, 1, relays, log, lambda: packet_filter, dropped, keys=keys)
        await capture.listen()
        capture.start()
        try:
            yield capture, packet_filter, dropped
        finally:
            await capture.step_out()
            capture.close()
            for listener in capture.listeners:
                listener.abort()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)

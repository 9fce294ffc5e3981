# SPDX-License-Identifier: Apache-2.0
"""Upstreams are known to be there, or not, also while nobody connects; and routes without a link are known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.relaying import Relaying, relaying
from tests.fakes.servers import serving
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.upstream_watch import CACHE_SECONDS, LOOK_SECONDS, UpstreamWatch


class Watching:
    """A watch over one egress route of a relay, and what it said last."""

    def __init__(self, relay: Relaying, upstream: Upstream) -> None:
        self.clock = MovedClock()
        self.listener = Listener(relay.relay, Address("127.0.0.1", 0), upstream)
        brokers = [upstream.address] if upstream.peer is None else []
        self.watch = UpstreamWatch(brokers, [self.listener], EventLog(clock=self.clock), self.clock)

    async def up(self) -> object:
        """Look, and return what the status says."""
        await self.watch.check()
        return self.watch.status(self.listener)["upstream_up"]

    def metric(self) -> list[tuple[tuple[str, ...], float]]:
        (family,) = self.watch.families()
        return list(family.samples)


@asynccontextmanager
async def answering() -> AsyncIterator[tuple[asyncio.Server, Address]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if request := await reader.read(1000):
                writer.write(b"\x00\x00\x00\x0a" + request[8:12] + bytes(6))
                await reader.read(1)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with serving(serve) as (server, port):
        yield server, Address("127.0.0.1", port)


@pytest.mark.parametrize("peer", [2, None])
async def test_idle_route_tells_whether_its_upstream_is_there(
    peer: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    async with relaying() as relay, answering() as (server, address):
        watching = Watching(relay, Upstream(address, peer))
        side = relay.relay.stats.side
        assert "upstream_up" not in watching.watch.status(watching.listener)  # nobody has looked yet
        assert watching.metric() == []
        assert await watching.up() is True
        assert watching.metric() == [((side, str(address), "" if peer is None else "2"), 1)]
        server.close()
        watching.clock.move(CACHE_SECONDS)
        assert await watching.up() is False
        assert "cannot be reached" in str(watching.watch.status(watching.listener)["upstream_failure"])
        assert watching.metric() == [((side, str(address), "" if peer is None else "2"), 0)]
        assert await watching.up() is False
    assert [record.msg for record in caplog.records] == ["upstream_down"]


async def test_upstream_that_is_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")
    async with relaying() as relay, answering() as (_, address):
        watching = Watching(relay, Upstream(address, 2))
        watching.watch._failures[address] = "it was away"
        assert await watching.up() is True
    assert [record.msg for record in caplog.records] == ["upstream_up"]


async def test_looks_go_on_after_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weir.proxy.upstream_watch.LOOK_SECONDS", 0.0)
    async with relaying() as relay, answering() as (_, address):
        watching, looks = Watching(relay, Upstream(address, 2)), 0

        async def look() -> None:
            nonlocal looks
            looks += 1
            raise ValueError("a bug")

        monkeypatch.setattr(watching.watch, "check", look)
        watching.watch.start()
        await relay.until(lambda: looks > 2)
        watching.watch.close()
    assert {record.msg for record in caplog.records} == {"upstream_look_failed"}


async def test_upstream_that_another_route_uses_is_up_and_not_asked() -> None:
    async with relaying(peer=2) as relay:
        await relay.connect()
        await relay.until(lambda: relay.listener.links)
        idle = Listener(relay.relay, Address("127.0.0.1", 0), relay.listener.upstream)
        clock = MovedClock()
        watch = UpstreamWatch([], [relay.listener, idle], EventLog(), clock)
        relay.broker.close()  # whoever connects now is refused
        await watch.check()
        assert watch.status(idle) == {
            "links": 0,
            "no_link_for_seconds": 0.0,
            "upstream_up": True,
            "upstream_failure": None,
        }


async def test_route_with_a_link_is_up_and_is_not_asked() -> None:
    async with relaying(peer=2) as relay:
        ends = await relay.connect()
        await relay.until(lambda: relay.listener.links)
        clock = MovedClock()
        watch = UpstreamWatch([], [relay.listener], EventLog(), clock)
        relay.broker.close()  # whoever connects now is refused
        await watch.check()
        assert watch.status(relay.listener) == {
            "links": 1,
            "no_link_for_seconds": 0.0,
            "upstream_up": True,
            "upstream_failure": None,
        }
        for end in ends:
            end.close()
        await relay.until(lambda: not relay.listener.links)
        await watch.check()
        clock.move(LOOK_SECONDS)
        status = watch.status(relay.listener)
        assert (status["links"], status["no_link_for_seconds"], status["upstream_up"]) == (0, LOOK_SECONDS, False)

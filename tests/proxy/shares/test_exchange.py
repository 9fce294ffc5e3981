# SPDX-License-Identifier: Apache-2.0
"""Sidecars that share a rate over real HTTP, and strangers among them. Only the clock is made up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from tests.fakes.clock import MovedClock
from tests.fakes.servers import Serve, serving
from weir.proxy.admin.fleet import Target
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError
from weir.proxy.log import EventLog
from weir.proxy.shares.exchange import LOOK_SECONDS, Exchange
from weir.quota.shares.share import Terms, Word, pace_of

RATE = 900.0
ALL = frozenset({1, 2, 3})
QUIET = pace_of(3).quiet_seconds


class User:
    """Who shares one rate, and says what it wants."""

    def __init__(self, rate: float = RATE, members: frozenset[int] = ALL) -> None:
        self.terms: dict[str, Terms] = {"rate": Terms(rate, members)}
        self.wanted = 0.0
        self.share = -1.0

    def shared(self) -> Mapping[str, Terms]:
        return self.terms

    def asked_for(self, name: str) -> bool:
        return False

    def demand(self, name: str, share: float) -> float:
        return self.wanted

    def use(self, shares: Mapping[str, float]) -> None:
        self.share = shares.get("rate", -1.0)


class Sidecar:
    """One sidecar's part, and its admin server."""

    def __init__(self, own_id: int, clock: MovedClock, user: User, find: Callable[[], Sequence[Target]]) -> None:
        self.user = user

        async def targets() -> Sequence[Target]:
            return find()

        self.exchange = Exchange(own_id, [user], targets, EventLog(), clock)
        self.exchange.tick()
        self.port = 0

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=msgspec.json.encode(self.exchange.answer(await request.read())))
        except ConfigError as error:
            return web.Response(status=400, text=error.sentence())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/shares", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()

    async def round(self) -> None:
        """Ask all whose turn it is, until all have answered."""
        self.exchange.tick()
        while self.exchange.looking is not None:
            await self.exchange.looking
            self.exchange.tick()
        await asyncio.gather(*self.exchange.under_way.values())
        self.exchange.tick()


class Trio:
    """Three sidecars that share a rate. `others` are addresses that stand in for those of some."""

    def __init__(self, *, named: bool = False) -> None:
        self.clock = MovedClock()
        self.named = named
        self.others: dict[int, int] = {}
        self.sidecars = {one: Sidecar(one, self.clock, User(), self.targets) for one in sorted(ALL)}

    def targets(self) -> list[Target]:
        ports = {one: sidecar.port for one, sidecar in self.sidecars.items()} | self.others
        return [Target(Address("127.0.0.1", port), None if self.named else one) for one, port in ports.items()]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self.sidecars[1].serving(), self.sidecars[2].serving(), self.sidecars[3].serving():
            self.clock.move(QUIET)
            try:
                yield
            finally:
                for sidecar in self.sidecars.values():
                    await sidecar.exchange.close()

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            for sidecar in self.sidecars.values():
                await sidecar.round()
            self.clock.move(0.5)

    @property
    def shares(self) -> list[float]:
        return [round(sidecar.user.share) for sidecar in self.sidecars.values()]

    def want(self, *demands: float) -> None:
        for sidecar, demand in zip(self.sidecars.values(), demands, strict=True):
            sidecar.user.wanted = demand


@pytest.mark.parametrize("named", [False, True])
async def test_share_follows_demand(named: bool) -> None:
    trio = Trio(named=named)
    async with trio.serving():
        trio.want(0, RATE, 0)
        await trio.rounds(6)
        assert trio.shares == [0, 900, 0]
        trio.want(RATE, RATE, 100)
        await trio.rounds(5)
        assert trio.shares == [400, 400, 100]
        trio.want(0, 0, 100)
        await trio.rounds(5)
        assert trio.shares == [0, 0, 900]


async def test_nobody_is_told_anything_while_nobody_wants_any() -> None:
    trio = Trio()

    def told() -> int:
        return sum(sidecar.exchange.asked for sidecar in trio.sidecars.values())

    async with trio.serving():
        await trio.rounds(3)
        assert trio.shares == [300, 300, 300]
        assert told() == 0
        trio.want(RATE, 0, 0)
        await trio.rounds(6)
        trio.want(0, 0, 0)
        await trio.rounds(10)
        assert trio.shares == [300, 300, 300]
        before = told()
        await trio.rounds(10)
        assert told() == before


async def test_only_one_tells_each_other_one_twice_a_second() -> None:
    trio = Trio()
    async with trio.serving():
        trio.want(RATE, RATE, RATE)
        await trio.rounds(6)
        before = [sidecar.exchange.asked for sidecar in trio.sidecars.values()]
        for _ in range(8):
            for sidecar in trio.sidecars.values():
                await sidecar.round()
            trio.clock.move(0.25)
        told = [sidecar.exchange.asked - one for sidecar, one in zip(trio.sidecars.values(), before, strict=True)]
        assert told == [8, 0, 0]
        assert trio.shares == [300, 300, 300]


async def test_rate_that_is_not_the_same_is_not_shared() -> None:
    trio = Trio()
    async with trio.serving():
        trio.sidecars[2].user.terms = {"rate": Terms(RATE / 2, ALL)}
        trio.sidecars[3].user.terms = {}
        for one in (2, 3):
            trio.sidecars[one].exchange.tick()
        trio.want(RATE, 0, 0)
        await trio.rounds(3)
        assert trio.shares[:2] == [300, 150]
        assert trio.sidecars[2].exchange.refused["other_terms"] == 3
        assert trio.sidecars[3].exchange.refused["unknown_rate"] == 3
        assert trio.sidecars[1].exchange.shares["rate"].without == {3}


async def test_one_that_ends_leaves_its_part_to_the_others() -> None:
    trio = Trio()
    async with trio.serving():
        trio.want(RATE, RATE, RATE)
        await trio.rounds(3)
        async with serving(_hang_up) as (_, port):
            pass
        trio.others = {3: port}  # where nobody listens
        left = [trio.sidecars[one] for one in (1, 2)]

        async def half_seconds(count: int) -> list[float]:
            for _ in range(count):
                for sidecar in left:
                    await sidecar.round()
                trio.clock.move(0.5)
            return [round(sidecar.user.share) for sidecar in left]

        await half_seconds(round(LOOK_SECONDS / 0.5))
        assert await half_seconds(math.ceil(QUIET / 0.5)) == [450, 450]


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def _http(body: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    return serve


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (_hang_up, None),
        (_http(b"<html>"), "malformed"),
        (
            _http(b'{"broker_id": 3, "words": {"rate": [-5, 1]}}'),
            "malformed",
        ),
        (
            _http(b'{"broker_id": 3, "words": {"rate": [NaN, 1, true, false]}}'),
            "malformed",
        ),
        (
            _http(b'{"broker_id": 3, "words": {"rate": [1e999, 1, true, false]}}'),
            "malformed",
        ),
        (_http(b"[" * 100_000), "malformed"),
        (_http(b" " * (2 << 20)), "malformed"),
        (_http(b'{"broker_id": 7}'), "other_broker"),
    ],
)
async def test_stranger_changes_nothing(serve: Serve, reason: str | None) -> None:
    trio = Trio()
    async with trio.serving(), serving(serve) as (_, port):
        trio.others = {3: port}
        trio.want(RATE, 0, 0)
        await trio.sidecars[1].round()
        assert trio.sidecars[1].user.share == 300
        if reason is not None:
            assert trio.sidecars[1].exchange.refused[reason] == 1


async def test_stranger_that_wants_nothing_adds_one_part_at_most() -> None:
    said = Word(0, 1, takes=True, divides=False)
    trio = Trio()
    async with (
        trio.serving(),
        serving(_http(msgspec.json.encode({"broker_id": 3, "words": {"rate": said}}))) as (_, port),
    ):
        trio.others = {3: port}
        trio.want(RATE, RATE, 0)
        for _ in range(6):
            for one in (1, 2):
                await trio.sidecars[one].round()
            trio.clock.move(0.5)
        trio.sidecars[3].exchange.tick()
        assert trio.shares == [450, 450, 300]


async def test_one_that_never_answers_keeps_nobody_waiting() -> None:
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    trio = Trio()
    async with trio.serving(), serving(serve) as (_, port):
        trio.others = {3: port}
        trio.want(RATE, 0, 0)
        first = trio.sidecars[1].exchange
        first.tick()
        assert first.looking is not None
        await first.looking
        first.tick()
        (silent,) = [admin for admin in first.under_way if admin.port == port]
        await asyncio.gather(*[task for admin, task in first.under_way.items() if admin != silent])
        first.tick()
        trio.clock.move(0.5)
        first.tick()
        await asyncio.gather(*[task for admin, task in first.under_way.items() if admin != silent])
        first.tick()
        assert trio.sidecars[1].user.share == 600
        assert list(first.under_way) == [silent]
        released.set()
        await asyncio.gather(*first.under_way.values())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"broker_id": 2, "parts": {"rate": [900, 3]}}',
        b'{"broker_id": 2, "parts": {"rate": [NaN, 3, 1, 1, 1, true]}}',
        b'{"broker_id": -2}',
    ],
)
async def test_malformed_request_is_refused(body: bytes) -> None:
    exchange = Trio().sidecars[1].exchange
    with pytest.raises(ConfigError, match="is no request for a share"):
        exchange.answer(body)
    assert exchange.refused["malformed"] == 1


async def test_own_share_falls_before_another_knows_of_a_larger_one() -> None:
    trio = Trio()
    async with trio.serving():
        first, second = trio.sidecars[1], trio.sidecars[2]
        trio.want(RATE, 0, 0)
        await trio.rounds(4)
        assert trio.shares == [900, 0, 0]
        trio.want(RATE, RATE, 0)
        await trio.rounds(2)
        first.exchange.tick()
        assert first.exchange.under_way
        assert [first.user.share, second.user.share] == [450, 0]
        await asyncio.gather(*first.exchange.under_way.values())
        assert [first.user.share, second.user.share] == [450, 450]


async def test_sidecar_of_a_preview_hears_of_life_and_nothing_else() -> None:
    """A sidecar of a preview hears that this one lives, and has nothing of its rates."""
    first = Trio().sidecars[1].exchange
    said = {"rate": {"rate": 900, "members": 3, "demand": 900, "taken": 0, "borrowed": {}}}
    answer = first.answer(msgspec.json.encode({"broker_id": 2, "number": 5, "misses": [], "rates": said}))
    assert msgspec.to_builtins(answer) == {"broker_id": 1, "seconds": 0, "words": {}, "refused": {}}


async def test_new_rate_is_not_used_while_another_may_count_on_it() -> None:
    """A sidecar that had no such rate begins with a share of 0: others may have divided all of it."""
    trio = Trio()
    async with trio.serving():
        third = trio.sidecars[3]
        kept, third.user.terms = third.user.terms, {}
        third.exchange.tick()
        trio.want(RATE, 0, 0)
        await trio.rounds(12)
        assert trio.shares[:2] == [900, 0]
        third.user.terms = kept
        third.exchange.tick()
        assert third.user.share == 0
        await trio.rounds(12)
        trio.want(RATE, 0, RATE)
        await trio.rounds(6)
        assert trio.shares == [450, 0, 450]


async def test_rates_are_found_and_forgotten() -> None:
    trio = Trio()
    first = trio.sidecars[1]
    first.exchange.tick()
    assert first.user.share == 0
    trio.clock.move(QUIET)
    first.exchange.tick()
    assert first.user.share == 300
    first.user.terms = {"rate": Terms(2 * RATE, frozenset({1, 2}))}
    first.exchange.tick()
    assert first.user.share == RATE
    first.user.terms = {}
    first.exchange.tick()
    assert first.user.share == -1

# SPDX-License-Identifier: Apache-2.0
"""A link goes on in another process: here at another listener, with descriptors of its own."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.fakes.relaying import Relaying, relaying, round_trip
from tests.protocol.wire import fetch, fetch_response, produce, request, response
from tests.proxy.test_link_gate import Gate, gated
from tests.proxy.test_listener import LONG
from weir.proxy.relay.link import MOST_CARRIED, Link
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.open_link import HandedOver
from weir.quota.fetch.decisions import Hold

ON_BOTH_LOOPS = True


class Handing:
    """Gives the links of one relay to the next."""

    def __init__(self, to: Relaying) -> None:
        self._to = to
        self.told: list[HandedOver] = []

    def give(self, listener: Listener, link: Link, told: HandedOver) -> None:
        client, far = (socket.socket(fileno=os.dup(one)) for one in link.descriptors)
        for end in (client, far):
            end.setblocking(False)
        self.told.append(told)
        upstream = Upstream(self._to.upstream, link.connection.fetches.peer)
        self._to.listener.take_over(client, far, upstream, link.client_host, told)


@asynccontextmanager
async def handing_over(relay: Relaying) -> AsyncIterator[tuple[Handing, Relaying]]:
    """Hand over while the block runs; the links that could be handed over are all gone after it."""
    async with relaying() as to:
        handing = Handing(to)
        handed = asyncio.create_task(relay.listener.hand_over(handing.give, LONG))
        await asyncio.sleep(0)
        yield handing, to
        async with asyncio.timeout(5):
            await handed


async def test_idle_link_is_handed_over_at_once() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await round_trip(client, broker, 1)
        async with handing_over(relay) as (handing, to):
            await relay.until(lambda: not relay.listener.links)
            await round_trip(client, broker, 2)
            assert to.stats.connections == 1
        assert handing.told == [HandedOver()]


async def test_what_is_in_flight_is_answered_first_and_no_more_taken() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1) + fetch(2, 5))
        async with handing_over(relay) as (_, to):
            await client.send(request(18, 0, 3))
            await broker.send(response(1))
            await client.expect(response(1))
            assert not to.listener.links
            await broker.send(fetch_response(2))
            await client.expect(fetch_response(2))
            await broker.expect(request(18, 0, 3))
        assert relay.throttle.told("settle") == [("settle", [b"orders"])]


async def test_fetch_that_is_held_is_decided_about_by_the_next() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(2, 5) + request(3, 0, 3))
        async with handing_over(relay) as (handing, to):
            await broker.expect(fetch(2, 5))
            assert to.throttle.told("plan")
            assert client.has_nothing()
            await broker.send(fetch_response(2))
            await broker.expect(request(3, 0, 3))
        assert handing.told == [HandedOver(fetch(2, 5) + request(3, 0, 3))]


@pytest.mark.parametrize("cut", [0, 1, 5, 14, 30])
async def test_request_that_a_gate_holds_comes_whole_to_the_next(cut: int) -> None:
    async with relaying() as relay:
        gate = gated(relay, Gate())
        client, broker = await relay.connect()
        await client.send(produce(1, 1)[:cut])
        await asyncio.sleep(0.01)
        await client.send(produce(1, 1)[cut:] + request(3, 0, 2))
        await relay.until(lambda: gate.asked)
        async with handing_over(relay):
            await broker.expect(produce(1, 1) + request(3, 0, 2))
            await broker.send(response(1) + response(2))
            await client.expect(response(1) + response(2))


async def test_bytes_that_are_not_understood_go_on() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(b"\x16\x03\x01tls")
        await broker.send(b"hello")
        await client.expect(b"hello")
        async with handing_over(relay) as (_, to):
            await client.send(b"more")
            await broker.expect(b"more")
            await broker.send(b"back")
            await client.expect(b"back")
            await to.until(lambda: to.listener.links)
            assert next(iter(to.listener.links)).connection.opaque_reason == "tls"


async def test_end_of_a_sasl_session_is_known_to_the_next() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await round_trip(client, broker, 1)
        next(iter(relay.listener.links)).connection.fetches.session_end = 7.0
        async with handing_over(relay) as (_, to):
            await to.until(lambda: to.listener.links)
            assert next(iter(to.listener.links)).session_end == 7.0


async def test_link_with_too_much_that_nobody_took_is_drained() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.append(Hold(float("inf")))
        client, broker = await relay.connect()
        topics = ((b"orders", tuple((number, 7, 1000) for number in range(MOST_CARRIED // 16))),)
        await client.send(fetch(1, 5, topics=topics))
        await relay.until(lambda: len(relay.relay.held))
        async with handing_over(relay) as (handing, _):
            await client.expect_end()
            client.close()
        assert not handing.told
        await broker.expect_end()


async def test_end_of_a_long_request_brings_little_of_what_follows() -> None:
    """What comes with it is carried, and with more than MOST_CARRIED the link would be drained."""
    long, behind = request(3, 0, 1, bytes(300_000)), request(3, 0, 2, bytes(200_000))
    async with relaying() as relay:
        client, broker = await relay.connect(long[:-10])
        async with handing_over(relay) as (handing, _):
            sending = asyncio.create_task(client.send(long[-10:] + behind))
            await broker.expect(long[-10:])
            await broker.send(response(1))
            await client.expect(response(1))
            await broker.expect(behind)
            await sending
        assert len(handing.told[0].unread) <= MOST_CARRIED


@pytest.mark.parametrize("seed", range(10))
async def test_every_byte_passes_once_however_often_it_is_handed_over(seed: int) -> None:
    rng = random.Random(seed)
    asked = [rng.choice([request(3, 0, number), fetch(number, 5), produce(number, 1)]) for number in range(40)]
    answers = {
        number: fetch_response(number) if data[5] == 1 else response(number) for number, data in enumerate(asked)
    }

    async with relaying() as first, relaying() as second:
        relays = [first, second]
        for relay in relays:
            relay.throttle.decisions.extend([Hold(0.0)] * 5)
        client, broker = await first.connect()

        async def ask() -> None:
            data = b"".join(asked)
            at = 0
            while at < len(data):
                size = rng.randrange(1, 60)
                await client.send(data[at : at + size])
                at += size
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))

        async def serve() -> None:
            for number, data in enumerate(asked):
                assert await broker.receive(len(data)) == data
                await asyncio.sleep(rng.choice([0, 0.001]))
                await broker.send(answers[number])

        async def hand() -> int:
            count = 0
            while not reading.done():
                for now, to in (relays, relays[::-1]):
                    give = partial(Handing(to).give, now.listener)
                    for link in list(now.listener.links):
                        link.hand_over(give)
                        count += 1
                    await asyncio.sleep(rng.choice([0.001, 0.004]))
            return count

        asking, serving = asyncio.create_task(ask()), asyncio.create_task(serve())
        reading = asyncio.create_task(client.receive(sum(map(len, answers.values()))))
        count = await hand()
        await asyncio.gather(asking, serving)
        assert reading.result() == b"".join(answers.values())
        assert count > 5

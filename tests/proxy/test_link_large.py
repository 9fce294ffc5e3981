# SPDX-License-Identifier: Apache-2.0
"""A fetch of many topics is taken in, and its answer settled, a little at a time: other links are served in between."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import request
from tests.proxy.loop_gaps import longest_gaps
from weir.protocol.fetch_request import FetchRequest, encode_fetch_request, replica_state_tags
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, made_up_entries
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.quota.throttle import Throttle

TOPICS = 10_000
LONGEST_GAP_SECONDS = 0.02
"""CPU time of one turn. To decode, plan and settle this at once takes 20, 100 and 50 ms."""

ENTRY_SIZES = {3: 16, 7: 24, 12: 33, 18: 33}
VERSIONS = [3, 7, 18]


def name(number: int) -> bytes:
    return b"%016d" % number


def large_fetch(version: int, correlation_id: int = 1, topics: int = TOPICS) -> bytes:
    size = ENTRY_SIZES[version]
    asked = [RequestTopic(name(number), bytes(size), size) for number in range(topics)]
    tags = replica_state_tags(5, 1) if version >= 15 else b""
    header = RequestHeader(FETCH, version, correlation_id, b"c")
    return encode_fetch_request(FetchRequest(header, 5, 500, 1, 2**20, asked, session_epoch=0, tags=tags))


def large_answer(version: int, correlation_id: int = 1, topics: int = TOPICS) -> bytes:
    entries = made_up_entries(version, [(0, 7)])
    answered = [ResponseTopic(name(number), entries) for number in range(topics)]
    return encode_fetch_response(version, correlation_id, 0, answered, session_id=0)


async def send_slowly(peer: Peer, data: bytes) -> None:
    """In pieces that a socket takes: the measurement is not of this."""
    for at in range(0, len(data), 8192):
        await peer.send(data[at : at + 8192])
        await asyncio.sleep(0)


async def receive_frame(peer: Peer) -> bytes:
    size = int.from_bytes(await peer.receive(4), "big")
    received = bytearray()
    while len(received) < size:
        received += await peer.receive(min(8192, size - len(received)))
    return bytes(received)


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What the collector takes is another matter: it depends on all that the process has."""
    gc.disable()
    yield
    gc.enable()


def is_working(relay: Relaying) -> bool:
    return any(link.connection.is_working for link in relay.listener.links)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
async def test_large_fetch_makes_no_turn_of_the_loop_long(version: int) -> None:
    """Neither is a turn long in which it is taken in, nor one in which it is settled."""
    asked, answer = large_fetch(version), large_answer(version)
    async with relaying() as relay:
        relay.relay.throttle = throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()

        async def work() -> None:
            for _ in range(2):  # the second one names nothing new below v7, and begins its session anew above
                sending = asyncio.create_task(send_slowly(client, asked))
                await receive_frame(broker)
                await sending
                sending = asyncio.create_task(send_slowly(broker, answer))
                await receive_frame(client)
                await sending
                await relay.until(lambda: not is_working(relay))

        _, gaps = await longest_gaps(work())
        assert gaps[0] < LONGEST_GAP_SECONDS, gaps[:5]
        (link,) = throttle.links
        assert link.partitions.count == TOPICS
        assert not link.in_flight


@pytest.mark.long
@pytest.mark.newest
@pytest.mark.parametrize("what", ["request", "response"])
async def test_another_link_is_served_amid_work_on_a_large_fetch(what: str) -> None:
    async with relaying() as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        other, its_broker = await relay.connect()
        client, broker = await relay.connect()
        await client.send(large_fetch(3) + request(3, 0, 2))
        if what == "response":
            await receive_frame(broker)
            sending = asyncio.create_task(send_slowly(broker, large_answer(3)))
            await receive_frame(client)
            await sending
        await relay.until(lambda: is_working(relay))
        served = 0
        while is_working(relay):
            await round_trip(other, its_broker, served)
            served += 1
            assert broker.has_nothing() or not is_working(relay)  # nothing behind it is taken meanwhile
        assert served > 3
        if what == "request":
            await receive_frame(broker)
            sending = asyncio.create_task(send_slowly(broker, large_answer(3)))
            await receive_frame(client)
            await sending
        await broker.expect(request(3, 0, 2))


@pytest.mark.long
@pytest.mark.parametrize("turns", [0, 1, 5, 20])
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_connection_that_ends_half_way_leaves_nothing_behind(what: str, turns: int) -> None:
    async with relaying() as relay:
        relay.relay.throttle = throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()
        await client.send(large_fetch(7))
        if what == "response":
            await receive_frame(broker)
            sending = asyncio.create_task(send_slowly(broker, large_answer(7)))
            await receive_frame(client)
            await sending
        await relay.until(lambda: is_working(relay))
        for _ in range(turns):
            await asyncio.sleep(0)
        (link,) = relay.listener.links
        link.close()
        await client.expect_end()
        await asyncio.sleep(0.005)
        assert (len(throttle.links), throttle.ledger.reserved) == (0, 0)
        assert relay.stats.throttle_errors == 0


@pytest.mark.long
@pytest.mark.newest
async def test_a_drain_waits_for_work_that_is_under_way() -> None:
    async with relaying() as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()
        await client.send(large_fetch(3))
        await relay.until(lambda: is_working(relay))
        draining = asyncio.create_task(relay.listener.drain(30.0))
        await receive_frame(broker)
        sending = asyncio.create_task(send_slowly(broker, large_answer(3)))
        await receive_frame(client)
        await sending
        await client.expect_end()
        client.close()
        await draining

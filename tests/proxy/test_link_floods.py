# SPDX-License-Identifier: Apache-2.0
"""Clients that send more than anyone should: what they cost is bounded, and the others do not wait for them."""

import asyncio

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import fetch, fetch_response, produce, request, response
from tests.proxy.loop_gaps import longest_gaps
from weir.proxy.relay.connection import MOST_PENDING
from weir.proxy.relay.open_link import HandedOver
from weir.quota.fetch.decisions import Hold

ON_BOTH_LOOPS = True

LONGEST_GAP_SECONDS = 0.02
"""CPU time of one turn: 16 KB of tiny requests cost 5 ms when they are taken at once, and 16 such reads follow."""


async def receive_all(broker: Peer, size: int) -> bytes:
    """What the broker gets, read in small pieces so that the measurement is not of this."""
    received = bytearray()
    while len(received) < size:
        received += await broker.receive(min(4096, size - len(received)))
    return bytes(received)


async def flood(relay: Relaying, data: bytes, clients: int) -> None:
    """Have `clients` send `data` at once, and their broker's ends get all of it."""
    pairs = [await relay.connect() for _ in range(clients)]

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            got = [tasks.create_task(receive_all(broker, len(data))) for _, broker in pairs]
            for client, _ in pairs:
                taken = client.connection.send(data)  # all that the socket takes is there before the relay reads any
                tasks.create_task(client.send(data[taken:]))
        assert all(one.result() == data for one in got)

    _, gaps = await longest_gaps(work())
    assert gaps[0] < LONGEST_GAP_SECONDS, gaps[:5]


@pytest.mark.long
async def test_thousands_of_acks_0_requests_leave_the_loop_to_others() -> None:
    async with relaying() as relay:
        await flood(relay, b"".join(produce(number, 0) for number in range(3000)), 4)


@pytest.mark.long
async def test_requests_by_the_thousand_leave_the_loop_to_others() -> None:
    async with relaying() as relay:
        await flood(relay, b"".join(request(3, 0, number) for number in range(MOST_PENDING // 2)), 8)


async def test_responses_that_wait_for_their_turn_arrive_in_order() -> None:
    count = MOST_PENDING // 2
    async with relaying() as relay:
        client, broker = await relay.connect(b"".join(request(3, 0, number) for number in range(count)))
        data = b"".join(response(number) for number in range(count))
        assert broker.connection.send(data) == len(data)  # in one piece
        assert await receive_all(client, len(data)) == data
        await round_trip(client, broker, count)


async def test_client_that_pipelines_fetches_has_one_of_them_planned() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(b"".join(fetch(number, 5) for number in range(100)))
        for number in range(100):
            await broker.expect(fetch(number, 5))
            assert len(relay.throttle.told("plan")) == number + 1
            await broker.send(fetch_response(number))
            await client.expect(fetch_response(number))
        await round_trip(client, broker, 100)


async def test_endless_pipelined_fetches_are_unread_while_unanswered() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send_until_blocked(fetch(1, 5))
        await broker.expect(fetch(1, 5))
        await client.send_until_blocked(fetch(1, 5))
        assert len(relay.throttle.told("plan")) == 1
        assert relay.relay.fetch_memory.total <= 2**18
        assert broker.has_nothing()


@pytest.mark.long
@pytest.mark.parametrize("half_closes", [False, True])
async def test_what_waits_its_turn_is_not_lost_when_its_client_ends(half_closes: bool) -> None:
    data = b"".join(produce(number, 0) for number in range(5000))
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(data)
        if half_closes:
            client.half_close()
        else:
            client.close()
        assert await receive_all(broker, len(data)) == data
        await broker.expect_end()


async def test_responses_that_wait_are_not_lost_when_the_broker_ends() -> None:
    count = MOST_PENDING // 2
    async with relaying() as relay:
        client, broker = await relay.connect(b"".join(request(3, 0, number) for number in range(count)))
        data = b"".join(response(number) for number in range(count))
        await broker.send(data)
        broker.close()
        assert await receive_all(client, len(data)) == data
        await client.expect_end()


async def test_a_drain_delivers_responses_that_wait_for_their_turn() -> None:
    count = MOST_PENDING // 2
    async with relaying() as relay:
        client, broker = await relay.connect(b"".join(request(3, 0, number) for number in range(count)))
        data = b"".join(response(number) for number in range(count))
        draining = asyncio.create_task(relay.listener.drain(30.0))
        await broker.send(data)
        assert await receive_all(client, len(data)) == data
        await client.expect_end()
        client.close()
        await draining


@pytest.mark.parametrize("cut", [1, 3, 7, 14, 50])
@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_what_waits_for_its_turn_is_no_part_of_the_last_request(cut: int, is_handed_over: bool) -> None:
    """Half of a request has come. Its rest comes with others, while other links are busy, and then a drain."""
    last, others = fetch(1, 5), [request(3, 0, number) for number in range(2, 40)]
    async with relaying() as relay:
        client, broker = await relay.connect(request(18, 0, 0))
        await broker.send(response(0))
        await client.expect(response(0))
        await client.send(last[:cut])
        (link,) = relay.listener.links
        await relay.until(lambda: link.relayed.requests == len(request(18, 0, 0)) + cut)
        turns = relay.relay.turns
        turns.pause = 0.1
        turns.add(lambda: None)
        await relay.until(lambda: not len(turns))
        await client.send(last[cut:] + b"".join(others))
        await relay.until(lambda: link.relayed.requests > len(request(18, 0, 0)) + cut)
        given: list[HandedOver] = []
        if is_handed_over:
            link.hand_over(lambda _, told: given.append(told))
        else:
            link.drain()
        await client.send(others[0])
        await broker.expect(last)
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        await broker.expect_end()
        client.close()
        assert [told.unread for told in given] == [b"".join(others)] * is_handed_over


async def test_fault_behind_waiting_requests_closes_after_them() -> None:
    data = b"".join(produce(number, 0) for number in range(3000))
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(data + b"\x00\x00\x00\x01")
        assert await receive_all(broker, len(data)) == data
        await broker.expect_end()
        assert relay.stats.protocol_errors == {"invalid_frame_size": 1}


async def test_held_fetch_among_thousands_keeps_requests_in_order() -> None:
    before = b"".join(produce(number, 0) for number in range(1000))
    async with relaying() as relay:
        relay.throttle.decisions.append(Hold(float("inf")))
        client, broker = await relay.connect()
        await client.send(before + fetch(1, 5) + before)
        assert await receive_all(broker, len(before)) == before
        await relay.until(lambda: len(relay.relay.held))
        assert broker.has_nothing()
        relay.relay.held.wake_now()
        await broker.expect(fetch(1, 5))
        await broker.send(fetch_response(1))
        assert await receive_all(broker, len(before)) == before

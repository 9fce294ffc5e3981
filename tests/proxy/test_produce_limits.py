# SPDX-License-Identifier: Apache-2.0
"""Producers are held to their limits on the wire: how long each request waits, and what its answer tells."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.relaying import DEADLINE_SECONDS, round_trip
from tests.limits.limiters import rule
from tests.protocol.wire import produce as raw_produce
from tests.protocol.wire import response
from tests.proxy.limited import (
    SOURCE,
    limited,
    produce,
    produced,
    read_produced,
)

ON_BOTH_LOOPS = True

PRODUCE_VERSIONS = (3, 5, 6, 8, 9, 12, 13)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_the_next_produce_waits_too(version: int) -> None:
    async with limited(rule(SOURCE, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, produce(1, 15, version), produced(1, version))
        await found.is_held(client, broker, produce(2, 15, version))
        await found.move(0.16)
        await broker.expect(produce(2, 15, version))


@pytest.mark.long
@pytest.mark.parametrize(("records", "told"), [(50, 0), (1800, 0), (1900, 1000)])
@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_a_producer_is_told_of_what_cannot_be_held_alone(version: int, records: int, told: int) -> None:
    """Java logs a warning whenever it is told, and nothing where its request is held."""
    async with limited(rule(SOURCE, 100)) as found:
        client, broker = await found.relay.connect()
        got = await found.passes_with(client, broker, produce(1, records, version), produced(1, version))
        assert read_produced(got, version).throttle_time_ms == (told if version >= 8 else 0)


async def test_produce_is_held_no_longer_than_its_client_waits() -> None:
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        got = await found.passes_with(client, broker, produce(1, 60), produced(1))
        assert read_produced(got, 9).throttle_time_ms == 15_000
        await found.is_held(client, broker, produce(2, 10))
        await found.move(19.9)
        await asyncio.sleep(0.01)
        assert broker.has_nothing()
        await found.move(0.2)
        await broker.expect(produce(2, 10))
        assert found.stage.holds_cut["passed"] == 1


@pytest.mark.parametrize(("timeout_ms", "held"), [(10_000, 7.5), (1500, 1.125), (60_000, 20.0)])
async def test_a_produce_is_held_for_a_part_of_its_own_timeout(timeout_ms: int, held: float) -> None:
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        first = produce(1, 25, timeout_ms=timeout_ms)
        told = read_produced(await found.passes_with(client, broker, first, produced(1)), 9).throttle_time_ms
        assert told == pytest.approx(1000 * min(15, 25 - 0.9 * held))  # so much that the rest can be held
        asked = produce(2, 10, timeout_ms=timeout_ms)
        await found.is_held(client, broker, asked)
        await found.move(held - 0.05)
        await asyncio.sleep(0.01)
        assert broker.has_nothing()
        await found.move(0.1)
        await broker.expect(asked)


async def test_what_can_be_held_and_told_together_is_kept_to() -> None:
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        got = await found.passes_with(client, broker, produce(1, 29), produced(1))
        told = read_produced(got, 9).throttle_time_ms / 1000
        assert told == pytest.approx(11)
        await found.move(told)
        await found.is_held(client, broker, produce(2, 10))
        await found.move(18.01)
        await broker.expect(produce(2, 10))
        assert not found.stage.holds_cut


async def test_a_transaction_is_held_and_told_for_a_short_time_only() -> None:
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        got = await found.passes_with(client, broker, produce(1, 60, transactional="t"), produced(1))
        assert read_produced(got, 9).throttle_time_ms == 5000
        await found.is_held(client, broker, produce(2, 60, transactional="t"))
        await found.move(5.01)
        await broker.expect(produce(2, 60, transactional="t"))


async def test_producer_is_told_what_waits_before_its_next_request() -> None:
    """Its connections stand in one line: 8 s for each of three others, of which a request can be held for 18."""
    async with limited(rule(SOURCE, 1)) as found:
        connections = [await found.relay.connect() for _ in range(4)]
        first, others = connections[0], connections[1:]
        for number in range(30):  # so it is known what one takes
            await found.passes_with(*first, produce(number, 8), produced(number))
            await found.move(8.01)
        await first[0].send(produce(40, 8))
        await first[1].expect(produce(40, 8))
        for client, _ in others:
            await client.send(produce(1, 8))
        links = found.relay.listener.links
        await found.relay.until(lambda: sum(link.connection.hold is not None for link in links) == len(others))
        await first[1].send(produced(40))
        told = read_produced(await first[0].receive_frame(), 9).throttle_time_ms
        assert told == pytest.approx(1000 * (8 + 3 * 8 - 18), rel=0.05)


async def test_next_in_line_does_not_wait_for_a_produces_answer() -> None:
    async with limited(rule(SOURCE, 1000)) as found:
        connections = [await found.relay.connect() for _ in range(3)]
        await found.passes_with(*connections[0], produce(1, 10), produced(1))
        for client, broker in connections[1:]:
            await client.send(produce(2, 10))
            await asyncio.sleep(0.01)
            assert broker.has_nothing()
        for _, broker in connections[1:]:
            await found.move(0.0101)
            await broker.expect(produce(2, 10))


@pytest.mark.parametrize("records", [10, 2000, 9000])
async def test_a_produce_whose_client_is_gone_is_never_forwarded(records: int) -> None:
    """Its client sends it again. With 2,000 records the FIN is behind bytes that nobody has read (kafka-go #1427).

    With 9,000, half a megabyte, it is even behind bytes for which the receive buffer had no room.
    """
    async with limited(rule(SOURCE, 10)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, produce(1, 10), produced(1))
        await client.send(produce(2, records))
        await found.relay.until(found.has_held)
        client.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while found.relay.listener.links:  # long before its pause is over
                await found.move(0.0)
                await asyncio.sleep(0.01)
        await broker.expect_end()


async def test_a_produce_that_its_client_gives_up_again_and_again_reaches_the_broker_once() -> None:
    """It is half a megabyte, and held for longer than its client waits for an answer."""
    async with limited(rule(SOURCE, 10)) as found:
        await found.passes_with(*await found.relay.connect(), produce(1, 100), produced(1))
        sent, broken_off = produce(2, 9000), []
        for attempt in range(3):
            client, broker = await found.relay.connect()
            await client.send(sent)
            await found.relay.until(found.has_held)
            await found.move(2.0)
            if attempt < 2:
                client.close()
                broken_off.append(broker)
                links = found.relay.listener.links
                async with asyncio.timeout(DEADLINE_SECONDS):
                    while len(links) > 1:
                        await found.move(0.0)
                        await asyncio.sleep(0.01)
        for gone in broken_off:
            await gone.expect_end()
        await found.move(10.0)
        await broker.expect(sent)


async def test_requests_of_a_closed_acks_0_producer_keep_its_rate() -> None:
    async with limited(rule(SOURCE, 10)) as found:
        client, broker = await found.relay.connect()
        sent = [produce(number, 10, acks=0) for number in range(5)]
        await client.send(b"".join(sent))
        client.close()
        for number, one in enumerate(sent):
            await broker.expect(one)
            if number < len(sent) - 1:
                await found.relay.until(found.has_held)
                await found.move(0.9)
                await asyncio.sleep(0.01)
                assert broker.has_nothing()
                await found.move(0.2)
        await broker.expect_end()


async def test_acks_0_producer_that_is_gone_is_not_kept_for_ever() -> None:
    async with limited(rule(SOURCE, 0.05)) as found:
        client, broker = await found.relay.connect()
        sent = [produce(number, 10, acks=0) for number in range(30)]
        await client.send(b"".join(sent))
        client.close()
        await found.relay.until(found.has_held)
        for _ in range(100):
            if not found.relay.listener.links:
                break
            await found.move(1.0)
            await asyncio.sleep(0.005)
        assert not found.relay.listener.links
        assert found.stage.holds_cut["dropped"] == 1
        received = await broker.receive(len(b"".join(sent)))
    assert received == b"".join(sent)[: len(received)]
    assert 4 <= len(received) / len(sent[0]) <= 9, "one each 10 s, for 60 s"


async def test_a_produce_that_cannot_be_read_passes_and_is_counted() -> None:
    async with limited(rule("c", 100)) as found:
        client, broker = await found.relay.connect()
        for number, answer in ((1, response(1)), (2, response(2, b"\xff" * 40))):
            asked = raw_produce(number, 1, version=9, records=b"\xff" * 90)
            assert await found.passes_with(client, broker, asked, answer) == answer
        assert sum(found.stage.not_counted.values()) == 2


async def test_a_large_produce_answer_passes_as_it_is() -> None:
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        answer = produced(1, partitions=4000)
        assert await found.passes_with(client, broker, produce(1, 5), answer) == answer


async def test_a_produce_without_acks_is_counted_and_has_no_answer() -> None:
    async with limited(rule(SOURCE, 100)) as found:
        client, broker = await found.relay.connect()
        await client.send(produce(1, 50, acks=0))
        await broker.expect(produce(1, 50, acks=0))
        await found.is_held(client, broker, produce(2, 50, acks=0))
        await found.move(0.51)
        await broker.expect(produce(2, 50, acks=0))
        await round_trip(client, broker, 3)

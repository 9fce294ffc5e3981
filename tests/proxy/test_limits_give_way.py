# SPDX-License-Identifier: Apache-2.0
"""A held request gives way to requests of other kinds that its client sends behind it, and the limit is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.fakes.relaying import Peer
from tests.limits.limiters import rule
from tests.protocol.wire import request
from tests.proxy.limited import SINK, SOURCE, Limited, fetch, fetched, limited, produce, produced, read_fetched
from weir.limits.holds import MOST_OWED_SECONDS
from weir.protocol.header import SIZE
from weir.proxy.limits.gate import LOOK_SECONDS

ON_BOTH_LOOPS = True

METADATA, COMMIT, HEARTBEAT = 3, 8, 12


def other(number: int, api_key: int = HEARTBEAT) -> bytes:
    return request(api_key, 4, number, b"", client_id=SOURCE.encode())


def answer_to(asked: bytes, number: int) -> bytes:
    return produced(number) if asked[4:6] == b"\0\0" else SIZE.pack(8) + number.to_bytes(4) + b"xxxx"


async def pass_in(found: Limited, broker: Peer, asked: bytes) -> float:
    """Have a request go to the broker, and return the seconds until then."""
    begin = found.clock()
    while broker.has_nothing():
        await found.move(0.05)
        await asyncio.sleep(0.002)
    await broker.expect(asked)
    return found.clock() - begin


async def hold(found: Limited, requests: Sequence[bytes], owed: int = 300) -> tuple[Peer, Peer]:
    """Have the first of these wait, at 100 records/s; the others stand behind it."""
    client, broker = await found.relay.connect()
    await found.passes_with(client, broker, produce(1, owed), produced(1))
    await found.is_held(client, broker, b"".join(requests))
    return client, broker


@pytest.mark.parametrize("records", [1, 1000])
@pytest.mark.parametrize("api_key", [METADATA, COMMIT, HEARTBEAT])
async def test_a_held_produce_gives_way_to_another_kind_behind_it(records: int, api_key: int) -> None:
    """sarama has one connection for everything: its group lost members whose heartbeats waited."""
    async with limited(rule(SOURCE, 100)) as found:
        held = produce(2, records)
        _, broker = await hold(found, [held, other(3, api_key)])
        assert await pass_in(found, broker, held + other(3, api_key)) <= 0.9


async def test_one_that_comes_while_it_is_held_is_seen_too() -> None:
    async with limited(rule(SOURCE, 100)) as found:
        held = produce(2, 1000)
        client, broker = await hold(found, [held])
        for _ in range(4):
            await found.move(0.25)
            await asyncio.sleep(0.002)
        assert broker.has_nothing()
        await client.send(other(3))
        await asyncio.sleep(0.01)
        assert await pass_in(found, broker, held + other(3)) <= 0.9


async def test_all_that_stand_before_it_go() -> None:
    async with limited(rule(SOURCE, 100)) as found:
        held = [produce(number, 20) for number in range(2, 6)]
        _, broker = await hold(found, [*held, other(6), produce(7, 20)])
        begin = asyncio.get_running_loop().time()
        await found.move(0.26)
        await asyncio.sleep(0.01)
        await found.move(0.5)
        await broker.expect(b"".join([*held, other(6)]))
        assert asyncio.get_running_loop().time() - begin < 2 * LOOK_SECONDS
        assert found.has_held()
        assert 2.9 <= await pass_in(found, broker, produce(7, 20)) <= 3.4  # what the five owe together


async def test_it_gives_way_to_a_fetch_which_is_then_held_itself() -> None:
    """sarama writes no heartbeat while it waits for the answer to a Fetch."""
    async with limited(rule(SOURCE, 100)) as found:
        held, asked = produce(2, 50), fetch(3, 11, client_id=SOURCE, session=(0, -1), partitions=[0])
        client, broker = await hold(found, [held, asked])
        assert await pass_in(found, broker, held) <= 0.9
        await broker.send(produced(2))
        assert (await client.receive_frame())[4:8] == (2).to_bytes(4)
        begin = found.clock()
        while client.has_nothing():
            await found.move(0.05)
            await asyncio.sleep(0.002)
        assert found.clock() - begin <= 0.6
        assert read_fetched(await client.receive_frame(), 11).responses[0].partitions[0].records in (b"", None)
        assert broker.has_nothing()


@pytest.mark.parametrize("behind", [[], [produce(3, 1)], [produce(3, 1), produce(4, 1)]])
async def test_it_does_not_give_way_to_its_own_kind(behind: list[bytes]) -> None:
    async with limited(rule(SOURCE, 100)) as found:
        held = produce(2, 1)
        _, broker = await hold(found, [held, *behind])
        for _ in range(28):
            await found.move(0.1)
            await asyncio.sleep(0.002)
        assert broker.has_nothing()
        await found.move(0.3)
        await broker.expect(held)


async def test_request_of_a_client_far_ahead_of_its_limit_is_held() -> None:
    async with limited(rule(SOURCE, 100)) as found:
        held = produce(2, 20)
        _, broker = await hold(found, [held, other(3)], owed=800)
        assert await pass_in(found, broker, held + other(3)) == pytest.approx(8 - MOST_OWED_SECONDS, abs=0.3)


@pytest.mark.long
@pytest.mark.parametrize(("records", "apart"), [(60, 0), (250, 0), (350, 3), (450, 3), (900, 3)])
async def test_client_that_sends_another_kind_behind_keeps_its_limit(records: int, apart: float) -> None:
    """A request of another kind comes `apart` seconds after the last one was answered, for good.

    It waits for what must pass before it, less that: answers go in order, so less would be more than the limit.
    """
    async with limited(rule(SOURCE, 100)) as found:
        client, broker = await found.relay.connect()
        begin, passed, number, waits = found.clock(), 0, 1, []
        while (seconds := found.clock() - begin) < 90:
            pair = [produce(number, records), other(number + 1)]
            await client.send(b"".join(pair))
            waits.append(await pass_in(found, broker, b"".join(pair)))
            for asked in pair:
                await broker.send(answer_to(asked, number))
                await client.receive_frame()
                number += 1
            passed += records
            assert passed <= 100 * (found.clock() - begin + MOST_OWED_SECONDS) + 2 * records
            await found.move(apart)
        assert passed >= 100 * seconds
        latest = waits[len(waits) // 2 :]
        mean = sum(latest) / len(latest)
        assert mean == pytest.approx(records / 100 - apart, abs=0.3) if records > 100 * (apart + 1) else max(waits) <= 1


@pytest.mark.parametrize("behind", [other(3), produce(3, 1)])
async def test_fetch_in_a_session_gives_way_and_begins_it_anew(behind: bytes) -> None:
    """Java asks for offsets over the connection on which it fetches."""
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 400))
        await found.is_held(client, broker, fetch(2) + behind)
        assert await pass_in(found, broker, behind) <= 0.3
        assert read_fetched(await client.receive_frame(), 12).error_code == 71


async def test_fetch_too_long_for_a_full_answer_gives_no_way() -> None:
    """kafka-go and sarama take an answer that lacks partitions for an error: it is held for as long as it may wait."""
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1, 4), fetched(1, 400, 4))
        await found.is_held(client, broker, fetch(2, 4, max_wait_ms=3_000, partitions=range(2_000)) + other(3))
        for _ in range(10):
            await found.move(0.25)
            await asyncio.sleep(0.002)
        assert found.has_held()
        assert client.has_nothing()
        assert broker.has_nothing()

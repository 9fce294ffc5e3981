# SPDX-License-Identifier: Apache-2.0
"""The members of share groups (KIP-932) are held to their limits, and acknowledge meanwhile."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.limits.limiters import rule
from tests.protocol.test_batch_counter import NONE, built
from tests.protocol.test_record_counts import share_fetched
from tests.protocol.wire import request, varint
from tests.proxy.limited import SINK, TOPIC_ID, fetch, fetched, limited
from weir.protocol.header import SHARE_FETCH

ON_BOTH_LOOPS = True

SHARE_ACKNOWLEDGE = 79


def share_fetch(
    number: int, version: int, asks: tuple[int, ...] = (500, 1, 2**20, 500), *, renews: bool = False
) -> bytes:
    """A ShareFetch in the middle of its session, by ShareFetchRequest.json; `asks`: for how long, and how much."""
    body = b"\x00" + varint(2) + b"g" + varint(2) + b"m" + struct.pack(">iiiiii", 3, *asks, 500)
    body += (b"\x01" + bytes([renews]) if version >= 2 else b"") + varint(1) + varint(1) + b"\x00"
    return request(SHARE_FETCH, version, number, body, client_id=SINK.encode())


@pytest.mark.parametrize("version", [1, 2])
async def test_a_share_group_s_fetches_are_limited_too(version: int) -> None:
    """KIP-932. Its acknowledgements are in later fetches, so none is held for as long as records are locked."""

    def asked(number: int) -> bytes:
        return request(SHARE_FETCH, version, number, b"\x00" * 40, client_id=SINK.encode())

    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        answer = share_fetched(1, [(0, 49)], built(2, NONE, [50] * 80), TOPIC_ID)
        assert await found.passes_with(client, broker, asked(1), answer) == answer
        assert [one.rates.records for one in found.stage.clients] == [50]
        await found.is_held(client, broker, asked(2))
        await client.send(acknowledged := request(SHARE_ACKNOWLEDGE, 1, 3, b"\x00" * 40, client_id=SINK.encode()))
        await found.move(0.51)
        await broker.expect(asked(2) + acknowledged)


@pytest.mark.parametrize("version", [1, 2])
async def test_share_groups_fetch_held_for_long_acknowledges_alone(version: int) -> None:
    """It asks for no records then (v2): what was acquired before may not wait for its acknowledgement."""
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 2000))
        for number in range(2, 5):
            await found.is_held(client, broker, share_fetch(number, version))
            await found.move(4.9)
            await asyncio.sleep(0)
            assert found.has_held()
            await found.move(0.2)
            if version == 1:
                await broker.expect(share_fetch(number, version))
                assert found.stage.holds_cut == {"passed": 1}
                return
            await broker.expect(share_fetch(number, version, (0, 0, 0, 0), renews=True))
            await broker.send(answer := share_fetched(number, [], None, TOPIC_ID))
            assert await client.receive_frame() == answer
        assert found.stage.holds_cut == {"answered": 3}
        await found.is_held(client, broker, share_fetch(5, version))
        await found.move(4.8)
        await broker.expect(share_fetch(5, version))


async def test_a_share_fetch_of_another_version_passes_and_is_counted() -> None:
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        asked = request(SHARE_FETCH, 3, 2, b"\x00" * 40, client_id=SINK.encode())
        await client.send(asked)
        await broker.expect(asked)
        assert found.stage.not_counted["version"] == 1

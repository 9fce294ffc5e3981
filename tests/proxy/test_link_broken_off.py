# SPDX-License-Identifier: Apache-2.0
"""A leader that ends its connection in the middle of an answer."""

from __future__ import annotations

import struct

import pytest

from tests.fakes.relaying import Peer, relaying
from tests.protocol.wire import fetch, fetch_response
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS


@pytest.mark.parametrize("ending", ["half_close", "reset", "client"])
async def test_of_an_answer_that_a_leader_breaks_off_what_came_counts(ending: str) -> None:
    """On the follower's side. That of an offset probe is debt. Where the follower ends it, all may still come."""
    async with relaying(peer=1) as relay:
        settings = ThrottleSettings(rate=1_000_000, replicas={"t": ALL_REPLICAS})
        relay.relay.throttle = throttle = Throttle("follower", 2, relay.relay.clock, settings)
        batch = struct.pack(">qi", 0, 19_988) + bytes(19_988)
        empty = throttle.ledger.room()

        async def asks(number: int) -> tuple[Peer, Peer]:
            client, broker = await relay.connect()
            for correlation_id in range(number):
                await client.send(fetch(correlation_id, 2, topics=((b"t", ((0, correlation_id, 100_000),)),)))
                await broker.receive_frame()
                answer = fetch_response(correlation_id, topics=((b"t", ((0, 1_000, batch),)),))
                if correlation_id < number - 1:
                    await broker.send(answer)
                    await client.receive(len(answer))
            await broker.send(answer[:-12_000])
            await client.receive(len(answer) - 12_000)
            return client, broker

        for number in (1, 2):  # the first fetch is an offset probe, the next one has a grant
            client, broker = await asks(number)
            if ending == "client":
                client.reset()
            else:
                getattr(broker, ending)()
                await client.expect_end()
                client.close()
            await relay.until(lambda: not relay.listener.links)
        granted = 20_012  # a batch, and the head of the next
        counted = 8_000 + 20_000 + (granted if ending == "client" else 8_000)
        assert throttle.ledger.reserved == 0
        assert empty - throttle.ledger.room() == pytest.approx(counted, abs=1)


async def test_bytes_in_sync_of_an_answer_that_is_broken_off_count_on_the_leaders_side() -> None:
    async with relaying() as relay:
        settings = ThrottleSettings(rate=1_000_000, replicas={"t": ALL_REPLICAS})
        relay.relay.throttle = throttle = Throttle("leader", 1, relay.relay.clock, settings)
        empty = throttle.ledger.room()
        client, broker = await relay.connect()
        batch = struct.pack(">qi", 0, 19_988) + bytes(19_988)
        for correlation_id, records in enumerate((b"", batch)):  # the first answer tells that the follower is in sync
            await client.send(fetch(correlation_id, 2, topics=((b"t", ((0, 7, 100_000),)),)))
            await broker.receive_frame()
            answer = fetch_response(correlation_id, topics=((b"t", ((0, 7, records),)),))
            await broker.send(answer[: len(answer) - len(records) + 8_000])
            await client.receive(min(len(answer), len(answer) - len(records) + 8_000))
        client.reset()
        await relay.until(lambda: not relay.listener.links)
        assert empty - throttle.ledger.room() == pytest.approx(8_000, abs=1)

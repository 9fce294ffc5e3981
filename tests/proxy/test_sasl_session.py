# SPDX-License-Identifier: Apache-2.0
"""A held request never outlives its client's SASL session: the broker would close the connection on it."""

from __future__ import annotations

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying
from tests.limits.limiters import rule
from tests.protocol.test_sasl_answer import answer
from tests.protocol.wire import fetch, request, response
from tests.proxy.limited import SINK, fetched, limited, read_fetched
from tests.proxy.limited import fetch as consumers_fetch
from weir.proxy.relay.fetches import SESSION_PART
from weir.quota.fetch.decisions import Answer, Forward, Hold

FAR = float("inf")


async def authenticated(relay: Relaying, lifetime_seconds: float, version: int = 1) -> tuple[Peer, Peer]:
    """A client whose session lasts for so long, and its connection's end at the broker."""
    client, broker = await relay.connect(request(17, 1, 8) + request(36, version, 9))
    answers = response(8) + answer(version, round(lifetime_seconds * 1000))
    await broker.send(answers)
    await client.expect(answers)
    return client, broker


async def held(relay: Relaying, client: Peer) -> None:
    before = len(relay.relay.held)
    await client.send(fetch(10, 5))
    await relay.until(lambda: len(relay.relay.held) > before)


@pytest.mark.parametrize("version", [1, 2])
async def test_fetch_is_planned_a_last_time_before_the_session_ends(version: int) -> None:
    async with relaying() as relay:
        client, broker = await authenticated(relay, 100, version)
        relay.throttle.decisions += [Hold(FAR), Hold(FAR), Answer(response(10))]
        await held(relay, client)
        relay.later += SESSION_PART * 100 - 10
        relay.relay.held.wake_now()
        assert relay.throttle.told("plan")[-1][2] < 100
        relay.later += 10
        relay.relay.held.wake_now()
        await client.expect(response(10))
        assert relay.throttle.told("plan")[-1][2] == 3600.0, "the throttle ends the hold whatever the follower waits"
        assert broker.has_nothing()


async def test_hold_ends_by_itself_before_the_session() -> None:
    async with relaying() as relay:
        client, broker = await authenticated(relay, 0.1)
        relay.throttle.decisions += [Hold(FAR), lambda asked: Forward(asked)]
        await client.send(fetch(10, 5))
        await broker.expect(fetch(10, 5))
        assert [call[2] for call in relay.throttle.told("plan")] == [0.0, 3600.0]


async def test_unanswerable_fetch_is_closed_before_the_session_ends() -> None:
    async with relaying() as relay:
        client, broker = await authenticated(relay, 100)
        relay.throttle.decisions += [Hold(FAR), Hold(FAR)]
        await held(relay, client)
        relay.later += 96
        relay.relay.held.wake_now()
        await client.expect_end()
        await broker.expect_end()


async def test_authenticating_again_begins_a_new_session() -> None:
    """It is done over the same connection."""
    async with relaying() as relay:
        client, broker = await authenticated(relay, 100)
        relay.later += 90
        again = request(17, 1, 8) + request(36, 1, 9)
        await client.send(again)
        await broker.expect(again)
        await broker.send(response(8) + answer(1, 100_000))
        await client.expect(response(8) + answer(1, 100_000))
        relay.throttle.decisions += [Hold(FAR), Hold(FAR)]
        await held(relay, client)
        relay.later += 90
        relay.relay.held.wake_now()
        assert relay.throttle.told("plan")[-1][2] < 100
        assert len(relay.relay.held) == 1


async def test_session_without_an_end_bounds_no_hold() -> None:
    async with relaying() as relay:
        client, _ = await authenticated(relay, 0)
        relay.throttle.decisions += [Hold(FAR), Hold(FAR)]
        await held(relay, client)
        relay.later += 100_000
        relay.relay.held.wake_now()
        assert len(relay.relay.held) == 1


async def test_limited_client_is_answered_before_its_session_ends() -> None:
    """Without a session its Fetch would be held for 5 s."""
    async with limited(rule(SINK, 100)) as found:
        client, broker = await authenticated(found.relay, 4)
        await found.passes_with(client, broker, consumers_fetch(1), fetched(1, 5000))
        await found.is_held(client, broker, consumers_fetch(2))
        await found.move(SESSION_PART * 4)
        got = await client.receive_frame()
        assert read_fetched(got, 12).responses == []
        assert found.stage.holds_cut["answered"] == 1
        assert broker.has_nothing()

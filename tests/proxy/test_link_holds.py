# SPDX-License-Identifier: Apache-2.0
"""Fetches that are held: what waits behind them, and when they are planned again."""

import asyncio
import socket
import time
from functools import partial
from math import inf

import pytest

from tests.fakes.links import FakeLink, waits_for_budget
from tests.fakes.relaying import relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol.response_scanner import Expected
from weir.protocol.take_out import Passing
from weir.proxy.relay.side import HeldFetches
from weir.quota.fetch.decisions import Forward, Hold

ON_BOTH_LOOPS = True


async def test_fetch_is_held_until_its_time_and_planned_with_its_hold() -> None:
    """Each plan is told for how long the fetch was held."""
    async with relaying() as relay:
        for _ in range(2):
            relay.throttle.decisions.append(lambda _: Hold(time.monotonic() + 0.01))
        await relay.connect(fetch(1, 5))
        held_seconds = [call[2] for call in relay.throttle.told("plan")]
        assert held_seconds[0] == 0
        assert held_seconds[1] >= 0.009
        assert held_seconds[2] >= 0.019
        assert (relay.stats.fetches_held, len(relay.relay.held)) == (1, 0)


async def test_requests_before_a_held_fetch_pass_those_behind_wait() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(inf), Hold(inf)])
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1) + fetch(2, 5) + request(18, 0, 3) + fetch(4, 5) + request(18, 0, 5))
        await broker.expect(request(3, 0, 1))
        assert len(relay.relay.held) == 1
        assert relay.pool.lent == []
        await broker.send(response(1, b"the other direction flows on"))
        await client.expect(response(1, b"the other direction flows on"))
        relay.relay.held.wake_now()
        assert broker.has_nothing()
        relay.relay.held.wake_now()
        await broker.expect(fetch(2, 5))
        await broker.send(fetch_response(2))
        await broker.expect(request(18, 0, 3) + fetch(4, 5))
        await client.send(request(18, 0, 6))
        await broker.send(response(3) + fetch_response(4))
        await broker.expect(request(18, 0, 5) + request(18, 0, 6))
        await client.expect(fetch_response(2) + response(3) + fetch_response(4))


async def test_second_held_fetch_keeps_what_follows_back_too() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5) + fetch(2, 5) + request(18, 0, 3))
        relay.throttle.decisions.extend([lambda asked: Forward(asked), Hold(inf)])
        relay.relay.held.wake_now()
        await broker.expect(fetch(1, 5))
        await client.send(request(18, 0, 4))
        await broker.send(fetch_response(1)[:30])  # several turns of the loop
        await client.expect(fetch_response(1)[:30])
        assert broker.has_nothing()
        await broker.send(fetch_response(1)[30:])
        await client.expect(fetch_response(1)[30:])
        await relay.until(lambda: len(relay.relay.held))
        assert broker.has_nothing()
        relay.relay.held.wake_now()
        await broker.expect(fetch(2, 5))
        await broker.send(fetch_response(2))
        await broker.expect(request(18, 0, 3) + request(18, 0, 4))
        assert relay.stats.fetches_held == 2


async def test_a_held_fetch_stops_the_reading_of_its_client() -> None:
    async with relaying() as relay:
        client, _ = await relay.hold(fetch(1, 5))
        await client.send_until_blocked(request(0, 2, 2, b"\xff" * 10_000))
        assert relay.pool.lent == []


async def test_a_settled_response_wakes_the_fetches_of_other_links() -> None:
    async with relaying() as relay:
        _, broker = await relay.connect(fetch(1, 5))
        _, its_broker = await relay.hold(fetch(7, 6))
        await broker.send(fetch_response(1))
        await its_broker.expect(fetch(7, 6))


async def test_a_closed_link_wakes_the_fetches_of_other_links() -> None:
    async with relaying() as relay:
        client, _ = await relay.connect(fetch(1, 5))
        _, its_broker = await relay.hold(fetch(7, 6))
        client.reset()
        await its_broker.expect(fetch(7, 6))
        assert len(relay.throttle.told("close")) == 1


async def test_held_fetches_are_planned_again_in_their_order() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(inf)] * 6)
        for held, correlation_id in enumerate((3, 1, 2), 1):
            client, _ = await relay.connect()
            await client.send(fetch(correlation_id, 5))
            await relay.until(lambda: len(relay.relay.held) == held)  # noqa: B023
        relay.relay.held.wake_now()
        await relay.until(lambda: len(relay.throttle.told("plan")) == 6)  # a busy machine needs several turns
        assert [call[1] for call in relay.throttle.told("plan")] == [3, 1, 2] * 2


async def test_client_that_left_while_held_is_not_forwarded_for() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5))
        client.close()

        def replanned() -> bool:
            relay.relay.held.wake_now()
            return not len(relay.relay.held)

        await relay.until(replanned)
        await broker.expect_end()
        assert len(relay.throttle.told("plan")) == 1


async def test_broker_going_away_ends_a_held_fetchs_connection() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5))
        broker.close()
        await client.expect_end()
        await relay.until(lambda: not len(relay.relay.held))


async def test_a_hold_in_the_past_does_not_spin() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(0.0)] * 10_000)
        client, _ = await relay.connect()
        await client.send(fetch(1, 5))
        await relay.until(lambda: len(relay.relay.held))
        await asyncio.sleep(0.02)
        assert 1 < len(relay.throttle.told("plan")) < 60


async def test_a_hold_without_an_end_sets_no_timer() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        relay.throttle.decisions.extend([Hold(time.monotonic() + 0.05), Hold(inf)])
        await client.send(fetch(1, 5))
        await relay.until(lambda: len(relay.relay.held))
        relay.relay.held.wake_now()
        await asyncio.sleep(0.1)
        assert len(relay.throttle.told("plan")) == 2  # not even by the timer of the hold before
        assert broker.has_nothing()


class Carrier(FakeLink):
    """A link that holds a request."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def replan(self) -> None:
        self.told.append("replan")


async def test_many_wakes_in_a_moment_are_one_and_the_next_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plans every held fetch again: with hundreds of links that may not happen for every response."""
    held, carrier, loop = HeldFetches(), Carrier(), asyncio.get_running_loop()
    moment = loop.time()
    monkeypatch.setattr(loop, "time", lambda: moment)  # it stands still, however busy the machine is
    held.wake_soon()
    waits_for_budget(held, carrier)
    for _ in range(3):
        held.wake_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert carrier.told == ["replan"]
    for _ in range(3):
        held.wake_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert carrier.told == ["replan"]
    held.wake_now()
    assert carrier.told == ["replan"] * 2
    monkeypatch.undo()
    await asyncio.sleep(0.02)
    assert carrier.told == ["replan"] * 2  # the wake that was due came already


async def test_budget_that_flows_back_wakes_one_in_line_after_another() -> None:
    """It wakes the next in line, and when that one went the one after it."""
    line = ["b", "c"]
    held = HeldFetches(next_in_line=lambda: [*line[:1], "not held"])
    carriers = [Carrier() for _ in range(3)]
    for carrier, throttle in zip(carriers, "abc", strict=True):
        waits_for_budget(held, carrier, throttle)

    def go() -> None:
        held.wait(carriers[1], None)
        line.remove("b")

    carriers[1].replan = go  # type: ignore[method-assign]
    held.wake_soon()
    await asyncio.sleep(0.03)
    assert [carrier.told for carrier in carriers] == [[], [], ["replan"]]


async def test_link_that_waits_for_no_budget_wakes_nobody() -> None:
    """A request held for a client's limit is looked at five times a second: that frees nothing for replicas."""
    held, waits, looked_at = HeldFetches(), Carrier(), Carrier()
    waits_for_budget(held, waits)
    held.wake([looked_at])
    await asyncio.sleep(0.03)
    assert (looked_at.told, waits.told) == (["replan"], [])


async def test_held_fetch_is_decided_when_the_answer_before_has_gone() -> None:
    """Its client has not read that, and has more on its way with each fetch that it sends ahead."""
    asked = fetch(1, 5, topics=((b"t", ((0, 7, 10),)),))
    answer = fetch_response(1, topics=((b"t", ((0, 9, bytes(400_000)),)),))
    async with relaying() as relay:
        granted = partial(Forward, expected=Expected(admit=lambda *_: Passing.ALL, holds_all=True), is_granted=True)
        relay.throttle.decisions += [granted, Forward]
        client, broker = await relay.connect(asked)
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
        await client.send(fetch(2, 5))
        await broker.send(answer)
        await relay.until(lambda: relay.throttle.told("settle"))
        await asyncio.sleep(0.05)
        assert len(relay.throttle.told("plan")) == 1
        await client.expect(answer)
        await broker.expect(fetch(2, 5))
        assert [call[1] for call in relay.throttle.told("plan")] == [1, 2]

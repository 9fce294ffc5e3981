# SPDX-License-Identifier: Apache-2.0
"""Client ids that change on a connection, and limits that change while requests are held: each passes once, in time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.limits.limiters import rule
from tests.proxy.limited import Limited, limited, produce, produced
from weir.limits.built_in import LATE_SECONDS
from weir.protocol.request_sender import RequestSender

pytestmark = pytest.mark.long

TICK = 0.05  # seconds
IN_FLIGHT = 5
FAST, SLOW, FREE = "fast", "slow", "free"
LIMITS = {FAST: 200.0, SLOW: 50.0}

Passed = tuple[float, str, int]
"""When a request came to the broker, whose it is, and its records."""


async def drive(
    found: Limited, asked: Iterator[tuple[str, int]], seconds: float, at_tick: Callable[[float], None] = lambda _: None
) -> list[Passed]:
    """Send these as one client that always has some under way; returns what came to the broker, each once, in order."""
    client, broker = await found.relay.connect()
    sent: list[tuple[str, int]] = []
    waiting: deque[int] = deque()
    passed: list[Passed] = []
    begin = found.clock()
    while (now := found.clock() - begin) < seconds:
        at_tick(now)
        while len(waiting) < IN_FLIGHT:
            who, records = next(asked)
            waiting.append(len(sent))
            sent.append((who, records))
            await client.send(produce(waiting[-1], records, client_id=who))
        for _ in range(3):
            await asyncio.sleep(0.001)
            while not broker.has_nothing():
                frame = await broker.receive_frame()
                number = int.from_bytes(frame[8:12])
                assert number == len(passed)
                who = (RequestSender(0, 9, frame[:200]).client_id or b"").decode()
                assert who == sent[number][0]
                passed.append((found.clock() - begin, who, sent[number][1]))
                await broker.send(produced(number))
            while not client.has_nothing():
                assert (await client.receive_frame())[4:8] == waiting.popleft().to_bytes(4)
        await found.move(TICK)
    assert found.stage.holds_cut.total() == 0
    return passed


@pytest.mark.parametrize("seed", range(3))
async def test_each_id_on_a_connection_keeps_its_own_limit(seed: int) -> None:
    """As behind a proxy that shares its connections among clients. Who has no limit waits its turn and no longer."""
    random = Random(seed)
    async with limited(*(rule(who, limit) for who, limit in LIMITS.items())) as found:
        passed = await drive(found, iter(lambda: (random.choice([FAST, SLOW, FREE]), random.randint(1, 60)), None), 60)
    for who, limit in LIMITS.items():
        own = [(at, records) for at, one, records in passed if one == who]
        for first, (begin, _) in enumerate(own):
            moved = 0
            for at, records in own[first:]:
                assert moved <= limit * (1 + LATE_SECONDS) * (at - begin + TICK), (who, begin, at)
                moved += records
    needed = sum(records / LIMITS[who] for _, who, records in passed if who in LIMITS)
    assert needed >= 0.97 * passed[-1][0] - 60 / min(LIMITS.values())  # no more waits than have to be


@pytest.mark.parametrize("seed", range(3))
async def test_a_limit_that_changes_all_the_time_is_kept_on_the_whole(seed: int) -> None:
    """Also in the middle of pauses: what is owed is spread anew, at once."""
    random, limit, changes_at, allowed, last = Random(seed), 100.0, 0.0, [(0.0, 0.0)], 0.0

    def change(now: float) -> None:
        nonlocal limit, changes_at, last
        allowed.append((now, allowed[-1][1] + limit * (now - last)))
        last = now
        if now >= changes_at:
            limit, changes_at = random.choice([20.0, 100.0, 400.0]), now + random.uniform(0.1, 3)
            found.stage.configure([rule(FAST, limit)])

    async with limited(rule(FAST, 100)) as found:
        passed = await drive(found, iter(lambda: (FAST, random.randint(1, 60)), None), 60, change)
    moved, by_time = 0, dict(allowed)
    for at, _, records in passed:
        assert moved <= 1.02 * by_time[at] + 60 + 400 * TICK
        moved += records
    assert moved >= 0.97 * allowed[-1][1] - 60


async def test_removed_limit_lets_go_and_begins_again_without_a_debt() -> None:
    async with limited(rule(FAST, 10)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, produce(0, 50, client_id=FAST), produced(0))
        await found.is_held(client, broker, produce(1, 1, client_id=FAST))
        found.stage.configure([])
        await broker.expect(produce(1, 1, client_id=FAST))
        await broker.send(produced(1))
        await client.receive_frame()
        found.stage.configure([rule(FAST, 10)])
        await found.passes_with(client, broker, produce(2, 5, client_id=FAST), produced(2))
        await found.is_held(client, broker, produce(3, 1, client_id=FAST))
        await found.move(0.51)
        await broker.expect(produce(3, 1, client_id=FAST))

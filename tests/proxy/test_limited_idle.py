# SPDX-License-Identifier: Apache-2.0
"""A limit that many share: while most have nothing to fetch the others have all of it, and all stand in one line."""

from __future__ import annotations

import pytest

from tests.limits.limiters import rule
from tests.proxy.limit_world import Task, World
from weir.limits.holds import HOLDS
from weir.limits.rules import Per

pytestmark = pytest.mark.long

LIMIT = 1000
RECORDS = 50
BEGIN, SECONDS = 10.0, 30.0
"""By then the limit is at the one broker that these use."""


async def moved(tasks: list[Task], per: Per = "connector") -> list[int]:
    """Run them, and return how many records each of those that have some has got."""
    world = World(tasks, [rule("connector-*", LIMIT, per=per)])
    await world.run(BEGIN + SECONDS)
    await world.close()
    busy = [one for one in world.connections if not one.task.poll_seconds]
    return [RECORDS * sum(at >= BEGIN for at in one.moved) for one in busy]


def sinks(count: int, busy: int, poll_seconds: float = 0.5) -> list[Task]:
    return [
        Task(f"connector-consumer-a-{number}", RECORDS, frozenset({1}), poll_seconds=poll_seconds * (number >= busy))
        for number in range(count)
    ]


@pytest.mark.parametrize("poll_seconds", [0.5, 0.05])
@pytest.mark.parametrize(("count", "busy"), [(1, 1), (2, 1), (10, 1), (20, 1), (20, 3), (100, 1), (100, 50)])
async def test_idle_members_cost_the_others_nothing(count: int, busy: int, poll_seconds: float) -> None:
    by_task = await moved(sinks(count, busy, poll_seconds))
    assert 0.97 * LIMIT * SECONDS <= sum(by_task) <= LIMIT * SECONDS + busy * RECORDS
    assert max(by_task) - min(by_task) <= 0.2 * max(by_task) + RECORDS


async def test_many_connections_of_one_id_of_which_one_is_busy() -> None:
    """A connection for each partition, as kafka-go makes them."""
    tasks = [Task("connector-consumer-a-0", RECORDS, frozenset({1}), poll_seconds=0.5 * (one > 0)) for one in range(24)]
    assert 0.97 * LIMIT * SECONDS <= sum(await moved(tasks, per="task")) <= LIMIT * SECONDS + RECORDS


@pytest.mark.parametrize("count", [2, 20, 60])
async def test_members_sent_away_to_ask_again_have_equal_parts(count: int) -> None:
    """Without a session a fetch is held for 0.4 s, and with 60 of them each has a turn every 3 s."""
    tasks = [
        Task(f"connector-consumer-a-{number}", RECORDS, frozenset({1}), session=(0, -1)) for number in range(count)
    ]
    by_task = await moved(tasks)
    assert 0.97 * LIMIT * SECONDS <= sum(by_task) <= LIMIT * SECONDS + count * RECORDS
    assert max(by_task) - min(by_task) <= 0.1 * max(by_task) + RECORDS


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("line_seconds", [12, 18, 24])
async def test_producers_of_one_id_wait_for_no_longer_than_a_hold(line_seconds: int, waits: bool) -> None:
    """None waits for longer than a hold, or it would send its records again.

    Those that wait when told keep to the limit in a longer line, too. Others go when their time is over.
    """
    limit, count, seconds, hold = 100.0, 24, 300.0, HOLDS["produce"].most
    records = round(line_seconds * limit / count)
    task = Task("one", records, frozenset({1}), produces=True, waits_when_told=waits)
    world = World([task] * count, [rule("one", limit)])
    await world.run(60 + seconds)
    await world.close()
    rate = sum(records for at, *_ in world.moved if at >= 60) / seconds / limit
    assert max(one.longest_wait for one in world.connections) <= hold + 0.1
    most = 1.0 if waits else max(1.0, line_seconds / hold)
    assert 0.97 * most <= rate <= 1.02 * most

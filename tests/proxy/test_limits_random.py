# SPDX-License-Identifier: Apache-2.0
"""Limits, shares, priorities, changes and lost sidecars together, drawn at random: three promises hold in all of them.

No more passes than the limits let through, nobody who has a part waits for ever, and no request waits for so long that
its client would give it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.limits.limiters import built_in, rule
from tests.proxy.limit_world import BROKERS, LEAST_STEP, ROUND_TRIP, Connection, Task, World
from weir.limits.built_in import LATE_SECONDS
from weir.limits.holds import HOLDS
from weir.limits.rules import Per, Rule
from weir.proxy.limits.gate import MOST_TOLD_PRODUCE_SECONDS

pytestmark = pytest.mark.long

BEGIN, AFTER = 8.0, 14.0  # seconds before and after what happens
WINDOW = 3.0
MOST_BORNE = 4.0  # seconds that all requests of a group may take at its limit, so that none has to pass early
SLACK_SECONDS = ROUND_TRIP + 2 * LEAST_STEP

CLIENTS = st.sampled_from(
    [
        ("connector-consumer-a-0", False, False),
        ("connector-consumer-a-1", False, False),
        ("connector-consumer-a-2", False, False),
        ("connector-producer-b-0", True, False),
        ("connector-producer-b-1", True, True),
    ]
)
LIMITS = st.sampled_from([250, 60, 1000, 10])
AT = st.sampled_from([BROKERS, frozenset({1, 2}), frozenset({3})])


@st.composite
def tasks(draw: st.DrawFn) -> list[Task]:
    drawn = draw(st.lists(CLIENTS, min_size=2, max_size=4, unique=True))
    records = st.sampled_from([30, 10, 100])
    return [Task(one, draw(records), draw(AT), produces, within) for one, produces, within in drawn]


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    per: Per = draw(st.sampled_from(["task", "connector"]))
    priority = draw(st.sampled_from([(), ("connector-consumer-a-1", "connector-producer-b-1")]))
    found = [rule("connector-*", draw(LIMITS), per=per, priority=priority)]
    return found + [rule("*producer*", draw(LIMITS))] * draw(st.booleans())


def limit_of(one: Rule) -> float:
    limit = one.limiters[0].settings["record.rate.limit"]
    assert isinstance(limit, int)
    return float(limit)


def most_passed(world: World, connections: Sequence[Connection], since: float, until: float, window: float) -> float:
    """The most records of any `window` seconds from `since` to `until`."""
    whose = {(one.task, one.broker) for one in connections}
    moved = [(at, task.records) for at, broker, task in world.moved if (task, broker) in whose and since <= at < until]
    most = now = first = 0
    for at, records in moved:
        now += records
        while moved[first][0] <= at - window:
            now -= moved[first][1]
            first += 1
        most = max(most, now)
    return most


def check(world: World, changes: Sequence[Sequence[Rule]], lost: int) -> None:
    for index, one in enumerate(world.rules):
        groups: dict[str, list[Connection]] = {}
        for connection in world.connections:
            if one.covers(connection.task.client_id):
                groups.setdefault(one.group_of(connection.task.client_id), []).append(connection)
        for connections in groups.values():
            at_once = sum(connection.task.records for connection in connections)
            begin, end = 0.0, BEGIN
            for limit, gone in ((limit_of(changes[0][index]), 0), (limit_of(changes[1][index]), lost)):
                if any(connection.task.produces for connection in connections) and at_once > MOST_BORNE * limit:
                    break  # a Produce passes when it has waited for as long as its client bears
                for window in (WINDOW, end - begin):
                    most = limit * (1 + gone / len(BROKERS)) * (window + SLACK_SECONDS) + at_once
                    assert most_passed(world, connections, begin, end, window) <= most, (one, limit, gone, window)
                begin, end = BEGIN, BEGIN + AFTER
    for connection in world.connections:
        task = connection.task
        wait, told = HOLDS["session_fetch"].most, 0.0
        if task.produces:
            wait, told = HOLDS["produce"].most, MOST_TOLD_PRODUCE_SECONDS
        if task.transactional:
            wait = told = HOLDS["transaction"].most
        assert connection.longest_wait <= wait + SLACK_SECONDS
        assert connection.longest_told <= told


def starves(world: World, connection: Connection, in_force: Sequence[Rule]) -> bool:
    """Whether a connection that everybody would have had a turn beside moved nothing since things changed."""
    if connection.broker in world.killed:
        return False
    patience = 8.0
    for one in in_force:
        client_id = connection.task.client_id
        if one.covers(client_id):
            beside = [
                other.task
                for other in world.connections
                if one.covers(other.task.client_id) and one.group_of(other.task.client_id) == one.group_of(client_id)
            ]
            if any(one.rank(task.client_id) < one.rank(client_id) for task in beside):
                return False  # who has priority may take all
            patience = max(patience, 8 + 4 * sum(task.records for task in beside) / limit_of(one))
    return patience < AFTER and not any(at >= BEGIN for at in connection.moved)


@settings(max_examples=12, deadline=None, phases=[Phase.reuse, Phase.generate])  # an example takes too long to shrink
@given(
    tasks=tasks(),
    before=rules(),
    factor=st.sampled_from([1, 1, 3, 0.2]),
    event=st.sampled_from(["nothing", "cut off", "kill"]),
    broker=st.sampled_from(sorted(BROKERS)),
)
def test_limits_hold_whatever_meets(
    tasks: list[Task], before: list[Rule], factor: float, event: str, broker: int
) -> None:
    changed = [
        rule(one.pattern, max(1, round(factor * limit_of(one))), per=one.per, priority=one.priority) for one in before
    ]

    async def run() -> World:
        world = World(tasks, before)
        await world.run(BEGIN)
        world.configure(changed)
        if event == "cut off":
            world.cut_off(broker)
        elif event == "kill":
            world.kill(broker)
        await world.run(AFTER)
        await world.close()
        return world

    world = asyncio.run(run())
    check(world, (before, changed), 0 if event == "nothing" else 1)
    assert not [
        (connection.task, connection.broker) for connection in world.connections if starves(world, connection, changed)
    ]


@settings(max_examples=8, deadline=None, phases=[Phase.reuse, Phase.generate])
@given(
    records=st.sampled_from([10, 50, 100]),
    brokers=st.sampled_from([frozenset({1}), BROKERS]),
    produces=st.booleans(),
    by_batches=st.booleans(),
    slowest=st.sampled_from([0.004, 0.03, 0.1]),
    seed=st.integers(0, 99),
)
def test_no_second_has_more_than_limit_and_a_poll_per_broker(
    records: int, brokers: frozenset[int], produces: bool, by_batches: bool, slowest: float, seed: int
) -> None:
    """However late answers come. Each sidecar keeps to its part by itself, so each may have a poll of its own."""
    limit = 1000
    leaders = (1, 1, 1, *sorted(brokers)) if produces else ()  # four of six partitions at one of three brokers
    task = Task("connector-consumer-a-0", records, brokers, produces=produces, leaders=leaders)
    by_records = rule("connector-*", limit)
    one = Rule("connector-*", (built_in("RecordBatchRateLimiter", limit / records),)) if by_batches else by_records

    random = Random(seed)

    async def run() -> World:
        world = World([task], [one], round_trip=lambda: random.uniform(0.002, slowest))
        await world.run(25)
        await world.close()
        return world

    world = asyncio.run(run())
    most = limit * (1 + LATE_SECONDS) + records * len(brokers)
    begin = 1.0  # before that a sidecar may not have heard of the others
    assert most_passed(world, world.connections, begin, 25, 1.0) <= most
    if records >= 50 and slowest <= LATE_SECONDS:  # so round trips leave time for the limit
        assert sum(task.records for at, _, task in world.moved if at >= 10) >= 0.9 * limit * 15


async def test_limit_used_at_one_broker_stays_whole_there_for_minutes() -> None:
    world = World([Task("connector-consumer-a-0", 50, frozenset({1}))], [rule("connector-*", 1000)])
    await world.run(8)
    for _ in range(4):
        since = world.seconds
        await world.run(20)
        assert sum(task.records for at, _, task in world.moved if at >= since) >= 0.97 * 20 * 1000
    await world.close()


async def test_source_at_unlike_brokers_in_turn_reaches_its_limit() -> None:
    """Each broker waits for the slowest one, so what one has too much of is lost to all."""
    task = Task("connector-producer-b-0", 50, BROKERS, produces=True, leaders=(1, 1, 1, 1, 2, 3))
    world = World([task], [rule("connector-*", 1000)])
    await world.run(12)
    since = world.seconds
    await world.run(32)
    assert sum(task.records for at, _, task in world.moved if at >= since) >= 0.95 * 32 * 1000
    await world.close()

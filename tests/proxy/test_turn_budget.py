# SPDX-License-Identifier: Apache-2.0
"""Work that can wait is done a little in each turn of the loop, in order."""

import asyncio
from collections.abc import Callable

from tests.fakes.clock import MovedClock
from tests.fakes.links import FakeLink, waits_for_budget
from weir.proxy.relay.side import HeldFetches
from weir.proxy.relay.turn_budget import TurnBudget

ON_BOTH_LOOPS = True


class Line:
    """Pieces of work of 0.1 ms each, and what was done of them when."""

    def __init__(self, seconds: float, pause: float = 0.0) -> None:
        self.clock = MovedClock()
        self.budget = TurnBudget(seconds, pause, self.clock)
        self.done: list[object] = []

    def work(self, name: object) -> Callable[[], None]:
        def do() -> None:
            self.clock.move(0.0001)
            self.done.append(name)

        return do


async def test_turn_does_what_it_has_time_for_and_the_next_goes_on() -> None:
    line = Line(0.00025)
    for name in range(7):
        line.budget.add(line.work(name))
    assert line.done == []
    for turn in (3, 6, 7, 7):
        await asyncio.sleep(0)
        assert line.done == list(range(turn))
    assert len(line.budget) == 0


async def test_work_that_is_long_by_itself_is_done_alone() -> None:
    line = Line(0.00001)
    for name in range(2):
        line.budget.add(line.work(name))
    await asyncio.sleep(0)
    assert line.done == [0]
    await asyncio.sleep(0)
    assert line.done == [0, 1]


async def test_work_that_adds_more_of_it_leaves_the_others_their_turn() -> None:
    line = Line(0.00015)
    first = line.work("again")

    def again() -> None:
        first()
        if len(line.done) < 4:
            line.budget.add(again)

    line.budget.add(again)
    line.budget.add(line.work("once"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert line.done == ["again", "once", "again", "again"]


async def test_after_a_turn_what_can_wait_pauses_and_others_do_not() -> None:
    line = Line(0.00015, pause=0.005)
    loop = asyncio.get_running_loop()
    for name in range(3):
        line.budget.add(line.work(name))
    await asyncio.sleep(0)
    assert line.done == [0, 1]
    assert line.budget.is_busy
    started = loop.time()
    while len(line.done) < 3:  # noqa: ASYNC110 - it is the loop's turns that are waited for
        await asyncio.sleep(0)
    assert loop.time() - started > 0.003
    assert line.budget.is_busy  # nothing is in line, but the last turn was a moment ago
    line.clock.move(0.006)
    assert not line.budget.is_busy
    line.budget.add(line.work(3))
    await asyncio.sleep(0)
    assert line.done == [0, 1, 2, 3]


class Holder(FakeLink):
    """A link whose plan takes 0.1 ms, and what was planned by all of them."""

    def __init__(self, name: int, clock: MovedClock, planned: list[int]) -> None:
        super().__init__()
        self.name = name
        self.clock = clock
        self.planned = planned

    def replan(self) -> None:
        self.clock.move(0.0001)
        self.planned.append(self.name)


async def test_a_thousand_held_fetches_are_planned_a_few_in_each_turn() -> None:
    clock, planned = MovedClock(), list[int]()
    held = HeldFetches(TurnBudget(0.00025, clock=clock))
    links = [Holder(name, clock, planned) for name in range(1000)]
    for link in links:
        waits_for_budget(held, link)
    held.wake_now()
    assert planned == [0, 1, 2]
    held.wait(links[3], None)
    held.wake_now()  # who is due already keeps its place, and who was planned comes behind
    assert planned == [0, 1, 2, 4, 5, 6]
    for _ in range(400):
        await asyncio.sleep(0)
    assert planned == [0, 1, 2, *range(4, 1000), 0, 1, 2]


async def test_links_due_at_once_are_planned_a_few_in_each_turn() -> None:
    clock, planned = MovedClock(), list[int]()
    held = HeldFetches(TurnBudget(0.00025, clock=clock))
    links = [Holder(name, clock, planned) for name in range(10)]
    for link in links:
        waits_for_budget(held, link)
        held.wake([link])
    assert planned == []
    await asyncio.sleep(0)
    assert planned == [0, 1, 2]

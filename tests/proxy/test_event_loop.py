# SPDX-License-Identifier: Apache-2.0
"""How busy the event loop is: on both loops, by what a timer tells."""

from __future__ import annotations

import asyncio
import time

import pytest

from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.admin.troubles import troubles
from weir.proxy.event_loop import TICK_SECONDS, WINDOW_SECONDS, LoopLoad, worked_by_this_thread
from weir.quota.topic_names import TopicNames

pytestmark = [pytest.mark.long, pytest.mark.newest]

ON_BOTH_LOOPS = True


class World:
    """A clock and a thread's work that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked = 0.0
        self.load = LoopLoad(lambda: self.now, lambda: self.worked)

    def turn(self, *, late: float = 0.0, busy: float = 0.0) -> None:
        """The next tick, as late as said, after a share of work."""
        passed = TICK_SECONDS + late
        self.now += passed
        self.worked += busy * passed
        self.load.close()  # the timer that the loop has for it
        self.load.tick()


async def test_shares_and_percentiles_are_of_the_last_ten_seconds() -> None:
    world = World()
    world.load.start()
    try:
        for _ in range(150):
            world.turn(late=0.5, busy=1.0)
        assert world.load.as_plain() == {"busy": 1, "late_seconds": 0.5}
        assert world.load.is_saturated
        for _ in range(round(WINDOW_SECONDS / TICK_SECONDS) + 1):
            world.turn(busy=0.25)
        assert world.load.as_plain() == {"busy": 0.25, "late_seconds": 0}
        assert not world.load.is_saturated
        world.turn(late=0.09)
        assert world.load.late_seconds < 0.01, "one in a hundred is no p99"
        world.turn(late=1)
        assert not world.load.is_saturated, "once late says little"
        world.turn(late=3)
        assert world.load.late_seconds == pytest.approx(3), "nothing was called back for a third of the time"
        assert world.load.is_saturated, "also where it hardly works: it is not given a core"
    finally:
        world.load.close()


async def test_loop_that_works_all_the_time_is_seen_on_its_own_timer() -> None:
    load = LoopLoad()
    assert (load.busy, load.late_seconds) == (0, 0)
    load.start()
    try:
        worked, end = time.thread_time(), time.monotonic() + 1
        while time.monotonic() < end:  # noqa: ASYNC110 - turns, as many as there can be
            await asyncio.sleep(0)
        assert load.busy > 0.8 * (time.thread_time() - worked)  # less than 1 s where others take the core
        time.sleep(0.3)  # noqa: ASYNC251 - a callback that takes long
        await asyncio.sleep(0.01)
        assert load.late_seconds > 0.15
    finally:
        load.close()


async def test_loop_that_waits_is_not_busy() -> None:
    load = LoopLoad()
    load.start()
    try:
        await asyncio.sleep(1)
        assert load.busy < 0.5
        assert len(load.as_plain()) == 2
    finally:
        load.close()


def test_thread_that_sleeps_does_not_work() -> None:
    before = worked_by_this_thread()
    time.sleep(0.5)
    assert worked_by_this_thread() - before < 0.25


def test_saturated_sidecar_says_so() -> None:
    world = World()
    process = ProcessStats("1", TopicNames(lambda: 0.0), load=world.load)
    assert troubles(process, captures=False) == {}

    async def work() -> None:
        world.load.start()
        for _ in range(100):
            world.turn(late=0.02, busy=0.97)
        world.load.close()

    asyncio.run(work())
    told = "the sidecar is the bottleneck: its event loop works 97% of the time, and is late for 17% of it"
    assert troubles(process, captures=False) == {"saturated": told}

"""Bytes of one direction that wait for their turn, with a pump and an owner of the test's own."""

import struct
from typing import cast

from weir.proxy.relay.inflow import MOST_FRAMES, Inflow
from weir.proxy.relay.pump import Pump
from weir.proxy.relay.turn_budget import TurnBudget


class StillPump:
    """A pump that only notes whether it waits."""

    waits_in_line = False

    def is_paused(self, reasons: int) -> bool:
        return False

    def pause(self, reason: int) -> None:
        pass

    def resume(self, reason: int) -> None:
        pass

    def flush(self) -> None:
        pass


class Owner:
    """Takes all that it is given."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(self, pump: Pump, view: memoryview) -> int:
        self.taken.append(len(view))
        return len(view)

    def took(self, pump: Pump) -> None:
        pass

    def failed(self, pump: Pump, error: Exception) -> None:
        raise error


def frames(count: int, size: int = 8) -> memoryview:
    return memoryview((struct.pack(">i", size) + bytes(size)) * count)


def inflow(turns: TurnBudget) -> tuple[Inflow, Owner, StillPump]:
    owner, pump = Owner(), StillPump()
    made = Inflow(owner, cast("Pump", pump), turns)
    made.is_open = True
    return made, owner, pump


async def test_many_small_frames_wait_whole_while_others_are_in_line() -> None:
    """A hundred clients that begin to flood in the same turn would each have some taken at once."""
    turns = TurnBudget()
    first, its_owner, _ = inflow(turns)
    first.arrived(frames(1000), clock=iter(range(1000)).__next__)
    assert its_owner.taken
    second, owner, pump = inflow(turns)
    second.arrived(frames(1000))
    assert owner.taken == []
    assert pump.waits_in_line
    while len(turns):
        turns.run()
    assert sum(owner.taken) == len(frames(1000))
    assert max(owner.taken) == len(frames(MOST_FRAMES))


async def test_few_frames_and_large_ones_are_taken_at_once_while_others_are_in_line() -> None:
    turns = TurnBudget()
    turns.add(lambda: None)
    for view in (frames(MOST_FRAMES), frames(5 * MOST_FRAMES, 2000)):
        one, owner, pump = inflow(turns)
        one.arrived(view)
        assert sum(owner.taken) == len(view)
        assert not pump.waits_in_line

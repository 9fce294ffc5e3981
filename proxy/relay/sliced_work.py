"""Work of one link that may be too long for one turn of the event loop, such as a fetch of 50,000 topics.

Short work is done at once. The rest goes into the line of work that can wait, so other links are served between slices.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import Final, Protocol

from weir.protocol.steps import Steps
from weir.proxy.relay.turn_budget import TurnBudget

SLICE_SECONDS: Final = 0.002
"""How long work may run in one turn, except for a single step that takes longer."""


class WorkOwner(Protocol):
    """The link that work is done for. While work is under way, it takes nothing from its peers."""

    def work_began(self) -> None:
        """Note that work was not done at once: the rest follows in later turns."""

    def work_ended(self) -> None:
        """Note that the work is done."""

    def work_failed(self, error: Exception) -> None:
        """Close the link: the work raised in a later turn."""


class SlicedWork:
    """The work of `owner`, one piece at a time."""

    __slots__ = ("_is_closed", "_owner", "_steps", "_turns", "is_under_way")

    def __init__(self, owner: WorkOwner, turns: TurnBudget) -> None:
        self._owner = owner
        self._turns = turns
        self._steps: Generator[None, None, None] | None = None  # None while a slice runs
        self._is_closed = False
        self.is_under_way = False

    def begin(self, steps: Steps[None]) -> None:
        """Run the first slice of `steps` now. Raises what they raise; in later turns the owner is told instead."""
        try:
            next(steps)
        except StopIteration:  # most work is done here
            return
        if not _is_done(steps):
            self.is_under_way = True
            self._owner.work_began()
            self._go_on_later(steps)

    def close(self) -> None:
        """Stop: the owner is closed."""
        self._is_closed = True
        self.is_under_way = False
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def _go_on_later(self, steps: Steps[None]) -> None:
        if self._is_closed:
            steps.close()
        else:
            self._steps = steps
            self._turns.add(self._go_on)

    def _go_on(self) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        try:
            is_done = _is_done(steps)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self._owner.work_failed(error)
            return
        if not is_done:
            self._go_on_later(steps)
        elif not self._is_closed:
            self.is_under_way = False
            self._owner.work_ended()


def do_later(steps: Steps[None], turns: TurnBudget) -> None:
    """Have `steps` run in turns to come. They must not raise."""
    turns.add(partial(_go_on, steps, turns))


def _go_on(steps: Steps[None], turns: TurnBudget) -> None:
    if not _is_done(steps):
        do_later(steps, turns)


def _is_done(steps: Steps[None]) -> bool:
    """Run a slice. Returns whether it was the last."""
    end = time.perf_counter() + SLICE_SECONDS
    return all(time.perf_counter() < end for _ in steps)

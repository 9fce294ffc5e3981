"""How answers get to a follower: no more is on its way than it takes soon.

Bytes that are on their way may arrive at any time, so the throttle counts all of them. The others are held back, and
count as soon as they may be sent. How much may be on its way grows and shrinks with what the follower takes: one that
takes all of it at once may have twice as much, and is never held up again once that is a whole answer.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

from weir.proxy.relay.pump import Pump
from weir.proxy.relay.transport import Transport

LEAST_BYTES: Final = 2**13
"""What may be on its way to a follower at least, however slow it is. A new one begins with it."""

AHEAD_SECONDS: Final = 0.5
"""What a slow follower takes in this time may be on its way: more than a round trip, so that it is not slowed down."""

LONGEST_SECONDS: Final = 0.5
"""How long bytes wait at most while the quota's window has no room: a record in sync may be behind them."""

LOOK_SECONDS: Final = 0.05
"""After this time it is looked how much of an answer has arrived. A follower that asks again sooner has told it."""

_STEP_BYTES: Final = 2**11
_MANY_BYTES: Final = 2**16
_FIRST_LOOK_SECONDS: Final = 0.005


class Asked(Protocol):
    """Who knows what the quota's window has room for: the link."""

    def let_pass(self, on_way: float, least: float, most: float) -> float:
        """Take in that no more than `on_way` bytes are on their way.

        Returns how many more may be sent: `most` or what there is room for, and `least` in any case.
        """


class Passage:
    """The way of answers to `client`, which `pump` carries, on the leader's side."""

    __slots__ = ("_asked", "_client", "_is_slow", "_loop", "_most", "_pump", "_sent", "_since", "_timer", "_took")

    def __init__(self, loop: asyncio.AbstractEventLoop, asked: Asked, pump: Pump, client: Transport) -> None:
        self._loop = loop
        self._asked = asked
        self._pump = pump
        self._client = client
        self._most: float = LEAST_BYTES  # that may be on their way
        self._sent: float = 0  # on their way at `_since`, or allowed then
        self._since = 0.0  # loop seconds
        self._is_slow = False  # took long lately: then a little more is tried each time
        self._took = math.inf  # seconds from `_since` until none was on its way
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, is_granted: bool) -> None:
        """Note that the client asks for something. `is_granted`: bytes of a quota may come, and nothing else does."""
        if not is_granted:
            if self._pump.allowed < math.inf:
                self.close()
                on_way = self._client.unacknowledged() + self._pump.allowed
                self._pump.allow(self._asked.let_pass(on_way, math.inf, math.inf))
        elif (size := self._asked.let_pass(0, LEAST_BYTES, self._most)) > 0:
            self._pass_on(0, size)

    def held_back(self) -> None:
        """Note that all has been sent that was allowed, and that there is more."""
        self._look_in(_FIRST_LOOK_SECONDS)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        on_way, allowed = self._client.unacknowledged(), self._pump.allowed
        seconds = self._loop.time() - self._since
        if not on_way:
            self._took = min(self._took, seconds)
        if on_way or not allowed or allowed == self._sent:  # else all has arrived
            self._look_in(LOOK_SECONDS)
        most = self._most
        if min(self._took, seconds) >= AHEAD_SECONDS:
            taken = self._sent - allowed - on_way
            most = max(LEAST_BYTES, round(taken / min(self._took, seconds) * AHEAD_SECONDS))
            self._is_slow = True
        elif not on_way and not allowed:
            most = most + _STEP_BYTES if self._is_slow else 2 * most
            self._is_slow &= most < _MANY_BYTES
        if allowed:
            self._most = most
            self._asked.let_pass(on_way + allowed, 0, 0)
            return
        least = LEAST_BYTES if seconds >= AHEAD_SECONDS + LONGEST_SECONDS and on_way < LEAST_BYTES else 0
        size = self._asked.let_pass(on_way, least, max(0, most - on_way))
        if size > 0:
            self._most = most
            self._pass_on(on_way, size)

    def _pass_on(self, on_way: float, size: float) -> None:
        self._sent, self._since, self._took = on_way + size, self._loop.time(), math.inf
        self._look_in(LOOK_SECONDS)
        self._pump.allow(size)

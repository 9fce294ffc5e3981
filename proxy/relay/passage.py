# SPDX-License-Identifier: Apache-2.0
"""How answers get to a follower: to a slow one no more is on its way than it takes soon.

Bytes that are on their way may arrive at any time, so the throttle counts all of them. To a follower that has not taken
within half a second what was sent, the others are held back, and count as soon as they may be sent.

How much may be on its way grows and shrinks with what the follower takes. One that takes all of it at once may have
twice as much, and is never held up again once that is a whole answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weir.proxy.relay.pump import Pump
from weir.proxy.relay.transport import Transport
from weir.quota.figures import LEAST_BYTES

AHEAD_SECONDS: Final = 0.5
"""What a slow follower takes in this time may be on its way: more than a round trip, so that it is not slowed down."""

ASK_SECONDS: Final = 0.2
"""A fast follower's next fetch within this time says that it has read the answer.

Where none comes, what its socket has acknowledged counts as arrived. Where the follower has a sidecar, that reads at
once and may hold the next fetch, so it counts whenever it is looked.
"""

LOOK_SECONDS: Final = 0.05
"""How often it is looked how much of an answer has arrived."""

STEP_BYTES: Final = 2**11
"""By how much more a slow follower may have on its way whenever it has taken all of it at once."""

FAST_BYTES: Final = 2**16
"""A follower that takes so much at once is slow no longer."""

_FIRST_LOOK_SECONDS: Final = 0.005


@dataclass(eq=False, slots=True)
class Passage:
    """The way of answers to `client`, which `pump` carries, on the leader's side.

    `let_pass` is that of ReplicaLink.
    """

    _loop: asyncio.AbstractEventLoop
    _let_pass: Callable[[int, float, float, float], float]
    _pump: Pump
    _client: Transport
    _is_slow: bool = False
    _most: float = LEAST_BYTES  # that may be on their way; a new follower begins with it
    _sent: float = 0  # on their way at `_since`, or allowed then
    _since: float = 0.0  # loop seconds
    _took: float = math.inf  # seconds from `_since` until none was on its way
    _takes_back: bool = False  # whether what the client's socket did not take can be held back
    _waits_since: float = math.inf  # loop seconds: since when more might be sent if there were room
    _arrived: int = 0  # of all bytes sent, as last told
    _ask_seconds: float = ASK_SECONDS
    _is_lent: bool = False  # whether the answer awaited takes nothing of a quota until it begins
    _timer: asyncio.TimerHandle | None = None

    def begin(self, *, is_granted: bool, is_lent: bool = False, is_to_sidecar: bool = False) -> None:
        """Note that the client asks for something. `is_granted`: bytes of a quota may come with the answer to it.

        `is_lent`: nothing is set aside for them. So none is sent before it is here, and then as there is room.
        """
        self._ask_seconds, self._is_lent = 0.0 if is_to_sidecar else ASK_SECONDS, is_lent
        if is_granted:
            if self._pump.allowed == math.inf:
                self._takes_back = self._client.keep_unsent(LEAST_BYTES)
            self._arrived = self._pump.sent
            took = min(self._took, self._loop.time() - self._since)
            self._is_slow &= took >= ASK_SECONDS or self._sent - self._pump.allowed < FAST_BYTES
            if is_lent:
                self._sent, self._waits_since = 0, math.inf
                self.close()
                self._pump.allow(0)
            elif not self._allow(0, self._most):
                self._sent, self._since, self._took = 0, self._loop.time(), math.inf
                self._pump.allow(0)
                self._look_in(LOOK_SECONDS)
        elif self._pump.allowed < math.inf:
            self.close()
            self._client.keep_unsent(0)
            self._let_pass(self._newly_arrived(self._client.unacknowledged()), math.inf, 0, 0.0)
            self._pump.allow(math.inf)

    def held_back(self) -> None:
        """Note that all has been sent that was allowed, and that there is more."""
        if self._is_lent and not self._sent:
            self._since, self._took = self._loop.time(), math.inf
        self._look_in(_FIRST_LOOK_SECONDS)

    def end(self) -> None:
        """Tell at the connection's end what has arrived of a granted answer, and what may: the rest is not sent."""
        self.close()
        if self._pump.allowed < math.inf:
            on_way = self._client.unacknowledged()
            self._let_pass(self._newly_arrived(on_way), on_way, 0, 0.0)

    def close(self) -> None:
        """Stop looking at what the follower takes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self._timer is not None:  # while this process stood still it did not see what the follower took
            self._since += max(0.0, self._loop.time() - self._timer.when())
        on_way, allowed = self._client.unacknowledged(), self._pump.allowed
        seconds = self._loop.time() - self._since
        if not on_way:
            self._took = min(self._took, seconds)
        takes_long = min(self._took, seconds) >= AHEAD_SECONDS
        if takes_long and allowed < self._sent:
            taken = self._sent - allowed - on_way
            self._most = max(LEAST_BYTES, round(taken / min(self._took, seconds) * AHEAD_SECONDS))
            self._is_slow = True
            if self._takes_back:
                self._sent, allowed, self._pump.allowed = self._sent - allowed, 0, 0
        if allowed or (on_way and not takes_long):
            self._tell(on_way, 0, 0.0)
            if on_way or allowed == self._sent or seconds < self._ask_seconds:  # else all has arrived
                self._look_in(LOOK_SECONDS)
            return
        most = self._most
        if not takes_long:
            most = most + STEP_BYTES if self._is_slow else 2 * most
        if not self._allow(on_way, most - on_way):
            self._look_in(LOOK_SECONDS)

    def _allow(self, on_way: int, more: float) -> bool:
        """Let more bytes be sent, as far as there is room. Returns whether any may be."""
        now = self._loop.time()
        self._waits_since = min(self._waits_since, now) if more > 0 else math.inf
        size = self._tell(on_way, more, max(0.0, now - self._waits_since))
        if size <= 0:
            return False
        self._waits_since = math.inf
        self._most = max(self._most, on_way + size)
        self._sent, self._since, self._took = on_way + size, self._loop.time(), math.inf
        self._look_in(LOOK_SECONDS)
        self._pump.allow(size)
        return True

    def _tell(self, on_way: int, more: float, waited: float) -> float:
        """Tell what has arrived. Returns how many of `more` bytes may be sent."""
        if self._is_slow or self._is_lent:
            arrived = self._newly_arrived(on_way)
            return self._let_pass(arrived, on_way + self._pump.allowed, max(0, more), waited)
        arrived = self._newly_arrived(on_way) if self._loop.time() - self._since >= self._ask_seconds else 0
        self._let_pass(arrived, math.inf, 0, 0.0)  # what is not sent yet will be in a moment
        return more

    def _newly_arrived(self, on_way: int) -> int:
        """Return how many bytes have arrived since this was asked last."""
        before, self._arrived = self._arrived, max(self._arrived, self._pump.sent - on_way)
        return self._arrived - before

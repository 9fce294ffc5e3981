# SPDX-License-Identifier: Apache-2.0
"""The slowest stretch of a connection: answers take their time on it, and the relay's passage sends them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fakes.kafka.wire import Response
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.passage import ASK_SECONDS, Passage

if TYPE_CHECKING:
    from tests.quota.model.chain import Chain
    from tests.quota.model.hops import Hop

KERNEL_BYTES = 500_000  # that the sender's kernel takes before they arrive
_PART_SECONDS = 0.02  # after which bytes that arrive are counted
_PAUSED_SECONDS = 0.05


class Timer:
    """What an event loop returns for a later call."""

    def __init__(self, call: Callable[[], None], due: float) -> None:
        self.call: Callable[[], None] | None = call
        self._due = due

    def when(self) -> float:
        return self._due

    def cancel(self) -> None:
        self.call = None

    def run(self) -> None:
        if self.call is not None:
            self.call()


class Stretch:
    """Carries answers one after the other; to the passage it is the loop, the pump and the follower's transport."""

    def __init__(self, chain: Chain, sender: Hop | None) -> None:
        """`sender` is the sidecar's connection that sends on it; None: the leader."""
        self._chain = chain
        self._sender = sender
        self._queue: deque[tuple[Response, int]] = deque()  # each with where its bytes end among all
        self._queued = self._arrived = self._told_of = 0
        self._part: tuple[int, float, float] | None = None  # that is arriving, from when to when
        self._is_carrying = False
        self.sent = 0
        self.allowed = math.inf
        self.passage: Passage | None = None
        if sender is not None and sender.sidecar.throttle.takes_out:
            self.passage = Passage(self, sender.let_pass, self, self)  # type: ignore[arg-type]

    # What the passage asks

    def time(self) -> float:
        return self._chain.world.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call, self.time() + seconds)
        self._chain.later(seconds, self._number, timer.run)
        return timer

    def allow(self, size: float) -> None:
        self.allowed = size
        self._send()

    def unacknowledged(self) -> int:
        return self.sent - self._arrived

    def keep_unsent(self, most: int) -> bool:
        return True

    # Answers

    def carry(self, response: Response) -> None:
        """Send an answer after all others."""
        self._queued += response.size
        self._queue.append((response, self._queued))
        self._send()

    def close(self) -> None:
        """The connection breaks: a part of what is arriving has arrived."""
        if self._part is not None:
            size, start, end = self._part
            self._take(int(size * (self._chain.world.now - start) / max(end - start, 1e-9)))
        if self.passage is not None:
            self.passage.end()

    @property
    def _number(self) -> int:
        return len(self._chain.hops) - 1

    def _send(self) -> None:
        size = int(min(self._queued - self.sent, self.allowed, KERNEL_BYTES - self.unacknowledged()))
        if size > 0:
            self.sent += size
            self.allowed -= size
        while self._told_of < len(self._queue) and self._queue[self._told_of][1] - self.sent <= SMALL_BUFFER_SIZE:
            self._told_of += 1
            self._chain.has_passed(self._queue[self._told_of - 1][0])
        if self.passage is not None and self.allowed <= 0 and self._queued > self.sent:
            self.passage.held_back()
        if self._part is None:
            self._next_part()

    def _next_part(self) -> None:
        self._deliver()
        chain, rate, on_way = self._chain, self._chain.pace(), self.unacknowledged()
        if (on_way > 0) != self._is_carrying:
            self._is_carrying = on_way > 0
            chain.busy(1 if on_way else -1)
            if self._queue and not on_way:
                chain.busy_for(ASK_SECONDS)  # until then the passage may not know that all has arrived
        if on_way:
            size = min(on_way, max(1, int(rate * _PART_SECONDS))) if rate else 0
            seconds = size / rate if rate else _PAUSED_SECONDS
            self._part = size, chain.world.now, chain.world.now + seconds
            chain.later(seconds, -1, self._part_arrives)

    def _part_arrives(self) -> None:
        assert self._part is not None
        size, _, _ = self._part
        self._part = None
        self._take(size)
        self._deliver()
        self._send()

    def _take(self, size: int) -> None:
        """So many bytes arrive: they are counted, each by its place in its answer."""
        before, self._arrived = self._arrived, self._arrived + size
        begin = self._queue[0][1] - self._queue[0][0].size if self._queue else 0
        for response, end in self._queue:
            first, last = max(begin, before), min(end, self._arrived)
            if last > first:
                self._chain.count(response, first - begin, last - begin)
            begin = end

    def _deliver(self) -> None:
        while self._told_of and self._queue[0][1] <= self._arrived:
            self._queue.popleft()
            self._told_of -= 1
            self._chain.arrives()

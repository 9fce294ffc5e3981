# SPDX-License-Identifier: Apache-2.0
"""A follower's connection through sidecars to its leader, and back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tests.fakes.kafka.wire import Response
from tests.quota.model.hops import Hop, Sidecar
from tests.quota.model.leader import LeaderNode
from tests.quota.model.stretch import Stretch
from tests.quota.model.world import World
from weir.protocol.fetch_request import FetchRequest


class Client(Protocol):
    """Who fetches."""

    replica_id: int
    is_honest: bool
    reads: bool

    def take(self, response: Response) -> None:
        """An answer arrived whole."""


class Chain:
    """One connection of a follower: through the hops to the leader, and back."""

    def __init__(
        self,
        world: World,
        sidecars: list[Sidecar],
        leader: LeaderNode,
        client: Client,
        bandwidth: float,
        latency: float,
    ) -> None:
        self.world = world
        self.leader = leader
        self.client = client
        self.number = world.number()  # tells connections apart in traces
        self.is_open = True
        self.hops = [Hop(self, number, sidecar) for number, sidecar in enumerate(sidecars)]
        self.paused_until = -math.inf
        self._sends = bool(sidecars) and sidecars[-1].throttle.takes_out  # the leader's sidecar, else the leader
        self.stretch = Stretch(self, self.hops[-1] if self._sends else None)
        self._bandwidth = bandwidth
        self._latency = latency
        self._passed: deque[Response] = deque()  # what the follower's side gets of what is still on the stretch
        self._at_leader: deque[FetchRequest] = deque()  # a broker takes the next one when the last one is answered
        self._reasons = 0  # to wait that are not the sidecars'
        self._spells: deque[tuple[float, float]] = deque()  # in which there were some
        self._since = 0.0
        for sidecar in sidecars:
            if sidecar.stopped_until > world.now:
                self.busy_for(sidecar.stopped_until - world.now)

    def ask(self, request: FetchRequest) -> None:
        """The follower sends `request`."""
        self.world.exchanges += 1
        self.forward(-1, request)

    def may_be_asked(self) -> None:
        """There is a reason to ask the leader who is in sync."""
        for hop in self.hops:
            hop.reasons += 1
            hop.sidecar.meter.urgent += 1

    def forward(self, number: int, request: FetchRequest) -> None:
        """Hop `number` sends a request on."""
        self.later(self._latency, number + 1, self._arrive, number + 1, request)

    def answered(self, response: Response) -> None:
        """The leader answers, sooner or later; its bytes take their time on the slowest stretch only.

        A leader's sidecar is on the leader's machine, so what it takes out takes none.
        """
        self.busy(1)
        self.later(self.leader.next_lateness(self.client.replica_id), len(self.hops), self._is_read, response)

    def _is_read(self, response: Response) -> None:
        self.busy(-1)
        self.later(self._latency, len(self.hops) - 1, self._begins, response)

    def _begins(self, response: Response) -> None:
        """The first byte of an answer passes all hops."""
        if self.hops:
            response = self.hops[-1].take_out(response)
        for hop in self.hops:
            hop.answer_begins(response)
        self.stretch.carry(response)

    def has_passed(self, response: Response) -> None:
        """Who sends an answer has sent it."""
        self._at_leader.popleft()
        if self._at_leader:
            self.leader.fetch(self, self._at_leader[0])
        self._passed.append(self.hops[-1].settle(response) if self._sends else response)

    def count(self, response: Response, begin: int, end: int) -> None:
        """Bytes `begin` to `end` of an answer arrive."""
        for hop in self.hops:
            hop.count(response, begin, end)

    def arrives(self) -> None:
        """An answer has arrived whole at the far end of the stretch."""
        for hop in self.hops:
            hop.has_arrived()
        self.answer(len(self.hops) - self._sends, self._passed.popleft())

    def answer(self, number: int, response: Response) -> None:
        """Hop `number` answers."""
        self.later(self._latency, number - 1, self.pass_back, number - 1, response)

    def pass_back(self, number: int, response: Response) -> None:
        """An answer arrived whole at hop `number`, at the follower below 0."""
        if number < 0:
            self.client.take(response)
        else:
            self.answer(number, self.hops[number].settle(response))

    def pace(self) -> float:
        """How fast bytes arrive at the moment."""
        return self._bandwidth if self.client.reads and self.world.now >= self.paused_until else 0.0

    def pause(self, seconds: float) -> None:
        """Nothing arrives for so long."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.busy_for(seconds)

    def busy_for(self, seconds: float) -> None:
        """For so long who waits does not wait for a quota's sake."""
        self.busy(1)
        self.world.after(seconds, self.busy, -1)

    def busy(self, change: int) -> None:
        """A reason to wait begins (1) or ends (-1) that is not the sidecars': the leader is late, bytes take time."""
        if not self._reasons:
            self._since = self.world.now
        self._reasons += change
        if not self._reasons:
            self._spells.append((self._since, self.world.now))

    def excused(self, since: float) -> float:
        """For how many seconds from `since` on there were such reasons."""
        seconds = self.world.now - max(since, self._since) if self._reasons else 0.0
        for begin, end in reversed(self._spells):
            if end <= since:
                break
            seconds += end - max(begin, since)
        return seconds

    def close(self) -> None:
        """The connection breaks, wherever its bytes are."""
        if not self.is_open:
            return
        self.is_open = False
        self.stretch.close()
        for hop in self.hops:
            hop.close()

    def later(self, delay: float, number: int, call: Callable[..., None], *args: object) -> None:
        """Have hop `number` do something in `delay` seconds, where the connection is still open and its process runs.

        Numbers beyond those of the hops are the follower and the leader.
        """
        self.world.after(delay, self._do, number, call, args)

    def _do(self, number: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.is_open:
            return
        stopped = self.hops[number].sidecar.stopped_until if 0 <= number < len(self.hops) else 0.0
        if stopped > self.world.now:
            self.world.after(stopped - self.world.now, self._do, number, call, args)
        else:
            call(*args)

    def _arrive(self, number: int, request: FetchRequest) -> None:
        if number < len(self.hops):
            self.hops[number].take(request)
        else:
            self._at_leader.append(request)
            if len(self._at_leader) == 1:
                self.leader.fetch(self, request)

# SPDX-License-Identifier: Apache-2.0
"""A model of limited clients at three brokers with sidecars that share the limits: all of it real but time and sockets.

Clients fetch or produce as fast as they are let; most wait when told. Sidecars reach each other unless cut off.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from tests.fakes.clock import MovedClock
from tests.proxy.limited import fetch, fetched, produce, produced
from weir.limits.rules import Rule
from weir.protocol.header import FETCH, PRODUCE
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import RequestHead, read_request_head
from weir.protocol.request_sender import RequestSender
from weir.protocol.response_stream import Pending
from weir.proxy.admin.fleet import Target
from weir.proxy.config.address import Address
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.shares import LimitShares
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.outcomes import Outcome, PassOn, Reply, Send, Waiting
from weir.proxy.relay.side import Side
from weir.proxy.shares.exchange import Exchange, ShareAnswer, ShareRequest

TICK = 0.25  # seconds between two looks at the shares
LEAST_STEP = 0.001  # seconds
BROKERS = frozenset({1, 2, 3})
ROUND_TRIP = 0.01  # seconds to the broker and back

_THROTTLE_TIME_AT = slice(9, 13)  # of a Fetch v12 answer
_THROTTLE_TIME_AT_END = slice(-5, -1)  # of a Produce v9 answer


@dataclass(frozen=True)
class Task:
    """A client: how many records each of its requests moves, at which brokers."""

    client_id: str
    records: int
    brokers: frozenset[int]
    produces: bool = False
    transactional: bool = False
    poll_seconds: float = 0.0
    """How long each Fetch waits at the broker for records that do not come; 0: there are always records."""
    session: tuple[int, int] = (9, 3)
    """Of its fetches: (0, -1) for none."""
    waits_when_told: bool = True
    """Whether it honours throttle_time_ms."""
    leaders: tuple[int, ...] = ()
    """The broker of each partition, where it fills one after the other and never has more than a few batches ready."""


_READY = 4  # batches of such a task for each partition


class Backlog:
    """What such a task has ready: a broker that is slow keeps it from having anything for the others."""

    def __init__(self, leaders: Sequence[int]) -> None:
        self._ready = dict.fromkeys(leaders, 0)
        self._left = _READY * len(leaders)
        self._next = cycle(leaders)

    def take(self, broker: int) -> bool:
        """Take a batch for a broker; whether there is one."""
        while self._left:
            self._left -= 1
            self._ready[next(self._next)] += 1
        if not self._ready[broker]:
            return False
        self._ready[broker] -= 1
        return True

    def done(self) -> None:
        """Note that a batch was acknowledged."""
        self._left += 1


@cache
def _messages(task: Task) -> tuple[RequestBegins, bytes, bytes]:
    if task.produces:
        transactional = "t" if task.transactional else None
        request = produce(1, task.records, client_id=task.client_id, transactional=transactional)
        answer = produced(1)
    else:
        request = fetch(1, client_id=task.client_id, session=task.session)
        answer = fetched(1, 0 if task.poll_seconds else task.records)
    head = read_request_head(request)
    assert isinstance(head, RequestHead)
    begins = RequestBegins(head, RequestSender(PRODUCE if task.produces else FETCH, head.api_version, request[:1024]))
    return begins, request, answer


class Connection:
    """One client's connection through one sidecar: a request, its answer, what it is told to wait, the next."""

    session_end = math.inf

    def __init__(self, task: Task, broker: int, world: World, backlog: Backlog | None = None) -> None:
        self.task = task
        self._backlog = backlog
        self.broker = broker
        self._world = world
        self._clock = world.clock
        self._gate = LinkGate(world.stages[broker], cast(Side, SimpleNamespace(held=self)), cast(Any, self))
        self._held: Waiting[Outcome] | None = None
        self._passed: PassOn | None = None
        self.at = 0.0
        """When the next thing happens."""
        self._asked_at = 0.0
        self.longest_wait = 0.0
        """The longest that a request waited for its answer (seconds)."""
        self.longest_told = 0.0
        """The longest that its client was told to wait."""
        self.moved: list[float] = []
        """When its records moved."""

    def wake(self, links: Sequence[object] = ()) -> None:
        """What the gate calls, of this connection's link and as the line of held requests."""
        if self._held is not None:
            self.at = min(self.at, self._clock())

    def behind(self, most: int) -> bytes:
        """A client sends nothing behind a request."""
        return b""

    def step(self) -> None:
        """Do what is due: a client asks again as soon as it has an answer."""
        if self._passed is not None and self._clock() >= self.at:
            self._answer(self._passed)
        if self._passed is not None or self._clock() < self.at:
            return
        if self._held is not None:
            self._go_on(self._held)
        elif self._backlog is not None and not self._backlog.take(self.broker):
            self.at = self._clock() + 0.005
        else:
            self._asked_at = self._clock()
            begins, request, _ = _messages(self.task)
            seen_by = self._gate.may_hold(begins.head, request, False)
            outcome = self._gate.arrived(begins) if isinstance(seen_by, bool) else PassOn(Pending(0, seen_by))
            if isinstance(outcome, PassOn):
                self._take(outcome)
            else:
                self._go_on(outcome)

    def end(self) -> None:
        """Go away."""
        self._gate.gone()

    def _go_on(self, held: Waiting[Outcome]) -> None:
        self._held = held
        try:
            wait = next(held)
        except StopIteration as stop:
            self._held = None
            self._take(stop.value)
        else:
            assert wait is not None
            self.at = wait.until

    def _take(self, outcome: Outcome) -> None:
        now = self._clock()
        if isinstance(outcome, Reply):
            assert outcome.pending.answer is not None
            self._told_by(outcome.pending.answer[_THROTTLE_TIME_AT])
        else:
            if isinstance(outcome, Send):  # with less time to wait at the broker
                outcome = PassOn(outcome.pending)
            self._passed, self.at = outcome, now + (self.task.poll_seconds or self._world.round_trip())
            if outcome.watcher is not None:
                outcome.watcher(memoryview(_messages(self.task)[1]))
                self._has_moved()

    def _answer(self, passed: PassOn) -> None:
        self._passed = None
        if self._backlog is not None:
            self._backlog.done()
        whole = _messages(self.task)[2]
        assert passed.pending is not None
        observer = passed.pending.observer
        assert observer is not None
        out, taken = observer.receive(memoryview(bytearray(whole)))
        assert taken == len(whole)
        whole = b"".join(bytes(one) for one in out)
        observer.passed()
        if not self.task.produces and not self.task.poll_seconds:
            self._has_moved()
        self._told_by(whole[_THROTTLE_TIME_AT_END if self.task.produces else _THROTTLE_TIME_AT])

    def _has_moved(self) -> None:
        self.moved.append(self._world.seconds)
        self._world.moved.append((self._world.seconds, self.broker, self.task))

    def _told_by(self, milliseconds: bytes) -> None:
        now = self._clock()
        self.longest_wait = max(self.longest_wait, now - self._asked_at)
        told = int.from_bytes(milliseconds, "big") / 1000
        self.longest_told = max(self.longest_told, told)
        self.at = now + told * self.task.waits_when_told


class _Wired(Exchange):
    """An exchange whose requests reach the others at once, or not at all."""

    world: World

    async def _send(self, admin: Address, request: ShareRequest, other: int | None) -> ShareAnswer:
        other = admin.port
        if {other, self.own_id} & self.world.unreachable:
            raise OSError("cut off")
        answer = self.world.exchanges[other].answer(msgspec.json.encode(request))
        return msgspec.json.decode(msgspec.json.encode(answer), type=ShareAnswer)


@dataclass
class World:
    """Everything, from time 0 on."""

    tasks: Sequence[Task]
    rules: Sequence[Rule]
    clock: MovedClock = field(default_factory=MovedClock)
    stages: dict[int, LimitStage] = field(default_factory=dict)
    exchanges: dict[int, _Wired] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    unreachable: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    moved: list[tuple[float, int, Task]] = field(default_factory=list)
    tick_at: float = 0.0
    round_trip: Callable[[], float] = lambda: ROUND_TRIP

    def __post_init__(self) -> None:
        """Start the sidecars and the clients."""
        self._begin = self.clock()

        async def targets() -> Sequence[Target]:
            return [Target(Address("127.0.0.1", one), one) for one in sorted(BROKERS)]

        for one in sorted(BROKERS):
            stage = self.stages[one] = LimitStage(self.clock, EventLog())
            stage.configure(self.rules)
            shares = LimitShares(stage.clients, lambda: BROKERS, self.clock)
            self.exchanges[one] = _Wired(one, [shares], targets, EventLog(), self.clock)
            self.exchanges[one].world = self
            stage.clients.on_group = self._tick_soon
        for task in self.tasks:
            backlog = Backlog(task.leaders) if task.leaders else None
            self.connections += [Connection(task, one, self, backlog) for one in sorted(task.brokers)]

    @property
    def seconds(self) -> float:
        """How long it runs."""
        return self.clock() - self._begin

    async def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.clock() + seconds
        while (now := self.clock()) < end:
            if now >= self.tick_at:
                self.tick_at = now + TICK
                await self._exchange()
            alive = [one for one in self.connections if one.broker not in self.killed]
            for connection in alive:
                connection.step()
            upcoming = min([self.tick_at, *[connection.at for connection in alive]])
            self.clock.move(max(LEAST_STEP, upcoming - self.clock()))

    def configure(self, rules: Sequence[Rule]) -> None:
        """Change the limits, as over HTTP, at all sidecars."""
        for stage in self.stages.values():
            stage.configure(rules)

    def kill(self, broker: int) -> None:
        """End one sidecar with all that it has; its clients' connections too."""
        self.cut_off(broker)
        self.killed.add(broker)
        for connection in self.connections:
            if connection.broker == broker:
                connection.end()

    def cut_off(self, broker: int) -> None:
        """Let no other sidecar hear of this one, which goes on."""
        self.unreachable.add(broker)

    async def close(self) -> None:
        """Leave nothing behind."""
        for exchange in self.exchanges.values():
            await exchange.close()

    def _tick_soon(self) -> None:
        self.tick_at = self.clock()

    async def _exchange(self) -> None:
        for one, exchange in self.exchanges.items():
            if one in self.killed:
                continue
            exchange.tick()
            while exchange.looking is not None:
                await exchange.looking
                exchange.tick()
            await asyncio.gather(*exchange.under_way.values())
            exchange.tick()

# SPDX-License-Identifier: Apache-2.0
"""The one loop that asks the cluster, and keeps the view of it. Nothing on the data path waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from weir.proxy.cluster.channel import BrokerConnections, Channel, NotAnswered
from weir.proxy.cluster.metadata import Described
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.view import NOTHING, ClusterView, Takers
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog, innermost_frame
from weir.proxy.slices import stopped, wait_at_most

_Answer = TypeVar("_Answer")

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
MAX_IDLE_RETRY_SECONDS = 60.0  # while nobody waits: the servers may speak TLS, and then none will ever answer
_SHORTEST_PAUSE_SECONDS = 0.05  # between rounds that nobody asked for with `wake`


class Poll:
    """A question to the cluster that is asked again and again."""

    what: str
    """Its name in metrics and in the log."""
    longest_retry = MAX_IDLE_RETRY_SECONDS
    """The longest time (seconds) after which it is asked for again, while no server answers."""

    def due_at(self, client: ClusterClient) -> float:
        """Return when to ask next (clock seconds); inf where only another event makes it due."""
        raise NotImplementedError

    async def ask(self, client: ClusterClient) -> None:
        """Ask, and publish the answer. Raises NotAnswered where no server answers."""
        raise NotImplementedError

    def due_now(self) -> None:
        """Be due in the next round, as something else is wanted."""

    def unanswered(self, client: ClusterClient) -> None:
        """Note that no server answered."""


@dataclass(eq=False)
class Outage:
    """Logs that brokers do not answer as `not_asked`, with its `effect`, and once when they do again as `recovered`."""

    _log: EventLog
    _not_asked: str
    _recovered: str
    _effect: str
    is_on: bool = False

    def begin(self, peer: object, error: str) -> None:
        """Log who does not answer, and why. A repetition is logged once in a while."""
        self.is_on = True
        self._log.fault(self._not_asked, peer=peer, error=error, effect=self._effect)

    def end(self, peer: object) -> None:
        """Log that `peer` answers again, if an outage was on."""
        if self.is_on:
            self.is_on = False
            self._log.info(self._recovered, peer=peer)


@dataclass(eq=False)
class ClusterClient:
    """Asks the cluster in rounds, from `start` to `close`. `clock` gives monotonic seconds.

    - A round calls `begin_round`, and asks `polls` in their order, then `follower`, if there is one. The follower asks
      single brokers, and deals with their failures itself.
    - Once the servers have not answered one poll, they are not asked for the next ones in that round. After a round
      that failed the polls wait, each time for longer.
    - `takers` are given what has changed of the view.
    """

    connections: BrokerConnections
    polls: Sequence[Poll]
    follower: Poll | None
    begin_round: Callable[[], None]
    outage: Outage
    log: EventLog
    stats: PollStats
    clock: Callable[[], float]
    takers: Takers
    view: ClusterView = NOTHING
    has_topic_ids: bool = True
    """Whether the server that answered last has topic ids."""
    _taken: dict[str, object] = field(init=False)  # as `takers` were last given it
    _failed_at: float = 0.0
    _retry_seconds: float = 0.0  # 0 unless the last round that asked something failed
    _answered: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._taken = {name: getattr(self.view, name) for name in Takers._fields}
        for poll in self.polls:
            self.stats.known(poll.what)

    def start(self) -> None:
        """Begin to ask, in a task of its own."""
        self._running = asyncio.create_task(self.run())

    def wake(self) -> None:
        """Begin a round now, for the polls that are due."""
        self._wake.set()

    def ask_now(self) -> None:
        """Begin a round for all polls now, as other topics are throttled, or brokers have become of interest."""
        for poll in self.polls:
            poll.due_now()
        self.wake()

    async def close(self) -> None:
        """Stop asking. The view stays as it is, and so does all that follows from it."""
        await stopped(self._running)
        self.connections.close()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._wake.clear()
            await self.round()
            if self._retry_seconds:
                await asyncio.sleep(FIRST_RETRY_SECONDS)  # however often it is woken meanwhile
            seconds = min(max(self.due_at() - self.clock(), _SHORTEST_PAUSE_SECONDS), MAX_IDLE_RETRY_SECONDS)
            await wait_at_most(self._wake, seconds)

    def due_at(self) -> float:
        """Return when the next poll is due (clock seconds)."""
        due = min(map(self._due_at, self.polls))
        return due if self.follower is None else min(due, self.follower.due_at(self))

    async def round(self) -> None:
        """Ask once for all that is due. What fails is logged, and asked for again later."""
        self.begin_round()
        await self.ask_servers()
        if self.follower is not None and self.clock() >= self.follower.due_at(self):
            await self.follower.ask(self)

    async def ask_servers(self) -> None:
        """Ask for the polls that are due. The follower calls it between its questions, as names may be waited for."""
        self._answered = False
        failure: NotAnswered | None = None
        is_asked = is_broken = False
        for poll in self.polls:
            if self.clock() < self._due_at(poll):
                continue
            is_asked = True
            try:
                if failure is None:
                    await poll.ask(self)
                else:
                    poll.unanswered(self)
            except NotAnswered as error:
                failure = error
                poll.unanswered(self)
            except Exception as error:  # noqa: BLE001 - a bug may not end it for good
                is_broken = True
                self._not_taken(poll.what, error)
        if failure is not None or is_broken:
            self.outage.is_on = True
            self._failed_at = self.clock()
            self._retry_seconds = min(max(2 * self._retry_seconds, FIRST_RETRY_SECONDS), MAX_IDLE_RETRY_SECONDS)
        elif is_asked:
            self._retry_seconds = 0.0
        if failure is not None:
            self.outage.begin(self.connections.servers, str(failure))
        elif self._answered and not is_broken:
            self.outage.end(self.connections.server)

    async def question(self, what: str, ask: Callable[[Channel], Awaitable[_Answer]]) -> _Answer:
        """Ask one server after the other until one answers. Raises NotAnswered, or NotSupported."""
        begin, before = self.clock(), self.connections.moved
        try:
            answer = await self.connections.ask_any(ask)
        except NotAnswered:
            self.stats.count(what, "failed", self.clock() - begin, self.connections.moved - before)
            raise
        self._answered = True
        self.stats.count(what, "ok", self.clock() - begin, self.connections.moved - before)
        return answer

    async def ask_broker(self, broker_id: int, ask: Callable[[Channel], Awaitable[_Answer]]) -> _Answer:
        """Ask one broker. Raises NotAnswered, or NotSupported."""
        broker = self.view.brokers.get(broker_id)
        if broker is None:
            raise NotAnswered(f"broker {broker_id} is not among the brokers that the cluster names", is_late=False)
        return await self.connections.ask(Address(broker.host, broker.port), ask)

    def learn_brokers(self, answer: Described) -> None:
        """Put the brokers of an answer into the view, if it lists any: a broker that starts may know none."""
        cluster_id = answer.cluster_id or self.view.cluster_id
        view = replace(self.view, controller=answer.controller, cluster_id=cluster_id)
        if answer.brokers:
            racks = {broker_id: broker.rack for broker_id, broker in answer.brokers.items()}
            view = replace(view, brokers=answer.brokers, racks=view.racks if racks == view.racks else racks)
        self.publish(view)

    def publish(self, view: ClusterView) -> None:
        """Keep a new view, and pass on what has changed. A taker that failed is told again the next time."""
        self.view = view
        for name, take in self.takers._asdict().items():
            if (value := getattr(view, name)) is not self._taken[name]:
                try:
                    take(value)
                except Exception as error:  # noqa: BLE001 - a bug in one keeps it from nobody else
                    self._not_taken(name, error)
                else:
                    self._taken[name] = value

    def _due_at(self, poll: Poll) -> float:
        due = poll.due_at(self)
        if self._retry_seconds:
            return max(due, self._failed_at + min(self._retry_seconds, poll.longest_retry))
        return due

    def _not_taken(self, what: str, error: Exception) -> None:
        self.log.fault("cluster_poll_not_taken", peer=what, error=repr(error), at=innermost_frame(error))

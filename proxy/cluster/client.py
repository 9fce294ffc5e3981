"""Asks the cluster, one server after the other until one answers, and keeps the view of it.

Nothing on the data path waits for this.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from weir.proxy.cluster.channel import Channel, NoTopicIds
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.servers import Servers
from weir.proxy.cluster.view import ClusterView
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog, innermost_frame

_Answer = TypeVar("_Answer")

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
MAX_IDLE_RETRY_SECONDS = 60.0  # while nothing is urgent: the servers may speak TLS, and then none will ever answer
_SHORTEST_PAUSE_SECONDS = 0.05  # between rounds that nobody asked for with `wake`


class Poll(Protocol):
    """Something that the cluster is asked for again and again."""

    what: str
    """Its name in metrics and in the log."""

    def due_at(self, client: ClusterClient) -> float:
        """Return when to ask next (clock seconds); -inf: in this round, inf: not by itself."""

    async def ask(self, client: ClusterClient) -> None:
        """Ask, put the answer into `client.view`, and pass it on. Raises ConnectionError when no server answers."""

    def not_told(self, client: ClusterClient) -> None:
        """Note that no server answered."""

    def is_urgent(self) -> bool:
        """Whether somebody waits for an answer. Then failed servers are asked again sooner."""


class Events(NamedTuple):
    """Names of log events: no server answers, one answers again. And what follows from the first one."""

    not_asked: str
    recovered: str
    effect: str


class ClusterClient:
    """Asks `servers` for what `polls` want to know, in their order. `clock` gives monotonic seconds.

    `open_channel` connects to a server. After a round that nobody answered it waits; the waits grow up to
    `longest_retry` seconds. `before_round` is called before each round.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        open_channel: Callable[[Address], Awaitable[Channel]],
        polls: Sequence[Poll],
        log: EventLog,
        events: Events,
        stats: PollStats | None = None,
        clock: Callable[[], float] = time.monotonic,
        longest_retry: float = MAX_IDLE_RETRY_SECONDS,
        before_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.view = ClusterView()
        self.log = log
        self.stats = PollStats() if stats is None else stats
        self.clock = clock
        self.has_topic_ids = True
        """Whether the server that answered last has topic ids."""
        self._servers = Servers(servers)
        self._open_channel = open_channel
        self._polls = polls
        self._events = events
        self._longest_retry = longest_retry
        self._before_round = before_round
        self._channel: Channel | None = None
        self._retry_seconds = 0.0  # 0 unless the last round failed
        self._failing = False  # until a request is answered; there may be nothing to ask for long
        self._answered = False
        self._wake = asyncio.Event()
        for poll in polls:
            self.stats.known(poll.what)

    @property
    def server(self) -> Address:
        """The server that is asked first."""
        return self._servers.first

    @property
    def servers(self) -> str:
        """All servers, as shown in the log."""
        return str(self._servers)

    def wake(self) -> None:
        """Look now for polls that are due."""
        self._wake.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self.round()
                await self._pause()
        finally:
            self.disconnect()

    async def round(self) -> None:
        """Ask once for all that is due. What fails is logged, and asked for again later."""
        self._before_round()
        self._answered = False
        failure: ConnectionError | None = None
        is_broken = False
        for poll in self._polls:
            if self.clock() < poll.due_at(self):
                continue
            try:
                if failure is None:
                    await poll.ask(self)
                    continue
            except ConnectionError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a bug may not end it for good
                is_broken = True
                self._not_taken(poll.what, error)
                continue
            try:
                poll.not_told(self)
            except Exception as error:  # noqa: BLE001 - see above
                is_broken = True
                self._not_taken(poll.what, error)
        if failure is not None or is_broken:
            self._failing = True
            self._retry_seconds = min(max(2 * self._retry_seconds, FIRST_RETRY_SECONDS), self._longest_retry)
        else:
            self._retry_seconds = 0.0
        if failure is not None:
            self.log.fault(self._events.not_asked, peer=self.servers, error=failure, effect=self._events.effect)
        elif self._failing and self._answered and not is_broken:
            self._failing = False
            self.log.info(self._events.recovered, peer=self.server)

    async def tell(self, what: str, told: Awaitable[None]) -> None:
        """Pass an answer on. A bug in whoever takes it keeps it from nobody else."""
        try:
            await told
        except Exception as error:  # noqa: BLE001 - see above
            self._not_taken(what, error)

    async def question(self, what: str, ask: Callable[[Channel], Awaitable[_Answer]]) -> _Answer:
        """Ask one server after the other; the one that answers is asked first next time.

        Raises ConnectionError, which names every server, or NoTopicIds where that is all that a server could say.
        """
        begin, size, without_ids = self.clock(), 0, False
        before = self._moved()

        async def asked(server: Address) -> _Answer:
            nonlocal before, without_ids
            before = self._moved()
            try:
                return await ask(await self._connected(server))
            except NoTopicIds:
                without_ids = True
                raise ConnectionError("the broker is older than topic ids") from None

        def failed(_: Address) -> None:
            nonlocal size
            size += self._moved_since(before)
            self.disconnect()

        try:
            answer = await self._servers.ask(asked, failed)
        except ConnectionError:
            if without_ids:
                raise NoTopicIds from None
            self.stats.count(what, "failed", self.clock() - begin, size)
            raise
        self._answered = True
        self.stats.count(what, "ok", self.clock() - begin, size + self._moved_since(before))
        return answer

    def disconnect(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _connected(self, server: Address) -> Channel:
        if self._channel is None or self._channel.closed:
            self.disconnect()
            self._channel = await self._open_channel(server)
        return self._channel

    def _moved(self) -> tuple[Channel | None, int]:
        return self._channel, 0 if self._channel is None else self._channel.moved

    def _moved_since(self, before: tuple[Channel | None, int]) -> int:
        channel, moved = self._moved()
        return moved - before[1] if channel is before[0] else moved

    def _not_taken(self, what: str, error: Exception) -> None:
        self.log.error("cluster_poll_not_taken", what=what, error=repr(error), at=innermost_frame(error))

    async def _pause(self) -> None:
        if self._retry_seconds:
            await asyncio.sleep(min(self._retry_seconds, MAX_RETRY_SECONDS))  # however often it is woken meanwhile
            seconds = self._retry_seconds - MAX_RETRY_SECONDS
            if seconds <= 0 or any(poll.is_urgent() for poll in self._polls):
                return
        else:
            due = min((poll.due_at(self) for poll in self._polls), default=math.inf)
            seconds = min(max(due - self.clock(), _SHORTEST_PAUSE_SECONDS), MAX_IDLE_RETRY_SECONDS)
        await wait_at_most(self._wake, seconds)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or until the time is over."""
    with contextlib.suppress(TimeoutError):
        # not wait_for: in Python 3.11 it loses a cancellation that comes together with the event
        async with asyncio.timeout(seconds):
            await event.wait()

"""A resolver of topic ids in a test's hands, and what asyncio is waited with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy.cluster.channel import PlainChannel
from weir.proxy.cluster.client import ClusterClient
from weir.proxy.cluster.removed_replicas import RemovedReplicasPoll
from weir.proxy.cluster.topic_ids import ThrottledTopics, TopicIdPoll
from weir.proxy.cluster.topics import TopicPoll
from weir.proxy.cluster.watch import EVENTS_WITHOUT_CLUSTER
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.quota.removed_replicas import RemovedReplicas
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames

ORDERS, ORDERS_AGAIN, PAYMENTS, STRANGER = (bytes([number]) * 16 for number in (1, 2, 3, 0xFF))
FOLLOWER = 2
POLL_SECONDS = 60.0
DEADLINE_SECONDS = 5.0


class Resolving:
    """A resolver for throttled topic `orders`; its clock stands still unless it is moved."""

    def __init__(self, *servers: Address) -> None:
        self.clock = MovedClock(0.0)
        self.names = TopicNames(self.clock)
        self.throttle = Throttle("leader", 1, self.clock, topic_names=self.names)
        self.throttle.brokers.learn([FOLLOWER])
        self.throttled = {"orders"}
        self.changes = 0
        self.changed = asyncio.Event()
        log = EventLog(clock=self.clock)
        removed = RemovedReplicasPoll(RemovedReplicas([self.throttle]), log)
        throttled = ThrottledTopics(self.names, lambda: self.throttled, lambda: self.on_change())
        self.topics = TopicPoll([throttled, removed], self.clock, POLL_SECONDS)
        self.client = ClusterClient(
            servers,
            PlainChannel.open,
            [TopicIdPoll(self.names, lambda: self.on_change(), self.topics), self.topics],
            log,
            EVENTS_WITHOUT_CLUSTER,
            clock=self.clock,
            before_round=removed.log_untold,
        )
        self.names.on_miss = self.client.wake

    def wake(self) -> None:
        self.topics.due_now()
        self.client.wake()

    def on_change(self) -> None:
        self.changes += 1
        self.changed.set()

    async def asked_at(self, seconds: float) -> None:
        self.clock.now = seconds
        await self.client.round()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.client.run())
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what is waited for is a broker's list, or a connection
                await asyncio.sleep(0.001)


class Waits:
    """Stands for asyncio's own waits, which then take no time; remembers for how long (seconds) they were asked."""

    def __init__(self) -> None:
        self.pause = asyncio.sleep
        self.slept: list[float] = []
        self.waited: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.pause(0)

    async def wait_at_most(self, event: asyncio.Event, seconds: float) -> None:
        self.waited.append(seconds)
        await self.pause(0)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if record.name == "weir"]


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    found: dict[str, object] = next(r for r in caplog.records if r.msg == event).__dict__["weir_fields"]
    return found

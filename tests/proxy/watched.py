# SPDX-License-Identifier: Apache-2.0
"""A sidecar's watch of the cluster in a test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.throttle_cluster import ThrottleCluster
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.removed_replicas import RemovedReplicas
from weir.proxy.cluster.view import ClusterView, Takers, Wants
from weir.proxy.cluster.watch import watch_cluster
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.layers import Layer
from weir.proxy.log import EventLog
from weir.quota.settings import FOLLOWER_REPLICAS, LEADER_REPLICAS
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames

ORDERS, ORDERS_AGAIN, PAYMENTS, STRANGER = (bytes([number]) * 16 for number in (1, 2, 3, 0xFF))
FOLLOWER = 2
POLL_SECONDS = 60.0
DEADLINE_SECONDS = 5.0
LISTS: dict[str, str | None] = {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}

_EGRESS = '[[egress]]\npeer = {peer}\nlisten = "127.0.0.1:{peer}"\nupstream = "{server}"\n'


class Watched:
    """The watch of the sidecar of broker 1, and what it tells. Its clock stands still unless it is moved.

    `cluster` is what `[cluster]` has beside its servers; None: there is no such table.
    """

    def __init__(self, *servers: Address, cluster: str | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        self.clock = MovedClock(0.0)
        self.names = TopicNames(self.clock)
        self.throttle = Throttle("leader", 1, self.clock, topic_names=self.names)
        self.throttle.brokers.learn([FOLLOWER])
        self.throttled: Collection[str] = {"orders"}
        self.behind: frozenset[str] = frozenset()
        self.wants_moves = False
        self.told: list[tuple[str, Any]] = []
        self.told_again = asyncio.Event()
        self.stats = PollStats()
        text = "broker_id = 1\n" + "".join(
            _EGRESS.format(peer=peer, server=server) for peer, server in enumerate(servers, start=2)
        )
        if cluster is not None:
            bootstrap = ",".join(map(str, servers))
            text += f'[cluster]\nbootstrap_servers = "{bootstrap}"\npoll_seconds = {poll_seconds}\n{cluster}'
        self.client = watch_cluster(
            parse_config(text),
            self.names,
            RemovedReplicas([self.throttle]),
            Wants(lambda: self.throttled, lambda: self.behind, lambda: False, lambda: self.wants_moves),
            Takers(*(self._taker(name) for name in Takers._fields)),
            EventLog(clock=self.clock),
            self.stats,
            self.clock,
        )
        self.client.polls[1]._poll_seconds = poll_seconds  # type: ignore[attr-defined]

    @property
    def view(self) -> ClusterView:
        return self.client.view

    @property
    def changes(self) -> int:
        """How often names of ids have changed."""
        return len(self.told_of("names_generation"))

    def told_of(self, name: str) -> list[Any]:
        """What was told of one field of the view, the last one last."""
        return [value for of, value in self.told if of == name]

    def polls(self, what: str) -> tuple[int, int]:
        """How many polls were answered, and how many failed."""
        return self.stats.polls[what, "ok"], self.stats.polls[what, "failed"]

    def take(self, name: str, value: Any) -> None:
        """Note what was told. A test may put a fault in its place."""
        self.told.append((name, value))
        self.told_again.set()

    async def asked_at(self, seconds: float) -> list[tuple[str, Any]]:
        """Have one round at this time. Returns what was told in it."""
        self.clock.now, before = seconds, len(self.told)
        await self.client.round()
        return self.told[before:]

    async def retries(self, count: int) -> list[float]:
        """Have so many rounds, each when it is due. Returns after how many seconds each next one is."""
        waits = []
        for _ in range(count):
            await self.client.round()
            waits.append(self.client.due_at() - self.clock.now)
            self.clock.move(waits[-1])
        return waits

    async def poll(self) -> None:
        """Have a round in which topics are asked for, however soon after one that failed."""
        self.client._retry_seconds = 0.0
        self.client.ask_now()
        await self.client.round()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.client.start()
        yield
        await self.close()

    async def close(self) -> None:
        await self.client.close()
        await asyncio.sleep(0)

    def _taker(self, name: str) -> Callable[[Any], None]:
        return lambda value: self.take(name, value)


class Following(Watched):
    """The watch of a sidecar that follows this part of Kafka's rates; None: it follows none."""

    def __init__(
        self, cluster: ThrottleCluster, part: float | None = 1.0, servers: list[Address] | None = None
    ) -> None:
        follows = "" if part is None else f"follow_throttles = true\nfollowed_part = {part}"
        super().__init__(*(cluster.addresses(2, 1) if servers is None else servers), cluster=follows)
        self.throttled = ()

    async def round(self, seconds: float = 1.0) -> dict[str, Any]:
        """Let the time pass, read once, and return what is in force."""
        self.clock.move(seconds)
        assert self.client.follower is not None
        await self.client.follower.ask(self.client)
        return self.in_force

    @property
    def in_force(self) -> dict[str, Any]:
        layer = self.view.throttle or Layer("kafka")
        return {".".join(path[-2:]): _plain(entry.value) for path, entry in layer.entries.items()}


def _plain(value: object) -> object:
    return value if isinstance(value, int) else str(value)


def listed(topic: str, leader: str = "0:1", follower: str = "0:2") -> dict[str, str]:
    return {f"{topic}.{LEADER_REPLICAS}": leader, f"{topic}.{FOLLOWER_REPLICAS}": follower}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for is a broker's list, a log or a connection
            await asyncio.sleep(0.001)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if record.name == "weir"]


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    found: dict[str, object] = next(r for r in caplog.records if r.msg == event).__dict__["weir_fields"]
    return found

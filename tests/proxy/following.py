"""A follower of a made-up cluster, in a test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.clock import MovedClock
from tests.fakes.throttle_cluster import (
    ThrottleCluster,
)
from tests.proxy.resolving import DEADLINE_SECONDS
from weir.proxy.cluster.follow import WHAT, ThrottleFollower
from weir.proxy.cluster.followers import Followers
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.quota.followed_throttle import Move
from weir.quota.layers import Layer
from weir.quota.setting_names import FOLLOWER_REPLICAS, LEADER_REPLICAS

LISTS: dict[str, str | None] = {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}


class Following:
    """A follower beside broker 1, and what it tells."""

    def __init__(
        self, cluster: ThrottleCluster, part: float | None = 1.0, servers: list[Address] | None = None
    ) -> None:
        self.cluster = cluster
        self.clock = MovedClock()
        self.stats = PollStats()
        self.layers: list[Layer] = []
        self.moves: list[Mapping[str, Mapping[int, Move]]] = []
        self.racks: list[Mapping[int, str | None]] = []
        self.wants_facts = False
        self.behind: frozenset[str] = frozenset()
        self.follower = ThrottleFollower(
            1,
            part,
            cluster.addresses(2, 1) if servers is None else servers,
            Followers(
                self.layers.append, self.moves.append, self.racks.append, lambda: self.wants_facts, lambda: self.behind
            ),
            EventLog(clock=self.clock),
            self.stats,
            self.clock,
        )

    async def round(self, seconds: float = 1.0) -> dict[str, Any]:
        """Let the time pass, read once, and return what is in force."""
        self.clock.move(seconds)
        await self.follower.round()
        return self.in_force

    @property
    def in_force(self) -> dict[str, Any]:
        entries = self.layers[-1].entries if self.layers else {}
        return {".".join(path[-2:]): _plain(entry.value) for path, entry in entries.items()}

    @property
    def polls(self) -> tuple[int, int]:
        """How many rounds were read whole, and how many failed."""
        return self.stats.polls[WHAT, "ok"], self.stats.polls[WHAT, "failed"]

    async def close(self) -> None:
        await self.follower.close()
        await asyncio.sleep(0)


def _plain(value: object) -> object:
    return value if isinstance(value, int) else str(value)


def listed(topic: str, leader: str = "0:1", follower: str = "0:2") -> dict[str, str]:
    return {f"{topic}.{LEADER_REPLICAS}": leader, f"{topic}.{FOLLOWER_REPLICAS}": follower}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - of the made-up cluster nothing tells
            await asyncio.sleep(0)

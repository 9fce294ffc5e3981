"""How well sidecars share one rate, in a model with real code and a clock that is moved: `python -m bench.shares`.

Each round trip takes no time. What a sidecar may use it uses, where it has as much to send.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec

from bench.table import Report, parser
from tests.fakes.clock import MovedClock
from weir.proxy.admin.fleet import Target
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.shares.exchange import TICK_SECONDS, Exchange
from weir.proxy.shares.messages import ShareAnswer, ShareRequest
from weir.quota.shares.demand import DemandMeter
from weir.quota.shares.share import Terms

RATE = 1e6
NAME = "rate"
MOST_SECONDS = 30.0


class User:
    """One sidecar that would send `offered` bytes/s."""

    def __init__(self, members: frozenset[int], clock: MovedClock, offered: float = 0.0) -> None:
        self.members = members
        self.offered = offered
        self.passed = 0.0
        self.share = 0.0
        self._meter = DemandMeter(clock)

    @property
    def rate(self) -> float:
        return min(self.offered, self.share) / RATE

    def shared(self) -> Mapping[str, Terms]:
        return {NAME: Terms(RATE, self.members)}

    def asked_for(self, name: str) -> bool:
        return False

    def demand(self, name: str, share: float) -> float:
        return self._meter.update(self.passed, share, RATE, waits=self.offered > share)

    def use(self, shares: Mapping[str, float]) -> None:
        self.share = shares[NAME]


class Wired(Exchange):
    """An exchange whose requests reach the others at once, or not at all."""

    world: World

    async def _send(self, admin: Address, request: ShareRequest) -> ShareAnswer:
        world, other = self.world, admin.port
        if {self.own_id, other} & world.cut_off:
            raise OSError("cut off")
        if other in world.ended:
            key = cast(Any, SimpleNamespace(host="", port=other, ssl=None, is_ssl=False))
            raise aiohttp.ClientConnectorError(key, OSError(errno.ECONNREFUSED, "refused"))
        world.messages += 1
        answer = world.exchanges[other].answer(msgspec.json.encode(request))
        return msgspec.json.decode(msgspec.json.encode(answer), type=ShareAnswer)


class World:
    """All sidecars."""

    def __init__(self, count: int) -> None:
        self.clock = MovedClock()
        self.members = frozenset(range(1, count + 1))
        self.ended: set[int] = set()
        self.cut_off: set[int] = set()
        self.messages = 0
        self.worst = 0.0
        self.users: dict[int, User] = {}
        self.exchanges: dict[int, Wired] = {}
        for one in self.members:
            self.start(one)

    def start(self, one: int, offered: float = 0.0) -> None:
        self.ended.discard(one)
        self.users[one] = User(self.members, self.clock, offered)
        self.exchanges[one] = Wired(one, [self.users[one]], self._targets, EventLog(), self.clock)
        self.exchanges[one].world = self

    async def _targets(self) -> Sequence[Target]:
        return [Target(Address("127.0.0.1", one), one) for one in sorted(self.members)]

    def used(self, of: Collection[int]) -> float:
        """What these use of the rate."""
        return sum([self.users[one].rate for one in of])

    async def run(self, seconds: float) -> None:
        await self.until(lambda: False, seconds)

    async def until(self, there: Callable[[], bool], most: float = MOST_SECONDS) -> float:
        """Let time pass until it is so; returns how long that took."""
        for step in range(round(most / TICK_SECONDS)):
            alive = sorted(self.members - self.ended)
            for one in alive:
                await self._tick(self.exchanges[one])
            self.worst = max(self.worst, sum([self.users[one].share for one in alive]) / RATE)
            for one in alive:
                self.users[one].passed += self.users[one].rate * RATE * TICK_SECONDS
            self.clock.move(TICK_SECONDS)
            if there():
                return (step + 1) * TICK_SECONDS
        return most

    async def _tick(self, exchange: Wired) -> None:
        exchange.tick()
        while exchange.looking is not None:
            await exchange.looking
            exchange.tick()
        await asyncio.gather(*exchange.under_way.values())
        exchange.tick()


async def measure(count: int) -> tuple[object, ...]:
    """Play through what may happen to so many sidecars."""
    world = World(count)
    users, last = world.users, count
    await world.run(10)
    users[last].offered = 2 * RATE
    from_idle = await world.until(lambda: users[last].rate >= 0.95)
    await world.run(10)
    before = world.messages
    shares = []
    for _ in range(20):
        await world.run(1)
        shares.append(users[last].rate)
    messages = (world.messages - before) / 20
    users[last].offered, users[2].offered = 0, 2 * RATE
    moved = await world.until(lambda: users[2].rate >= 0.95)
    await world.run(10)
    users[last].offered = 2 * RATE
    second = await world.until(lambda: max(abs(users[one].rate - 0.5) for one in (2, last)) < 0.03)
    for user in users.values():
        user.offered = 2 * RATE
    every = await world.until(lambda: max(abs(user.rate * count - 1) for user in users.values()) < 0.05)
    await world.run(10)
    left = world.members - {last}
    world.ended = {last}
    await world.run(1)
    ended = 1 + await world.until(lambda: world.used(left) >= 0.995)
    world.start(last, 2 * RATE)
    back = await world.until(lambda: users[last].rate * count >= 0.95)
    await world.run(20)
    world.ended = {1}
    await world.run(1)
    ended_too = 1 + await world.until(lambda: world.used(world.members - {1}) >= 0.995)
    world.start(1, 2 * RATE)
    await world.run(20)
    world.cut_off = {1}
    await world.run(20)
    cut_off = world.used(world.members - {1})
    mean = sum(shares) / len(shares)
    return count, mean, from_idle, moved, second, every, ended, back, ended_too, cut_off, messages, world.worst


COLUMNS = {
    "sidecars": 0,
    "one wants: it has": 3,
    "from idle, s": 2,
    "demand moves, s": 2,
    "a second one wants, s": 2,
    "all want, s": 2,
    "the last one ended, s": 2,
    "it is back, s": 2,
    "the first one ended, s": 2,
    "one is cut off: others have": 3,
    "messages/s": 0,
    "largest sum": 3,
}


def main() -> int:
    """Measure; 1 where a figure missed its bound."""
    options = parser("bench.shares", "Measure how well sidecars share one rate.")
    options.add_argument("--sidecars", type=int, nargs="+", default=[3, 10, 30])
    chosen = options.parse_args()
    report = Report(chosen.json)
    rows = [asyncio.run(measure(count)) for count in chosen.sidecars]
    report.table("One rate of several sidecars", COLUMNS, rows)
    for row in rows:
        report.bound(f"{row[0]} sidecars: the one that wants has", cast(float, row[1]), least=0.95)
        report.bound(f"{row[0]} sidecars: largest sum", cast(float, row[-1]), most=1.000001)
    return report.status


if __name__ == "__main__":
    sys.exit(main())

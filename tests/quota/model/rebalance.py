# SPDX-License-Identifier: Apache-2.0
"""A whole cluster that is rebalanced: every broker leads and follows every other, with the throttle of both sides."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.conversation import mean_rate, worst_second
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.wire import Response
from tests.quota.model.chain import Chain
from tests.quota.model.follower import Fetcher, Replica
from tests.quota.model.hops import Sidecar
from tests.quota.model.leader import LeaderNode
from tests.quota.model.promise import Exceptions, SideMeter
from tests.quota.model.world import START, World
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

TOPIC = "moved"
MB = 1_000_000
_CONNECTING_SECONDS = 0.05  # within which all fetchers begin


@dataclass(frozen=True)
class Rebalance:
    """Rates (bytes/s) and sizes go round by broker, where there are fewer of them than brokers."""

    brokers: int = 3
    fetchers: int = 4
    batches: tuple[int | tuple[int, ...], ...] = (16_000,)
    """Of each partition: all of one size, or of sizes that go round."""
    leader_rates: tuple[int | None, ...] = (MB,)
    follower_rates: tuple[int | None, ...] = (MB,)
    version: int = 12
    partitions: int = 2
    """Of each fetcher."""
    has_ingress: tuple[bool, ...] = (True,)
    latency: float = 0.001
    bandwidth: float = 100 * MB
    seconds: float = 13.0
    warm_up: float = 5.0


@dataclass(frozen=True)
class Rates:
    """What one broker sent or received, as parts of its rate."""

    mean: float
    """After the warm-up."""
    whole: float
    """The mean from the start on."""
    worst_second: float


@dataclass(frozen=True)
class Figures:
    """By broker; those without a rate are left out."""

    sent: dict[int, Rates]
    received: dict[int, Rates]

    def least_used(self) -> float:
        """The least of all links: how much of its rate the end is used that is used more."""

        def used(rates: Rates | None) -> float:
            return 0.0 if rates is None else rates.mean

        pairs = [(leader, follower) for leader in self.all() for follower in self.all() if leader != follower]
        return min(max(used(self.sent.get(leader)), used(self.received.get(follower))) for leader, follower in pairs)

    def all(self) -> set[int]:
        """All brokers with a rate."""
        return {*self.sent, *self.received}


class _Chain(Chain):
    sent: list[tuple[float, float]]
    """When records left the leader's machine, and how many bytes."""

    def count(self, response: Response, begin: int, end: int) -> None:
        self.sent.append((self.world.now, end - begin))


class _Fetcher(Fetcher):
    received: list[tuple[float, float]]

    def take(self, response: Response) -> None:
        if response.size:
            self.received.append((self.world.now, response.size))
        super().take(response)


def play(rebalance: Rebalance) -> Figures:
    """Run it, and return the figures."""
    world = World()
    ids = range(1, rebalance.brokers + 1)

    def of(values: tuple[int | None, ...], broker: int) -> int | None:
        return values[(broker - 1) % len(values)]

    def sidecar(side: str, broker: int, rate: int | None) -> Sidecar:
        settings = ThrottleSettings(rate=rate, replicas={TOPIC: ALL_REPLICAS})
        throttle = Throttle(side, broker, world, settings)  # type: ignore[arg-type]
        meter = SideMeter(world, side, Exceptions(0, 0, throttle.takes_out), is_strict=True)
        return Sidecar(world, throttle, meter, lambda follower, other: {})

    leaders = {one: LeaderNode(world, one, 10_000) for one in ids}
    has_ingress = {one: rebalance.has_ingress[(one - 1) % len(rebalance.has_ingress)] for one in ids}
    ingress = {one: sidecar("leader", one, of(rebalance.leader_rates, one)) for one in ids if has_ingress[one]}
    egress = {one: sidecar("follower", one, of(rebalance.follower_rates, one)) for one in ids}
    received: dict[int, list[tuple[float, float]]] = {one: [] for one in ids}
    sent: dict[int, list[tuple[float, float]]] = {one: [] for one in ids}
    number = 0
    for follower in ids:
        for leader in ids:
            if leader == follower:
                continue
            for _ in range(rebalance.fetchers):
                replicas: list[Replica] = []
                for _ in range(rebalance.partitions):
                    size = rebalance.batches[number % len(rebalance.batches)]
                    sizes = size if isinstance(size, tuple) else (size,)
                    count = 200 * MB * len(sizes) // sum(sizes) + 1000
                    log = Log.of_pattern((TOPIC.encode(), number), sizes, count)
                    leaders[leader].logs[log.key] = log
                    replicas.append(Replica(log, 0, world.now))
                    number += 1
                fetcher = _Fetcher(world, follower, rebalance.version, replicas)
                fetcher.received = received[follower]
                hops: list[Sidecar] = [egress[follower], *([ingress[leader]] if leader in ingress else ())]
                chain = _Chain(world, hops, leaders[leader], fetcher, rebalance.bandwidth, rebalance.latency)
                chain.sent = sent[leader]
                delay = _CONNECTING_SECONDS * (number * 7 % 13) / 13
                world.after(delay, fetcher.connect, chain)
    world.run(START + rebalance.seconds, 10**9)
    assert not world.violations, world.violations
    start, end = START + rebalance.warm_up, START + rebalance.seconds
    return Figures(
        {one: _rates(sent[one], rate, start, end) for one in ingress if (rate := of(rebalance.leader_rates, one))},
        {one: _rates(received[one], rate, start, end) for one in ids if (rate := of(rebalance.follower_rates, one))},
    )


def _rates(passed: list[tuple[float, float]], rate: int, start: float, end: float) -> Rates:
    mean = mean_rate(passed, start, end) / rate
    whole = sum(size for at, size in passed if at <= end) / (end - START) / rate
    return Rates(mean, whole, worst_second(passed) / rate)

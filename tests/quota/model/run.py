# SPDX-License-Identifier: Apache-2.0
"""Plays one scenario, and says what did not hold."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial

from tests.fakes.kafka.logs import FIRST_WITH_WHOLE_BATCHES, Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import PARTITION_MAX_BYTES
from tests.quota.model.chain import Chain
from tests.quota.model.coverage import Facts, covered
from tests.quota.model.follower import Fetcher, Replica
from tests.quota.model.happenings import happen
from tests.quota.model.hops import Sidecar
from tests.quota.model.leader import LeaderNode
from tests.quota.model.promise import ROUND_TRIP, Exceptions, SideMeter
from tests.quota.model.rogues import join
from tests.quota.model.scenario import RACKS, Partition, Scenario, Side, TopicPartition
from tests.quota.model.watch import Watch
from tests.quota.model.world import START, Violation, World
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas

_NAMED = ("alpha", "beta", "gamma", "delta")
FIRST_FOLLOWER = 101
LISTED = ""  # the quota of the listed replicas, among the names of the others


def topic_name(topic: int) -> str:
    """The name of a topic: there are four, and as many as a run has partitions."""
    return _NAMED[topic] if topic < len(_NAMED) else f"many-{topic:05}"


@dataclass
class Outcome:
    """What a run came to."""

    violations: list[Violation]
    exchanges: int
    seconds: float
    is_complete: bool
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """What the cluster says of partitions."""

    adding: Set[TopicPartition]
    under_min_isr: Set[TopicPartition]


class _EveryTopic:
    """The set of all topics."""

    def __contains__(self, key: object) -> bool:
        return True


class Run:
    """One scenario's world."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = world = World()
        self.by_id = FETCH_VERSIONS[scenario.version].names_topics_by_id
        leaders = 1 + max(one.leader for one in scenario.partitions)
        followers = 1 + max(one.follower for one in scenario.partitions)
        self.leaders = [LeaderNode(world, number + 1, scenario.leader_slots) for number in range(leaders)]
        for leader in self.leaders if scenario.late else ():
            leader.latest = scenario.late[(leader.broker_id - 1) % len(scenario.late)]
        for leader in self.leaders if scenario.reads else ():
            leader.next_lateness = self._reads_for  # type: ignore[method-assign]
        self.logs: list[Log] = []
        self.fetchers: dict[tuple[int, int, int], Fetcher] = {}
        replicas: dict[tuple[int, int, int], list[Replica]] = {}
        for spec in scenario.partitions:
            log = Log.of_pattern(self.key(spec.topic, spec.number), spec.pattern, spec.count, spec.last)
            self.leaders[spec.leader].logs[log.key] = log
            self.logs.append(log)
            place = spec.leader, spec.follower, spec.fetcher
            offset = 0 if spec.is_behind else log.end
            if not spec.is_behind:
                log.fetched(FIRST_FOLLOWER + spec.follower, offset, world.now)
            replicas.setdefault(place, []).append(Replica(log, offset, world.now))
        self.sides = [scenario.leader, scenario.follower]
        self._followers = {
            self.key(one.topic, one.number): FIRST_FOLLOWER + one.follower for one in scenario.partitions
        }
        self._names = {self.key(one.topic, one.number): topic_name(one.topic) for one in scenario.partitions}
        self._racks = {
            first + number: RACKS[number % len(RACKS)]
            for first, count in ((1, leaders), (FIRST_FOLLOWER, followers))
            for number in range(count)
        }
        known = {(one.topic, one.number) for one in scenario.partitions}  # a scenario made smaller may name others
        self.cluster = Cluster(known & {*scenario.adding}, known & {*scenario.under_min_isr})
        self.clusters = [self.cluster, self.cluster]  # as the leaders' sidecars know it, and the followers'
        live = max((one.live_size for one in scenario.partitions if one.live_every), default=0)
        self._largest = max(live, *[max(log.sizes) for log in self.logs])
        count = len(replicas)
        self.ingress = [self._sidecar(0, number + 1, count) for number in range(leaders)]
        self.egress = [self._sidecar(1, FIRST_FOLLOWER + number, count) for number in range(followers)]
        for place, listed in replicas.items():
            fetcher = self.fetchers[place] = Fetcher(world, FIRST_FOLLOWER + place[1], scenario.version, listed)
            if place[1] in scenario.closers:
                fetcher.connect_anew = partial(self.connect, place, fetcher)
        self.watch = Watch(self)

    def key(self, topic: int, number: int) -> Key:
        """A partition as requests name it."""
        name = topic_name(topic).encode()
        return (name.ljust(16, b"\x01") if self.by_id else name), number

    @property
    def are_named(self) -> bool:
        """Whether the sidecars know the names of topics."""
        after = self.scenario.names_known_after
        return not self.by_id or (after is not None and self.world.now >= START + after)

    def listed(self, side: Side) -> frozenset[Key]:
        """All replicas in a side's lists; without names, all that may be."""
        topics = {*side.topics}
        listed = frozenset(
            self.key(one.topic, one.number)
            for one in self.scenario.partitions
            if one.topic in topics and not one.number % side.one_in
        )
        if self.are_named:
            return listed
        numbers = {number for _, number in listed}
        is_any = side.one_in == 1 and bool(side.topics)
        return frozenset(key for key in self._names if is_any or key[1] in numbers)

    def play(self) -> Outcome:
        """Play it to its end."""
        scenario, world = self.scenario, self.world
        for place, fetcher in self.fetchers.items():
            world.after(0.001 * len(place) + place[2] * 0.0007 + place[1] * 0.0003, self.connect, place, fetcher)
        if scenario.drift:
            world.after(1.0, self._drift)
        for spec, log in zip(scenario.partitions, self.logs, strict=True):
            if spec.live_every:
                world.after(spec.live_every * (1 + spec.number % 7 / 7), self.produce, log, spec)
        for event in scenario.events:
            world.after(event.at, happen, self, event)
        rogues = [peer for rogue in scenario.rogues for peer in join(self, rogue)]
        self.watch.start()
        is_complete = world.run(world.now + scenario.seconds, scenario.most_exchanges)
        if not world.violations:
            self.watch.finish(is_complete)
        seconds = world.now - START
        for client in (*self.fetchers.values(), *rogues):
            if client.chain is not None:
                client.chain.close()
        for sidecar in self.sidecars:
            for quota in sidecar.throttle.quotas:
                if not world.violations and quota.ledger.reserved:
                    text = f"{sidecar.meter.side}, {quota.name}: {quota.ledger.reserved} bytes are"
                    world.violate("nothing reserved", text)
        figures = {
            "slowest record, s": max(fetcher.slowest for fetcher in self.fetchers.values()),
            "worst second, of what is promised": max(sidecar.meter.worst for sidecar in self.sidecars),
        }
        return Outcome(world.violations, world.exchanges, seconds, is_complete, figures)

    @property
    def received(self) -> int:
        """Bytes of partitions that were behind, by honest followers."""
        return sum(replica.caught_up_on for fetcher in self.fetchers.values() for replica in fetcher.replicas.values())

    @property
    def largest_batch(self) -> int:
        """In bytes."""
        return self._largest

    @property
    def followers_beside_rogues(self) -> int:
        """Honest followers that compete with rogues; each may have as much as a rogue, on however many connections."""
        return len({follower for leader, follower, _ in self.fetchers if leader == 0})

    @property
    def sidecars(self) -> list[Sidecar]:
        """All that are in the path."""
        hops = self.scenario.hops
        return (self.ingress if hops != "follower" else []) + (self.egress if hops != "leader" else [])

    def path(self, leader: int, follower: int) -> list[Sidecar]:
        """The sidecars between two brokers, from the follower's on."""
        hops = self.scenario.hops
        egress = [self.egress[follower]] if hops != "leader" else []
        return egress + ([self.ingress[leader]] if hops != "follower" else [])

    def _sidecar(self, side: int, broker: int, links: int) -> Sidecar:
        scenario, world, settings = self.scenario, self.world, self.sides[side]
        throttle = Throttle("follower" if side else "leader", broker, world)
        batch = (
            self._largest if scenario.version >= FIRST_WITH_WHOLE_BATCHES else max(self._largest, PARTITION_MAX_BYTES)
        )
        latest = max((*scenario.late, *scenario.reads), default=0.0) + ROUND_TRIP * scenario.latency
        is_lent = side == 1 and (scenario.hops == "both" or bool(scenario.late or scenario.reads))
        sizes = frozenset(size for log in self.logs for size in log.sizes)
        sizes |= {one.live_size for one in scenario.partitions if one.live_every}
        is_exact = scenario.version >= FIRST_WITH_WHOLE_BATCHES and not scenario.rogues
        allowed = Exceptions(
            batch,
            links + 20 * len(scenario.rogues),
            throttle.takes_out,
            is_lent,
            sizes if is_exact else frozenset(),
            latest,
        )
        meter = SideMeter(world, f"{throttle.side} {broker}", allowed, is_strict=settings.policy == "strict")
        sidecar = Sidecar(world, throttle, meter, partial(self._covered, side))
        sidecar.walks = _EveryTopic() if scenario.walks_all else None
        if self.by_id and scenario.names_known_after is not None:
            self._know_names(throttle, scenario.names_known_after)
        self.configure(sidecar, settings)
        self.tell(sidecar)
        return sidecar

    def _covered(self, number: int, follower: int, other: int) -> dict[str, frozenset[Key]]:
        """What each quota of a side covers on a link."""
        side, cluster = self.sides[number], self.clusters[number]
        facts = Facts(
            self._followers,
            self._names,
            self.are_named,
            frozenset(self.key(*one) for one in cluster.adding),
            frozenset(self.key(*one) for one in cluster.under_min_isr),
            self._racks if self.scenario.has_racks else None,
        )
        return {LISTED: self.listed(side)} | {
            one.name: covered(one.scope, facts, follower, other) for one in side.quotas
        }

    def tell(self, sidecar: Sidecar) -> None:
        """Have a sidecar know what the cluster says."""
        cluster, throttle = self.clusters[sidecar.throttle.side == "follower"], sidecar.throttle
        adding: dict[bytes, dict[int, frozenset[int]]] = {}
        for topic, number in cluster.adding:
            follower = self._followers[self.key(topic, number)]
            adding.setdefault(topic_name(topic).encode(), {})[number] = frozenset({follower})
        throttle.rules.set_adding_replicas(adding)
        throttle.set_under_min_isr(frozenset((topic_name(topic).encode(), one) for topic, one in cluster.under_min_isr))
        if self.scenario.has_racks:
            throttle.rules.set_racks(self._racks)
        sidecar.covers_others()

    def _know_names(self, throttle: Throttle, seconds: float) -> None:
        topics = {*range(len(_NAMED)), *[one.topic for one in self.scenario.partitions]}
        names = {self.key(topic, 0)[0]: topic_name(topic).encode() for topic in topics}

        def learn() -> None:
            throttle.topic_names.learn(names)
            throttle.classify_anew()
            for sidecar in self.sidecars if seconds else ():
                if sidecar.throttle is throttle:
                    sidecar.covers_others()
            if seconds:
                self.all_may_be_asked()

        if seconds:
            self.world.after(seconds, learn)
        else:
            learn()

    def configure(self, sidecar: Sidecar, side: Side) -> None:
        replicas = {topic_name(topic): self._listed(topic, sidecar.throttle.broker_id, side) for topic in side.topics}
        rate, rates = self._rate(sidecar, side), dict[str, int | None]()
        quotas = side.quotas
        if not side.is_observed:
            rates = {LISTED: rate} | {one.name: one.rate for one in quotas if not one.is_observed}
        if self.scenario.is_without_observed:
            quotas = tuple(one for one in quotas if one.name in rates)
        settings = ThrottleSettings(
            rate=None if side.is_observed and self.scenario.is_without_observed else rate,
            replicas=replicas,
            quotas=quotas,
            is_observed=side.is_observed,
            policy=side.policy,
            order=side.order,
            response_max_bytes=side.response_max_bytes,
        )
        sidecar.configure(settings, rates)

    def _rate(self, sidecar: Sidecar, side: Side) -> int | None:
        """What a side's rate comes to on one broker, at the moment."""
        broker, scales = sidecar.throttle.broker_id - 1, self.scenario.scales
        change = math.sin(self.world.now * (1 + broker % 7)) * self.scenario.drift
        return side.rate and int(side.rate * scales[broker % len(scales)] * (1 + change))

    def _drift(self) -> None:
        for sidecar in self.sidecars:
            self.configure(sidecar, self.sides[sidecar.throttle.side == "follower"])
        self.world.after(1.0, self._drift)

    def _listed(self, topic: int, broker: int, side: Side) -> ThrottledReplicas:
        if side.one_in == 1:
            return ALL_REPLICAS
        numbers = frozenset(one.number for one in self.scenario.partitions if one.topic == topic)
        own = frozenset(number for number in numbers if not number % side.one_in)
        return ThrottledReplicas(
            {broker: own, broker + 1_000: numbers}
        )  # what other brokers throttle counts for nothing

    def all_may_be_asked(self) -> None:
        """Nobody knows what is in sync of what nobody throttled."""
        for fetcher in self.fetchers.values():
            if fetcher.chain is not None:
                fetcher.chain.may_be_asked()
        self.watch.disturbed()

    def connect(self, place: tuple[int, int, int], fetcher: Fetcher) -> None:
        leader, follower, _ = place
        scenario = self.scenario
        slow = scenario.slow[follower % len(scenario.slow)] if scenario.slow else 0
        fetcher.connect(
            Chain(
                self.world,
                self.path(leader, follower),
                self.leaders[leader],
                fetcher,
                slow or scenario.bandwidth,
                scenario.latency,
            )
        )

    def _reads_for(self, replica_id: int) -> float:
        reads = self.scenario.reads
        return reads[(replica_id - FIRST_FOLLOWER) % len(reads)]

    def produce(self, log: Log, spec: Partition) -> None:
        leader = self.leaders[spec.leader]
        if leader.logs.get(log.key) is log:
            if not log.error_code:
                leader.append(log, spec.live_size)
            self.world.after(spec.live_every, self.produce, log, spec)

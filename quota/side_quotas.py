# SPDX-License-Identifier: Apache-2.0
"""One side's quotas: which replicas each covers, and all that they share."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from weir.lag.broker_ids import MOST_IDS
from weir.quota.budget.kip73 import Kip73Quota
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Quota, TopicCoverage
from weir.quota.budget.simple_rate import SimpleRate
from weir.quota.budget.strict import StrictQuota
from weir.quota.figures import MOST_PARTITIONS, PATTERNS_PER_PARTITION
from weir.quota.scopes import Appeared, ClusterFacts, Ends, Listed, Matching, Reassigned, Recovering, Scope
from weir.quota.settings import LEAST_SHARE, UNTOLD, Clock, QuotaSettings, ThrottleSettings
from weir.quota.throttled_replicas import CLUSTER_METADATA_TOPIC, EVERY_PARTITION, NO_PARTITION, AnyOf, Partitions
from weir.quota.topic_names import METADATA_LOG, TopicNames
from weir.quota.topic_patterns import TopicPatterns

CONFIGURED = "configured"  # the name of the quota of the listed replicas

_OnLink = dict[int, list[tuple[Quota, Scope]]]
"""The quotas of a link, by the number of their patterns."""


class SideQuotas:
    """The quotas of one side; the first is that of the listed replicas. `generation` grows as "throttled?" changes."""

    def __init__(self, broker_id: int, clock: Clock, topic_names: TopicNames) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.topic_names = topic_names
        self.settings = ThrottleSettings()
        self.generation = 0
        self.facts = ClusterFacts()
        self.quotas: tuple[Quota, ...] = ()
        """All quotas that bytes may belong to; the one of the listed replicas is the first."""
        self.is_throttling = False  # whether any of them may hold something back
        self.has_reassigned = False  # whether a quota is for what reassignments add
        self._patterns = TopicPatterns()
        self._make_quotas(self.settings, Listed())

    def put_in_force(self, settings: ThrottleSettings) -> None:
        """Make the quotas that `settings` ask for. Those that stay keep what has passed, and what they owe.

        Where only rates change, every partition stays as it was classified.
        """
        if settings.without_rates != self.settings.without_rates:
            self._make_quotas(settings, _lists_of(settings, self.broker_id))
            had_reassigned = self.has_reassigned
            self.has_reassigned = any([isinstance(one.scope, Reassigned) for one in settings.quotas])
            if self.has_reassigned and not had_reassigned and self.facts.asked_at < math.inf:
                self.facts.adding = None  # it was told some time ago: nobody wanted to know
            self.generation += 1
        self.settings = settings
        for quota, rate in zip(self.quotas, settings.rates, strict=True):
            if quota.shared_for is not None:  # the share that is in force, the least at first
                rate = quota.rate or LEAST_SHARE
            if quota.rate != rate:
                quota.ledger.set_rate(rate)
        self.is_throttling = any([quota.limits for quota in self.quotas])

    def _make_quotas(self, settings: ThrottleSettings, lists: Listed) -> None:
        """Make the quotas of the settings. Only this function knows policies by their names."""
        before, clock = self.settings, self.clock
        window = settings.window_num, settings.window_size_seconds
        kept = {quota.name: quota for quota in self.quotas}
        names = {CONFIGURED, *[one.name for one in settings.quotas]}
        renamed = {(one.scope, one.shared_for): one.name for one in before.quotas if one.name not in names}
        scoped: list[tuple[Quota, Scope]] = []
        for one in (QuotaSettings(CONFIGURED, 0, lists), *settings.quotas):
            name = one.name if one.name in kept else renamed.pop((one.scope, one.shared_for), "")
            quota = kept.get(name)  # a change of its name forgives one nothing
            if quota is None or quota.policy != settings.policy:
                ledger = StrictLedger(clock) if quota is None else quota.ledger
                measured = SimpleRate(clock, *window) if quota is None else quota.measured
                made = Kip73Quota if settings.policy == "kip73" else StrictQuota
                # links that waited in line for another policy wait for nothing any more
                quota = made(one.name, ledger, measured, BudgetQueue(clock))
            if window != (before.window_num, before.window_size_seconds):
                quota.measured = SimpleRate(clock, *window)
            quota.name, quota.shared_for, quota.counts_in_sync = one.name, one.shared_for, one.scope.counts_in_sync
            quota.is_observed = settings.is_observed or one.is_observed
            scoped.append((quota, one.scope))
        patterns = dict.fromkeys([scope.topics for _, scope in scoped])
        if patterns.keys() != self._patterns.numbers.keys():
            self._patterns = TopicPatterns(patterns)
        self.listed, self._scoped, self.quotas = lists.lists, scoped, tuple([quota for quota, _ in scoped])
        self._on_links: dict[Ends, _OnLink] = {}

    def use_shares(self, shares: Mapping[str, float]) -> None:
        """Put shares (bytes/s) of shared rates in force, by their quotas' names."""
        for quota in self.quotas:
            if quota.shared_for is not None and quota.name in shares:
                rate = max(LEAST_SHARE, int(shares[quota.name]))
                if rate != quota.rate:
                    quota.ledger.set_rate(rate)

    # What is throttled

    def coverage(self, topic: bytes | None, topic_id: bytes, ends: Ends) -> TopicCoverage:
        """Return the quotas of a topic on a link, each with its partitions of the topic. None: no name is known."""
        if topic in METADATA_LOG or topic_id in METADATA_LOG:
            return ()
        on_link = self._on_links.get(ends) or self._find_quotas(ends)
        facts, found = self.facts, list[tuple[Quota, Container[int]]]()
        for number in on_link if topic is None else self._patterns.matching(topic):
            for quota, scope in on_link.get(number, ()):
                if covered := scope.partitions(facts, topic, ends.follower, topic_id):
                    found.append((quota, covered))
        return tuple(found)

    def _find_quotas(self, ends: Ends) -> _OnLink:
        if len(self._on_links) >= MOST_IDS:
            self._on_links.clear()
        found = self._on_links[ends] = {}
        for quota, scope in self._scoped:
            if quota.shared_for in (None, ends.follower) and scope.is_on(ends, self.facts.racks):
                found.setdefault(self._patterns.numbers[scope.topics], []).append((quota, scope))
        return found

    @property
    def work(self) -> int:
        """What it takes to find a topic's quotas, as so many partitions: 0 where names are only looked up."""
        return self._patterns.most_looked_at // PATTERNS_PER_PARTITION

    def throttled_partitions(self, coverage: TopicCoverage) -> Container[int]:
        """Return the partitions of a topic that any quota may hold back."""
        if self.is_throttling:
            limiting = [covered for quota, covered in coverage if quota.limits]
        else:  # listed replicas count as throttled, as in Kafka, although nothing holds them back
            limiting = [covered for quota, covered in coverage if quota is self.quotas[0] and not quota.is_observed]
        if len(limiting) < 2:
            return limiting[0] if limiting else NO_PARTITION
        return EVERY_PARTITION if EVERY_PARTITION in limiting else AnyOf(tuple(limiting))

    def untold(self) -> dict[str, bool]:
        """Return what its quotas need to know that the cluster has not told: more counts as covered than is."""
        scopes = [quota.scope for quota in self.settings.quotas]
        lacks_moves = self.facts.adding is None and any(isinstance(one, Reassigned | Recovering) for one in scopes)
        lacks_moves |= bool(self.facts.appeared)
        lacks_racks = not self.facts.racks and any(isinstance(one, Matching) and one.racks for one in scopes)
        lacks_throttle = any(quota.name.startswith(UNTOLD) for quota in self.settings.quotas)
        return {"reassignments": lacks_moves, "racks": lacks_racks, "throttle": lacks_throttle}

    # What the cluster says

    def set_adding_replicas(
        self, adding: Mapping[bytes, Mapping[int, frozenset[int]]], asked_at: float = math.inf
    ) -> None:
        """Take the brokers to which reassignments add replicas, by topic and partition, as of `asked_at`."""
        facts = self.facts
        facts.asked_at, has_told = asked_at, facts.forget_appeared(asked_at)
        if adding != facts.adding or has_told:
            facts.take_adding(adding)
            self._facts_changed()

    def appears(self, topic: bytes, partition: int, follower: int, now: float) -> bool:
        """Note that a follower begins to ask for a partition: a reassignment that was not told yet may be adding it.

        Returns whether the topic (as on the wire) has others of its partitions covered from now on.
        """
        facts = self.facts
        if facts.asked_at == math.inf:
            return False
        if facts.appeared_count >= MOST_PARTITIONS:  # no controller answers for long, or somebody makes topics up
            facts.forget_appeared(math.inf)
            facts.adding, facts.asked_at = None, math.inf
            self._facts_changed()
            return True
        is_first = (topic, follower) not in facts.appeared
        appeared = facts.appeared.setdefault((topic, follower), Appeared(set(), now))
        facts.appeared_count += partition not in appeared.partitions
        appeared.partitions.add(partition)
        appeared.at = now
        return is_first

    def set_told_lists(self, topics: frozenset[bytes] | None) -> None:
        """Take the topics whose lists were told; None where lists do not come from elsewhere."""
        if topics != self.facts.told_lists:
            self.facts.told_lists = topics
            self.generation += 1

    def set_racks(self, racks: Mapping[int, str | None]) -> None:
        """Take the racks of all brokers."""
        if racks != self.facts.racks:
            self.facts.racks, self._on_links = racks, {}
            self._facts_changed()

    def _facts_changed(self) -> None:
        if len(self.quotas) > 1:
            self.generation += 1


def _lists_of(settings: ThrottleSettings, broker_id: int) -> Listed:
    listed: dict[bytes, Partitions] = {}
    for topic, replicas in settings.replicas.items():
        partitions = replicas.partitions_of(broker_id)
        if topic != CLUSTER_METADATA_TOPIC and (partitions is None or partitions):
            listed[topic.encode()] = EVERY_PARTITION if partitions is None else partitions
    every = EVERY_PARTITION in listed.values()
    return Listed(listed, EVERY_PARTITION if every else NO_PARTITION.union(*listed.values()), settings.rate is not None)

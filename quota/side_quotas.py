# SPDX-License-Identifier: Apache-2.0
"""One side's quotas: which replicas each covers, and all that they share."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Protocol

from weir.lag.broker_ids import MOST_IDS
from weir.quota.budget.kip73 import Kip73Quota
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Quota, TopicCoverage
from weir.quota.budget.simple_rate import SimpleRate
from weir.quota.budget.strict import StrictQuota
from weir.quota.figures import LOOKED_AT_PER_PARTITION, MOST_PARTITIONS
from weir.quota.scopes import Appeared, ClusterFacts, Ends, Listed, Matching, Reassigned, Recovering, Scope
from weir.quota.settings import LEAST_SHARE, UNTOLD, Clock, QuotaSettings, ThrottleSettings
from weir.quota.throttled_replicas import CLUSTER_METADATA_TOPIC, EVERY_PARTITION, NO_PARTITION, AnyOf, Partitions
from weir.quota.topic_names import METADATA_LOG, TopicNames
from weir.quota.topic_patterns import TopicPatterns

CONFIGURED = "configured"  # the name of the quota of the listed replicas


class CoveredTopic(Protocol):
    """A topic of a link, as far as a side's quotas have to know it."""

    coverage: TopicCoverage


class _CoveredTopics:
    """The topics of a link that have partitions in any quota, by name or by id."""

    def __init__(self, topics: Mapping[bytes, CoveredTopic]) -> None:
        self._topics = topics

    def __contains__(self, key: object) -> bool:
        topic = self._topics.get(key) if isinstance(key, bytes) else None
        return topic is not None and bool(topic.coverage)


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
        self._lists = Listed()
        self.has_reassigned = False  # whether a quota is for what reassignments add
        self._patterns = TopicPatterns()
        self._on_links: dict[Ends, dict[int, list[tuple[Quota, Scope]]]] = {}
        """The quotas on each link, by the number of their patterns."""
        self._make_quotas(None)

    @property
    def listed(self) -> Mapping[bytes, Partitions]:
        """The listed replicas of this broker, by topic."""
        return self._lists.lists

    def put_in_force(self, settings: ThrottleSettings) -> None:
        """Make the quotas that `settings` ask for. Those that stay keep what has passed, and what they owe.

        Where only rates change, every partition stays as it was classified.
        """
        if settings.without_rates == self.settings.without_rates:
            self.settings = settings
            self._set_rates()
            return
        listed: dict[bytes, Partitions] = {}
        for topic, replicas in settings.replicas.items():
            partitions = replicas.partitions_of(self.broker_id)
            if topic != CLUSTER_METADATA_TOPIC and (partitions is None or partitions):
                listed[topic.encode()] = EVERY_PARTITION if partitions is None else partitions
        anywhere = EVERY_PARTITION if EVERY_PARTITION in listed.values() else NO_PARTITION.union(*listed.values())
        lists = Listed(listed, anywhere, settings.rate is not None)
        # together, so that an error in the midst of it leaves what was in force
        previous, self.settings, self._lists = self.settings, settings, lists
        had_reassigned = self.has_reassigned
        self.has_reassigned = any([isinstance(one.scope, Reassigned) for one in settings.quotas])
        if self.has_reassigned and not had_reassigned and self.facts.asked_at < math.inf:
            self.facts.adding = None  # it was told some time ago: nobody wanted to know
        self._make_quotas(previous)
        self.generation += 1

    def _make_quotas(self, previous: ThrottleSettings | None) -> None:
        """Make the quotas of the settings. Only this function knows policies by their names."""
        settings, clock = self.settings, self.clock
        window = (settings.window_num, settings.window_size_seconds)
        is_new = previous is None or window != (previous.window_num, previous.window_size_seconds)
        stays = not is_new and previous is not None and previous.policy == settings.policy
        kept = self._kept_quotas(previous)
        quotas: list[Quota] = []
        for one in (QuotaSettings(CONFIGURED, 0, self._lists), *settings.quotas):
            before = kept.get(one.name)
            ledger = StrictLedger(clock, None) if before is None else before.ledger
            measured = SimpleRate(clock, *window) if before is None or is_new else before.measured
            quota: Quota
            if before is not None and stays:
                quota = before
            else:  # links that waited in line for another policy wait for nothing any more
                has_line = before is not None and before.policy == settings.policy
                line = before.line if before is not None and has_line else BudgetQueue(clock)
                made = Kip73Quota if settings.policy == "kip73" else StrictQuota
                quota = made(one.name, ledger, measured, line)
            quota.name, quota.shared_for, quota.counts_in_sync = one.name, one.shared_for, one.scope.counts_in_sync
            quota.is_observed = settings.is_observed or one.is_observed
            quotas.append(quota)
        self.quotas = tuple(quotas)
        self._set_rates()
        self.is_throttling = any([quota.limits for quota in quotas])
        self._on_links = {}
        if (patterns := {one.scope.topics for one in settings.quotas} | {None}) != self._patterns.numbers.keys():
            self._patterns = TopicPatterns(patterns)

    def _set_rates(self) -> None:
        rates = [self.settings.rate, *[one.rate for one in self.settings.quotas]]
        for quota, rate in zip(self.quotas, rates, strict=True):
            if quota.shared_for is not None:  # the share that is in force, the least at first
                rate = quota.ledger.rate or LEAST_SHARE
            if quota.ledger.rate != rate:
                quota.ledger.set_rate(rate)

    def _kept_quotas(self, previous: ThrottleSettings | None) -> dict[str, Quota]:
        """Return the quotas that stay, by their names from now on. A change of its name forgives one nothing."""
        kept = {quota.name: quota for quota in self.quotas}
        if previous is None:
            return kept
        names = {CONFIGURED, *[one.name for one in self.settings.quotas]}
        gone = {(one.scope, one.shared_for): kept[one.name] for one in previous.quotas if one.name not in names}
        for one in self.settings.quotas:
            if one.name not in kept and (quota := gone.pop((one.scope, one.shared_for), None)) is not None:
                kept[one.name] = quota
        return kept

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

    def _find_quotas(self, ends: Ends) -> dict[int, list[tuple[Quota, Scope]]]:
        if len(self._on_links) >= MOST_IDS:
            self._on_links.clear()
        found = self._on_links[ends] = {}
        for quota, scope in zip(self.quotas, [self._lists, *[one.scope for one in self.settings.quotas]], strict=True):
            if quota.shared_for in (None, ends.follower) and scope.is_on(ends, self.facts.racks):
                found.setdefault(self._patterns.numbers[scope.topics], []).append((quota, scope))
        return found

    @property
    def work(self) -> int:
        """What it takes to find a topic's quotas, as so many partitions: 0 where names are only looked up."""
        return self._patterns.most_looked_at // LOOKED_AT_PER_PARTITION

    def walked_topics(self, topics: Mapping[bytes, CoveredTopic]) -> Container[bytes]:
        """Return those of a link's topics with partitions in a quota. Only there batches are told from cut ones."""
        return _CoveredTopics(topics)

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

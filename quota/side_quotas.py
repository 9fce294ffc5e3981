# SPDX-License-Identifier: Apache-2.0
"""One side's quotas: which replicas each covers, and all that they share."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import cast

from weir.quota.budget.kip73 import Kip73Quota
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Coverage, Quota, TopicCoverage
from weir.quota.budget.simple_rate import SimpleRate
from weir.quota.budget.strict import StrictQuota
from weir.quota.figures import MOST_PARTITIONS
from weir.quota.scopes import Appeared, ClusterFacts, Ends, Matching, Reassigned, Recovering
from weir.quota.settings import LEAST_SHARE, UNTOLD, Clock, QuotaSettings, ThrottleSettings
from weir.quota.throttled_replicas import CLUSTER_METADATA_TOPIC, EVERY_PARTITION, NO_PARTITION, AnyOf, Partitions
from weir.quota.topic_names import METADATA_LOG, TopicNames

CONFIGURED = "configured"  # the name of the quota of the listed replicas


class _CoveredTopics:
    """The topics that have partitions in any quota on a link, by name or by id."""

    def __init__(self, quotas: SideQuotas, ends: Ends, *, by_id: bool) -> None:
        self._quotas = quotas
        self._ends = ends
        self._by_id = by_id

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes):
            return False
        quotas = self._quotas
        name = quotas.topic_names.name_of(key) if self._by_id else key
        return any(quota.covers(name, key, self._ends) for quota in quotas.quotas if quota.rate is not None)


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
        self.listed: dict[bytes, Partitions] = {}  # the listed replicas of this broker, by topic
        self._listed_anywhere: Partitions = NO_PARTITION  # of any topic
        self._told_lists: frozenset[bytes] | None = None
        self.has_reassigned = False  # whether a quota is for what reassignments add
        self._make_quotas(None)

    def put_in_force(self, settings: ThrottleSettings) -> None:
        """Make the quotas that `settings` ask for. Those that stay keep what has passed, and what they owe."""
        listed: dict[bytes, Partitions] = {}
        for topic, replicas in settings.replicas.items():
            if topic == CLUSTER_METADATA_TOPIC:
                continue
            partitions = replicas.partitions_of(self.broker_id)
            if partitions is None:
                listed[topic.encode()] = EVERY_PARTITION
            elif partitions:
                listed[topic.encode()] = partitions
        every = EVERY_PARTITION in listed.values()
        anywhere = EVERY_PARTITION if every else frozenset[int]().union(*listed.values())
        # together, so that an error in the midst of it leaves what was in force
        previous, self.settings, self.listed, self._listed_anywhere = self.settings, settings, listed, anywhere
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
        for one in (None, *settings.quotas):  # None: the one of the listed replicas
            name, rate, covers = CONFIGURED, settings.rate, cast(Coverage, self._listed_partitions)
            if one is not None:
                name, rate, covers = one.name, one.rate, self._coverage_of(one)
            before = kept.get(name)
            if one is not None and one.shared_for is not None:  # the share that is in force, the least at first
                rate = (before.rate if before is not None else None) or LEAST_SHARE
            ledger = StrictLedger(clock, rate) if before is None else before.ledger
            if ledger.rate != rate:
                ledger.set_rate(rate)
            measured = SimpleRate(clock, *window) if before is None or is_new else before.measured
            quota: Quota
            if before is not None and stays:
                quota = before
            else:  # links that waited in line for another policy wait for nothing any more
                has_line = before is not None and before.policy == settings.policy
                line = before.line if before is not None and has_line else BudgetQueue(clock)
                made = Kip73Quota if settings.policy == "kip73" else StrictQuota
                quota = made(name, ledger, covers, measured, line)
            quota.name, quota.covers = name, covers
            quota.counts_in_sync = one is None or one.scope.counts_in_sync
            quota.is_observed = settings.is_observed or (one is not None and one.is_observed)
            quota.shared_for = None if one is None else one.shared_for
            quotas.append(quota)
        self.quotas = tuple(quotas)
        self.is_throttling = any([quota.limits for quota in quotas])

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

    def walked_topics(self, ends: Ends, *, by_id: bool) -> Container[bytes]:
        """Return the topics with partitions in a quota, by name or id. Only there batches are told from cut ones."""
        if len(self.quotas) == 1 and not by_id:
            return self.listed
        return _CoveredTopics(self, ends, by_id=by_id)

    def coverage(self, topic: bytes | None, topic_id: bytes, ends: Ends) -> TopicCoverage:
        """Return each quota with those of a topic's partitions that belong to it on a link. None: no name is known."""
        own = [quota for quota in self.quotas if quota.shared_for in (None, ends.follower)]
        return tuple([(quota, quota.covers(topic, topic_id, ends)) for quota in own])

    def throttled_partitions(self, coverage: TopicCoverage) -> Container[int]:
        """Return the partitions of a topic that any quota may hold back."""
        if not self.is_throttling:  # listed replicas count as throttled, as in Kafka, although nothing holds them back
            listed, covered = coverage[0]
            return NO_PARTITION if listed.is_observed else covered
        limiting = tuple([covered for quota, covered in coverage if quota.limits])
        return limiting[0] if len(limiting) == 1 else AnyOf(limiting)

    def _listed_partitions(self, topic: bytes | None, topic_id: bytes, ends: Ends) -> Partitions:
        """Return a topic's partitions in the settings' lists; where its name or lists were not told, any."""
        told = self._told_lists
        if topic is not None and (told is None or topic in told or topic in self.listed):
            return self.listed.get(topic, NO_PARTITION)
        if self.settings.rate is None or topic in METADATA_LOG or topic_id in METADATA_LOG:
            return NO_PARTITION
        return self._listed_anywhere if told is None else EVERY_PARTITION

    def _coverage_of(self, quota: QuotaSettings) -> Coverage:
        scope = quota.scope

        def covers(topic: bytes | None, topic_id: bytes, ends: Ends) -> Container[int]:
            if topic in METADATA_LOG or topic_id in METADATA_LOG:
                return NO_PARTITION
            return scope.partitions(self.facts, topic, ends, topic_id)

        return covers

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
        if topics != self._told_lists:
            self._told_lists = topics
            self.generation += 1

    def set_racks(self, racks: Mapping[int, str | None]) -> None:
        """Take the racks of all brokers."""
        if racks != self.facts.racks:
            self.facts.racks = racks
            self._facts_changed()

    def _facts_changed(self) -> None:
        if len(self.quotas) > 1:
            self.generation += 1

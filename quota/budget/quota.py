# SPDX-License-Identifier: Apache-2.0
"""The interface of a quota: one limit on the bytes of a side's replicas.

Bytes may belong to several quotas; a grant has to fit in all of them, and is reserved in all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Hashable
from typing import ClassVar

from msgspec import Struct

from weir.quota.budget.ledger import LedgerState, StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.simple_rate import Sample, SimpleRate
from weir.quota.settings import Policy


class Ask(Struct, frozen=True):
    """What a link wants of its quotas for one fetch."""

    link: Hashable
    broker_id: int
    """The id of the broker at the other end. Turns go by it, so it does not matter how many connections it has."""
    next_batch: int
    """The size in bytes of the next batch of the partition that is next in the link's order; 0 where it is not known.

    In Fetch v0 to v2 it is the `partition_max_bytes` asked for: there a partition is granted whole or not at all.
    """
    is_urgent: bool  # whether one of the link's partitions is below its min ISR
    is_live: bool
    """Whether records of partitions in sync pass on the link too; each of them comes after a grant's bytes."""
    answer_seconds: float  # for how long one answer of the link lasts (seconds): what gathers meanwhile may be granted
    is_first: bool = False  # whether nothing was granted to the link so far
    is_lent: bool = False
    """Whether its answer is expected to begin late, so that nothing is set aside for it until it does."""
    distance: float = 0.0  # how long an answer takes to begin (seconds); on the follower's side without a wait there
    most_beside_live: float = math.inf
    """The most granted bytes that hold up live traffic only shortly. A quota's least share may be more."""


class Offer(Struct, frozen=True):
    """What a quota has for one fetch at one moment, in bytes; times are clock seconds."""

    quota: Quota
    ready: float  # when the quota can grant anything at all. `spend` counts only if this is not later than now
    spend: float = 0.0
    share: float = 0.0  # what one fetch is granted when other links wait too
    ahead: float = 0.0  # what the links in front wait for
    is_lent: bool = False  # whether nothing is set aside for what is granted
    claimed: Part | None = None
    """What the link waits for already, where its place in the line is so far back that nothing can be granted now."""


class Part(Struct, frozen=True):
    """What one fetch takes of one quota, in bytes."""

    size: int  # what is reserved. On the leader's side no more passes
    batch: int  # the size of a batch that is larger than its share; 0 where there is none. It cannot be split


class Verdict(Struct, frozen=True):
    """Whether a part may be granted now (`fits`). If not: one of `spend` bytes may, or None: none before `ready`."""

    fits: bool
    ready: float
    spend: float | None = None


class QuotaState(Struct, frozen=True):
    """What a quota hands over to that of another process."""

    ledger: LedgerState
    measured: list[Sample]


class Quota(ABC):
    """One limit. Its bytes are kept in `ledger` under every policy, so a change of policy finds them."""

    policy: ClassVar[Policy]
    reserves: ClassVar[bool]  # whether bytes are reserved before they go

    def __init__(self, name: str, ledger: StrictLedger, measured: SimpleRate, line: BudgetQueue) -> None:
        self.name = name
        self.ledger = ledger
        self.measured = measured  # the samples of what has passed, as Kafka takes them
        self.line = line  # links that found too little budget
        self.passed_bytes = 0  # all that has passed of it
        self.counts_in_sync = True
        self.is_observed = False  # whether it only counts
        self.shared_for: int | None = None
        """The only follower whose links it covers, where it is kept together with other sidecars; None: any."""

    @property
    def rate(self) -> int | None:
        """Bytes/s; None limits nothing, 0 lets nothing through."""
        return self.ledger.rate

    @property
    def limits(self) -> bool:
        """Whether it may hold something back. One that another replaced shares its ledger: answers may belong to it."""
        return self.ledger.rate is not None and not self.is_observed

    @abstractmethod
    def offer(self, ask: Ask, now: float) -> Offer:
        """Return what one fetch may have. Somebody wants it: what depends on time is brought up to date."""

    @abstractmethod
    def judge(self, offer: Offer, part: Part) -> Verdict:
        """Return whether `part` of a fetch may be granted. Changes nothing."""

    def wait(self, ask: Ask, offer: Offer, part: Part, now: float) -> None:
        """Keep the link's place in the line, for `part`."""

    def hand_over(self) -> QuotaState:
        """Return what has passed and is owed, and earn nothing any more. Called again: what has passed since."""
        return QuotaState(self.ledger.hand_over(), self.measured.hand_over())

    def take_over(self, state: QuotaState) -> None:
        """Go on with what another quota has handed over, beside what has passed of this one."""
        self.ledger.take_over(state.ledger)
        self.measured.take_over(state.measured)

    @abstractmethod
    def is_exceeded(self, now: float) -> bool:
        """Whether nothing of it could be granted now. It decides what an observed quota would have left out."""


TopicCoverage = tuple[tuple[Quota, Container[int]], ...]
"""Quotas, each with the partitions of one topic whose bytes belong to it."""

"""A quota: one limit on the bytes of a side's replicas.

Bytes belong to any number of quotas. A grant has to fit in all of them and is reserved in all. How a quota decides is
its policy: `strict` (reserve before the bytes go) or `kip73` (measure what went, as Kafka does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass
from typing import ClassVar

from quota.budget.ledger import StrictLedger
from quota.settings import Policy

Coverage = Callable[[bytes | None, bytes], Container[int]]
"""The partitions of a topic whose bytes belong to a quota, by its name (UTF-8, None while it is not known) and id."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a link wants of its quotas for one fetch."""

    link: Hashable
    replica_id: int
    """The follower's broker id: turns go by replica, however many connections one has."""
    largest_batch: int
    """Bytes: the largest batch of the partition that is next in the link's order."""
    is_urgent: bool
    """Whether one of its partitions is below its min ISR."""
    is_live: bool
    """Whether records in sync pass on the link too: these wait behind every grant."""
    answer_seconds: float
    """How long its last answer with granted bytes took."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a quota has for one fetch at one moment. Bytes, and clock seconds."""

    quota: Quota
    ready: float
    """When anything can be granted at all; `spend` counts where that is not later than now."""
    spend: float = 0.0
    share: float = 0.0
    """What one fetch is granted when the quota is busy."""
    ahead: float = 0.0
    """What links in front are waiting for."""
    turn: float = 0.0
    """What one turn of the link takes: its share, or one batch where that is larger."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one fetch takes of one quota, in bytes."""

    share: int
    """Asked for."""
    reserved: int
    """That may come: the first partition with data returns a whole batch, however large."""
    batch: int
    """The largest batch among it: what cannot be split, and so may go beyond the window."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a part may be granted now: `fits`; else a smaller one of `spend` bytes, or none before `ready`."""

    fits: bool
    ready: float
    spend: float | None = None


class Quota(ABC):
    """One limit. `ledger` is where its bytes are kept, whatever the policy says: a change of policy finds them."""

    policy: ClassVar[Policy]
    reserves: ClassVar[bool]
    """Whether bytes are set aside before they go."""

    def __init__(self, name: str, ledger: StrictLedger, covers: Coverage, *, counts_in_sync: bool = True) -> None:
        self.name = name
        self.ledger = ledger
        self.covers = covers
        self.counts_in_sync = counts_in_sync

    @property
    def rate(self) -> int | None:
        """Bytes/s; None limits nothing, 0 lets nothing through."""
        return self.ledger.rate

    def look(self) -> None:
        """Somebody is about to ask: bring what depends on time up to date."""

    @abstractmethod
    def offer(self, ask: Ask, now: float) -> Offer:
        """What there is for one fetch. Nothing is changed."""

    @abstractmethod
    def needed(self, part: Part) -> float:
        """The bytes that a link with this part stands in line for."""

    @abstractmethod
    def judge(self, offer: Offer, part: Part) -> Verdict:
        """Whether `part` of a fetch may be granted. Nothing is changed."""

    def wait(self, ask: Ask, offer: Offer, needed: float, now: float) -> None:
        """Keep the link's place in the line for `needed` bytes."""

    def served(self, ask: Ask, part: Part) -> None:
        """The link was granted `part`."""

    def leave(self, link: Hashable) -> None:
        """The link wants nothing at the moment."""

    def record(self, size: int) -> None:
        """Bytes of it have passed. Not called for the configured quota: its side records them."""

    def owe(self, replica_id: int, size: int) -> None:
        """A replica had `size` bytes without a grant: an offset probe brought them."""

    def first_in_line(self) -> Hashable | None:
        """The link whose turn is next; None where all may try."""
        return None

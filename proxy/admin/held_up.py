# SPDX-License-Identifier: Apache-2.0
"""Who holds up what is behind: a pure judgement of one side's figures, in one sentence for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from weir.planning.units import show_rate, show_rough_rate

Culprit = Literal["nobody", "quota", "replica", "elsewhere"]

MOSTLY_USED: Final = 0.85
"""A quota that is used to this part is what holds replicas up."""


class Limit(NamedTuple):
    """A quota in force: bytes/s, and the rate of what passes. `name` is empty for that of the listed replicas."""

    name: str
    quota: int
    rate: float

    @property
    def used(self) -> float:
        """The part of it that is used."""
        return self.rate / self.quota if self.quota else math.inf


@dataclass(frozen=True, slots=True)
class Facts:
    """One side's figures. `waiting` and `stuck` are the brokers whose partitions wait for quota, or are stuck."""

    partitions_behind: int
    partitions_throttled: int
    """How many of those behind a quota covers."""
    partitions_stuck: int
    limits: tuple[Limit, ...] = ()
    waiting: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


class HeldUp(NamedTuple):
    """Who holds up what is behind, and a sentence that says so."""

    by: Culprit
    sentence: str


def held_up_by(facts: Facts) -> HeldUp:
    """Name who holds up what is behind. A replica that does not ask goes first: no quota can help it."""
    if facts.partitions_stuck:
        return HeldUp(
            "replica",
            f"{_brokers(facts.stuck)} no longer follows {_partitions(facts.partitions_stuck)}"
            " (no fetch, or errors only): look at its log.",
        )
    if not facts.partitions_behind:
        return HeldUp("nobody", "Nothing is behind.")
    behind, are = _partitions(facts.partitions_behind), "is" if facts.partitions_behind == 1 else "are"
    if not facts.limits:
        return HeldUp("elsewhere", f"{behind} {are} behind, and none of weir's quotas is in force here.")
    if not facts.partitions_throttled:
        return HeldUp("elsewhere", f"{behind} {are} behind, and none of weir's quotas covers what is.")
    limit = max(facts.limits, key=lambda limit: limit.used)
    used = f"{show_rough_rate(limit.rate)} of {show_rate(limit.quota)}"
    if facts.waiting or limit.used >= MOSTLY_USED:
        whose = f" of {_brokers(facts.waiting).lower()}" if facts.waiting else ""
        name = f' "{limit.name}"' if limit.name else ""
        held = _partitions(facts.partitions_throttled)
        others = facts.partitions_behind - facts.partitions_throttled
        more = f" {_partitions(others)} more without a quota." if others > 0 else ""
        return HeldUp("quota", f"The quota{name} holds {held}{whose} back: {used} used.{more}")
    return HeldUp(
        "elsewhere",
        f"{behind} {are} behind, but the quota has room ({used} used): a disk, the network or the other side.",
    )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def _brokers(ids: tuple[int, ...]) -> str:
    """Name brokers: the first three of them."""
    if not ids:
        return "A replica"
    shown = ", ".join(str(broker) for broker in ids[:3])
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{'Broker' if len(ids) == 1 else 'Brokers'} {shown}{more}"

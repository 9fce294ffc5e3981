"""Who holds up what is behind: a pure judgement of one side's figures, in one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from planning.units import show_rate

Culprit = Literal["nobody", "quota", "replica", "elsewhere"]

MOSTLY_USED: Final = 0.85
"""A quota that is used to this part is what holds replicas up."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One side's figures; rates in bytes/s. `brokers` are those whose partitions wait for quota, or are stuck."""

    partitions_behind: int
    partitions_stuck: int
    quota: int | None
    rate: float
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
    if facts.quota is None:
        return HeldUp("elsewhere", f"{behind} {are} behind, and no quota is in force here.")
    used = f"{show_rate(float(f'{facts.rate:.3g}'))} of {show_rate(facts.quota)}"
    if facts.waiting or facts.rate >= MOSTLY_USED * facts.quota:
        whose = f" of {_brokers(facts.waiting).lower()}" if facts.waiting else ""
        return HeldUp("quota", f"The quota holds {behind}{whose} back: {used} used.")
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

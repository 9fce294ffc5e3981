# SPDX-License-Identifier: Apache-2.0
"""What a broker's link really carries, learned from a move whose bytes do not arrive as fast as its rates allow.

A link may carry less than was stated: others that no sidecar sees use it too, or the figure is a faster card's. It is
then full, and clients wait in its queue. What shows it is that less arrives than a rate allows, although enough is left
to be sent and no other rate stands in the way. Nothing else has to be measured for that, and a mistake is cheap: a rate
that is not used up costs the move little when it falls.

What passed in such an interval, the move and all else, is then what the link carries. After a while without that, the
figure rises in one large step, and falls back as soon as less arrives again. A small step might fill the link for long
and not show. Each step that fills the link doubles the time until the next one.

Rates are bytes/s, times seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from weir.planning.assignment import Partition
from weir.planning.finish_by import Moving
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE

Key = tuple[int, str]
"""One throttled rate: a broker, and LEADER_RATE or FOLLOWER_RATE."""

SHORT: Final = 0.75
"""A link may be full where less than this part of a rate arrives: below 75 MB/s under a rate of 100 MB/s.

Sidecars let 0.85 to 1 of a rate arrive, by how long an answer is on its way. So a full link goes unnoticed that carries
nearly what is wanted of it.
"""

LEAST_JUDGED: Final = 2_000_000
"""Bytes/s: a lower rate tells nothing of its link. One answer of Kafka's may hold 10 MB, so bytes come in bursts."""

FOLLOWED_WITHIN_SECONDS: Final = 2.5
"""The seconds after which a rate that was set is in force in all sidecars."""

MOST_FALL: Final = 0.5
"""The part of its rate that a move keeps from one interval to the next, however little arrives.

A broker that restarts gets nothing either, and is no full link.
"""

LEAST_CALM: Final = 6
MOST_CALM: Final = 120
"""The intervals without a full link after which what it seems to carry rises: at first, and at most."""

STEP: Final = 0.5
"""The part by which that figure rises, from 40 to 60 MB/s. A link that still carries no more then shows it."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a link seems to carry in one direction (bytes/s).

    `calm` intervals have passed since it was full or the figure rose, and `patience` have to before it rises.
    `has_risen`: since the link was full.
    """

    capacity: float
    calm: int = 0
    patience: int = LEAST_CALM
    has_risen: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came under one rate in an interval: bytes/s, and bytes that are still to come.

    `peers` are the rates at the other ends: one of them may be what holds it back.
    """

    rate: float
    left: float
    peers: frozenset[Key]


def arrived(before: Mapping[Partition, Moving], now: Mapping[Partition, Moving], seconds: float) -> dict[Key, Arrived]:
    """Return what came under each rate between two readings. Replicas in sync receive what producers write."""
    rates: dict[Key, float] = defaultdict(float)
    left: dict[Key, float] = defaultdict(float)
    peers: dict[Key, set[Key]] = defaultdict(set)
    for partition, one in now.items():
        then = before.get(partition)
        if then is None or not then.size:
            continue
        leader = one.leader, LEADER_RATE
        grown = max(0, one.size - then.size)
        rates[leader] += grown * max(0, one.followers - len(one.left)) / seconds
        for broker, behind in one.left.items():
            follower = broker, FOLLOWER_RATE
            came = max(0.0, then.left.get(broker, 0) + grown - behind) / seconds
            for key, other in ((leader, follower), (follower, leader)):
                rates[key] += came
                left[key] += behind
                if behind:
                    peers[key].add(other)
    return {key: Arrived(rate, left[key], frozenset(peers[key])) for key, rate in rates.items()}


def are_short(
    came: Mapping[Key, Arrived], rates: Mapping[Key, int], last_rates: Mapping[Key, int], seconds: float
) -> frozenset[Key]:
    """Return the rates of which too little came, although nothing but the link can have held it back.

    `last_rates` were in force before `rates`, and for some time of the interval still. A rate that had not been set
    counts as 0 there.
    """
    late = min(1.0, FOLLOWED_WITHIN_SECONDS / seconds)
    allowed = {key: rate - late * max(0.0, rate - last_rates.get(key, 0)) for key, rate in rates.items()}
    used_up = {key for key, one in came.items() if one.rate >= SHORT * allowed.get(key, 0.0)}
    return frozenset(
        key
        for key, one in came.items()
        if allowed.get(key, 0.0) >= LEAST_JUDGED
        and key not in used_up
        and one.rate > 0
        and one.left > seconds * allowed[key]
        and one.peers.isdisjoint(used_up)
    )


def carried_next(
    known: Carried | None, is_short: bool, came: float, allowed: float, others: float, stated: float
) -> Carried | None:
    """Return what is known of a link after an interval, in which `came` arrived of what was `allowed`.

    None: nothing tells that it carries less than was stated.
    """
    if is_short:
        now = Carried(stated) if known is None else known
        passed = max(came, MOST_FALL * allowed) + others
        patience = min(MOST_CALM, 2 * now.patience) if now.has_risen else now.patience
        return Carried(min(now.capacity, passed), patience=patience)
    if known is None:
        return None
    calm = known.calm + 1
    if calm < known.patience:
        return replace(known, calm=calm)
    if known.capacity >= stated:  # it has carried that for long
        return None
    return Carried(min(stated, known.capacity * (1 + STEP)), patience=known.patience, has_risen=True)

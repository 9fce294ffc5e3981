# SPDX-License-Identifier: Apache-2.0
"""Which partitions each quota covers on a link, by the words of the documents and not by the code of the throttle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.fakes.kafka.sessions import Key
from weir.quota.scopes import Matching, Reassigned, Recovering, Scope

NOTHING: frozenset[Key] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What a sidecar knows of the cluster. `followers` and `names` have all partitions of the run."""

    followers: Mapping[Key, int]
    names: Mapping[Key, str]
    are_named: bool  # whether topics' names are known by their ids
    adding: frozenset[Key]  # to the follower that `followers` has
    under_min_isr: frozenset[Key]
    racks: Mapping[int, str] | None


def covered(scope: Scope, facts: Facts, follower: int, other: int) -> frozenset[Key]:
    """The partitions that a quota of this scope covers on a link of `follower` with the broker `other`."""
    every = frozenset(facts.names)
    if isinstance(scope, Matching):
        if scope.peers is not None and other not in scope.peers:
            return NOTHING
        if scope.racks is not None and facts.racks is not None and facts.racks.get(other) not in scope.racks:
            return NOTHING
        if scope.topics is None or not facts.are_named:
            return every
        return frozenset(key for key in every if any(fnmatchcase(facts.names[key], one) for one in scope.topics))
    assert isinstance(scope, Reassigned | Recovering)
    added = frozenset(key for key in facts.adding if facts.followers[key] == follower)
    if not facts.are_named:
        numbers = {number for _, number in added}
        return every if isinstance(scope, Recovering) else frozenset(key for key in every if key[1] in numbers)
    spared = facts.under_min_isr if scope.spares_under_min_isr else NOTHING
    return (added if isinstance(scope, Reassigned) else every - added) - spared

"""Who takes what is followed of the cluster for the throttles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from weir.quota.followed_throttle import Moves
from weir.quota.layers import Layer


class Followers(NamedTuple):
    """The callbacks that take what is followed, the first three called when something has changed.

    - `throttle`: Kafka's own throttle, as a layer.
    - `moves`: what is being reassigned.
    - `racks`: the rack of each broker.
    - `wants_facts`: returns whether anybody wants moves and racks at the moment.
    - `topics_behind`: returns topics with replicas that are behind, a bounded number of them.
    """

    throttle: Callable[[Layer], None]
    moves: Callable[[Moves], None]
    racks: Callable[[Mapping[int, str | None]], None]
    wants_facts: Callable[[], bool]
    topics_behind: Callable[[], Set[str]] = frozenset

"""Who takes what is followed of the cluster for the throttles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quota.followed_throttle import Moves
from quota.layers import Layer


class Followers(NamedTuple):
    """The callbacks that take what is followed, each called when something has changed.

    - `throttle`: Kafka's own throttle, as a layer.
    - `moves`: what is being reassigned.
    - `racks`: the rack of each broker.
    - `wants_facts`: returns whether anybody wants moves and racks at the moment.
    """

    throttle: Callable[[Layer], None]
    moves: Callable[[Moves], None]
    racks: Callable[[Mapping[int, str | None]], None]
    wants_facts: Callable[[], bool]

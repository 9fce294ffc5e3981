"""What one link remembers from fetch to fetch, beside its partitions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from quota.budget.accounts import LinkAccounts
from quota.fetch.order import CatchUp
from quota.fetch.partitions import LinkPartitions
from quota.fetch.response_limit import ResponseRotation
from quota.fetch.sessions import FetchSessions
from quota.fetch.state import InFlight
from quota.side_state import SideState


class LinkState:
    """The rooms of `quota.fetch` share it: `context` and `settlement` observe, `commit` carries plans out.

    Times are in clock seconds.
    """

    def __init__(self, side: SideState, peer: int, open_session: Callable[[int], int]) -> None:
        self.side = side
        self.sessions = FetchSessions(open_session, side.stats)
        self.partitions = LinkPartitions(side, self.sessions, peer)
        self.accounts = LinkAccounts()
        self.catch_up = CatchUp(side)
        self.in_flight: deque[InFlight] = deque()
        self.response_rotation = ResponseRotation()
        self.unanswered_since: float | None = None
        """Since when partitions were left out with no true answer."""
        self.probed_at = -math.inf
        self.unknown_since: float | None = None
        """Since when a probe waits that tells who is in sync."""
        self.crowded_until = -math.inf
        """Until when answers are expected to be full without what is granted."""
        self.answer_seconds = 0.0
        """From the last grant to its answer."""
        self.live_until = -math.inf
        """Until when records of partitions that do not wait are expected to come."""
        self.settled_at = -math.inf

    def leave_unanswered(self, now: float) -> None:
        """What is left out has no true answer: from now on, where it had one so far."""
        if self.unanswered_since is None:
            self.unanswered_since = now

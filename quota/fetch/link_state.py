"""What one link keeps from one fetch to the next."""

from __future__ import annotations

import math

from weir.quota.budget.ledger import LinkAccounts
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.sessions import FetchSessions
from weir.quota.fetch.state import InFlight
from weir.quota.side_state import SideState


class LinkState:
    """State that the modules of `weir.quota.fetch` share. Only intake, settlement, `commit` and the link change it.

    Times are in clock seconds.
    """

    def __init__(self, throttle: SideState, peer: int, *, is_stranger: bool = False) -> None:
        self.throttle = throttle
        self.sessions = FetchSessions()
        self.partitions = LinkPartitions(throttle, self.sessions, peer, is_stranger=is_stranger)
        self.accounts = LinkAccounts()  # what the link holds of the budget
        self.is_taken_in = True  # the request that is planned
        self.in_flight: InFlight | None = None  # the fetch that is forwarded
        self.number = 0  # of requests and answers so far
        self.unanswered_since: float | None = None
        """The time since which some partitions had no true answer, as they were left out; None where all had one."""
        self.crowded_until = -math.inf  # up to this time answers are expected to be full of what is not granted
        self.grants_filled_answer = False
        """Whether grants in front left others no room in the last answer, or may have. Then all else is next."""
        self.answer_seconds = 0.0  # how long the answer to the last grant took (seconds)
        self.distance = math.inf
        """How long the quickest answer took to begin (seconds): the way to the leader and back."""
        self.made_to_wait_at = -math.inf
        """When an answer came last that had waited at the leader, as the leader's side throttles too."""
        self.most_beside_live = math.inf
        """What passed on the link in PASSING_SECONDS while the last answer came (bytes)."""
        self.live_until = -math.inf
        """Up to this time records of partitions that need no budget are expected on the link."""
        self.moved_at = -math.inf  # when the follower was last seen to take a part of an answer, or all of it
        self.on_way = math.inf
        """Bytes that may be on their way to a slow follower, as last told; inf where it is not known to be slow."""
        self.written_off = 0  # bytes of these that count as sent, as the follower did not take them for long

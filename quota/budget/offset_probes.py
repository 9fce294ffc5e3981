"""Whose turn it is to ask a leader for offsets and errors alone: a fetch of 0 bytes that may bring one batch.

No quota can stop that batch, so all links of a side ask one after the other: one probe at a time, and the next no
sooner than what the last one brought is paid. Example: at 1 MB/s and with batches of 1 MB, twenty links that connect
at once ask in twenty seconds and not in one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

PROBE_SECONDS: Final = 10.0
"""No partition goes longer without a true answer, where what the probes bring can be paid: its follower would miss
errors. At rate 0 nothing can be paid: there one probe in so long is asked on the whole side."""

URGENT_SECONDS: Final = 1.0
"""How long a probe that tells whether a replica is in sync waits at most for what the last one brought to be paid: a
replica in sync may not be throttled. So at quotas below a batch a second such probes are a second apart."""

LONGEST_URGENT_SECONDS: Final = 15.0
"""How long such a probe waits at most where many links have one: half of `replica.lag.time.max.ms`."""

SHORTEST_SECONDS: Final = 0.1
"""Between two probes of those that have waited for that long."""

UNANSWERED_SECONDS: Final = 1.0
"""A probe without an answer for so long does not keep others from theirs."""

REPLICA_SHARE: Final = 3
"""A replica's next probe waits three times as long as the last one takes to be paid: its probes take a third of
the quota at most. Those that tell whether it is in sync wait for URGENT_SECONDS alone, but for MOST_AT_ONCE."""

MOST_AT_ONCE: Final = 3
"""Probes of one link in PROBE_SECONDS that wait for URGENT_SECONDS alone. With more a follower that begins anew
with each fetch would take all of the quota."""

_RETRY_SECONDS = 0.02
_RETRY_SECONDS_EACH = 0.001
_MOST_REPLICAS = 256


class OffsetProbes:
    """The probes of one side's links. Times are in clock seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asking: Hashable = None
        self._asked_at = self._paid_at = -math.inf
        self._replicas: dict[int, tuple[float, float]] = {}  # when each asked last, and when it may again
        self._links: dict[Hashable, deque[float]] = {}  # when each asked lately
        self._waiting: dict[Hashable, tuple[float, float]] = {}  # first come first: when it may ask, when it lapses
        self._first_at = math.inf  # none of them may ask earlier

    def ready_at(
        self, link: Hashable, replica: int, due: float, *, is_urgent: bool = False, longest_wait: float = math.inf
    ) -> float:
        """The time at which `link`'s probe, due at `due`, may go; it may go now if that is not later than now.

        `is_urgent`: it tells whether a replica is in sync. `longest_wait` (seconds) is set where others wait for it.
        """
        at, ready = self.look(link, replica, due, is_urgent=is_urgent, longest_wait=longest_wait)
        self.wait(link, ready)
        return at

    def wait(self, link: Hashable, ready: float) -> None:
        """`link` stands in line with a probe that is due and paid for at `ready`."""
        self._waiting[link] = ready, self._clock() + UNANSWERED_SECONDS
        self._first_at = min(self._first_at, ready)

    def look(
        self, link: Hashable, replica: int, due: float, *, is_urgent: bool = False, longest_wait: float = math.inf
    ) -> tuple[float, float]:
        """As `ready_at`, and when the probe is due and paid for, whoever stands in front. Nothing is changed."""
        now = self._clock()
        asked_at, replica_at = self._replicas.get(replica, (-math.inf, -math.inf))
        ready = max(due, self._paid_at, replica_at)
        if is_urgent:
            unpaid = max(due, self._asked_at + URGENT_SECONDS, asked_at + URGENT_SECONDS)
            lately = self._links.get(link)
            if lately is not None and len(lately) == MOST_AT_ONCE and now - lately[0] < PROBE_SECONDS:
                unpaid = max(unpaid, replica_at)
            waited_long = max(due + min(LONGEST_URGENT_SECONDS, longest_wait), self._asked_at + SHORTEST_SECONDS)
            ready = min(ready, unpaid, waited_long)
        if ready > now:
            return ready, ready
        is_asked = self._asking is not None and now - self._asked_at < UNANSWERED_SECONDS
        if is_asked or self._is_behind_others(link, now):
            return self._retry_at(now), ready
        return now, ready

    def _is_behind_others(self, link: Hashable, now: float) -> bool:
        for other, (other_ready, lapses) in self._waiting.items():
            if other == link:
                return False
            if other_ready <= now <= lapses:
                return True
        return False

    def _retry_at(self, now: float) -> float:
        """When to look again: the more wait, the later, for only one of them may ask. An answer wakes the next."""
        return now + _RETRY_SECONDS + len(self._waiting) * _RETRY_SECONDS_EACH

    def first(self) -> Hashable | None:
        """The link whose probe may go next, as far as is known; None where none may go now."""
        now = self._clock()
        if self._asking is not None and now - self._asked_at < UNANSWERED_SECONDS:
            return None
        if now < self._first_at:  # with hundreds of links in line each answer would look at all of them
            return None
        first = next((link for link, (ready, lapses) in self._waiting.items() if ready <= now <= lapses), None)
        if first is None:
            self._first_at = min([ready for ready, _ in self._waiting.values() if ready > now], default=math.inf)
        return first

    def asked(self, link: Hashable, replica: int) -> None:
        """`link` asks."""
        now = self._clock()
        self._waiting.pop(link, None)
        self._waiting = {one: times for one, times in self._waiting.items() if times[1] >= now}
        self._asking, self._asked_at = link, now
        self._links.setdefault(link, deque(maxlen=MOST_AT_ONCE)).append(now)
        if len(self._replicas) >= _MOST_REPLICAS:
            self._replicas = {one: times for one, times in self._replicas.items() if times[1] > now}
        self._replicas[replica] = now, now + REPLICA_SHARE * UNANSWERED_SECONDS  # until it is known what it brought

    def answered(self, link: Hashable, replica: int, size: int, rate: int) -> None:
        """The answer to `link`'s probe brought `size` bytes; `rate` is the quota in bytes/s."""
        now = self._clock()
        price = min(size / rate, PROBE_SECONDS) if rate else PROBE_SECONDS if size else 0.0
        # What several urgent ones owe together keeps nobody from errors for longer than one does.
        self._paid_at = min(max(self._paid_at, now) + price, now + PROBE_SECONDS)
        self._replicas[replica] = self._asked_at, now + min(REPLICA_SHARE * price, PROBE_SECONDS)
        if self._asking == link:
            self._asking = None

    def leave(self, link: Hashable) -> None:
        """`link` has no probe any more."""
        self._waiting.pop(link, None)
        if self._asking == link:
            self._asking = None

    def drop(self, link: Hashable) -> None:
        """`link` is closed."""
        self.leave(link)
        self._links.pop(link, None)

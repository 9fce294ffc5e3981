"""Decides which link may send its offset probe next.

An offset probe is a fetch of 0 bytes: it asks a leader for offsets and errors alone, but one batch may come with the
answer. No quota can stop that batch, so the links of a side take turns. One probe is under way at a time, and the next
goes when the batch that the last one brought is paid for.

Example: at 1 MB/s and with batches of 1 MB, twenty links that connect at once send one probe a second. Those that are
left after 15 s may not wait any longer to know who is in sync: they follow 0.1 s apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

PROBE_SECONDS: Final = 10.0
"""How long a partition goes without a true answer at most, as its follower would miss errors otherwise.

This holds where the batches that probes bring can be paid for. At rate 0 nothing can, and the whole side sends one
probe in this time, but for those that tell who is in sync.
"""

URGENT_SECONDS: Final = 1.0
"""How long an *urgent* probe waits at most for the last one's batch to be paid for.

An urgent probe tells whether a replica is in sync, and a replica in sync may not be throttled. At quotas below one
batch per second such probes therefore go a second apart.
"""

LONGEST_URGENT_SECONDS: Final = 15.0
"""How long an urgent probe waits at most where many links have one: half of `replica.lag.time.max.ms`."""

SHORTEST_SECONDS: Final = 0.1
"""The time between two urgent probes that have both waited for URGENT_SECONDS."""

UNANSWERED_SECONDS: Final = 1.0
"""A probe that has no answer after this time no longer keeps others from going."""

REPLICA_SHARE: Final = 3
"""A replica's next probe waits this many times as long as the last one takes to be paid for.

So its probes take a third of the quota at most. Urgent ones wait for URGENT_SECONDS only, as long as MOST_AT_ONCE
allows it.
"""

MOST_AT_ONCE: Final = 3
"""The most urgent probes of one link in PROBE_SECONDS; further ones wait as all others do.

Otherwise a follower that connects anew for each fetch would take the whole quota.
"""

UNREAD_SECONDS: Final = 2.0
"""A follower that has not asked again this long after its probe does not read its answers.

Its probes are not urgent any more, on any of its links: else one that opens connections and never reads would take a
batch on each of them.
"""

_RETRY_SECONDS = 0.02
_RETRY_SECONDS_EACH = 0.001
_MANY = 100
_RETRY_SECONDS_OF_MANY = 0.004  # for each beyond: a plan takes some 0.2 ms, and 200 of them in a second are enough
_MOST_REPLICAS = 256


class OffsetProbes:
    """The probes of one side's links. Times are in clock seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asking: Hashable = None
        self._asked_at = self._paid_at = -math.inf
        # by replica: when it sent its last probe, and when it may send the next
        self._replicas: dict[int, tuple[float, float]] = {}
        self._links: dict[Hashable, deque[float]] = {}  # when each sent its last probes
        # in the order of arrival: when each may go, and when its wait lapses
        self._waiting: dict[Hashable, tuple[float, float]] = {}
        self._first_at = math.inf  # no probe in line may go before
        # by replica: the links that have not asked again since they sent a probe, and when that was
        self._unread: dict[int, dict[Hashable, float]] = {}
        self._abandoned: dict[int, float] = {}  # when such a link closed last, by replica

    def ready_at(
        self, link: Hashable, replica: int, due: float, *, is_urgent: bool = False, longest_wait: float = math.inf
    ) -> float:
        """Return when `link`'s probe, due at `due`, may go; a time up to now means at once.

        `is_urgent`: it tells whether a replica is in sync. `longest_wait` (seconds) is set where other partitions wait
        for it.
        """
        at, ready = self.look(link, replica, due, is_urgent=is_urgent, longest_wait=longest_wait)
        self.wait(link, ready)
        return at

    def wait(self, link: Hashable, ready: float) -> None:
        """Put `link` in line with a probe that is due and paid for at `ready`."""
        now = self._clock()
        self._waiting[link] = ready, max(now + UNANSWERED_SECONDS, self._retry_at(now) + _RETRY_SECONDS)
        self._first_at = min(self._first_at, ready)

    def look(
        self, link: Hashable, replica: int, due: float, *, is_urgent: bool = False, longest_wait: float = math.inf
    ) -> tuple[float, float]:
        """Return `ready_at`, and when the probe is due and paid for, whichever links stand in front.

        Nothing changes.
        """
        now = self._clock()
        asked_at, replica_at = self._replicas.get(replica, (-math.inf, -math.inf))
        ready = max(due, self._paid_at, replica_at)
        if is_urgent and not self._reads_nothing(replica, now):
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

    def _reads_nothing(self, replica: int, now: float) -> bool:
        """Whether a replica leaves answers to its probes unread, or has closed links on which it did."""
        if now - self._abandoned.get(replica, -math.inf) < PROBE_SECONDS:
            return True
        return any([now - since >= UNREAD_SECONDS for since in self._unread.get(replica, {}).values()])

    def _is_behind_others(self, link: Hashable, now: float) -> bool:
        for other, (other_ready, lapses) in self._waiting.items():
            if other == link:
                return False
            if other_ready <= now <= lapses:
                return True
        return False

    def _retry_at(self, now: float) -> float:
        """Return when to look again: later where more links wait, as only one may go.

        An answer wakes the next earlier.
        """
        count = len(self._waiting)
        return now + _RETRY_SECONDS + count * _RETRY_SECONDS_EACH + max(0, count - _MANY) * _RETRY_SECONDS_OF_MANY

    def first(self) -> Hashable | None:
        """Return the link whose probe may go next, as far as is known; None where none may go now."""
        now = self._clock()
        if self._asking is not None and now - self._asked_at < UNANSWERED_SECONDS:
            return None
        if now < self._first_at:  # with hundreds of links in line, each answer would look at all of them
            return None
        first = next((link for link, (ready, lapses) in self._waiting.items() if ready <= now <= lapses), None)
        if first is None:
            self._first_at = min([ready for ready, _ in self._waiting.values() if ready > now], default=math.inf)
        return first

    def asked(self, link: Hashable, replica: int) -> None:
        """Note that `link` sends its probe."""
        now = self._clock()
        self._waiting.pop(link, None)
        self._waiting = {one: times for one, times in self._waiting.items() if times[1] >= now}
        self._asking, self._asked_at = link, now
        self._links.setdefault(link, deque(maxlen=MOST_AT_ONCE)).append(now)
        if len(self._replicas) >= _MOST_REPLICAS:
            self._replicas = {one: times for one, times in self._replicas.items() if times[1] > now}
        # until the answer shows what the probe brought
        self._replicas[replica] = now, now + REPLICA_SHARE * UNANSWERED_SECONDS
        self._unread.setdefault(replica, {})[link] = now

    def answered(self, link: Hashable, replica: int, size: int, rate: int) -> None:
        """Take in the answer to `link`'s probe, which brought `size` bytes; `rate` is the quota in bytes/s."""
        now = self._clock()
        price = min(size / rate, PROBE_SECONDS) if rate else PROBE_SECONDS if size else 0.0
        # Several urgent probes together delay the next one by no more than one probe may.
        self._paid_at = min(max(self._paid_at, now) + price, now + PROBE_SECONDS)
        self._replicas[replica] = self._asked_at, now + min(REPLICA_SHARE * price, PROBE_SECONDS)
        if self._asking == link:
            self._asking = None

    def read(self, link: Hashable, replica: int) -> None:
        """Note that the replica of `link` has read the answer to its probe: it asks again."""
        unread = self._unread.get(replica)
        if unread is not None:
            unread.pop(link, None)
            if not unread:
                del self._unread[replica]

    def leave(self, link: Hashable) -> None:
        """Note that `link` has no probe to send any more."""
        self._waiting.pop(link, None)
        if self._asking == link:
            self._asking = None

    def drop(self, link: Hashable) -> None:
        """Forget `link`, which is closed."""
        self.leave(link)
        self._links.pop(link, None)
        now = self._clock()
        for replica, unread in list(self._unread.items()):
            if link in unread:
                self._abandoned = {one: at for one, at in self._abandoned.items() if now - at < PROBE_SECONDS}
                self._abandoned[replica] = now
                self.read(link, replica)

# SPDX-License-Identifier: Apache-2.0
"""What one side promises about its quotas, and the meter that compares it with what passed.

The two functions at the top are the promise as documented, and the only place where it is written down here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.fakes.kafka.sessions import Key
from tests.quota.model.world import START, World
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ScannedTopic
from weir.proxy.relay.passage import AHEAD_SECONDS

WINDOW_SECONDS = 1.0
WINDOW_SLACK = 1.04
PROBE_SECONDS = 10.0
IN_SYNC_LATELY_SECONDS = 30.0
LONGEST_POLL_SECONDS = 2.0  # by which the sidecar may see it later
LENT_SECONDS = 0.13  # and the way to the leader and back
MOST_LENT_LATE_SECONDS = 0.9
ROUND_TRIP = 6  # stretches


@dataclass(frozen=True)
class Exceptions:
    """What the documents allow beyond the quota. `batch` is the largest throttled one, in bytes."""

    batch: int
    links: int  # that can ask probes of their own
    takes_out: bool  # whether records above a grant are taken out of answers: the leader's side
    is_lent: bool = False  # whether the leaders' sides throttle too, so that nothing is set aside at the follower
    sizes: frozenset[int] = frozenset()  # of all batches, in bytes; empty: not to be judged so exactly
    latest: float = 0.0  # by how many seconds leaders answer late: for so long more is lent


def largest_beyond(quota: int, sizes: frozenset[int]) -> int:
    """The largest batch that goes beyond the window: all do but those that are the whole window, within 4 %."""
    return max([size for size in sizes if not (2 - WINDOW_SLACK) * quota <= size <= WINDOW_SLACK * quota], default=0)


def most_in_a_second(quota: int, allowed: Exceptions, *, is_exact: bool = False, waited: int = 0) -> float:
    """Bytes of throttled replicas, not known to be in sync, in any sliding second.

    On the leader's side that is the quota, rounded up to whole batches, and nothing where the quota is 0. It is
    `is_exact` where the rate never changes: then it is rounded up only where less would leave quota unused. On the
    follower's side a batch of unknown size may come on each link. What its probes brought is not among them: that is at
    most one batch for each, and how many there are is bounded by `most_probes`.
    """
    if allowed.takes_out:
        beyond = largest_beyond(quota, allowed.sizes) if is_exact and allowed.sizes else allowed.batch
        return WINDOW_SLACK * quota + ((beyond or waited) if quota else 0)
    lent = (LENT_SECONDS + min(allowed.latest, MOST_LENT_LATE_SECONDS)) * quota if allowed.is_lent else 0.0
    return WINDOW_SLACK * quota + allowed.batch * allowed.links + lent


def most_probes(seconds: float, reasons: int) -> float:
    """Probes that brought a batch, of one link in its first so many seconds, on the follower's side.

    `reasons` are those to ask who is in sync: the connection, a leader epoch, a partition that is new or that failed, a
    full fetch of the follower's, settings that changed.
    """
    return 1 + reasons + seconds / PROBE_SECONDS


def most_in_all(quotas: Sequence[tuple[float, int | None]], until: float, allowed: Exceptions, urgent: int) -> float:
    """The same with what probes brought, from the start on; `quotas` are those in force and since when.

    The mean keeps to the quota, with one window of it, one batch, and a debt of 10 s on top. `urgent` probes, which
    tell who is in sync, wait for no payment that takes longer than that; and a quota too low to pay for one batch in
    10 s may be passed by one probe a link in so long.
    """
    if allowed.takes_out:
        urgent = 0
    total = float(allowed.batch) * (1 + urgent)
    largest = max((quota or 0 for _, quota in quotas), default=0)
    for (since, quota), (end, _) in zip(quotas, [*quotas[1:], (until, 0)], strict=True):
        if quota is not None:
            is_unpaid = quota * PROBE_SECONDS < allowed.batch and not allowed.takes_out
            probes = allowed.links * (1 + (end - since) / PROBE_SECONDS) if is_unpaid else 0.0
            total += quota * (end - since) + probes * allowed.batch
    return total + (WINDOW_SLACK + (0.0 if allowed.takes_out else PROBE_SECONDS)) * largest


class Told:
    """The high watermarks that passed one hop of one connection; each is what `in sync` is judged by."""

    __slots__ = ("_caught_up", "before", "headers", "high_watermarks", "lately", "older")

    def __init__(self, caught_up: Callable[[Key], tuple[int, float]]) -> None:
        """`caught_up` returns which high watermark a replica had reached when it had caught up last, and when."""
        self._caught_up = caught_up
        self.high_watermarks: dict[Key, int] = {}
        self.headers: dict[bytes, bytes] = {}
        self.before: dict[Key, int] = {}  # what was told before an election, until the next answer
        self.older: dict[Key, int] = {}  # what was told of a log that was then made anew, until the new one's is told
        self.lately: dict[Key, tuple[int, float]] = {}  # up to which offset a replica counts as in sync, and until when

    def take(self, topics: Sequence[ScannedTopic]) -> None:
        """What an answer tells."""
        self.before.clear()
        for name, headers, _, _ in topics:
            if self.headers.get(name) == headers:
                continue
            self.headers[name] = headers
            for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
                self.older.pop((name, partition), None)
                if not error_code:
                    self.high_watermarks[name, partition] = high_watermark

    def elected(self, key: Key, in_sync_below: int, now: float) -> None:
        """A leader epoch begins. A replica that was in sync and goes back counts as in sync for a while."""
        told = self.high_watermarks.pop(key, None)
        if told is not None:
            self.before[key] = told
        if told is not None and in_sync_below >= told:
            self.lately[key] = in_sync_below, now + IN_SYNC_LATELY_SECONDS
        self.headers.pop(key[0], None)

    def forget(self, key: Key) -> None:
        """A partition is made anew. No sidecar knows before it is told: a replica in sync at 0 still is until then."""
        self.before.pop(key, None)
        self.lately.pop(key, None)
        if (told := self.high_watermarks.pop(key, None)) is not None:
            self.older[key] = told
        self.headers.pop(key[0], None)

    def is_in_sync(self, key: Key, offset: int, now: float) -> bool:
        """Whether a replica that asks from `offset` on is known to be in sync, or was lately."""
        told = self.high_watermarks.get(key, self.before.get(key, self.older.get(key, -1)))
        if 0 <= told <= offset:
            return True
        since, at = self._caught_up(key)
        if offset >= since and now - at < IN_SYNC_LATELY_SECONDS + LONGEST_POLL_SECONDS:
            return True
        below, until = self.lately.get(key, (0, 0.0))
        return offset < below and now < until


class Meter:
    """The bytes of one quota that it has to bound."""

    def __init__(self, world: World, name: str, allowed: Exceptions, *, is_strict: bool) -> None:
        self.world = world
        self.name = name
        self.allowed = allowed
        self.is_strict = is_strict
        self.rate: int | None = None
        self.rates: list[tuple[float, int | None]] = []
        self.bounded = 0.0
        self.used = 0.0  # the same with bytes of replicas in sync
        self.worst = 0.0  # second, in bounds
        self._window: deque[tuple[float, float]] = deque()
        self._in_window = 0.0
        self._waited: deque[tuple[float, int]] = deque()

    def waited(self, size: int) -> None:
        """So many bytes go all the same, as they have waited for room for long."""
        self._waited.append((self.world.now, size))

    def change(self, rate: int | None) -> None:
        """Another rate is in force."""
        self.rate = rate
        self.rates.append((self.world.now, rate))

    def rate_at(self, at: float) -> int | None:
        """The rate that was in force then."""
        return next((rate for since, rate in reversed(self.rates) if since <= at), None)

    def has_fallen(self) -> bool:
        """Whether a higher rate was in force a second ago."""
        return (self.rate or 0) < (self.rate_at(self.world.now - WINDOW_SECONDS) or 0)

    def passed(self, covered: Covered, begin: int, end: int, asked_at: float, *, is_probe: bool) -> None:
        """Bytes `begin` to `end` of an answer have passed that was asked for at that time."""
        used, size = covered.within(begin, end)
        self.used += used
        self.bounded += size
        counted = size * max(0, 1 - self.allowed.batch / covered.bounded) if is_probe and size else size
        if self.rate is None:
            return
        if self.rate == 0 and covered.rate != 0:
            return  # an answer that has begun passes whole: nobody can cut a frame
        if counted:
            self._count(counted, self.world.now if self.allowed.takes_out else asked_at)

    def _count(self, size: float, asked_at: float) -> None:
        now, window = self.world.now, self._window
        window.append((now, size))
        self._in_window += size
        while window[0][0] <= now - WINDOW_SECONDS:
            self._in_window -= window.popleft()[1]
        if not self.is_strict:
            return
        rate = self._rate_lately(now, asked_at)
        while self._waited and self._waited[0][0] <= now - WINDOW_SECONDS - AHEAD_SECONDS:
            self._waited.popleft()
        waited = sum(size for _, size in self._waited)
        most = most_in_a_second(rate, self.allowed, is_exact=len(self.rates) == 1, waited=waited)
        self.worst = max(self.worst, self._in_window / most if most else 0.0)
        if self._in_window > most + 1:
            self.world.violate(
                "quota",
                f"{self.name}: {self._in_window:,.0f} bytes in a second at {rate:,} bytes/s, {most:,.0f} are promised",
            )

    def _rate_lately(self, now: float, asked_at: float) -> int:
        """The largest one in force while what came in the last second was asked for."""
        if len(self.rates) == 1:
            return self.rates[0][1] or 0
        largest, until = 0, now + 1
        for since, rate in reversed(self.rates):
            if until >= min(asked_at, now - WINDOW_SECONDS) - WINDOW_SECONDS:
                largest = max(largest, rate or 0)
            until = since
        return largest

    def finish(self, urgent: int) -> None:
        """It is over: compare what passed in all. `urgent` were the reasons to ask who is in sync."""
        now = self.world.now
        most = most_in_all(self.rates, now, self.allowed, urgent)
        if not self.is_strict:
            most += 12 * max((rate or 0 for _, rate in self.rates), default=0)  # KIP-73's own window
            most += self.allowed.links * (self.allowed.batch + max((rate or 0 for _, rate in self.rates), default=0))
        if self.bounded > most + 1:
            seconds = now - (self.rates[0][0] if self.rates else START)
            self.world.violate(
                "mean", f"{self.name}: {self.bounded:,.0f} bytes in {seconds:.1f} s, {most:,.0f} are promised"
            )


class Term(NamedTuple):
    """A quota in force on one link, and the partitions that it covers there."""

    meter: Meter
    keys: frozenset[Key]


class Covered(NamedTuple):
    """The bytes of an answer that a quota covers, and of these the ones that it bounds: those of replicas behind.

    `spans` are (begin, end, whether they are bounded), among the records of the answer. `rate` is the quota's when the
    answer began to pass.
    """

    meter: Meter
    spans: Sequence[tuple[int, int, bool]]
    rate: int | None

    @property
    def bounded(self) -> int:
        """All bounded bytes of the answer."""
        return sum(end - begin for begin, end, is_bounded in self.spans if is_bounded)

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """How many of the bytes lie between the answer's bytes `begin` and `end`, and how many of these are bounded."""
        used = bounded = 0
        for first, last, is_bounded in self.spans:
            size = (end if end < last else last) - (begin if begin > first else first)
            if size > 0:
                used += size
                bounded += size if is_bounded else 0
        return used, bounded


class SideMeter:
    """The quotas in force on one side; those that only observe promise nothing."""

    def __init__(self, world: World, side: str, allowed: Exceptions, *, is_strict: bool) -> None:
        self.world = world
        self.side = side
        self.allowed = allowed
        self.is_strict = is_strict
        self.urgent = 0  # reasons to ask who is in sync
        self.meters: dict[str, Meter] = {}  # by the names of the quotas
        self._gone: list[Meter] = []

    @property
    def worst(self) -> float:
        """The worst second of any quota, in bounds."""
        return max((meter.worst for meter in (*self.meters.values(), *self._gone)), default=0.0)

    def change(self, rates: Mapping[str, int | None]) -> None:
        """Other rates are in force, by the names of quotas. What was removed promises nothing any more."""
        for name in [name for name in self.meters if name not in rates]:
            meter = self.meters.pop(name)
            meter.finish(self.urgent)
            self._gone.append(meter)
        for name, rate in rates.items():
            if name not in self.meters:
                shown = f"{self.side}, {name}" if name else self.side
                self.meters[name] = Meter(self.world, shown, self.allowed, is_strict=self.is_strict)
            self.meters[name].change(rate)

    def covered(
        self,
        terms: Sequence[Term],
        told: Told,
        topics: Sequence[ScannedTopic],
        bases: dict[Key, int],
        *,
        is_probe: bool = False,
    ) -> list[Covered]:
        """What of an answer that begins to pass is covered by quotas, and what of that they bound."""
        if not terms or not bases:
            return []
        now = self.world.now
        spans: dict[Term, list[tuple[int, int, bool]]] = {term: [] for term in terms}
        position = 0
        for name, _, records, _ in topics:
            for seen in records:
                key = name, seen.partition
                covering = [term for term in terms if key in term.keys]
                is_bounded = covering and not told.is_in_sync(key, bases[key], now)
                for term in covering:
                    spans[term].append((position, position + seen.size, bool(is_bounded)))
                position += seen.size
        found = [Covered(term.meter, of_term, term.meter.rate) for term, of_term in spans.items() if of_term]
        if is_probe and self.allowed.takes_out and any(one.bounded and one.rate is not None for one in found):
            self.world.violate("probes", f"{self.side}: an offset probe brought records")
        return found

    def finish(self) -> None:
        """The run is over."""
        for meter in self.meters.values():
            meter.finish(self.urgent)

# SPDX-License-Identifier: Apache-2.0
"""What clients of one rule share: the limiters, and whose turn it is after a pause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from weir.limits.guarded import GuardedLimiter, Take
from weir.limits.rate_limiter import Batch
from weir.limits.rules import NamedLimiter, Rule
from weir.limits.slowed_clock import SlowedClock

TURN_SECONDS: Final = 0.05
"""How long the next one in line waits for the answer to the one before it, which may bring the next pause."""

_MOST_TOPICS: Final = 1000  # of which it is remembered whether they count
_LATEST: Final = 8  # requests or answers, about, of which the mean is known


class Waiting(Protocol):
    """A connection, one request of which waits."""

    @property
    def is_idle(self) -> bool:
        """Whether the last answer brought it nothing: the next one may take as long as the broker waits for records."""

    def wake(self) -> None:
        """Ask again, soon."""


class Group:
    """The limiters of one rule, for one client or for those that share them.

    `clock` gives seconds. `on_fault` is told the name of a limiter that was disabled, and why.
    """

    def __init__(
        self,
        rule: Rule,
        clock: Callable[[], float],
        on_fault: Callable[[str, str], None],
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        self.rule = rule
        self._clock = clock
        self._slowed = SlowedClock(clock)
        self._on_fault = on_fault
        self._on_use = on_use
        self.rests = False
        """Whether nobody uses it now. When somebody does, `on_use` is called."""
        self.used = 0.0
        """Seconds of the whole limit that were used so far: in each real second as many as the part that is used."""
        self._mean = 0.0  # seconds of the whole limit that one of the latest requests or answers took
        self._limiters: dict[str, GuardedLimiter] = {}
        self._pauses: tuple[Callable[[], float], ...] = ()  # of all limiters
        self._takers: tuple[Take, ...] = ()
        self._exempted: dict[str, bool] = {}
        self._add_limiters()
        self._line: dict[Waiting, tuple[int, int]] = {}  # rank, then who came first
        self._kept: dict[Waiting, tuple[int, int]] = {}  # places of those that were sent away to ask again
        self._tickets = 0
        self._under_way: tuple[Waiting, float] | None = None  # who went last after a wait, and when

    @property
    def share(self) -> float:
        """The part of the limits that is to be used here."""
        return self._slowed.speed

    @share.setter
    def share(self, share: float) -> None:
        self._slowed.set_speed(share)
        self.wake_all()

    @property
    def limits(self) -> bool:
        """Whether it has a limiter that may do something."""
        return bool(self._limiters)

    @property
    def in_force(self) -> list[NamedLimiter]:
        """The rule's limiters that may do something, and have not failed."""
        made = {name for name, limiter in self._limiters.items() if not limiter.is_disabled}
        return [named for named in self.rule.limiters if named.name in made]

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits."""
        return bool(self._line)

    def configure(self, rule: Rule) -> None:
        """Take a changed rule with limiters of the same names."""
        self.rule = rule
        self._exempted.clear()
        for named in rule.limiters:
            if named.name in self._limiters:
                self._limiters[named.name].configure(named.settings)
        self._add_limiters()
        self.wake_all()

    def take(self, batches: Sequence[Batch]) -> list[Batch]:
        """Account for one answer or request. Returns what counts: topics that are not exempt.

        Where nothing does, nothing is told to the limiters.
        """
        known, counted, records, size = self._exempted, [], 0, 0
        for one in batches:
            topic, more_records, more = one
            if not (known[topic] if topic in known else self.exempts(topic)):
                counted.append(one)
                records += more_records
                size += more
        if counted and self._takers:
            most = 0.0
            for take in self._takers:
                if (seconds := take(counted, records, size)) > most:
                    most = seconds
            self.used += most
            self._mean += (most - self._mean) / _LATEST
            if self.rests:
                self.rests = False
                self._on_use()
        return counted

    def exempts(self, topic: str) -> bool:
        """Return whether records of a topic do not count."""
        known = self._exempted.get(topic)
        if known is None:
            if len(self._exempted) >= _MOST_TOPICS:
                self._exempted.clear()
            known = self._exempted[topic] = self.rule.exempts(topic)
        return known

    def pause(self) -> float:
        """Return how many seconds the next request has to wait: the longest of the limiters' pauses."""
        longest = 0.0
        for pause in self._pauses:
            if (seconds := pause()) > longest:
                longest = seconds
        return longest / self._slowed.speed

    def is_free(self) -> bool:
        """Return whether a request goes at once: no limiter asks for a pause, and nobody waits or is waited for."""
        if self._line or self._under_way is not None:
            return False
        for pause in self._pauses:  # noqa: SIM110 - a generator is a call more
            if pause() > 0:
                return False
        return True

    @property
    def owed(self) -> float:
        """The seconds of the whole limit that the next request has to wait for."""
        return self.pause() * self._slowed.speed

    def owe(self, seconds: float) -> None:
        """Make its clients wait for at least so many seconds of the whole limit, as the process before counted."""
        for limiter in self._limiters.values():
            limiter.owe(seconds)

    def expected_wait(self) -> float:
        """Return how many seconds a request that comes next will wait: for the pause, and for those in line."""
        return self.pause() + self._mean / self._slowed.speed * sum([not who.is_idle for who in self._line])

    def asks(self, who: Waiting, rank: int) -> float:
        """Return how many seconds `who` has to wait before it asks again; 0 where it may go.

        Who has to wait is in line until it may go, or leaves.
        """
        wait = self.pause()
        if not wait and (self._line or self._under_way is not None) and not who.is_idle:
            wait = self._turn(who, rank)
        if wait and who not in self._line:
            self._tickets += 1
            self._line[who] = self._kept.pop(who, (rank, self._tickets))
        return wait

    def sent_away(self, who: Waiting) -> None:
        """Note that `who` got an answer before its turn, and is to ask again. It keeps its place; none waits for it."""
        if (place := self._line.pop(who, None)) is not None:
            self._kept[who] = place

    def goes(self, who: Waiting) -> None:
        """Note that the request of `who` goes now. The next one in line waits for its answer, for a moment.

        Nobody waits for an idle one's: it is expected to bring nothing. What it brings is paid afterwards.
        """
        places = self._line.pop(who, None), self._kept.pop(who, None)
        if any(places) and not who.is_idle:
            self._under_way = who, self._clock()

    def leaves(self, who: Waiting) -> None:
        """Note that `who` waits no more, and has nothing under way: its answers have come, or it has ended."""
        self._line.pop(who, None)
        self._kept.pop(who, None)
        self.answered(who)

    def answered(self, who: Waiting) -> None:
        """Note that `who` has nothing under way any more. Where a later request of it waits, it stays in line."""
        if self._under_way is not None and self._under_way[0] is who:
            self._under_way = None
            if self._line and not self.pause():
                self._first().wake()

    def wake_all(self) -> None:
        """Have all ask again, as something changed."""
        for who in list(self._line):
            who.wake()

    def close(self) -> None:
        """End the limiters, and let go who waits."""
        for limiter in self._limiters.values():
            limiter.close()
        self._pauses = self._takers = ()
        self.wake_all()

    def _add_limiters(self) -> None:
        """Start the limiters that were not started, but for built-in ones without a limit: these cost nothing."""
        for one in self.rule.limiters:
            if one.name not in self._limiters and not one.is_idle:
                self._limiters[one.name] = GuardedLimiter(
                    one.name, one.make, one.settings, self._slowed, self._on_fault, is_trusted=one.is_built_in
                )
        self._pauses = tuple([limiter.ask for limiter in self._limiters.values()])
        self._takers = tuple([limiter.take for limiter in self._limiters.values()])

    def _turn(self, who: Waiting, rank: int) -> float:
        """Return how long `who` has to wait for its turn, where others wait too."""
        if self._under_way is not None:
            left = self._under_way[1] + TURN_SECONDS - self._clock()
            if left > 0 and self._under_way[0] is not who:
                return left
        mine = self._line.get(who) or self._kept.get(who) or (rank, math.inf)
        before = [place for other, place in self._line.items() if not other.is_idle]
        return TURN_SECONDS if min(before, default=mine) < mine else 0.0

    def _first(self) -> Waiting:
        return min(self._line, key=lambda who: (who.is_idle, self._line[who]))

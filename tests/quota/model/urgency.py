# SPDX-License-Identifier: Apache-2.0
"""Partitions below their min ISR come first: what passes on their links is theirs, but for what no one starves on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import PARTITION_MAX_BYTES
from tests.quota.model.promise import Meter
from tests.quota.model.usage import LOOK_SECONDS

if TYPE_CHECKING:
    from tests.quota.model.run import Run

LEAST_URGENT = 0.6
_SETTLED_SECONDS = 3.0
_LEAST_SECONDS = 5.0
_LARGEST_SHARE_SECONDS = 0.15  # of quota
_PLACE = tuple[int, int, int]


class Urgency:
    """Looked at twice a second, on the leaders' side."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._before: dict[_PLACE, tuple[Meter, int, int]] = {}
        self._passed: dict[tuple[_PLACE, Meter], list[tuple[int, int]]] = {}

    def look(self, happened_at: float) -> None:
        """A half second is over."""
        run, scenario = self.run, self.run.scenario
        if scenario.hops != "leader" or run.sides[0].order != "urgent-first" or not scenario.under_min_isr:
            return
        if scenario.has_troubles or scenario.rogues or run.world.now - happened_at < _SETTLED_SECONDS:
            self._before = {}
            return
        under = {run.key(*one) for one in run.clusters[0].under_min_isr}
        now: dict[_PLACE, tuple[Meter, int, int]] = {}
        for place in run.fetchers:
            if (seen := self._seen(place, under)) is not None:
                now[place] = seen
                before = self._before.get(place)
                if before is not None and before[0] is seen[0] and seen[1] >= before[1] and seen[2] >= before[2]:
                    passed = seen[1] - before[1], seen[2] - before[2]
                    self._passed.setdefault((place, seen[0]), []).append(passed)
        self._before = now

    def _seen(self, place: _PLACE, under: set[Key]) -> tuple[Meter, int, int] | None:
        """The one quota of a link where urgent partitions wait, with what those have received, and what all have."""
        run, fetcher = self.run, self.run.fetchers[place]
        terms = run.watch.terms(run.ingress[place[0]], place)
        if fetcher.chain is None or not fetcher.chain.is_open or len(terms) != 1:
            return None
        meter, keys = terms[0]
        rate = meter.rate
        if not meter.is_strict or not rate or 2 * rate * _LARGEST_SHARE_SECONDS > PARTITION_MAX_BYTES:
            return None
        rest = urgent = every = 0
        for key in keys & fetcher.replicas.keys():
            replica = fetcher.replicas[key]
            every += replica.caught_up_on
            if key in under:
                log = replica.log
                urgent += replica.caught_up_on
                if key in fetcher.order and not log.error_code and replica.offset < log.end:
                    rest += log.ends[-1] - log.ends[replica.offset]
        return (meter, urgent, every) if rest > rate else None

    def finish(self) -> None:
        """The run is over."""
        for (place, meter), passed in self._passed.items():
            urgent, every = sum(one for one, _ in passed), sum(one for _, one in passed)
            seconds = len(passed) * LOOK_SECONDS
            if seconds >= _LEAST_SECONDS and every > 10 * meter.allowed.batch and urgent < LEAST_URGENT * every:
                text = f"{meter.name}, link {place}: {urgent:,} of {every:,} bytes in {seconds:.0f} s"
                self.run.world.violate("below min ISR first", text)

# SPDX-License-Identifier: Apache-2.0
"""A quota that keeps its bound by sending nothing is no success: who waits for one finds it used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import PARTITION_MAX_BYTES, RESPONSE_MAX_BYTES
from tests.quota.model.follower import Fetcher
from tests.quota.model.promise import ROUND_TRIP, WINDOW_SECONDS, Meter

if TYPE_CHECKING:
    from tests.quota.model.run import Run

LEAST_USED = 0.9
LOOK_SECONDS = 0.5
MOST_IN_AN_ANSWER_SECONDS = 0.9  # of quota
MOST_BESIDE_OTHERS = 0.125  # of a full answer's other bytes
_LEAST_USED_BESIDE_OTHERS = 0.75  # of what can be used
_SETTLED_SECONDS = 3.0  # after something happened
_SETTLED_ANSWERS = 3.0
_BLOCK_LOOKS = 10  # over which what passed is compared, so that single batches are no matter
_LEAST_BLOCKS = 2
_FAR_SECONDS = 0.02  # of one stretch: one fetch after the other carries less to who is farther away
_MOST_BATCH_SECONDS = 0.1  # of quota

Group = tuple[Meter, ...]
"""The quotas that cover a partition on its way, on both sides."""


class Usage:
    """Looked at twice a second. Of the quotas that a partition waits for, the one most used counts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.happened_at = 0.0
        self._began_at = run.world.now
        self._before: set[tuple[Group, tuple[int, int, int]]] = set()
        self._used: dict[Meter, float] = {}
        self._looks: dict[Group, list[dict[Meter, float]]] = {}
        self._parts: dict[Group, list[float]] = {}
        self._beside_others: dict[Group, float] = {}  # what can be used beside what fills all answers

    def look(self) -> None:
        """A half second is over."""
        now, run = self.run.world.now, self.run
        waiting = set[tuple[Group, tuple[int, int, int]]]()
        is_calm = now - self.happened_at > _SETTLED_SECONDS and not run.scenario.rogues
        is_calm &= run.scenario.latency <= _FAR_SECONDS
        for place, fetcher in run.fetchers.items() if is_calm else ():
            waiting.update((group, place) for group in self._waits(place, fetcher))
        meters = {meter for sidecar in run.sidecars for meter in sidecar.meter.meters.values()}
        allowed = {meter: self._allowed(meter) for meter in meters}
        parts = {
            meter: (meter.used - self._used.get(meter, 0.0)) / most / LOOK_SECONDS
            for meter, most in allowed.items()
            if most
        }
        for group in {group for group, _ in waiting & self._before}:
            looks = self._looks.setdefault(group, [])
            looks.append(parts)
            if len(looks) == _BLOCK_LOOKS:
                mean = self._most_used(group, looks)
                self._parts.setdefault(group, []).append(min(1.0, mean))
                looks.clear()
        self._before = waiting
        self._used = {meter: meter.used for meter in meters}

    def _allowed(self, meter: Meter) -> float:
        """The rate of the last half second. Where it has fallen, what passed before takes the window for a part of it.

        From 2 to 1 MB/s nothing passes for 0.5 s: 1 MB of the last second still counts. No second is to have more.
        """
        now = self.run.world.now - LOOK_SECONDS / 2
        rate, before = meter.rate_at(now) or 0, meter.rate_at(now - WINDOW_SECONDS)
        return rate * min(1.0, rate / before) if before else rate

    def _most_used(self, group: Group, looks: list[dict[Meter, float]]) -> float:
        """The used part of the quota that is most used. Where rates change each second, that is another each second."""
        step = round(1.0 / LOOK_SECONDS) if self.run.scenario.drift else len(looks)
        parts = (looks[at : at + step] for at in range(0, len(looks), step))
        return sum(max(sum(one.get(meter, 0.0) for one in part) for meter in group) for part in parts) / len(looks)

    def _waits(self, place: tuple[int, int, int], fetcher: Fetcher) -> Iterable[Group]:
        """The quotas that partitions of a link wait for, where nothing else holds it up but full answers."""
        run, chain = self.run, fetcher.chain
        if chain is None or not chain.is_open or chain.pace() < run.scenario.bandwidth:
            return
        rest: dict[Group, int] = {}
        partitions: dict[Group, int] = {}
        terms = [term for sidecar in run.path(place[0], place[1]) for term in run.watch.terms(sidecar, place)]
        others = 0
        for key in fetcher.order:
            if size := self._behind(fetcher, key):
                group = tuple(term.meter for term in terms if key in term.keys)
                rest[group] = rest.get(group, 0) + size
                partitions[group] = partitions.get(group, 0) + 1
                others += 0 if group else min(size, PARTITION_MAX_BYTES)
        rest.pop((), None)
        limit = min([RESPONSE_MAX_BYTES, *[side.response_max_bytes or RESPONSE_MAX_BYTES for side in run.sides]])
        seconds = self._seconds(limit)
        is_full = others > limit + PARTITION_MAX_BYTES and run.scenario.version >= 3 and run.scenario.hops == "leader"
        if is_full and run.world.now - self._began_at < _SETTLED_SECONDS + _SETTLED_ANSWERS * seconds:
            return
        if not is_full and (limit < RESPONSE_MAX_BYTES or chain.excused(run.world.now - LOOK_SECONDS) > 0.2):
            return
        for group, size in rest.items():
            if all(
                one.is_strict
                and one.rate
                and one.allowed.batch <= _MOST_BATCH_SECONDS * one.rate * (2 if is_full else 1)
                and size >= 2 * one.rate
                for one in group
            ):
                if is_full:
                    least = min(self.can_be_used(one.rate, limit, partitions[group]) for one in group if one.rate)
                    self._beside_others[group] = min(least, self._beside_others.get(group, 1.0))
                yield group

    def _seconds(self, size: int) -> float:
        scenario = self.run.scenario
        return size / scenario.bandwidth + ROUND_TRIP * scenario.latency + max(scenario.late, default=0.0)

    def can_be_used(self, rate: int, limit: int, partitions: float = math.inf) -> float:
        """The part of a quota that answers can have which are full of what nobody throttles."""
        seconds = self._seconds(limit)
        most = min(MOST_IN_AN_ANSWER_SECONDS * rate, MOST_BESIDE_OTHERS * limit, partitions * PARTITION_MAX_BYTES)
        return min(1 / (1 + seconds), most / rate / seconds)

    @staticmethod
    def _behind(fetcher: Fetcher, key: Key) -> int:
        replica = fetcher.replicas[key]
        log = replica.log
        return 0 if log.error_code or replica.offset >= log.end else log.ends[-1] - log.ends[replica.offset]

    def finish(self) -> None:
        """The run is over."""
        scenario = self.run.scenario
        for group, parts in self._parts.items():
            used = sum(parts) / len(parts)
            # what is asked for takes a part of the window until it has come, so of late answers less can be had
            least = LEAST_USED / (1 + ROUND_TRIP * scenario.latency + max(scenario.late, default=0.0))
            if group in self._beside_others:
                least = min(least, _LEAST_USED_BESIDE_OTHERS * self._beside_others[group])
            if len(parts) >= _LEAST_BLOCKS and used < least:
                names = " and ".join(meter.name for meter in group)
                text = f"{names}: {used:.2f} of the more used in {len(parts) * _BLOCK_LOOKS * LOOK_SECONDS:.0f} s"
                self.run.world.violate("usage", text)

# SPDX-License-Identifier: Apache-2.0
"""What a drawn run of one kind has to show: how much of a quota is used, what others wait, and who has what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.quota.model.draw_many import Drawn, Kind
from tests.quota.model.hops import Sidecar
from tests.quota.model.promise import WINDOW_SECONDS, Meter
from tests.quota.model.run import LISTED, Outcome, Run
from tests.quota.model.world import START

LOOK_SECONDS = 0.1
LEAST_USED = 0.97
LEAST_OF_CLOSERS = 0.1  # of the quota
LEAST_AFTER_A_FALL = 0.9  # of the new rate
MOST_AT_CHANGING_RATES = 1.1
LEAST_AT_CHANGING_RATES = 0.85  # where a rate falls, what passed before fills the window
LEAST_BESIDE_SLOW_BROKER = 0.95
LEAST_OF_SLOW_BROKER = 0.8
LEAST_AFTER_A_PAUSE = 0.9
LEAST_BESIDE_MOVE = 0.8  # bytes of others, of those moved, where both would fill answers
LEAST_BY_TOPIC = 0.9
MOST_WAIT_SECONDS = 0.07
_LAST_SECONDS = 1.0  # that may run dry
_LEAST_JUDGED_SECONDS = 1.0
_ANSWER_SECONDS = 0.06  # of quota: half of what comes at once, as bytes are not counted one by one


@dataclass(frozen=True)
class Look:
    """What had passed at one moment, and how much was left to the followers of each sidecar."""

    at: float
    used: dict[Meter, float]
    left: dict[Sidecar, int]
    caught_up: dict[tuple[int, int, int], int]


@dataclass
class Shown:
    """Figures by name, each with what it is to be."""

    figures: dict[str, float] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)

    def least(self, name: str, value: float, bound: float) -> None:
        """It is to be so much at least."""
        self.figures[f"least {name}"] = min(value, self.figures.get(f"least {name}", value))
        if value < bound:
            self.misses.append(f"{name}: {value:.3f}, not {bound:.3f} at least")

    def most(self, name: str, value: float, bound: float) -> None:
        """It is to be so much at most."""
        self.figures[name] = max(value, self.figures.get(name, value))
        if value > bound:
            self.misses.append(f"{name}: {value:.3f}, not {bound:.3f} at most")


class Looks:
    """Looks at a run ten times a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.all: list[Look] = []
        self._paths = {place: run.path(place[0], place[1]) for place in run.fetchers}
        run.world.after(0.0, self._look)

    def _look(self) -> None:
        run = self.run
        left = dict.fromkeys(run.sidecars, 0)
        caught_up: dict[tuple[int, int, int], int] = {}
        for place, fetcher in run.fetchers.items():
            rest = total = 0
            for replica in fetcher.replicas.values():
                total += replica.caught_up_on
                if replica.synced_at == float("inf") and replica.offset < replica.log.end:
                    rest += replica.log.ends[-1] - replica.log.ends[replica.offset]
            caught_up[place] = total
            for sidecar in self._paths[place]:
                left[sidecar] += rest
        used = {meter: meter.used for sidecar in run.sidecars for meter in sidecar.meter.meters.values()}
        self.all.append(Look(run.world.now - START, used, left, caught_up))
        run.world.after(LOOK_SECONDS, self._look)

    def between(self, since: float, until: float = float("inf")) -> list[Look]:
        """Those within these seconds."""
        return [one for one in self.all if since - 1e-6 <= one.at <= until + 1e-6]


def judge_many(drawn: Drawn, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play a run, and see whether it shows what its kind is to show. What is promised of any run is held, too."""
    run = Run(drawn.scenario)
    run.world.trace = trace
    looks = Looks(run)
    outcome = run.play()
    shown = Shown()
    _JUDGES[drawn.kind](drawn, run, looks, shown)
    for text in shown.misses:
        run.world.violate(drawn.kind, text)
    outcome.figures |= shown.figures
    return outcome


def _used(looks: Looks, meter: Meter, since: float, until: float) -> float:
    """The part of the rates in force that was used in this time; NaN where that is too short."""
    parts = looks.between(since, until)
    if len(parts) < _LEAST_JUDGED_SECONDS / LOOK_SECONDS:
        return float("nan")
    first, last = parts[0], parts[-1]
    allowed = sum([_allowed(meter, START + one.at) for one in parts[:-1]])
    at_once = _ANSWER_SECONDS * (meter.rate_at(START + last.at) or 0)
    return (last.used[meter] - first.used[meter] + at_once) / allowed if allowed else float("nan")


def _allowed(meter: Meter, at: float) -> float:
    """Bytes until the next look. Where the rate has fallen, what passed before takes the window for a part of it."""
    rate, before = meter.rate_at(at) or 0, meter.rate_at(at - WINDOW_SECONDS)
    return rate * LOOK_SECONDS * (min(1.0, rate / before) if before else 1.0)


def _busy_until(looks: Looks, sidecar: Sidecar) -> float:
    """Until when more is left than a second of the rate."""
    rate = sidecar.meter.meters[LISTED].rate or 0
    return max([one.at for one in looks.all if one.left[sidecar] >= rate * _LAST_SECONDS], default=0.0)


def _small(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    """Where two sides have quotas, the more used one counts."""
    used = {}
    for sidecar in run.sidecars:
        meter = sidecar.meter.meters[LISTED]
        used[sidecar] = _used(looks, meter, drawn.since, _busy_until(looks, sidecar))
    for place in run.fetchers:
        parts = [used[sidecar] for sidecar in run.path(place[0], place[1])]
        known = [part for part in parts if part == part]
        if known:
            shown.least("usage", max(known), LEAST_USED)
    if not run.world.violations and drawn.scenario.seconds <= run.world.now - START + LOOK_SECONDS:
        left = sum([looks.all[-1].left[sidecar] for sidecar in run.sidecars])
        shown.most("bytes left at the end", left, 0.0)


def _mean_of_links(looks: Looks, since: float, until: float, places: list[tuple[int, int, int]]) -> float:
    """Bytes/s that these links caught up on."""
    parts = looks.between(since, until)
    if len(parts) < _LEAST_JUDGED_SECONDS / LOOK_SECONDS:
        return float("nan")
    first, last = parts[0], parts[-1]
    return sum([last.caught_up[one] - first.caught_up[one] for one in places]) / (last.at - first.at)


def _falls(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    rate = run.sidecars[-1].meter.meters[LISTED].rate or 0
    mean = _mean_of_links(looks, drawn.since, drawn.scenario.seconds, [*run.fetchers])
    shown.least("usage after the fall", mean / rate, LEAST_AFTER_A_FALL)


def _changes(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    sidecar = run.sidecars[-1]
    meter, batch = sidecar.meter.meters[LISTED], run.largest_batch
    last = looks.all[-1]
    allowed = sum([(meter.rate_at(START + one.at) or 0) * LOOK_SECONDS for one in looks.all[:-1]])
    shown.most("bytes at changing rates", (last.used[meter] - batch) / allowed, MOST_AT_CHANGING_RATES)
    shown.least("bytes at changing rates", (last.used[meter] + batch) / allowed, LEAST_AT_CHANGING_RATES)


def _closes(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    rate = run.sides[0].rate or 0
    closers = [place for place in run.fetchers if place[1] in drawn.scenario.closers]
    until = drawn.scenario.seconds
    shown.least("part of who closes", _mean_of_links(looks, drawn.since, until, closers) / rate, LEAST_OF_CLOSERS)
    everybody = _mean_of_links(looks, drawn.since, until, [*run.fetchers]) / rate
    shown.least("usage beside who closes", everybody, 0.9)


def _slow_broker(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    slowest = max(drawn.scenario.reads)
    who = "all" if min(drawn.scenario.reads) == slowest else "some"
    name = f"usage, reads of {slowest:g} s for {who}, {run.scenario.hops}'s side"
    bound = LEAST_OF_SLOW_BROKER if who == "all" else LEAST_BESIDE_SLOW_BROKER
    if run.scenario.hops == "follower":  # one fetch after the other: what is asked for gathers while it is read
        bound = 0.7 / (1 + slowest)
    for sidecar in run.sidecars:
        shown.least(name, _used(looks, sidecar.meter.meters[LISTED], drawn.since, drawn.scenario.seconds), bound)


def _live(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    waits = [seconds for fetcher in run.fetchers.values() for at, seconds in fetcher.waits if at >= START + drawn.since]
    shown.most("longest wait of a live record, s", max(waits, default=float("inf")), MOST_WAIT_SECONDS)
    for sidecar in run.sidecars:
        shown.least(
            "usage beside live records",
            _used(looks, sidecar.meter.meters[LISTED], drawn.since, drawn.scenario.seconds),
            0.9,
        )


def _full_answers(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    (fetcher,) = run.fetchers.values()
    moved = {run.key(one.topic, one.number) for one in drawn.scenario.partitions if one.topic == 0}
    bytes_moved = sum(one.caught_up_on for one in fetcher.replicas.values() if one.key in moved)
    others = sum(one.caught_up_on for one in fetcher.replicas.values() if one.key not in moved)
    shown.least("bytes of others, of those moved", others / max(1, bytes_moved), LEAST_BESIDE_MOVE)
    shown.least("part of a move in full answers", bytes_moved / max(1, bytes_moved + others), 0.1)


def _pause(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    for place in run.fetchers:
        parts = [
            _used(looks, sidecar.meter.meters[LISTED], drawn.since, drawn.since + 1.1)
            for sidecar in run.path(place[0], place[1])
        ]
        shown.least("usage of the first second after a pause", max(parts), LEAST_AFTER_A_PAUSE)


def _rates_by_topic(drawn: Drawn, run: Run, looks: Looks, shown: Shown) -> None:
    for sidecar in run.sidecars:
        for name, meter in sidecar.meter.meters.items():
            if name != LISTED:
                shown.least("usage by topic", _used(looks, meter, drawn.since, drawn.scenario.seconds), LEAST_BY_TOPIC)


_JUDGES: dict[Kind, Callable[[Drawn, Run, Looks, Shown], None]] = {
    "small": _small,
    "falls": _falls,
    "changes": _changes,
    "closes": _closes,
    "slow broker": _slow_broker,
    "live": _live,
    "full answers": _full_answers,
    "pause": _pause,
    "rates by topic": _rates_by_topic,
}

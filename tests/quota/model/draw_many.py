# SPDX-License-Identifier: Apache-2.0
"""What a move needs besides its bounds, drawn at random: each run is of one kind, and judged by that kind's demands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tests.quota.model.scenario import MB, Chooser, Event, Hops, Partition, Scenario, Side
from weir.protocol.fetch_versions import DECODED_VERSIONS
from weir.quota.scopes import Matching
from weir.quota.settings import Order, QuotaSettings

Kind = Literal[
    "small",
    "falls",
    "changes",
    "closes",
    "slow broker",
    "live",
    "full answers",
    "pause",
    "rates by topic",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_NO_SIDE = Side(None, ())
_VERSIONS = (3, 12, 7, 17, *sorted(DECODED_VERSIONS), 3, 12, 13)
_WITH_WHOLE_BATCHES = (3, 12, 7, 17, 4, 6, 9, 13, 15)
_ORDERS: tuple[Order, ...] = ("urgent-first", "round-robin")
_HOPS: tuple[Hops, ...] = ("leader", "both", "follower")
_ENDLESS = 1_000_000  # exchanges


@dataclass(frozen=True)
class Drawn:
    """A scenario, and what it is to show. `since` is when that begins, in seconds."""

    kind: Kind
    scenario: Scenario
    since: float = 0.5


def draw_many(choose: Chooser, kind: Kind | None = None) -> Drawn:
    """A run of any kind, or of this one."""
    drawn: Kind = choose.pick(KINDS) if kind is None else kind
    return _DRAWS[drawn](choose)


def _small(choose: Chooser) -> Drawn:
    """Many small partitions behind, as after a broker's return, beside some in sync."""
    rate = choose.pick((10 * MB, 3 * MB, 5 * MB, MB, 20 * MB, 50 * MB))
    total = int(rate * choose.pick((6.0, 5.0, 8.0)))
    rough = choose.pick((300, 1_000, 100, 30, 10, 2_000, 3_000, 1, 10_000 if choose.chance(20) else 2_000))
    count = max(1, min(rough, total // 500))
    each = total // count
    most = min(each, choose.pick((100_000, 30_000, 10_000, 1_000, 100_000)))
    is_one = each <= 200_000 and choose.chance(50)  # one batch each, of unlike sizes
    hops = choose.pick(_HOPS)
    followers, fetchers = choose.pick(((1, 1), (1, 1), (2, 1), (1, 3)))
    topics = choose.pick((1, count, 20))
    partitions = []
    pattern: tuple[int, ...]
    for number in range(count):
        place = 0, number % followers, number // followers % fetchers
        if is_one:
            pattern, batches = (choose.integer(500, max(500, 2 * each - 500)),), 1
        else:
            pattern = (most,) if choose.chance(50) else (most, max(500, most // choose.integer(2, 20)))
            batches = max(1, each * len(pattern) // sum(pattern))
        topic = number % topics
        topic += 4 if topic >= 1 else 0  # the first topic, and those beyond the named ones
        partitions.append(Partition(topic, number, *place, True, pattern, batches))
    live = choose.pick((0.0, 0.5, 0.1, 0.0))
    for number in range(choose.pick((0, 2, 10)) if live else 0):
        place = 0, number % followers, number // followers % fetchers
        partitions.append(Partition(1, count + number, *place, False, live_every=live))
    listed = tuple(sorted({0, 1, *[one.topic for one in partitions]}))
    side = Side(rate, listed, order=choose.pick(_ORDERS))
    return Drawn(
        "small",
        Scenario(
            choose.pick(_VERSIONS),
            hops,
            side if hops != "follower" else _NO_SIDE,
            replace(side, rate=choose.pick((rate, rate, 2 * rate))) if hops == "both" else side,
            tuple(partitions),
            bandwidth=choose.pick((100 * MB, 500 * MB)),
            latency=choose.pick((0.0005, 0.005)),
            seconds=3 * total / rate,
            most_exchanges=_ENDLESS,
        ),
    )


def _falls(choose: Chooser) -> Drawn:
    """Records in sync come faster than the quota, until it falls to a fiftieth."""
    rate = choose.pick((20 * MB, 10 * MB, 5 * MB))
    low = rate // choose.pick((50, 20))
    over = choose.pick((3, 2, 5))
    behind = choose.integer(1, 4)
    partitions = [Partition(0, number, 0, 0, 0, True, (10_000,), 20 * rate // 10_000) for number in range(behind)]
    size = rate * over // 200  # a burst has ten of these, and there are twenty in a second
    beside = choose.apart("link").pick((0, 1))  # on the same link, or on another one
    partitions.append(Partition(0, behind, 0, 0, beside, False, live_size=size))
    bursts = [Event(0.5 + 0.05 * number, "burst", behind, 1) for number in range(60)]
    hops = choose.pick(_HOPS)
    sides = range(1) if hops == "leader" else range(1, 2) if hops == "follower" else range(2)
    events = [*bursts, *[Event(3.6, "quota", 0, low, side) for side in sides]]
    side = Side(rate, (0,), order=choose.pick(_ORDERS))
    scenario = Scenario(
        choose.pick(_WITH_WHOLE_BATCHES),
        hops,
        side,
        side,
        tuple(partitions),
        tuple(events),
        bandwidth=500 * MB,
        seconds=14.0,
        most_exchanges=_ENDLESS,
    )
    return Drawn(
        "falls", scenario, since=3.6 + 2.0
    )  # the last second at the old rate has left the window, and one more


def _changes(choose: Chooser) -> Drawn:
    """A rate that changes each second, with batches larger than a second of it, or small ones."""
    rate = choose.pick((MB, 2 * MB, 5 * MB))
    batch = choose.pick((4 * MB, 10_000, 900_000, 2 * MB))
    seconds = 40.0
    rates = choose.pick(((rate, rate), (rate, 2 * rate), (rate, rate * 101 // 100), (rate, 4 * rate, rate // 2)))
    hops: Hops = choose.pick(("leader", "leader", "both"))
    sides = range(1 if hops == "leader" else 2)
    events = [
        Event(float(at), "quota", 0, rates[at % len(rates)], side) for at in range(1, int(seconds)) for side in sides
    ]
    count = max(8, int(4 * rate * seconds) // batch)
    partitions = tuple(Partition(0, number, 0, 0, 0, True, (batch,), count) for number in range(choose.integer(1, 4)))
    side = Side(rates[0], (0,), order=choose.pick(_ORDERS))
    return Drawn(
        "changes",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            hops,
            side,
            side,
            partitions,
            tuple(events),
            latency=choose.pick((0.0005, 0.005)),
            seconds=seconds,
            most_exchanges=_ENDLESS,
        ),
        since=0.0,
    )


def _closes(choose: Chooser) -> Drawn:
    """Followers that close their connection after each answer, beside a usual one."""
    rate = choose.pick((MB, 5 * MB, 10 * MB))
    closers = choose.pick((1, 1, 2, 3))
    each = choose.pick((1, 3, 10))
    partitions = tuple(
        Partition(0, follower * each + number, 0, follower, 0, True, (10_000,), 20 * rate // 10_000)
        for follower in range(closers + 1)
        for number in range(each)
    )
    side = Side(rate, (0,), order=choose.pick(_ORDERS))
    return Drawn(
        "closes",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            choose.pick(("leader", "leader", "both")),
            side,
            replace(side, rate=2 * rate),
            partitions,
            closers=tuple(range(1, closers + 1)),
            latency=choose.pick((0.0005, 0.005)),
            seconds=12.0,
            most_exchanges=_ENDLESS,
        ),
        since=2.0,
    )


def _slow_broker(choose: Chooser) -> Drawn:
    """A broker that reads for 0.25 to 1 s for some followers, or for all."""
    rate = choose.pick((5 * MB, MB, 20 * MB))
    batch = choose.pick((10_000, 10_000, 100_000 if rate > MB else 30_000))
    slow = choose.pick((0.3, 0.5, 0.25, 0.85, 1.0))
    reads = choose.pick(((slow,), (slow, 0.002), (slow, 0.002, 0.002), (slow, slow, 0.002)))
    fetchers = choose.pick((1, 1, 2))
    partitions = tuple(
        Partition(
            0, number, 0, number % len(reads), number // len(reads) % fetchers, True, (batch,), 20 * rate // batch
        )
        for number in range(5 * len(reads) * fetchers)
    )
    side = Side(rate, (0,), order=choose.pick(_ORDERS))
    return Drawn(
        "slow broker",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            choose.pick(("leader", "leader", "follower")),
            side,
            replace(side, rate=max(MB // 2, rate // len(reads))),
            partitions,
            bandwidth=200 * MB,
            reads=reads,
            seconds=16.0,
            most_exchanges=_ENDLESS,
        ),
        since=3.0,
    )


def _live(choose: Chooser) -> Drawn:
    """Records of partitions in sync, which producers with acks=all wait for, beside a move on the same link."""
    rate = choose.pick((5 * MB, 10 * MB, 2 * MB))
    bandwidth = int(rate * choose.pick((4, 2, 10)))
    moved, live = choose.integer(1, 8), choose.integer(1, 3)
    partitions = [Partition(0, number, 0, 0, 0, True, (10_000,), 30 * rate // 10_000) for number in range(moved)]
    every = choose.pick((0.005, 0.01, 0.02))
    partitions += [
        Partition(2, moved + number, 0, 0, 0, False, live_every=every * (1 + 0.13 * number)) for number in range(live)
    ]
    side = Side(rate, (0,), order=choose.pick(_ORDERS))
    return Drawn(
        "live",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            choose.pick(("leader", "both", "follower")),
            side,
            side,
            tuple(partitions),
            bandwidth=bandwidth,
            latency=choose.pick((0.0005, 0.002)),
            seconds=16.0,
            most_exchanges=_ENDLESS,
        ),
        since=10.0,
    )


def _full_answers(choose: Chooser) -> Drawn:
    """Small answers that grants could fill, beside what nobody throttles and what is endless."""
    rate = choose.pick((5 * MB, 10 * MB))
    limit = choose.pick((100_000, 50_000, 200_000))
    beside = choose.integer(8, 30)
    partitions = [Partition(0, number, 0, 0, 0, True, (10_000,), 10 * rate // 10_000) for number in range(5)]
    partitions += [Partition(3, number, 0, 0, 0, True, (10_000,), 20_000) for number in range(beside)]
    side = Side(rate, (0,), order=choose.pick(_ORDERS), response_max_bytes=limit)
    return Drawn(
        "full answers",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            "leader",
            side,
            _NO_SIDE,
            tuple(partitions),
            latency=choose.pick((0.0125, 0.005)),
            seconds=10.0,
            most_exchanges=_ENDLESS,
        ),
        since=1.0,
    )


def _pause(choose: Chooser) -> Drawn:
    """All followers are gone for some seconds, and come back at once."""
    rate = choose.pick((MB, 5 * MB, 20 * MB))
    batch = choose.pick((10_000, 1_000, 50_000))
    gone = choose.integer(2, 6)
    followers = choose.pick((1, 1, 3))
    partitions = tuple(
        Partition(0, number, 0, number % followers, 0, True, (batch,), 20 * rate // batch)
        for number in range(5 * followers)
    )
    events = tuple(Event(4.0, "away", number, gone) for number in range(followers))
    hops = choose.pick(_HOPS)
    side = Side(rate, (0,), order=choose.pick(_ORDERS))
    return Drawn(
        "pause",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            hops,
            side,
            side,
            partitions,
            events,
            latency=choose.pick((0.0005, 0.005)),
            seconds=4.0 + gone + 3.0,
            most_exchanges=_ENDLESS,
        ),
        since=4.0 + gone,
    )


def _rates_by_topic(choose: Chooser) -> Drawn:
    """Several quotas by topic, of which each has another rate each second."""
    quotas, each = choose.pick((3, 5, 10)), choose.pick((1, 5, 20))
    rate = choose.pick((MB, 2 * MB))
    seconds = 12.0
    count = int(3 * rate * seconds) // each // 10_000
    followers = choose.pick((1, 2))
    partitions = tuple(
        Partition(4 + number, number, 0, number % followers, 0, True, (10_000,), count)
        for number in range(quotas * each)
    )
    names = [f"quota {number}" for number in range(quotas)]
    of_topics = tuple(
        QuotaSettings(name, rate, Matching(topics=tuple(f"many-{4 + number * each + one:05}" for one in range(each))))
        for number, name in enumerate(names)
    )
    changes = (100, 150, 70, 200)
    hops: Hops = choose.pick(("leader", "follower"))
    events = tuple(
        Event(float(at), "scoped quota", number, rate * changes[(at + number) % 4] // 100, int(hops == "follower"))
        for at in range(1, int(seconds))
        for number in range(quotas)
    )
    side = Side(None, (), order=choose.pick(_ORDERS), quotas=of_topics)
    return Drawn(
        "rates by topic",
        Scenario(
            choose.pick(_WITH_WHOLE_BATCHES),
            hops,
            side if hops == "leader" else _NO_SIDE,
            side if hops == "follower" else _NO_SIDE,
            partitions,
            events,
            bandwidth=500 * MB,
            seconds=seconds,
            most_exchanges=_ENDLESS,
        ),
        since=2.0,
    )


_DRAWS: dict[Kind, Callable[[Chooser], Drawn]] = {
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

# SPDX-License-Identifier: Apache-2.0
"""Scenarios drawn at random."""

from __future__ import annotations

from dataclasses import replace

from tests.quota.model.draw_full import with_full_answers
from tests.quota.model.draw_quotas import with_quotas
from tests.quota.model.draw_world import with_world
from tests.quota.model.scenario import MB, ROGUES, Chooser, Event, Happening, Hops, Partition, Scenario, Side
from weir.protocol.fetch_versions import DECODED_VERSIONS
from weir.quota.settings import Order, Policy

_HOPS: tuple[Hops, ...] = ("leader", "both", "follower", "both")
_ORDERS: tuple[Order, ...] = ("round-robin", "urgent-first")


def draw(choose: Chooser, depth: int = 1) -> Scenario:
    """Any scenario. `depth` is how long runs are: 1 for many short ones."""
    scenario = with_quotas(choose.apart(), draw_listed(choose, depth))
    scenario = with_world(choose.apart("world"), scenario, depth)
    return with_full_answers(choose.apart("full answers"), scenario, depth)


def draw_listed(choose: Chooser, depth: int = 1) -> Scenario:
    """Any scenario without quotas beside those of the listed replicas.

    A part of them is of a kind in which something was broken once.
    """
    scenario = _any(choose, depth)
    if not choose.chance(85):
        once_broken = choose.pick((_lists_differ, _nothing_may_pass, _last_is_large, _backlog_beside))
        scenario = once_broken(choose, scenario)
    return _with_rarer_things(choose, scenario)


def _with_rarer_things(choose: Chooser, scenario: Scenario) -> Scenario:
    """Drawn last, so that all else of a seed is as it was before these were thought of."""
    leader, follower, rogues = scenario.leader, scenario.follower, scenario.rogues
    if choose.chance(10):
        leader = replace(leader, one_in=choose.pick((2, 3)))
    if choose.chance(10):
        follower = replace(follower, one_in=choose.pick((2, 3)))
    if choose.chance(8):
        limit = choose.pick((MB, 100_000, 20_000, 5 * MB))
        if choose.chance(50):
            leader = replace(leader, response_max_bytes=limit)
        else:
            follower = replace(follower, response_max_bytes=limit)
    if choose.chance(5):
        rogues = (*rogues, "several in flight")
    if scenario.hops == "follower":
        rogues = ()  # who fetches through that side is the sidecar's own broker
    return replace(scenario, leader=leader, follower=follower, rogues=rogues)


def _any(choose: Chooser, depth: int) -> Scenario:
    version = choose.pick((3, 5, 7, 12, 13, 17, *sorted(DECODED_VERSIONS), 3, 4, 6, 7, 9))
    hops = choose.pick(_HOPS)
    alike = choose.pick(_PATTERNS) if choose.chance(70) else None
    batch = max(alike or (50_000,))
    rates = (2 * batch, MB, 5 * batch, 5 * MB, batch, 20 * MB, 0, None)
    order: Order = choose.pick(_ORDERS)
    policy: Policy = "kip73" if choose.chance(6) else "strict"
    lists = ((0,), (0, 1), (1,))
    leader = Side(choose.pick(rates), choose.pick(lists), policy, order)
    same_lists = choose.chance(40)
    follower = Side(choose.pick(rates), leader.topics if same_lists else choose.pick(lists), policy, order)
    leaders, followers, fetchers = _shape(choose)
    partitions = _partitions(choose, leaders, followers, fetchers, alike)
    seconds = choose.pick((8.0, 15.0, 25.0, 40.0))
    events = tuple(sorted((_event(choose, seconds) for _ in range(_few(choose))), key=lambda event: event.at))
    rogues = (choose.pick(ROGUES),) if choose.chance(15) else ()
    bandwidth, latency = choose.pick((100 * MB, 20 * MB, 500 * MB)), choose.pick((0.0005, 0.0001, 0.005))
    leader_slots = choose.pick((1_000, 1_000, 1_000, 0, 1))
    choose.pick((1_000, 1_000, 1_000, 0, 1))  # drew a setting that is gone: seeds keep their scenarios
    return Scenario(
        version,
        hops,
        leader,
        follower,
        partitions,
        events,
        rogues,
        bandwidth=bandwidth,
        latency=latency,
        leader_slots=leader_slots,
        names_known_after=choose.pick((0.0, 0.0, 0.3, 2.0, None)),
        seconds=seconds,
        most_exchanges=choose.pick((8, 15, 25, 40)) * depth,
    )


def _plain(choose: Chooser, scenario: Scenario, partitions: tuple[Partition, ...]) -> Scenario:
    """One link, and nothing that happens."""
    return replace(
        scenario,
        partitions=partitions,
        events=(),
        rogues=(),
        bandwidth=100 * MB,
        leader_slots=1_000,
        names_known_after=0.0,
        most_exchanges=max(60, scenario.most_exchanges),
    )


def _lists_differ(choose: Chooser, scenario: Scenario) -> Scenario:
    """Two hops, of which the leader's throttles more."""
    behind = choose.integer(1, 2)
    partitions = [Partition(topic, number, 0, 0, 0, True, count=4_000) for number in range(behind) for topic in (0, 1)]
    order: Order = choose.pick(("round-robin", "round-robin", "urgent-first"))
    leader = Side(choose.pick((2 * MB, MB, 5 * MB)), (0, 1), order=order)
    follower = Side(choose.pick((2 * MB, 5 * MB)), (0,), order=order)
    return replace(_plain(choose, scenario, tuple(partitions)), hops="both", leader=leader, follower=follower)


def _nothing_may_pass(choose: Chooser, scenario: Scenario) -> Scenario:
    """Two hops, of which the leader's lets little through, and a partition beside that cannot wait."""
    pattern = choose.pick(((900_000,), (100_000,)))
    partitions = (Partition(0, 0, 0, 0, 0, True, pattern, 500), Partition(2, 0, 0, 0, 0, False))
    leader = Side(choose.pick((0, 100_000, MB)), (0,), order=scenario.leader.order)
    follower = Side(choose.pick((5 * MB, MB)), (0,), order=scenario.leader.order)
    plain = _plain(choose, scenario, partitions)
    return replace(plain, hops="both", version=choose.integer(3, 7), leader=leader, follower=follower)


def _last_is_large(choose: Chooser, scenario: Scenario) -> Scenario:
    """The last batch is larger than all before, beside partitions that always have records."""
    last = choose.pick((100_000, 900_000))
    partitions = [Partition(0, 0, 0, 0, 0, True, (1_000,), 50, (last,))]
    partitions += [Partition(3, number, 0, 0, 0, True, count=100_000) for number in range(choose.integer(1, 8))]
    plain = _plain(choose, scenario, tuple(partitions))
    side = Side(MB, (0,), order=scenario.leader.order)
    return replace(plain, version=choose.integer(3, 8), hops=choose.pick(_HOPS[:2]), leader=side, follower=side)


def _backlog_beside(choose: Chooser, scenario: Scenario) -> Scenario:
    """Partitions that nobody throttles and that fill every answer."""
    partitions = [Partition(0, number, 0, 0, 0, True, count=4_000) for number in range(choose.integer(1, 3))]
    partitions += [Partition(3, number, 0, 0, 0, True, count=20_000) for number in range(choose.integer(9, 30))]
    plain = _plain(choose, scenario, tuple(partitions))
    return replace(plain, leader=Side(5 * MB, (0,), order=choose.pick(_ORDERS)), hops="leader")


def many_links(links: int, version: int, order: Order, most_exchanges: int) -> Scenario:
    """Two hops, of which the leader's throttles two topics and the follower's one; each of the links has both."""
    partitions = [
        Partition(topic, link, 0, link % 20, link // 20, True, count=200) for link in range(links) for topic in (0, 1)
    ]
    leader, follower = Side(20 * MB, (0, 1), order=order), Side(2 * MB, (0,), order=order)
    return Scenario(version, "both", leader, follower, tuple(partitions), seconds=12.0, most_exchanges=most_exchanges)


def _few(choose: Chooser) -> int:
    return choose.pick((0, 0, 1, 2, 5))


def _shape(choose: Chooser) -> tuple[int, int, int]:
    """Leaders, followers, and fetchers of each pair."""
    many = choose.pick((1, 1, 1, 1, 1, 2, 2, 2, 3, 5, 5, 10, 20, 40, 1, 1, 2, 3, 5)) if choose.chance(90) else 1
    kind = choose.pick(("followers", "leaders", "fetchers"))
    return (
        many if kind == "leaders" else 1,
        many if kind == "followers" else 1,
        many if kind == "fetchers" else 1,
    )


_PATTERNS = ((10_000,), (1_000,), (100_000,), (900_000,), (1_000, 30_000), (50_000, 51_000, 400_000))


def _partitions(
    choose: Chooser, leaders: int, followers: int, fetchers: int, alike: tuple[int, ...] | None
) -> tuple[Partition, ...]:
    """At least one behind for each link, and what stands beside it."""
    backlog = choose.pick((2 * MB, 10 * MB, 40 * MB, 500_000, 60_000))
    links = leaders * followers * fetchers
    live = choose.pick((0.0, 0.0, 1.0, 0.2, 0.05 if links <= 2 else 0.5))
    beside = choose.pick((0, 1, 1, 2)) if links <= 5 else choose.pick((0, 1))
    unthrottled = (
        choose.pick((0, 0, 0, 0, 1, 1, 3, 12)) if links == 1 else choose.pick((0, 0, 0, 1)) if links <= 3 else 0
    )
    made: list[Partition] = []
    numbers = [0, 0, 0, 0]

    def add(topic: int, place: tuple[int, int, int], pattern: tuple[int, ...], size: int, **more: float) -> None:
        count = min(size // (sum(pattern) // len(pattern)), 20_000)
        last = (choose.pick((100_000, 900_000)),) if size and choose.chance(40 if size < 2 * MB else 5) else ()
        made.append(
            Partition(
                topic,
                numbers[topic],
                *place,
                is_behind=size > 0,
                pattern=pattern,
                count=count,
                last=last,
                live_every=more.get("live", 0.0),
            )
        )
        numbers[topic] += 1

    for leader in range(leaders):
        for follower in range(followers):
            for fetcher in range(fetchers):
                place = leader, follower, fetcher
                for _ in range(choose.pick((1, 2, 3, 6)) if links <= 5 else 1):
                    add(choose.pick((0, 0, 1)), place, alike or choose.pick(_PATTERNS), backlog)
                for _ in range(beside):
                    add(choose.pick((0, 1, 2)), place, alike or choose.pick(_PATTERNS), 0, live=live)
                for _ in range(unthrottled):
                    add(3, place, alike or choose.pick(_PATTERNS), 200 * MB)
    return tuple(made)


def _event(choose: Chooser, seconds: float) -> Event:
    what: Happening = choose.pick(("break", "fail", "elect", "delete", "quota", "lists", "evict", "burst"))
    value: int | None = 0
    if what == "quota":
        value = choose.pick((MB, 100_000, 20 * MB, 0, None))
    elif what in ("lists", "elect", "burst"):
        value = choose.integer(0, 5)
    at = choose.integer(0, int(seconds * 800)) / 1000
    return Event(at, what, choose.integer(0, 1000), value, choose.integer(0, 1))

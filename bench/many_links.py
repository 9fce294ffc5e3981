# SPDX-License-Identifier: Apache-2.0
"""Hundreds of followers behind one leader's sidecar, in line for one quota: `python -m bench.many_links`.

The sidecar is a process of its own, as are the leader and all followers, which are made up and cost little. Each link
has 50 partitions with an endless backlog. Measured are the rate, how long a link waits for its turn, whether all get
alike, and what the sidecar takes of a core.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path

import msgspec

from bench.peers import BATCH_BYTES, Follower
from bench.processes import calling, next_line, serving, sidecar, throttled
from bench.sockets import Fetcher, worst_second
from bench.table import begin, parser, run, with_trees
from weir.proxy.event_loop import raise_descriptor_limit

QUOTA = 20_000_000
PARTITIONS = 50
FIRST_REPLICA = 1_000
WARM_UP_SECONDS = 5.0
LEAST_MEAN = 0.99
LEAST_PART, MOST_PART = 0.8, 1.2
LONGEST_WAIT_SECONDS = 5.0
MOST_OF_A_CORE = 0.5

COLUMNS = (
    "links | Fetch | mean .3 | worst second .3 | least part .2 | largest part .2 | longest wait, s .2 | "
    "all have begun after, s .1 | answers/s | of a core .2 | load of the machine .1"
)


class Followed(msgspec.Struct):
    """What all followers saw while they were watched. Rates are parts of the quota."""

    mean: float
    worst_second: float
    least_part: float
    """Of all links, what one had as part of the fair one."""
    largest_part: float
    longest_wait: float
    """The longest time (s) that a link had no data."""
    begun_seconds: float | None
    """From the first connection on until every link had its first data of a grant; None where one had none."""
    answers_per_second: float
    errors: int


def new_fetcher(port: int, number: int, version: int) -> Fetcher:
    """The connection of one of many followers."""
    keys = [(b"t", partition) for partition in range(PARTITIONS)]
    return Fetcher(port, Follower(version, keys, replica_id=FIRST_REPLICA + number))


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("many_links", "Measure hundreds of links that wait for one quota of 20 MB/s.", trees=True)
    options.add_argument("--links", type=int, nargs="+", default=[120, 500], help="how many (120 500)")
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    options.add_argument("--seconds", type=float, default=30.0, help="of each measurement (30)")
    options.add_argument("--warm-up", type=float, default=WARM_UP_SECONDS, help="seconds before it (5)")
    chosen, report = begin(options)

    def measured() -> Iterator[Sequence[object]]:
        for (version, links), tree, label in with_trees(product(chosen.versions, chosen.links), chosen.tree):
            followed, core = _measure(tree, links, version, chosen.warm_up, chosen.seconds)
            name = f"{links} links, v{version}{label}"
            report.bound(f"mean of {name}, x quota", followed.mean, least=LEAST_MEAN)
            report.bound(f"least part of {name}, x the fair one", followed.least_part, least=LEAST_PART)
            report.bound(f"largest part of {name}, x the fair one", followed.largest_part, most=MOST_PART)
            report.bound(f"longest wait of {name}, s", followed.longest_wait, most=LONGEST_WAIT_SECONDS)
            report.bound(f"CPU under {name}, of a core", core, most=MOST_OF_A_CORE)
            report.bound(f"errors answered to {name}", followed.errors, most=0)
            figures = msgspec.structs.astuple(followed)[:-1]
            yield links, f"v{version}{label}", *figures, core, os.getloadavg()[0]

    report.table(f"20 MB/s for all links, {chosen.seconds:g} s each; rates are parts of the quota", COLUMNS, measured())
    return report.status


def _measure(tree: Path, links: int, version: int, warm_up: float, seconds: float) -> tuple[Followed, float]:
    """What the followers saw, and what the sidecar took of a core meanwhile."""
    with (
        serving("sockets.serve", BATCH_BYTES) as leader,
        sidecar(leader, tables=throttled(QUOTA), tree=tree) as between,
        calling("many_links.follow", between.port, links, version, warm_up, seconds) as following,
    ):
        next_line(following)
        before = between.cpu_seconds()
        followed = msgspec.json.decode(next_line(following), type=Followed)
        return followed, (between.cpu_seconds() - before) / seconds


def follow(port: int, links: int, version: int, warm_up: float, seconds: float) -> None:
    """Follow. A line is printed when the warm-up is over, and then the figures as JSON."""
    raise_descriptor_limit()
    selector = selectors.EpollSelector()
    connected_at = time.monotonic()
    fetchers = [new_fetcher(port, number, version) for number in range(links)]
    for fetcher in fetchers:
        selector.register(fetcher.connection, selectors.EVENT_READ, fetcher)
    _run(selector, time.monotonic() + warm_up)
    for fetcher in fetchers:
        fetcher.received.clear()
        fetcher.answers = 0
    print("warm", flush=True)
    start = time.monotonic()
    _run(selector, start + seconds)
    end = time.monotonic()
    received = sorted(one for fetcher in fetchers for one in fetcher.received)
    firsts = [fetcher.first_at for fetcher in fetchers]
    begun = None if None in firsts else max(first for first in firsts if first is not None)
    sizes = [sum(size for _, size in fetcher.received) for fetcher in fetchers]
    fair = max(1.0, sum(sizes) / links)
    times = [[start, *(at for at, _ in fetcher.received), end] for fetcher in fetchers]
    figures = Followed(
        mean=sum(sizes) / (end - start) / QUOTA,
        worst_second=worst_second(received) / QUOTA,
        least_part=min(sizes) / fair,
        largest_part=max(sizes) / fair,
        longest_wait=max(later - earlier for some in times for earlier, later in pairwise(some)),
        begun_seconds=None if begun is None else begun - connected_at,
        answers_per_second=sum(fetcher.answers for fetcher in fetchers) / (end - start),
        errors=sum(fetcher.errors for fetcher in fetchers),
    )
    print(msgspec.json.encode(figures).decode(), flush=True)


def _run(selector: selectors.EpollSelector, end: float) -> None:
    while (now := time.monotonic()) < end:
        for key, _ in selector.select(end - now):
            key.data.go_on(time.monotonic())


if __name__ == "__main__":
    run(main)

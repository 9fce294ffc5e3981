# SPDX-License-Identifier: Apache-2.0
"""How long a fetch of tens of thousands of topics keeps everything else waiting: `python -m bench.large_fetches`.

The sidecar is a process of its own, so that its garbage collector works as it does in service. A made-up follower sends
whole fetches, and a made-up leader answers each with an entry for every partition. Measured is the longest turn of the
sidecar's event loop, in CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

from bench.peers import Follower, keys_of
from bench.processes import Sidecar, serving, sidecar, throttled
from bench.sockets import connect, receive_frame
from bench.table import begin, parser, run, with_trees

LONGEST_TURN_MS = 20.0
ROUNDS = 3
FETCHES = 3  # of each connection
_QUIET_SECONDS = 1.0  # after the last answer, for what is done later

COLUMNS = "topics | Fetch | throttled | p99 turn, ms of CPU .2 | longest turn .1"


def main() -> int:
    """Measure and print; 1 when a turn is too long."""
    description = "Measure the longest turn of the loop while fetches of many topics pass."
    options = parser("large_fetches", description, trees=True)
    options.add_argument("--topics", type=int, nargs="+", default=[10_000, 50_000], help="of a fetch (10000 50000)")
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    chosen, report = begin(options)

    def measured() -> Iterator[Sequence[object]]:
        cases = product(chosen.topics, chosen.versions, ("none", "all"))
        for (topics, version, which), tree, label in with_trees(cases, chosen.tree):
            with serving("sockets.serve", 0) as leader, _sidecar(leader, tree, topics * (which == "all")) as between:
                turns = [_turns(between, topics, version) for _ in range(ROUNDS)]
            p99, turn = map(max, zip(*turns, strict=True))
            name = f"{topics} topics, v{version}, {which} throttled{label}"
            report.bound(f"longest turn with {name}, ms of CPU", turn, most=LONGEST_TURN_MS)
            yield topics, f"v{version}{label}", which, p99, turn

    report.table(f"Longest of all turns in {ROUNDS} rounds of {FETCHES} fetches", COLUMNS, measured())
    return report.status


def _turns(between: Sidecar, topics: int, version: int) -> tuple[float, float]:
    """Milliseconds of CPU of turns while one follower fetches: the 99th percentile and the longest."""
    between.turns()
    follower = Follower(version, keys_of(topics, 1), replica_id=5)
    with connect(between.port) as connection:
        for _ in range(FETCHES):
            connection.sendall(follower.request(is_full=True))
            receive_frame(connection)
        time.sleep(_QUIET_SECONDS)
    time.sleep(_QUIET_SECONDS)  # what the end of the connection takes
    return between.turns()


def _sidecar(upstream: int, tree: Path, topics: int) -> AbstractContextManager[Sidecar]:
    """A watched sidecar on whose leader's side so many topics are throttled."""
    tables = throttled(1_000_000, [name for name, _ in keys_of(topics, 1)])
    return sidecar(upstream, tables=tables, tree=tree, watched=True)


if __name__ == "__main__":
    run(main)

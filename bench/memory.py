"""Whether a sidecar's memory levels out while connections come and go: `python -m bench.memory --minutes 60`.

The connections come one after the other, as fast as they are served, and are of all kinds: followers of ten brokers
at several versions, each with topics that differ from the last one's; consumers; half a frame; and garbage.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from bench.peers import Follower, keys_of
from bench.processes import Sidecar, serving, sidecar, throttled
from bench.sockets import connect, receive_frame
from bench.table import begin, parser, progress, run, with_trees

MOST_GROWTH_MB = 10.0  # from the half of the time on
ROWS = 12
TOPICS = 20_000
TOPICS_EACH = 500
THROTTLED = 2_000  # of all topics
VERSIONS = (3, 7, 12, 18)
CONSUMER = -1
REPLICAS = (*range(5, 15), CONSUMER)
SPOILT = 0.1  # of all connections: half a frame, or garbage
FETCHES = 3


def main() -> int:
    """Measure and print; 1 when memory goes on to grow."""
    options = parser("memory", "Measure a sidecar's memory while connections come and go.", trees=True)
    options.add_argument("--minutes", type=float, default=5.0, help="how long (5)")
    chosen, report = begin(options)
    tables = throttled(1_000_000, [name for name, _ in keys_of(THROTTLED, 1)])
    for minutes, tree, label in with_trees([chosen.minutes], chosen.tree):
        with serving("sockets.serve", 0) as leader, sidecar(leader, tables=tables, tree=tree) as between:
            rows = list(_measure(between, 60 * minutes))
        report.table(f"Memory while connections come and go{label}", "minutes .1 | connections | RSS, MB .1", rows)
        half, *later = [resident for _, _, resident in rows[ROWS // 2 - 1 :]]
        report.bound(f"growth in the second half of the time, MB{label}", max(later) - half, most=MOST_GROWTH_MB)
    return report.status


def _measure(between: Sidecar, seconds: float) -> Iterator[tuple[float, int, float]]:
    draws, keys, start, count = random.Random(1), keys_of(TOPICS, 1), time.monotonic(), 0
    for row in range(1, ROWS + 1):
        while (passed := time.monotonic() - start) < seconds * row / ROWS:
            _come_and_go(between.port, draws, keys)
            count += 1
        resident = between.resident_mb()
        progress(f"{passed / 60:.1f} minutes, {count} connections, {resident:.1f} MB")
        yield passed / 60, count, resident


def _come_and_go(port: int, draws: random.Random, keys: Sequence[tuple[bytes, int]]) -> None:
    """One connection, which ends without a word."""
    first = draws.randrange(len(keys) - TOPICS_EACH)
    version, replica = draws.choice(VERSIONS), draws.choice(REPLICAS)
    follower = Follower(version, keys[first : first + TOPICS_EACH], replica_id=replica)
    with connect(port) as connection:
        if draws.random() < SPOILT:
            request = follower.request()
            connection.sendall(draws.choice((request[: len(request) // 2], draws.randbytes(100))))
            return
        with suppress(ConnectionError):
            for _ in range(draws.randint(1, FETCHES)):
                connection.sendall(follower.request(is_full=True))
                receive_frame(connection)


if __name__ == "__main__":
    run(main)

# SPDX-License-Identifier: Apache-2.0
"""What a replica fetch costs in sessions: `python -m bench.sessions`.

Milliseconds of CPU for one incremental Fetch v17 at one hop, as medians over the repeats, in sessions of 200, 2,000 and
20,000 partitions of which 20 are active, half of all throttled: from the follower's frame to a request, the throttle's
plan, the frame for the leader, its response as it passes, and the settlement. Then the same of full fetches. Last, the
memory that sessions of 20,000 partitions in all take over 10 connections. The follower and the leader write real
frames; their time does not count.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Iterator, Sequence

from bench.peers import DIRECTORY_ID, Follower, keys_of
from bench.plan import FOLLOWER, LEADER, RATE, Fetches
from bench.table import begin, parser, run
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ThrottledReplicas

VERSION = 17
ACTIVE = 20
PARTITIONS_OF_A_TOPIC = 10
CONNECTIONS = 10
INCREMENTAL_LIMIT_MS = 0.3
FULL_LIMIT_MS = 2.0
MEMORY_LIMIT_MB = 120


def session_of(partitions: int) -> Fetches:
    """A follower, its leader, and a link between them with half of the partitions throttled."""
    keys = keys_of(partitions // PARTITIONS_OF_A_TOPIC, PARTITIONS_OF_A_TOPIC)
    half = ThrottledReplicas.parse(",".join(f"{one}:{LEADER}" for one in range(0, PARTITIONS_OF_A_TOPIC, 2)))
    names = {id_: b"named-" + id_ for id_, _ in keys}
    settings = ThrottleSettings(rate=RATE, replicas={name.decode(): half for name in names.values()})
    active = set(keys[:: max(1, partitions // ACTIVE)][:ACTIVE])
    follower = Follower(VERSION, keys, replica_id=FOLLOWER, entry_tags=DIRECTORY_ID, moves=False)
    return Fetches(follower, settings, (), active, names)


def main() -> int:
    """Print the table; 1 when a fetch takes longer, or sessions take more memory, than they may."""
    options = parser("sessions", "Measure fetches in sessions.")
    options.add_argument("--repeats", type=int, default=200, help="fetches for each row (200)")
    chosen, report = begin(options)
    # First, while nothing else was allocated that the peak could stem from.
    before = _peak_mb()
    kept = []
    for _ in range(CONNECTIONS):
        session = session_of(2_000)
        session.next()
        session.next()
        del session.follower, session.leader  # their memory is not the sidecar's
        kept.append(session)
    memory = _peak_mb()
    kept.clear()
    columns = "sessions of 2,000 partitions | peak RSS, MB | of it theirs"
    report.table("Memory", columns, [(CONNECTIONS, memory, memory - before)])

    def measured() -> Iterator[Sequence[object]]:
        for is_full, kind, repeats in ((False, "incremental", chosen.repeats), (True, "full", chosen.repeats // 10)):
            for partitions in (200, 2_000, 20_000):
                session = session_of(partitions)
                for _ in range(10):
                    session.next(is_full=is_full)
                median = statistics.median(sum(session.next(is_full=is_full)) for _ in range(repeats))
                if not is_full or partitions == 2_000:
                    limit = FULL_LIMIT_MS if is_full else INCREMENTAL_LIMIT_MS
                    report.bound(f"{kind}, {partitions:,} partitions, ms", median, most=limit)
                yield kind, partitions, ACTIVE, median

    columns = "fetch | partitions | active | CPU, ms .3"
    report.table(f"Fetch v{VERSION}, medians of {chosen.repeats} (full: a tenth of that)", columns, measured())
    report.bound("memory of all sessions, MB", memory, most=MEMORY_LIMIT_MB)
    return report.status


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    run(main)

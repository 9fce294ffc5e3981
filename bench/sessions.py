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
import sys
import time
from collections.abc import Iterator, Sequence

from bench.peers import DIRECTORY_ID, Follower, Leader, keys_of
from bench.table import Report, parser
from weir.protocol.fetch import decode_fetch_request, encode_fetch_request
from weir.protocol.header import SIZE
from weir.protocol.response_scanner import FetchResponseScanner
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ThrottledReplicas

VERSION = 17
LEADER, FOLLOWER = 1, 2
ACTIVE = 20
PARTITIONS_OF_A_TOPIC = 10
CONNECTIONS = 10
INCREMENTAL_LIMIT_MS = 0.3
FULL_LIMIT_MS = 2.0
MEMORY_LIMIT_MB = 120


class Session:
    """A follower, its leader, and a link between them with half of the partitions throttled."""

    def __init__(self, partitions: int) -> None:
        keys = keys_of(partitions // PARTITIONS_OF_A_TOPIC, PARTITIONS_OF_A_TOPIC)
        half = ThrottledReplicas.parse(",".join(f"{one}:{LEADER}" for one in range(0, PARTITIONS_OF_A_TOPIC, 2)))
        names = {id_: b"named-" + id_ for id_, _ in keys}
        settings = ThrottleSettings(rate=5_000_000, replicas={name.decode(): half for name in names.values()})
        throttle = Throttle("leader", LEADER, time.monotonic, settings)
        throttle.topic_names.learn(names)
        throttle.topic_names_changed()
        active = keys[:: max(1, partitions // ACTIVE)][:ACTIVE]
        self._follower = Follower(VERSION, keys, replica_id=FOLLOWER, entry_tags=DIRECTORY_ID, moves=False)
        self._leader = Leader(behind=(), active=set(active))
        self.link = throttle.link(FOLLOWER)

    def fetch(self, *, is_full: bool = False) -> float:
        """One fetch; returns the milliseconds that the sidecar's part took."""
        frame = self._follower.request(is_full=is_full)
        start = time.perf_counter()
        decision = self.link.plan(decode_fetch_request(frame[SIZE.size :]))
        assert isinstance(decision, Forward)
        forwarded = encode_fetch_request(decision.request)
        planned = time.perf_counter()
        response = memoryview(self._leader.answer(forwarded[SIZE.size :]))
        scanned_from = time.perf_counter()
        scanner = FetchResponseScanner(
            VERSION,
            self._follower.correlation_id,
            walk=decision.walk,
            head_patch=decision.head_patch,
            admit=decision.admit,
            holds_all=decision.holds_all,
        )
        buffers, _ = scanner.receive(response)
        assert scanner.done
        self.link.settle(scanner.topics, scanner.head)
        end = time.perf_counter()
        passed = FetchResponseScanner(VERSION, self._follower.correlation_id)
        passed.receive(memoryview(b"".join(buffers)))
        self._follower.take(passed.topics, passed.head)
        return 1000 * (planned - start + end - scanned_from)


def main() -> int:
    """Print the table; 1 when a fetch takes longer, or sessions take more memory, than they may."""
    options = parser("sessions", "Measure fetches in sessions.")
    options.add_argument("--repeats", type=int, default=200, help="fetches for each row (200)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    # First, while nothing else was allocated that the peak could stem from.
    before = _peak_mb()
    links = []
    for _ in range(CONNECTIONS):
        session = Session(2_000)
        session.fetch()
        session.fetch()
        links.append(session.link)  # without the follower and the leader, whose memory the next ones take
    memory = _peak_mb()
    links.clear()
    columns = "sessions of 2,000 partitions | peak RSS, MB | of it theirs"
    report.table("Memory", columns, [(CONNECTIONS, memory, memory - before)])
    found: list[tuple[str, float, float]] = []

    def measured() -> Iterator[Sequence[object]]:
        for is_full, kind, repeats in ((False, "incremental", chosen.repeats), (True, "full", chosen.repeats // 10)):
            for partitions in (200, 2_000, 20_000):
                session = Session(partitions)
                for _ in range(10):
                    session.fetch(is_full=is_full)
                median = statistics.median(session.fetch(is_full=is_full) for _ in range(repeats))
                if not is_full or partitions == 2_000:
                    limit = FULL_LIMIT_MS if is_full else INCREMENTAL_LIMIT_MS
                    found.append((f"{kind}, {partitions:,} partitions, ms", median, limit))
                yield kind, partitions, ACTIVE, median

    columns = "fetch | partitions | active | CPU, ms .3"
    report.table(f"Fetch v{VERSION}, medians of {chosen.repeats} (full: a tenth of that)", columns, measured())
    report.bound("memory of all sessions, MB", memory, most=MEMORY_LIMIT_MB)
    for name, median, limit in found:
        report.bound(name, median, most=limit)
    return report.status


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())

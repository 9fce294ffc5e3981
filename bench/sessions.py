"""What a replica fetch costs in sessions: `python -m bench.sessions`.

Milliseconds of CPU for one incremental Fetch v17 at one hop, as medians over the repeats, in sessions of 200, 2,000 and
20,000 partitions of which 20 are active, half of all throttled: from the follower's frame to a request, the throttle's
plan, the frame for the leader, its response as it passes, and the settlement. Then the same of full fetches. Last, the
memory that sessions of 20,000 partitions in all take over 10 connections. The follower and the leader write real
frames; their time does not count.
"""

import argparse
import platform
import resource
import statistics
import struct
import sys
import time
from collections.abc import Iterable

from bench.codec import SMALL_BATCH
from weir.protocol.fetch import (
    FETCH_VERSIONS,
    FetchRequest,
    RequestTopic,
    decode_fetch_request,
    encode_fetch_request,
    replica_state_tags,
)
from weir.protocol.header import FETCH, SIZE, RequestHeader
from weir.protocol.primitives import COMPACT, NO_TAGS
from weir.protocol.response_scanner import FetchResponseScanner
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ThrottledReplicas

VERSION = 17
ROW = FETCH_VERSIONS[VERSION]
LEADER, FOLLOWER = 1, 2
ACTIVE = 20
PARTITIONS_OF_A_TOPIC = 10
CONNECTIONS = 10
DIRECTORY_ID = b"\x01\x00\x10" + bytes(range(16))  # a tag buffer with replica_directory_id, as Kafka 4.1 sends it
INCREMENTAL_LIMIT_MS = 0.3
FULL_LIMIT_MS = 2.0
MEMORY_LIMIT_MB = 120

Key = tuple[int, int]  # topic and partition


class Session:
    """A follower, its leader, and a link between them."""

    def __init__(self, partitions: int, throttle: Throttle) -> None:
        self.keys = [divmod(index, PARTITIONS_OF_A_TOPIC) for index in range(partitions)]
        throttle.topic_names.learn({_id(topic): b"topic-%d" % topic for topic, _ in self.keys})
        throttle.topic_names_changed()
        self.active = self.keys[:: max(1, partitions // ACTIVE)][:ACTIVE]
        self.offsets = dict.fromkeys(self.keys, 0)
        self.link = throttle.link(FOLLOWER)
        self.session_id = self.epoch = self.correlation_id = 0

    def fetch(self, *, full: bool = False) -> float:
        """One fetch; returns the seconds that the sidecar's part took."""
        if full:
            self.epoch = 0
        asked, answered = (self.active, self.active) if self.epoch else (self.keys, self.keys)
        frame = self._request(asked)
        start = time.perf_counter()
        decision = self.link.plan(decode_fetch_request(frame[SIZE.size :]))
        assert isinstance(decision, Forward)
        encode_fetch_request(decision.request)
        planned = time.perf_counter()
        response = memoryview(self._response(answered))
        scanned_from = time.perf_counter()
        scanner = FetchResponseScanner(
            VERSION,
            self.correlation_id,
            walk=decision.walk,
            head_patch=decision.head_patch,
            admit=decision.admit,
            holds_all=decision.holds_all,
        )
        scanner.receive(response)
        assert scanner.done
        self.link.settle(scanner.topics, scanner.head)
        end = time.perf_counter()
        self.session_id, self.epoch = self.link.sessions.follower.id, self.epoch + 1
        for key in self.active:
            self.offsets[key] += 1
        return planned - start + end - scanned_from

    def _request(self, keys: Iterable[Key]) -> bytes:
        self.correlation_id += 1
        topics: list[RequestTopic] = []
        for topic, partition in keys:
            values = {"partition": partition, "fetch_offset": self.offsets[topic, partition]}
            values |= {"partition_max_bytes": 2**20, "current_leader_epoch": 3, "last_fetched_epoch": 3}
            entry = ROW.request_partition.layout.pack(*[values.get(name, 0) for name in ROW.request_partition.names])
            topics.append(RequestTopic(_id(topic), entry + DIRECTORY_ID, len(entry + DIRECTORY_ID)))
        header = RequestHeader(FETCH, VERSION, self.correlation_id, b"broker-2-fetcher-0")
        return encode_fetch_request(
            FetchRequest(
                header,
                FOLLOWER,
                500,
                1,
                10 * 2**20,
                topics,
                session_id=self.session_id,
                session_epoch=self.epoch,
                tags=replica_state_tags(FOLLOWER, 5),
            )
        )

    def _response(self, keys: Iterable[Key]) -> bytes:
        topics: dict[int, list[bytes]] = {}
        is_active = set(self.active)
        for topic, partition in keys:
            records = SMALL_BATCH if (topic, partition) in is_active else b""
            offset = self.offsets[topic, partition]
            fixed = ROW.response_partition.layout.pack(partition, 0, offset, offset, 0)
            behind = b"\x00" + SIZE.pack(-1) + COMPACT.count(len(records)) + records + NO_TAGS
            topics.setdefault(topic, []).append(fixed + behind)
        parts = [SIZE.pack(self.correlation_id), NO_TAGS, struct.pack(">ihi", 0, 0, 7), COMPACT.count(len(topics))]
        for topic, partitions in topics.items():
            parts += (_id(topic), COMPACT.count(len(partitions)), *partitions, NO_TAGS)
        body = b"".join((*parts, NO_TAGS))
        return SIZE.pack(len(body)) + body


def main() -> int:
    """Print the table; 1 when a fetch takes longer, or sessions take more memory, than they may."""
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description="Measure fetches in sessions.")
    parser.add_argument("--repeats", type=int, default=200, help="fetches for each row (200)")
    options = parser.parse_args()
    print(f"Fetch v{VERSION}, Python {platform.python_version()}, {platform.machine()}, {options.repeats} repeats\n")
    # First, while nothing else was allocated that the peak could stem from.
    before = _peak_mb()
    kept = [Session(2_000, _throttle(2_000)) for _ in range(CONNECTIONS)]
    for session in kept:
        session.fetch()
        session.fetch()
    memory = _peak_mb()
    kept.clear()
    print(
        f"{CONNECTIONS} sessions of 2,000 partitions: peak {memory:.0f} MB RSS, {memory - before:.0f} MB of it theirs\n"
    )
    missed = [f"{memory:.0f} MB"] if memory > MEMORY_LIMIT_MB else []
    print("| fetch | partitions | active | CPU, ms | limit |\n|---|---|---|---|---|")
    for full in (False, True):
        for partitions in (200, 2_000, 20_000):
            session = Session(partitions, _throttle(partitions))
            for _ in range(10):
                session.fetch(full=full)
            repeats = options.repeats // 10 if full else options.repeats
            median = statistics.median(session.fetch(full=full) for _ in range(repeats)) * 1000
            limit = (FULL_LIMIT_MS if partitions == 2_000 else None) if full else INCREMENTAL_LIMIT_MS
            kind = "full" if full else "incremental"
            print(f"| {kind} | {partitions:,} | {ACTIVE} | {median:.3f} | {limit or ''} |", flush=True)
            if limit is not None and median > limit:
                missed.append(f"{kind}, {partitions:,} partitions: {median:.3f} ms, not {limit} ms")
    for what in missed:
        print(f"missed: {what}", file=sys.stderr)
    return 1 if missed else 0


def _throttle(partitions: int) -> Throttle:
    half = ThrottledReplicas.parse(",".join(f"{id_}:{LEADER}" for id_ in range(0, PARTITIONS_OF_A_TOPIC, 2)))
    topics = {f"topic-{topic}": half for topic in range(partitions // PARTITIONS_OF_A_TOPIC)}
    return Throttle("leader", LEADER, time.monotonic, ThrottleSettings(rate=5_000_000, replicas=topics))


def _id(topic: int) -> bytes:
    return b"topic id" + struct.pack(">q", topic)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())

"""What one whole replica fetch of 2,000 partitions costs: `python -m bench.plan`.

Milliseconds of CPU for one Fetch v3, as medians over the repeats, while half of the partitions are throttled: from the
follower's frame to a request, the throttle's plan, the frame for the leader, its response as it passes, and the
settlement. The follower and the leader write real frames and behave as Kafka's do; their time does not count.
"""

import argparse
import json
import platform
import random
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from bench.codec import BATCH, BUFFER, SHAPES, SMALL_BATCH, VERSION, Shape
from weir.protocol.errors import ProtocolError
from weir.protocol.fetch import (
    FETCH_VERSIONS,
    RESPONSE_ENTRY,
    FetchRequest,
    RequestTopic,
    decode_fetch_request,
    encode_fetch_request,
)
from weir.protocol.framing import Pending, ReplicaFetch, RequestStream, ResponseStream
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.response_scanner import FetchResponseScanner, ScannedTopic
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas

ROW = FETCH_VERSIONS[VERSION]
LEADER, FOLLOWER = 1, 2
RATE = 5_000_000  # bytes/s: of those behind, one fetch may take a few partitions along
BETWEEN_FETCHES_SECONDS = 0.12
WARM_UP = 20  # fetches: then high watermarks are known and batch sizes learned
FAR = 1_000_000_000  # a high watermark that no fetch here reaches

Key = tuple[bytes, int]  # topic and partition


class State(NamedTuple):
    """What the partitions are like while they are fetched.

    `active` of them, spread evenly, are in sync and have one batch of 1 KB for every fetch. `behind` says whether those
    that are throttled have records without end. `scattered` ones have a neighbour of another topic in the request, so
    that each is a block of its own: Kafka's fetchers move what returned data to the end (PartitionStates.java) and name
    a topic once for neighbours only (FetchRequest.java).
    """

    name: str
    active: int = 0
    behind: bool = False
    rate: int = RATE
    scattered: bool = False


AT_RATE_0 = State("behind, rate 0", behind=True, rate=0)
STATES = (
    State("in sync, idle"),
    State("in sync, idle, scattered", scattered=True),
    AT_RATE_0,
    State("behind", behind=True),
    State("in sync, 20 with records", active=20),
    State("in sync, 20 with records, scattered", active=20, scattered=True),
    State("in sync, all with records", active=2000),
)


class Costs(NamedTuple):
    """Milliseconds that the steps of one fetch took; what was not needed took none."""

    decode: float
    plan: float
    encode: float = 0.0
    scan: float = 0.0
    settle: float = 0.0


class Row(NamedTuple):
    """One row of the table: medians in milliseconds, and what most of the fetches came to."""

    shape: str
    throttled: str
    state: str
    decision: str
    costs: Costs
    in_all: float
    limit: float

    def cells(self) -> dict[str, str | float]:
        """The row in one line, by column."""
        what = {"shape": self.shape, "throttled": self.throttled, "state": self.state, "decision": self.decision}
        return {**what, **self.costs._asdict(), "in_all": self.in_all, "limit": self.limit}


def main() -> int:
    """Print the table; 1 when a fetch takes longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description="Measure whole replica fetches.")
    parser.add_argument("--repeats", type=int, default=100, help="fetches for each row (100)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")

    if not options.json:
        print(
            f"Fetch v{VERSION}, Python {platform.python_version()}, {platform.machine()}, {options.repeats} repeats\n"
        )
        print("| shape | throttled | state | decision | decode | plan | encode | scan | settle | in all | limit |")
        print("|" + "---|" * 11)
    late: list[Row] = []
    for row in measure(options.repeats):
        cells = row.cells()
        if options.json:
            print(json.dumps(cells))
        else:
            texts = [f"{cell:.3f}" if isinstance(cell, float) else cell for cell in cells.values()]
            print(f"| {' | '.join(texts)} |")
        if row.in_all > row.limit:
            late.append(row)
    for row in late:
        print(f"{row.shape}, {row.throttled}, {row.state}: {row.in_all:.3f} ms, not {row.limit} ms.", file=sys.stderr)
    return 1 if late else 0


def measure(repeats: int) -> Iterator[Row]:
    """Each state in each shape, with half of the topics throttled, half of every topic, or everything."""
    for shape in SHAPES:
        names = [f"topic-{topic:05}" for topic in range(shape.topics)]
        half = ThrottledReplicas.parse(",".join(f"{partition}:{LEADER}" for partition in range(0, shape.partitions, 2)))
        throttled = {"every other topic": dict.fromkeys(names[::2], ALL_REPLICAS)}
        if shape.partitions > 1:
            throttled["half of each topic"] = dict.fromkeys(names, half)
        for which, replicas in throttled.items():
            for state in STATES:
                if shape.partitions > 1 or not state.scattered:
                    yield measure_row(shape, which, state, replicas, repeats)
        yield measure_row(shape, "everything", AT_RATE_0, dict.fromkeys(names, ALL_REPLICAS), repeats)


def measure_row(
    shape: Shape, throttled: str, state: State, replicas: dict[str, ThrottledReplicas], repeats: int
) -> Row:
    """Time `repeats` fetches of one connection, one after the other."""
    fetches = Fetches(shape, state, replicas)
    for _ in range(WARM_UP):
        fetches.next()
    fetches.decisions.clear()
    costs = [fetches.next() for _ in range(repeats)]
    ((decision, _),) = fetches.decisions.most_common(1)
    medians = Costs._make(statistics.median(steps) for steps in zip(*costs, strict=True))
    # Scattered partitions are as many blocks as they are themselves: the cost of as many topics.
    limit = SHAPES[-1].limit_ms if state.scattered else shape.limit_ms
    return Row(str(shape), throttled, state.name, decision, medians, statistics.median(map(sum, costs)), limit)


class Replica:
    """A follower and its leader; an offset counts batches."""

    def __init__(self, order: Sequence[Key], behind: set[Key], active: set[Key]) -> None:
        self.order = order
        self.behind = behind
        self.active = active
        self.offsets = dict.fromkeys(order, 0)
        self.correlation_id = 0

    def request(self) -> bytes:
        """The next fetch's frame, 1 MiB a partition."""
        self.correlation_id += 1
        topics = [
            RequestTopic(
                name,
                b"".join([ROW.request_partition.layout.pack(key[1], self.offsets[key], 2**20) for key in neighbours]),
                ROW.partition_size,
            )
            for name, neighbours in groupby(self.order, lambda key: key[0])
        ]
        header = RequestHeader(FETCH, VERSION, self.correlation_id, b"broker-2-fetcher-0")
        return encode_fetch_request(FetchRequest(header, FOLLOWER, 500, 1, 10 * 2**20, topics))

    def response(self, request: FetchRequest) -> bytes:
        """The leader's frame: one small batch of what is active, and whole batches up to the cap of what is behind."""
        parts = [
            struct.pack(">i", request.header.correlation_id),
            ROW.response_head.layout.pack(0),
            struct.pack(">i", len(request.topics)),
        ]
        for name, entries, stride, _ in request.topics:
            parts += (struct.pack(">h", len(name)), name, struct.pack(">i", len(entries) // stride))
            for partition, offset, max_bytes in ROW.requested(stride).iter_unpack(entries):
                high_watermark, records = offset, b""
                if (name, partition) in self.behind:
                    high_watermark = FAR
                    records = BATCH * min(max_bytes, max(1, max_bytes // len(BATCH)))
                elif (name, partition) in self.active:
                    records = SMALL_BATCH
                parts += (RESPONSE_ENTRY.pack(partition, 0, high_watermark, len(records)), records)
        body = b"".join(parts)
        return struct.pack(">i", len(body)) + body

    def take(self, topics: Sequence[ScannedTopic]) -> None:
        """Go on behind what came."""
        for name, _, records, _ in topics:
            for seen in records:
                key = (name, seen.partition)
                self.offsets[key] += seen.size // len(BATCH if key in self.behind else SMALL_BATCH)


class Fetches:
    """The fetches of one connection, done as the data path does them. `decisions` counts what they came to."""

    def __init__(self, shape: Shape, state: State, replicas: dict[str, ThrottledReplicas]) -> None:
        keys = [(b"topic-%05d" % topic, id_) for topic in range(shape.topics) for id_ in range(shape.partitions)]
        active = set(keys[:: len(keys) // state.active]) if state.active else set[Key]()
        if state.scattered:
            random.Random(1).shuffle(keys)
        self.now = 1000.0
        self.throttle = throttle = Throttle(
            "leader", LEADER, lambda: self.now, ThrottleSettings(rate=state.rate, replicas=replicas)
        )
        behind = {key for key in keys if state.behind and throttle.rules.is_throttled(key[0].decode(), key[1])}
        self.replica = Replica(keys, behind, active)
        self.link = throttle.link(FOLLOWER)
        self.requests = RequestStream()
        self.responses = ResponseStream()
        self.decisions = Counter[str]()

    def next(self) -> Costs:
        """One fetch, from the follower's frame to the settlement."""
        self.now += BETWEEN_FETCHES_SECONDS
        frame = self.replica.request()
        start = time.perf_counter()
        *_, event = self.requests.receive(memoryview(frame))  # a long one is decoded in parts
        assert isinstance(event, ReplicaFetch)
        assert not isinstance(event.request, ProtocolError)
        request = event.request or decode_fetch_request(event.frame)
        decoded = time.perf_counter()
        decision, how = self._plan(request)
        planned = time.perf_counter()
        self.decisions[how] += 1
        if isinstance(decision, Answer):
            return Costs(*_milliseconds(start, decoded, planned))
        if decision.request is not request:
            encode_fetch_request(decision.request)
        encoded = time.perf_counter()

        response = memoryview(self.replica.response(decision.request))
        received = time.perf_counter()
        topics = self._scan(decision, response)
        scanned = time.perf_counter()
        self.link.settle(topics)
        settled = time.perf_counter()
        self.replica.take(topics)
        request_steps = _milliseconds(start, decoded, planned, encoded)
        return Costs(*request_steps, *_milliseconds(received, scanned, settled))

    def _plan(self, request: FetchRequest) -> tuple[Forward | Answer, str]:
        """The decision, with all plans that it takes while the fetch is held, and what to call it."""
        asked_at, held = self.now, ""
        decision: Decision = self.link.plan(request)
        while isinstance(decision, Hold):
            self.now, held = decision.until, "held, "
            decision = self.link.plan(request, self.now - asked_at)
        if isinstance(decision, Answer):
            return decision, held + "answered"
        if decision.appended_topics:
            return decision, held + "some left out"
        return decision, held + ("forwarded" if decision.request is request else "some granted")

    def _scan(self, decision: Forward, response: memoryview) -> list[ScannedTopic]:
        """Let a response pass in the pieces that a relay reads."""
        correlation_id = decision.request.header.correlation_id
        scanner = FetchResponseScanner(
            VERSION,
            correlation_id,
            decision.appended,
            decision.appended_topics,
            decision.walk,
            admit=decision.admit,
            holds_all=decision.holds_all,
        )
        self.responses.expect(Pending(correlation_id, scanner))
        for at in range(0, len(response), BUFFER):
            self.responses.receive(response[at : at + BUFFER], [])
        assert self.responses.completed.pop() is scanner
        return scanner.topics


def _milliseconds(*times: float) -> Iterator[float]:
    """From each of `times` (seconds) to the next one."""
    return ((after - before) * 1000 for before, after in pairwise(times))


if __name__ == "__main__":
    sys.exit(main())

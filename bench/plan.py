# SPDX-License-Identifier: Apache-2.0
"""What one whole replica fetch of 2,000 partitions costs: `python -m bench.plan`.

Milliseconds of CPU for one Fetch v3, as medians over the repeats, while half of the partitions are throttled: from the
follower's frame to a request, the throttle's plan, the frame for the leader, its response as it passes, and the
settlement. The follower and the leader write real frames and behave as Kafka's do; their time does not count.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.peers import Follower, Key, Leader, keys_of
from bench.table import begin, parser, run
from weir.protocol.errors import ProtocolError
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import FetchResponseScanner, ResponseHead
from weir.protocol.response_stream import Pending, ResponseStream
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas

VERSION = 3
LEADER, FOLLOWER = 1, 2
RATE = 5_000_000  # bytes/s: of those behind, one fetch may take a few partitions along
BETWEEN_FETCHES_SECONDS = 0.12
WARM_UP = 20  # fetches: then high watermarks are known and batch sizes learned


BUFFER = 256 * 1024
"""Bytes a relay reads at once."""


class Shape(NamedTuple):
    """How 2,000 partitions lie in one fetch, and the milliseconds that it may take."""

    topics: int
    partitions: int
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.topics:,} x {self.partitions}"


SHAPES = (Shape(20, 100, 1.0), Shape(2000, 1, 6.0))


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


def main() -> int:
    """Print the table; 1 when a fetch takes longer than it may."""
    options = parser("plan", "Measure whole replica fetches.")
    options.add_argument("--repeats", type=int, default=100, help="fetches for each row (100)")
    chosen, report = begin(options)

    def measured() -> Iterator[Sequence[object]]:
        for shape, which, state, replicas in rows():
            fetches = fetches_of(shape, state, replicas)
            for _ in range(WARM_UP):
                fetches.next()
            fetches.decisions.clear()
            costs = [fetches.next() for _ in range(chosen.repeats)]
            ((decision, _),) = fetches.decisions.most_common(1)
            in_all = statistics.median(map(sum, costs))
            # Scattered partitions are as many blocks as they are themselves: the cost of as many topics.
            limit = SHAPES[-1].limit_ms if state.scattered else shape.limit_ms
            report.bound(f"{shape}, {which}, {state.name}, ms", in_all, most=limit)
            yield str(shape), which, state.name, decision, *map(statistics.median, zip(*costs, strict=True)), in_all

    steps = " | ".join(f"{step} .3" for step in Costs._fields)
    columns = f"shape | throttled | state | decision | {steps} | in all .3"
    report.table(f"Fetch v{VERSION}, {chosen.repeats} repeats, ms of CPU", columns, measured())
    return report.status


def rows() -> Iterator[tuple[Shape, str, State, Mapping[str, ThrottledReplicas]]]:
    """Each state in each shape, with half of the topics throttled, half of every topic, or everything."""
    for shape in SHAPES:
        names = list(dict.fromkeys(name.decode() for name, _ in keys_of(*shape[:2])))
        half = ThrottledReplicas.parse(",".join(f"{partition}:{LEADER}" for partition in range(0, shape.partitions, 2)))
        throttled = {"every other topic": dict.fromkeys(names[::2], ALL_REPLICAS)}
        if shape.partitions > 1:
            throttled["half of each topic"] = dict.fromkeys(names, half)
        for which, replicas in throttled.items():
            for state in STATES:
                if shape.partitions > 1 or not state.scattered:
                    yield shape, which, state, replicas
        yield shape, "everything", AT_RATE_0, dict.fromkeys(names, ALL_REPLICAS)


def fetches_of(shape: Shape, state: State, replicas: Mapping[str, ThrottledReplicas]) -> Fetches:
    """The fetches of one row."""
    keys = keys_of(shape.topics, shape.partitions)
    active = set(keys[:: len(keys) // state.active]) if state.active else set[Key]()
    if state.scattered:
        random.Random(1).shuffle(keys)
    settings = ThrottleSettings(rate=state.rate, replicas=replicas)
    return Fetches(
        Follower(VERSION, keys, replica_id=FOLLOWER, moves=False), settings, keys if state.behind else (), active
    )


class Fetches:
    """The fetches of one connection, done as the data path does them. `decisions` counts what they came to.

    Of the partitions in `behind` those that are throttled have records without end.
    """

    def __init__(
        self,
        follower: Follower,
        settings: ThrottleSettings,
        behind: Iterable[Key],
        active: Collection[Key],
        topic_ids: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.now = 1000.0
        self.throttle = throttle = Throttle("leader", LEADER, lambda: self.now, settings)
        throttle.topic_names.learn(topic_ids or {})
        throttle.classify_anew()
        throttled = {(name, id_) for name, id_ in behind if id_ in throttle.rules.listed.get(name, ())}
        self.follower = follower
        self.leader = Leader(10_240, throttled, active)
        self.link = throttle.link(FOLLOWER)
        self.requests = RequestStream()
        self.responses = ResponseStream()
        self.decisions = Counter[str]()

    def next(self, *, is_full: bool = False) -> Costs:
        """One fetch, from the follower's frame to the settlement."""
        self.now += BETWEEN_FETCHES_SECONDS
        frame = self.follower.request(is_full=is_full)
        start = time.thread_time()
        *_, event = self.requests.receive(memoryview(frame))  # a long one is decoded in parts
        assert isinstance(event, ReplicaFetch)
        assert not isinstance(event.request, ProtocolError)
        request = event.request or decode_fetch_request(event.frame)
        decoded = time.thread_time()
        decision, how = self._plan(request)
        planned = time.thread_time()
        self.decisions[how] += 1
        if isinstance(decision, Answer):
            return Costs(*_milliseconds(start, decoded, planned))
        if decision.request is not request:
            encode_fetch_request(decision.request)
        encoded = time.thread_time()

        response = memoryview(self.leader.answer(encode_fetch_request(decision.request)[4:]))
        received = time.thread_time()
        scanner = self._scan(decision, response)
        scanned = time.thread_time()
        self.link.settle(scanner.topics, scanner.head)
        settled = time.thread_time()
        self.follower.take(scanner.topics, ResponseHead(session_id=self.link.sessions.follower.id))
        return Costs(*_milliseconds(start, decoded, planned, encoded), *_milliseconds(received, scanned, settled))

    def _plan(self, request: FetchRequest) -> tuple[Forward | Answer, str]:
        """The decision, with all plans that it takes while the fetch is held, and what to call it."""
        asked_at, held = self.now, ""
        decision: Decision = self.link.plan(request)
        while isinstance(decision, Hold):
            self.now, held = decision.until, "held, "
            decision = self.link.plan(request, self.now - asked_at)
        if isinstance(decision, Answer):
            return decision, held + "answered"
        if decision.expected.appended_topics:
            return decision, held + "some left out"
        return decision, held + ("forwarded" if decision.request is request else "some granted")

    def _scan(self, decision: Forward, response: memoryview) -> FetchResponseScanner:
        """Let a response pass in the pieces that a relay reads."""
        correlation_id = decision.request.header.correlation_id
        scanner = FetchResponseScanner(self.follower.version, correlation_id, decision.expected)
        self.responses.expect(Pending(correlation_id, scanner))
        for at in range(0, len(response), BUFFER):
            self.responses.receive(response[at : at + BUFFER], [])
        assert self.responses.completed.pop() is scanner
        return scanner


def _milliseconds(*times: float) -> Iterator[float]:
    """From each of `times` (seconds) to the next one."""
    return ((after - before) * 1000 for before, after in pairwise(times))


if __name__ == "__main__":
    run(main)

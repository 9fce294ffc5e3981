"""What decoding, encoding and scanning Fetch cost: `python -m bench.codec`.

Milliseconds for one request and its response, as minimum and median over the repeats, at two shapes of 2,000
partitions: 20 topics of 100, and 2,000 topics of one. Half of the topics are left out of the request that goes
upstream, and come back as made-up topics behind the broker's own. Of the versions, v7 has longer partitions than v3,
v12 compact ones with tags, and v17 topic ids and a tag of 16 bytes in each requested partition.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import NamedTuple

from bench.peers import DIRECTORY_ID, Follower, Key, Topics, add_partition, answer_frame, answered, batch_of, keys_of
from bench.table import begin, parser, run
from weir.protocol.fetch import (
    ResponseTopic,
    decode_fetch_request,
    encode_fetch_request,
    encode_response_topics,
    fetch_version,
    made_up_entries,
)
from weir.protocol.fetch_request import replica_id_steps
from weir.protocol.response_scanner import FetchResponseScanner
from weir.protocol.steps import at_once

VERSIONS = (3, 7, 12, 17)
BUFFER = 256 * 1024
"""Bytes a relay reads at once."""


class Shape(NamedTuple):
    """How 2,000 partitions lie in one fetch, and the milliseconds that request and response together may take.

    `limit_ms` holds for v3, twice as much for what is above.
    """

    topics: int
    partitions: int
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.topics:,} x {self.partitions}"


SHAPES = (Shape(20, 100, 1.0), Shape(2000, 1, 6.0))


def main() -> int:
    """Print the table; 1 when request and response together take longer than they may."""
    options = parser("codec", "Measure the Fetch codec.")
    options.add_argument("--repeats", type=int, default=300, help="times that each figure is taken (300)")
    chosen, report = begin(options)

    def measured() -> Iterator[Sequence[object]]:
        for version, shape in product(VERSIONS, SHAPES):
            for what, step in steps(version, shape):
                times = sorted(measure(step) for _ in range(chosen.repeats))
                yield f"v{version}", str(shape), what, times[0], statistics.median(times)
            limit = shape.limit_ms if version == VERSIONS[0] else 2 * shape.limit_ms
            report.bound(f"v{version}, {shape}: {what}, ms", statistics.median(times), most=limit)

    columns = "Fetch | topics x partitions | what | min ms .3 | median ms .3"
    report.table(f"{chosen.repeats} repeats", columns, measured())
    return report.status


def measure(step: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1000


def steps(version: int, shape: Shape) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each step by itself, then, last, request and response of one fetch as the data path does them."""
    row = fetch_version(version)
    keys = keys_of(shape.topics, shape.partitions)
    names = [name for name, _ in groupby(keys, itemgetter(0))]
    half = len(names) // 2
    frame = Follower(version, keys, entry_tags=DIRECTORY_ID if version >= 17 else b"").request()[4:]
    request = decode_fetch_request(frame)
    entries = made_up_entries(version, [(partition, 100) for partition in range(shape.partitions)])
    made_up = [ResponseTopic(name, entries) for name in names[half:]]
    appended = encode_response_topics(version, made_up)
    one, small = {(names[0], shape.partitions // 2): batch_of(10_240) * 10}, batch_of(1024)

    def response(listed: Sequence[Key], records: dict[Key, bytes]) -> bytes:
        topics: Topics = []
        for name, partition in listed:
            add_partition(topics, name, answered(row, partition, 100, records.get((name, partition), b"")))
        return answer_frame(row, 7, topics)

    def scanning(frame: bytes, *appended: bytes, walk: Collection[bytes] = ()) -> Callable[[], None]:
        def scan() -> None:
            scanner = FetchResponseScanner(version, 7, b"".join(appended), half * len(appended), walk)
            view = memoryview(frame)
            for at in range(0, len(frame), BUFFER):
                scanner.receive(view[at : at + BUFFER])
            assert scanner.done

        return scan

    kept, walk = response(keys[: len(keys) // 2], one), set(names)

    def fetch() -> None:
        decoded = decode_fetch_request(frame)
        encode_fetch_request(decoded.with_(topics=decoded.topics[:half]))
        scanning(kept, encode_response_topics(version, made_up), walk=walk)()

    yield "request: decode", lambda: decode_fetch_request(frame)
    if row.has_replica_state:
        yield "request: read its replica id", lambda: at_once(replica_id_steps(frame))
    yield "request: encode", lambda: encode_fetch_request(request)
    yield "response: scan, no records", scanning(response(keys, {}))
    yield "response: scan, 100 KB in one partition, walked", scanning(response(keys, one), walk=walk)
    tenth = response(keys, dict.fromkeys(keys[::10], small))
    yield "response: scan, 1 KB in each 10th partition, walked", scanning(tenth, walk=walk)
    every = response(keys, dict.fromkeys(keys, small))
    yield "response: scan, 1 KB in every partition, walked", scanning(every, walk=walk)
    yield "response: encode made-up topics for half of them", lambda: encode_response_topics(version, made_up)
    yield "response: scan half with 100 KB, append the others", scanning(kept, appended, walk=walk)
    yield "request and response, half of the topics left out", fetch


if __name__ == "__main__":
    run(main)

"""What decoding, encoding and scanning Fetch v3 cost: `python -m bench.codec`.

Milliseconds for one request and its response, as minimum and median over the repeats, at two shapes of 2,000
partitions: 20 topics of 100, and 2,000 topics of one. Half of the topics are left out of the request that goes
upstream, and come back as made-up topics behind the broker's own.
"""

import argparse
import json
import platform
import statistics
import struct
import sys
import time
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from protocol.fetch import (
    FETCH_VERSIONS,
    MAX_INT32,
    RESPONSE_ENTRY,
    FetchRequest,
    RequestTopic,
    ResponseTopic,
    decode_fetch_request,
    encode_fetch_request,
    encode_response_topics,
    made_up_entries,
)
from protocol.header import FETCH, RequestHeader
from protocol.response_scanner import FetchResponseScanner

VERSION = 3
BUFFER = 256 * 1024
"""Bytes a relay reads at once."""
BATCH = struct.pack(">qi", 0, 10_240 - 12) + bytes(10_240 - 12)
SMALL_BATCH = struct.pack(">qi", 0, 1024 - 12) + bytes(1024 - 12)


class Shape(NamedTuple):
    """How 2,000 partitions lie in one fetch, and the milliseconds that request and response together may take."""

    topics: int
    partitions: int
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.topics:,} x {self.partitions}"


SHAPES = (Shape(20, 100, 1.0), Shape(2000, 1, 6.0))


class Figure(NamedTuple):
    """One row of the table: what was done how often, and the milliseconds that one time took."""

    shape: str
    what: str
    repeats: int
    min_ms: float
    median_ms: float


def main() -> int:
    """Print the table; 1 when request and response together take longer than they may."""
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description="Measure the Fetch codec.")
    parser.add_argument("--repeats", type=int, default=300, help="times that each figure is taken (300)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")

    within = True
    if not options.json:
        print(
            f"Fetch v{VERSION}, Python {platform.python_version()}, {platform.machine()}, {options.repeats} repeats\n"
        )
        print("| topics x partitions | what | min ms | median ms |\n|---|---|---|---|")
    for shape in SHAPES:
        figures = list(measure_shape(shape, options.repeats))
        for figure in figures:
            if options.json:
                print(json.dumps(figure._asdict()))
            else:
                print(f"| {figure.shape} | {figure.what} | {figure.min_ms:.3f} | {figure.median_ms:.3f} |")
        within = within and figures[-1].median_ms <= shape.limit_ms
        if figures[-1].median_ms > shape.limit_ms:
            print(f"{shape}: the median is above {shape.limit_ms} ms.", file=sys.stderr)
    return 0 if within else 1


def measure_shape(shape: Shape, repeats: int) -> Iterator[Figure]:
    """Each step by itself, then, last, request and response of one fetch as the data path does them."""
    names = [b"topic-%05d" % topic for topic in range(shape.topics)]
    kept, left_out = names[: shape.topics // 2], names[shape.topics // 2 :]
    request = make_request(names, shape.partitions)
    frame = encode_fetch_request(request)[4:]
    made_up = [
        ResponseTopic(name, made_up_entries(VERSION, [(p, 100) for p in range(shape.partitions)])) for name in left_out
    ]
    appended = encode_response_topics(VERSION, made_up)
    idle = make_response(names, shape.partitions, active={})
    one = make_response(names, shape.partitions, active={names[0]: {shape.partitions // 2: BATCH * 10}})
    partitions = [(name, partition) for name in names for partition in range(shape.partitions)]
    tenth = make_response(names, shape.partitions, active=one_batch_each(partitions[::10]))
    every = make_response(names, shape.partitions, active=one_batch_each(partitions))
    half = make_response(kept, shape.partitions, active={names[0]: {shape.partitions // 2: BATCH * 10}})
    walk = set(names)

    def fetch() -> None:
        decoded = decode_fetch_request(frame)
        encode_fetch_request(decoded.with_(topics=decoded.topics[: shape.topics // 2]))
        scan(half, encode_response_topics(VERSION, made_up), len(left_out), walk)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("request: decode", lambda: decode_fetch_request(frame)),
        ("request: encode", lambda: encode_fetch_request(request)),
        ("response: scan, no records", lambda: scan(idle)),
        ("response: scan, 100 KB in one partition, walked", lambda: scan(one, walk=walk)),
        ("response: scan, 1 KB in each 10th partition, walked", lambda: scan(tenth, walk=walk)),
        ("response: scan, 1 KB in every partition, walked", lambda: scan(every, walk=walk)),
        ("response: encode made-up topics for half of them", lambda: encode_response_topics(VERSION, made_up)),
        ("response: scan half with 100 KB, append the others", lambda: scan(half, appended, len(left_out), walk)),
        ("request and response, half of the topics left out", fetch),
    ]
    for what, step in steps:
        times = sorted(measure(step) for _ in range(repeats))
        yield Figure(str(shape), what, repeats, times[0], statistics.median(times))


def measure(step: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1000


def scan(response: bytes, appended: bytes = b"", appended_topics: int = 0, walk: Container[bytes] = ()) -> None:
    """Scan a response as a relay reads it."""
    scanner = FetchResponseScanner(VERSION, 7, appended, appended_topics, walk)
    view = memoryview(response)
    for at in range(0, len(response), BUFFER):
        scanner.receive(view[at : at + BUFFER])
    assert scanner.done


def make_request(names: list[bytes], partitions: int) -> FetchRequest:
    """A replica's fetch of 1 MiB a partition."""
    row = FETCH_VERSIONS[VERSION]
    entries = b"".join(row.request_partition.layout.pack(p, 100, 2**20) for p in range(partitions))
    header = RequestHeader(FETCH, VERSION, 7, b"broker-2-fetcher-0")
    return FetchRequest(
        header, 2, 500, 1, MAX_INT32, [RequestTopic(name, entries, row.partition_size) for name in names]
    )


def one_batch_each(partitions: list[tuple[bytes, int]]) -> dict[bytes, dict[int, bytes]]:
    """Records for `make_response`: 1 KB in each of these partitions."""
    active: dict[bytes, dict[int, bytes]] = {}
    for name, partition in partitions:
        active.setdefault(name, {})[partition] = SMALL_BATCH
    return active


def make_response(names: list[bytes], partitions: int, active: dict[bytes, dict[int, bytes]]) -> bytes:
    """A response with the records of `active` by topic and partition."""
    parts = [struct.pack(">i", 7), FETCH_VERSIONS[VERSION].response_head.layout.pack(0), struct.pack(">i", len(names))]
    for name in names:
        parts += (struct.pack(">h", len(name)), name, struct.pack(">i", partitions))
        records = active.get(name, {})
        for p in range(partitions):
            parts += (RESPONSE_ENTRY.pack(p, 0, 100, len(records.get(p, b""))), records.get(p, b""))
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


if __name__ == "__main__":
    sys.exit(main())

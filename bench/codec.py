"""What decoding, encoding and scanning Fetch cost: `python -m bench.codec`.

Milliseconds for one request and its response, as minimum and median over the repeats, at two shapes of 2,000
partitions: 20 topics of 100, and 2,000 topics of one. Half of the topics are left out of the request that goes
upstream, and come back as made-up topics behind the broker's own. Of the versions, v7 has longer partitions than v3,
v12 compact ones with tags, and v17 topic ids and a tag of 16 bytes in each requested partition.
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

from weir.protocol.fetch import (
    FETCH_VERSIONS,
    MAX_INT32,
    FetchRequest,
    RequestTopic,
    ResponseTopic,
    decode_fetch_request,
    encode_fetch_request,
    encode_response_topics,
    made_up_entries,
)
from weir.protocol.fetch_request import read_replica_id
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.primitives import CLASSIC, COMPACT
from weir.protocol.request_topics import write_name
from weir.protocol.response_scanner import FetchResponseScanner

VERSION = 3
VERSIONS = (3, 7, 12, 17)
FIRST_WITH_DIRECTORY_ID = 17
DIRECTORY_ID_TAG = b"\x01\x00\x10" + bytes(range(16))  # one tag, number 0, of 16 bytes
BUFFER = 256 * 1024
"""Bytes a relay reads at once."""
BATCH = struct.pack(">qi", 0, 10_240 - 12) + bytes(10_240 - 12)
SMALL_BATCH = struct.pack(">qi", 0, 1024 - 12) + bytes(1024 - 12)


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


class Figure(NamedTuple):
    """One row of the table: what was done how often, and the milliseconds that one time took."""

    version: int
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
        print(f"Python {platform.python_version()}, {platform.machine()}, {options.repeats} repeats\n")
        print("| Fetch | topics x partitions | what | min ms | median ms |\n|---|---|---|---|---|")
    for version in VERSIONS:
        for shape in SHAPES:
            figures = list(measure_shape(version, shape, options.repeats))
            for figure in figures:
                if options.json:
                    print(json.dumps(figure._asdict()))
                else:
                    cells = (
                        f"v{version} | {figure.shape} | {figure.what} | {figure.min_ms:.3f} | {figure.median_ms:.3f}"
                    )
                    print(f"| {cells} |")
            limit_ms = shape.limit_ms if version == VERSION else 2 * shape.limit_ms
            if figures[-1].median_ms > limit_ms:
                within = False
                print(f"v{version}, {shape}: the median is above {limit_ms} ms.", file=sys.stderr)
    return 0 if within else 1


def measure_shape(version: int, shape: Shape, repeats: int) -> Iterator[Figure]:
    """Each step by itself, then, last, request and response of one fetch as the data path does them."""
    names = [b"topic-%010d" % topic for topic in range(shape.topics)]  # as long as a topic id
    kept, left_out = names[: shape.topics // 2], names[shape.topics // 2 :]
    request = make_request(version, names, shape.partitions)
    frame = encode_fetch_request(request)[4:]
    made_up = [
        ResponseTopic(name, made_up_entries(version, [(p, 100) for p in range(shape.partitions)])) for name in left_out
    ]
    appended = encode_response_topics(version, made_up)
    idle = make_response(version, names, shape.partitions, active={})
    one = make_response(version, names, shape.partitions, active={names[0]: {shape.partitions // 2: BATCH * 10}})
    partitions = [(name, partition) for name in names for partition in range(shape.partitions)]
    tenth = make_response(version, names, shape.partitions, active=one_batch_each(partitions[::10]))
    every = make_response(version, names, shape.partitions, active=one_batch_each(partitions))
    half = make_response(version, kept, shape.partitions, active={names[0]: {shape.partitions // 2: BATCH * 10}})
    walk = set(names)
    row = FETCH_VERSIONS[version]

    def fetch() -> None:
        decoded = decode_fetch_request(frame)
        encode_fetch_request(decoded.with_(topics=decoded.topics[: shape.topics // 2]))
        scan(version, half, encode_response_topics(version, made_up), len(left_out), walk)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("request: decode", lambda: decode_fetch_request(frame)),
        *([("request: read its replica id", lambda: read_replica_id(frame))] if row.has_replica_state else []),
        ("request: encode", lambda: encode_fetch_request(request)),
        ("response: scan, no records", lambda: scan(version, idle)),
        ("response: scan, 100 KB in one partition, walked", lambda: scan(version, one, walk=walk)),
        ("response: scan, 1 KB in each 10th partition, walked", lambda: scan(version, tenth, walk=walk)),
        ("response: scan, 1 KB in every partition, walked", lambda: scan(version, every, walk=walk)),
        ("response: encode made-up topics for half of them", lambda: encode_response_topics(version, made_up)),
        (
            "response: scan half with 100 KB, append the others",
            lambda: scan(version, half, appended, len(left_out), walk),
        ),
        ("request and response, half of the topics left out", fetch),
    ]
    for what, step in steps:
        times = sorted(measure(step) for _ in range(repeats))
        yield Figure(version, str(shape), what, repeats, times[0], statistics.median(times))


def measure(step: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1000


def scan(
    version: int, response: bytes, appended: bytes = b"", appended_topics: int = 0, walk: Container[bytes] = ()
) -> None:
    """Scan a response as a relay reads it."""
    scanner = FetchResponseScanner(version, 7, appended, appended_topics, walk)
    view = memoryview(response)
    for at in range(0, len(response), BUFFER):
        scanner.receive(view[at : at + BUFFER])
    assert scanner.done


def make_request(version: int, names: list[bytes], partitions: int) -> FetchRequest:
    """A replica's fetch of 1 MiB a partition, with its directory's id where the version has that."""
    row = FETCH_VERSIONS[version]
    values = {"fetch_offset": 100, "partition_max_bytes": 2**20}
    fields = row.request_partition
    encoding = COMPACT if row.is_flexible else CLASSIC
    tags = encoding.tags(DIRECTORY_ID_TAG if version >= FIRST_WITH_DIRECTORY_ID else b"")
    entries = b"".join(
        fields.layout.pack(p, *[values.get(name, 1) for name in fields.names[1:]]) + tags for p in range(partitions)
    )
    header = RequestHeader(FETCH, version, 7, b"broker-2-fetcher-0")
    stride = len(entries) // partitions
    topics = [RequestTopic(name, entries, stride, encoding.tags(b"")) for name in names]
    return FetchRequest(header, 2, 500, 1, MAX_INT32, topics)


def one_batch_each(partitions: list[tuple[bytes, int]]) -> dict[bytes, dict[int, bytes]]:
    """Records for `make_response`: 1 KB in each of these partitions."""
    active: dict[bytes, dict[int, bytes]] = {}
    for name, partition in partitions:
        active.setdefault(name, {})[partition] = SMALL_BATCH
    return active


def make_response(version: int, names: list[bytes], partitions: int, active: dict[bytes, dict[int, bytes]]) -> bytes:
    """A response with the records of `active` by topic and partition."""
    row = FETCH_VERSIONS[version]
    encoding = COMPACT if row.is_flexible else CLASSIC
    behind_fields = len(encoding.count(0) + encoding.tags(b""))  # an empty partition's size of records, and its tags
    head = row.response_head.layout.pack(*[0 for _ in row.response_head.names])
    parts = [struct.pack(">i", 7), encoding.tags(b""), head, encoding.count(len(names))]
    for name in names:
        parts += (write_name(name, row), encoding.count(partitions))
        records = active.get(name, {})
        for p in range(partitions):
            fields = made_up_entries(version, [(p, 100)])[:-behind_fields]
            parts += (fields, encoding.count(len(records.get(p, b""))), records.get(p, b""), encoding.tags(b""))
        parts.append(encoding.tags(b""))
    parts.append(encoding.tags(b""))
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


if __name__ == "__main__":
    sys.exit(main())

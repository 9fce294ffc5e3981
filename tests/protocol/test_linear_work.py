# SPDX-License-Identifier: Apache-2.0
"""Reading costs in proportion to the bytes that came, whatever they announce, and is done in short steps.

Frames that come byte by byte are not read anew for each.
"""

import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from tests.protocol.fetch_data import Partition, batch, response, single_bytes, with_ids
from tests.protocol.hostile import (
    COUNTS,
    LISTS,
    SAMPLES,
    Sample,
    Work,
    blown_up,
    decoded,
    large_fetch,
    sender_of,
    streamed,
)
from tests.protocol.request_events import events_of
from tests.protocol.wire import frame, request, tag_buffer
from weir.protocol.errors import MalformedFrame
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import FetchResponseScanner
from weir.protocol.varint import MOST_TAGS

LINEAR = 8
"""For four times the bytes: work in proportion takes 4 times as long, and what is read anew for each byte 16 times."""

MOST_LINES: Final = 4
"""Lines of code for each byte that came: about 0.2 us. Five times as many were enough for an attack."""

MOST_ANYWAY: Final = 2_000  # in any frame

MOST_IN_A_STEP: Final = 40_000
"""Lines of code: about 2 ms."""

MANY: Final = 3_000

NEWEST: Final = (
    *("replica's fetch v18", "answer to fetch v18", "produce v13", "answer to produce v13"),
    *("answer to share fetch v2", "answer to SASL authenticate v2", "metadata v12", "API versions"),
)


def seconds(work: Callable[[], object]) -> float:
    """CPU time of the fastest of a few runs."""
    taken = []
    for _ in range(8):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def scan(data: bytes) -> FetchResponseScanner:
    """Have a v12 response scanned byte by byte."""
    scanner = FetchResponseScanner(12, 7)
    for byte in single_bytes(data):
        scanner.receive(memoryview(byte))
    return scanner


def answer(tags: bytes) -> bytes:
    return frame(struct.pack(">i", 7) + tags + struct.pack(">ihi", 0, 0, 0) + b"\x01\x00")


@pytest.mark.parametrize("tags", [1, MOST_TAGS])
def test_response_head_byte_by_byte_takes_linear_time(tags: int) -> None:
    def work(size: int) -> Callable[[], object]:
        data = answer(tag_buffer(*[(number, b"t" * (size // tags)) for number in range(tags)]))
        assert scan(data).done
        return lambda: scan(data)

    assert seconds(work(3600)) < LINEAR * seconds(work(900))


def test_response_head_of_many_tags_is_malformed_at_their_count() -> None:
    """4 KB of them took nearly a second of CPU."""
    data = answer(tag_buffer(*[(number, b"") for number in range(1300)]))
    with pytest.raises(MalformedFrame):
        scan(data[:10])


@pytest.mark.long
@pytest.mark.parametrize(("api_key", "version", "behind_tags"), [(1, 12, struct.pack(">iii", 5, 500, 1)), (0, 9, b"")])
def test_request_head_byte_by_byte_takes_linear_time(api_key: int, version: int, behind_tags: bytes) -> None:
    def work(size: int) -> Callable[[], object]:
        tags = tag_buffer(*[(number, b"t" * (size // MOST_TAGS)) for number in range(MOST_TAGS)])
        body = tags + (behind_tags or b"\xac\x02" + b"i" * 299 + struct.pack(">h", 1))
        chunks = single_bytes(request(api_key, version, 1, body, client_id=b"c" * (size // 2)))
        return lambda: events_of(RequestStream(), *chunks)

    assert seconds(work(8_000)) < LINEAR * seconds(work(2_000))


@pytest.mark.parametrize("version", [3, 9, 12])
def test_request_cut_once_in_its_head_is_not_reread_each_field(version: int) -> None:
    """A byte in front and all else behind it: as cheap as when all comes at once, but for the bytes held."""
    tags = tag_buffer(*[(number, b"t") for number in range(MOST_TAGS)]) if version >= 9 else b""
    body = tags + (b"\x00" if version >= 9 else b"\xff\xff") + struct.pack(">h", 1)
    data = request(0, version, 1, body)
    whole, cut = [data] * 200, [data[:1], data[1:]] * 200
    assert seconds(lambda: events_of(RequestStream(), *cut)) < 6 * seconds(lambda: events_of(RequestStream(), *whole))


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 7, 12, 18])
def test_response_body_byte_by_byte_takes_linear_time(version: int) -> None:

    def work(count: int) -> Callable[[], object]:
        partitions = [Partition(p, 0, 7, batch(30)) for p in range(count)]
        chunks = single_bytes(response(version, 7, with_ids(version, [(b"orders", partitions)])))

        def run() -> None:
            scanner = FetchResponseScanner(version, 7)
            for chunk in chunks:
                scanner.receive(memoryview(chunk))
            assert scanner.done

        return run

    assert seconds(work(100)) < LINEAR * seconds(work(25))


def blow_up(sample: Sample, counts: Sequence[bytes], size: int) -> None:
    """Have each place of a frame announce these counts, and the rest of `size` bytes be zeros."""
    for at in range(4, len(sample.data)):
        for count in counts:
            data = blown_up(sample.data, at, count, b"\x00", size)
            for read in sample.readers:
                work = Work().run(read(data))
                assert work.total <= MOST_LINES * size + MOST_ANYWAY, (at, count.hex(), read, work.total)


@pytest.mark.parametrize("name", NEWEST)
def test_a_count_that_is_too_large_costs_no_more_than_the_bytes_that_came(name: str) -> None:
    """A Produce that announced 2^31 tags of no bytes kept all other clients waiting for seconds."""
    (sample,) = [one for one in SAMPLES if one.name == name]
    blow_up(sample, COUNTS[:1], 1024)


@pytest.mark.long
@pytest.mark.parametrize("sample", [pytest.param(one, id=one.name) for one in SAMPLES if one.readers])
def test_no_count_of_any_version_costs_more_than_the_bytes_that_came(sample: Sample) -> None:
    blow_up(sample, COUNTS[:2], 4096)


@pytest.mark.parametrize("version", [7, 18, *(pytest.param(one, marks=pytest.mark.long) for one in (3, 12))])
@pytest.mark.parametrize("what", LISTS)
def test_a_large_fetch_is_read_and_written_in_short_steps(version: int, what: str) -> None:
    """50,000 forgotten topics took 0.3 s, in which nobody else was served."""
    data = large_fetch(version, what, MANY)
    for read in (decoded, streamed, *((sender_of,) if version >= 15 else ())):
        work = Work().run(read(data))
        assert work.longest <= MOST_IN_A_STEP, read

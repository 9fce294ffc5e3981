# SPDX-License-Identifier: Apache-2.0
"""What a scanner keeps does not grow with the response."""

import struct
import sys
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from tests.protocol.fetch_data import batch
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner

BUFFER = 64 * 1024
APPENDED = encode_response_topics(3, [ResponseTopic(b"held", RESPONSE_ENTRY.pack(0, 0, 258, 0))])


def parts(records: Sequence[Sequence[int]]) -> Iterator[bytes]:
    """A v3 response of one topic, never made as a whole: `records` are the batches' sizes for each partition."""
    size = 12 + 2 + 6 + 4 + sum(18 + sum(sizes) for sizes in records)
    yield struct.pack(">iiiih", size, 7, 0, 1, 6) + b"orders" + struct.pack(">i", len(records))
    for partition, sizes in enumerate(records):
        yield struct.pack(">ihqi", partition, 0, 9, sum(sizes))
        for whole in sizes:
            yield BATCHES[whole]


BATCHES = {
    whole: batch(whole) for whole in (10_240, BUFFER - 18, BUFFER - 28 - 18 - 9)
}  # made before memory is counted
ONE_PARTITION = [[10_240] * 6554]
MANY_PARTITIONS = [[10_240] * 103] * 64
# The head takes 28 bytes: from the second partition on, every header lies across the ends of two chunks.
CUT_HEADERS = [[BUFFER - 28 - 18 - 9], *[[BUFFER - 18]] * 1024]


@pytest.mark.long
@pytest.mark.parametrize("walk", [(), {b"orders"}], ids=["stepped over", "walked"])
@pytest.mark.parametrize(
    "records", [ONE_PARTITION, MANY_PARTITIONS, CUT_HEADERS], ids=["one partition", "many", "cut headers"]
)
def test_scanner_of_64_mb_in_a_64_kb_buffer_keeps_none_of_it(
    records: Sequence[Sequence[int]], walk: set[bytes]
) -> None:
    """Nothing is left that points into the buffer; what is allocated are a partition's header and its RecordsSeen."""
    buffer = bytearray(BUFFER)
    scanner = FetchResponseScanner(3, 7, Expected(APPENDED, 1, walk))
    sent = filled = 0

    def receive() -> int:
        with memoryview(buffer) as view:
            buffers, used = scanner.receive(view[:filled])
            assert used == filled
            assert sum(isinstance(part, bytes) for part in buffers) <= 2  # the patched head and the appended tail
            return sum(map(len, buffers))

    tracemalloc.start()
    try:
        for part in parts(records):
            rest = memoryview(part)
            while rest:
                taken = min(len(rest), BUFFER - filled)
                buffer[filled : filled + taken] = rest[:taken]
                filled += taken
                rest = rest[taken:]
                if filled == BUFFER:
                    sent += receive()
                    filled = 0
                    buffer.append(0)  # a BufferError if any slice of it were still held
                    buffer.pop()
        sent += receive()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert scanner.done
    assert scanner.expected == Expected()  # and not what was appended
    assert sent == scanner.frame_size + 4 + len(APPENDED) > 64 * 2**20
    (topic,) = scanner.topics
    assert sum(seen.complete_bytes for seen in topic.records) == sum(map(sum, records))
    assert len(topic.headers) == 18 * len(records)
    # buffer.append above moves the buffer once; a chunk kept for each cut header would be 64 MB.
    assert peak < 1.5 * BUFFER + 512 * len(records)


def test_scanner_carries_no_more_than_one_topic_s_head() -> None:
    """The longest thing that is read as one is a topic's name with its length and count: 32,773 bytes."""
    frame = struct.pack(">iiiih", 12 + 32_773 + 18, 7, 0, 1, 32_767) + b"n" * 32_767 + struct.pack(">i", 1) + bytes(18)
    scanner = FetchResponseScanner(3, 7)
    for at in range(len(frame) - 1):
        scanner.receive(memoryview(frame)[at : at + 1])
        body = scanner._body
        held = sys.getsizeof(scanner._held) + (sys.getsizeof(body._held) if body else 0)
        assert held < 80_000  # a bytearray grows ahead of its need
    assert not scanner.done
    assert scanner.topics == []

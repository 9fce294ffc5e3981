# SPDX-License-Identifier: Apache-2.0
"""Records counted by the heads of batches, against kafka-python's own reader of records."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from tests.protocol.wire import fetch_response, produce, string
from weir.protocol.header import FETCH, PRODUCE
from weir.protocol.record_counts import counts_of

NONE, GZIP, LZ4 = 0, 1, 3


class Counted(NamedTuple):
    """What was counted of a partition's records; `complete` are the bytes of whole batches."""

    records: int
    complete: int
    corrupt: bool


def count(records: bytes, cuts: tuple[int, ...] = (), *, starts_at_zero: bool = False) -> Counted:
    """Count `records` in pieces that end at `cuts`; what lies around a piece must not matter."""
    if starts_at_zero:
        rest = struct.pack(">ii", 1000, 1) + string(b"a") + struct.pack(">iii", 1, 0, len(records)) + records
        counts, data = counts_of(PRODUCE, 2), produce(1, 1, records=rest)
    else:
        counts, data = counts_of(FETCH, 1), fetch_response(1, version=1, topics=((b"a", ((0, 7, records),)),))
    assert counts is not None
    counts.left = len(data)
    start = len(data) - len(records)
    edges = [0, start, *sorted(start + min(cut, len(records)) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        around = memoryview(data[begin:end] + (b"\xff" * 70 if end == len(data) else b""))
        if begin < end:
            assert counts.see(around) == end - begin
    assert not counts.left
    found, complete = counts.topics.get(b"a", (0, 0))
    return Counted(found, complete, counts.fault == "batch")


def built(magic: int, codec: int, sizes: list[int], offset: int = 0) -> bytes:
    """A batch (magic 2), or messages, by kafka-python's builder."""
    builder = MemoryRecordsBuilder(magic, codec, 10**7, offset)
    for size in sizes:
        assert builder.append(timestamp=1, key=b"k", value=b"v" * size) is not None
    builder.close()
    return bytes(builder.buffer())


def v2_head(size: int, *, attributes: int = 0, delta: int = 0, records: int = 1, magic: int = 2) -> bytes:
    return struct.pack(">qiibIhiqqqhii", 7, size, 0, magic, 0, attributes, delta, 0, 0, 0, 0, 0, records)


def theirs(records: bytes) -> int:
    """How many records kafka-python reads."""
    found, read = 0, MemoryRecords(records)
    while read.has_next():
        found += sum(1 for _ in read.next_batch())
    return found


batches = st.tuples(st.sampled_from([NONE, GZIP, LZ4]), st.lists(st.integers(0, 400), min_size=1, max_size=30))
cuts = st.lists(st.integers(0, 5000), max_size=5).map(tuple)


@pytest.mark.long
@given(found=st.lists(batches, max_size=8), cuts=cuts, tail=st.integers(0, 200))
def test_magic_2_has_as_many_records_as_kafka_python_reads(
    found: list[tuple[int, list[int]]], cuts: tuple[int, ...], tail: int
) -> None:
    whole = b"".join(built(2, codec, sizes) for codec, sizes in found)
    counter = count(whole, cuts)
    assert counter.records == theirs(whole) == sum(len(sizes) for _, sizes in found)
    assert (counter.complete, counter.corrupt) == (len(whole), False)
    cut_off = count(whole + built(2, NONE, [300])[:tail], cuts)
    assert (cut_off.records, cut_off.complete, cut_off.corrupt) == (counter.records, len(whole), False)


@given(magic=st.sampled_from([0, 1]), sizes=st.lists(st.integers(0, 400), min_size=1, max_size=40), cuts=cuts)
def test_messages_that_are_not_compressed_count_one_each(magic: int, sizes: list[int], cuts: tuple[int, ...]) -> None:
    records = built(magic, NONE, sizes)
    assert count(records, cuts).records == theirs(records) == len(sizes)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("cuts", [(), tuple(range(200))])
def test_what_lacks_its_last_byte_is_a_tail(magic: int, cuts: tuple[int, ...]) -> None:
    whole = built(magic, NONE, [3])
    assert count(2 * whole, cuts) == (2, 2 * len(whole), False)
    assert count((2 * whole)[:-1], cuts) == (1, len(whole), False)


def wrapper(magic: int, last_offset: int, sizes: list[int]) -> bytes:
    """A compressed set as a broker stores it: the wrapper has the offset of the last message within."""
    made = bytearray(built(magic, GZIP, sizes))
    made[:8] = struct.pack(">q", last_offset)
    return bytes(made)


@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_sets_count_by_the_distance_of_offsets(magic: int) -> None:
    first, second = wrapper(magic, 109, [10] * 10), wrapper(magic, 129, [10] * 20)
    alone = count(first)
    assert alone.records == 1
    assert count(first + second).records == 20 + 20  # the first is taken to be like the second
    assert count(built(magic, NONE, [5])[:0] + second + wrapper(magic, 139, [10] * 10)).records == 10 + 10
    before = bytearray(built(magic, NONE, [5]))
    before[:8] = struct.pack(">q", 99)
    assert count(bytes(before) + first + second).records == 1 + 10 + 20
    assert count(wrapper(magic, 9, [10] * 10), starts_at_zero=True).records == 10


def test_compacted_set_counts_no_more_records_than_bytes() -> None:
    first, second = wrapper(1, 100, [10]), wrapper(1, 10**12, [10])
    assert count(first + second).records <= 2 * len(second)


def test_a_control_batch_has_no_records() -> None:
    control = v2_head(49 + 20, attributes=0x20) + b"c" * 20
    counter = count(control + built(2, NONE, [3, 3]))
    assert (counter.records, counter.complete) == (2, len(control) + len(built(2, NONE, [3, 3])))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(v2_head(0), id="size 0"),
        pytest.param(v2_head(-1), id="negative size"),
        pytest.param(v2_head(-(2**31)), id="least size"),
        pytest.param(v2_head(13), id="less than a message"),
        pytest.param(v2_head(48), id="less than a batch's head"),
        pytest.param(v2_head(49, records=-1), id="negative records"),
        pytest.param(v2_head(49, delta=5, records=7), id="more records than offsets"),
        pytest.param(v2_head(49, attributes=GZIP, delta=5, records=7), id="more records than offsets, compressed"),
        pytest.param(v2_head(49 + 13, delta=1, records=2), id="more records than have room"),
        pytest.param(v2_head(49, magic=3), id="unknown magic"),
        pytest.param(v2_head(49, magic=-1), id="negative magic"),
    ],
)
@pytest.mark.parametrize("cuts", [(), (1, 12, 17, 18, 19, 60), tuple(range(200))])
def test_what_cannot_be_a_batch_ends_the_count(broken: bytes, cuts: tuple[int, ...]) -> None:
    good = built(2, NONE, [3, 3])
    counter = count(good + broken + b"x" * 50 + good, cuts)
    assert (counter.records, counter.complete, counter.corrupt) == (2, len(good), True)


@given(data=st.binary(max_size=300), cuts=cuts, starts_at_zero=st.booleans())
def test_any_bytes_are_counted_alike_however_they_are_cut(
    data: bytes, cuts: tuple[int, ...], starts_at_zero: bool
) -> None:
    data = built(2, NONE, [1]) + data
    whole, cut = count(data, starts_at_zero=starts_at_zero), count(data, cuts, starts_at_zero=starts_at_zero)
    assert (whole.records, whole.complete, whole.corrupt) == (cut.records, cut.complete, cut.corrupt)
    assert 1 <= whole.records <= 1 + len(data)

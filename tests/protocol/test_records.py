# SPDX-License-Identifier: Apache-2.0
"""Record batches stepped over by their lengths."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import batch, pieces, seen, single_bytes
from weir.protocol.frame_reader import FrameReader
from weir.protocol.records import RecordsSeen, see_records, walk_records

MAGICS = (0, 1, 2)


class Walker(FrameReader):
    """A frame that has only records."""

    def __init__(self, found: RecordsSeen) -> None:
        super().__init__(see_records(self, found))
        self.left = found.size


def walk(records: bytes, chunks: list[bytes]) -> RecordsSeen:
    """What is seen in `chunks`; walking them whole comes to the same."""
    found = RecordsSeen(3, len(records))
    reader = Walker(found)
    for chunk in chunks:
        reader.read(memoryview(chunk))
    assert reader.done
    # What lies around them must not matter.
    around = memoryview(b"\xff" * 9 + records + b"\xff" * 20)
    assert walk_records(3, around, 9, len(records)) == found
    return found


@pytest.mark.parametrize("magic", MAGICS)
def test_records_whole_batches_are_counted(magic: int) -> None:
    records = batch(300, magic=magic) + batch(100, magic=magic) + batch(200, magic=magic)
    assert walk(records, [records]) == RecordsSeen(
        3, 600, complete_bytes=600, batches=3, cut_bytes=0, smallest=100, largest=300, next_batch_size=0
    )


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("tail", [12, 13, 17, 61, 199])
def test_records_cut_tail_with_its_head_tells_next_batch_size(magic: int, tail: int) -> None:
    records = batch(100, magic=magic) + batch(200, magic=magic)[:tail]
    assert walk(records, [records]) == RecordsSeen(
        3, 100 + tail, complete_bytes=100, batches=1, cut_bytes=tail, smallest=100, largest=100, next_batch_size=200
    )


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("tail", [1, 8, 11])
def test_records_cut_tail_without_its_head_tells_no_size(magic: int, tail: int) -> None:
    records = batch(100, magic=magic) + batch(200, magic=magic)[:tail]
    found = walk(records, [records])
    assert (found.complete_bytes, found.cut_bytes, found.next_batch_size) == (100, tail, 0)


@pytest.mark.parametrize("size", [1, 11, 12, 99])
def test_records_with_no_whole_batch_are_all_cut(size: int) -> None:
    records = batch(100)[:size]
    assert walk(records, [records]) == RecordsSeen(3, size, cut_bytes=size, next_batch_size=100 if size >= 12 else 0)


@pytest.mark.parametrize(("size", "batches"), [(13, 0), (14, 1)])
def test_records_smallest_legal_batch_is_a_batch(size: int, batches: int) -> None:
    """An empty message of magic 0: 12 bytes of offset and size, 14 bytes of message."""
    records = struct.pack(">qi", 0, size) + bytes(size)
    assert walk(records, [records]).batches == batches


@pytest.mark.parametrize("size", [-(2**31), -13, -12, -1, 0, 13])
def test_records_of_an_impossible_batch_size_are_cut_there(size: int) -> None:
    """A size of -12 would step nowhere for ever; a follower throws on all of them and keeps what came before."""
    records = batch(100) + struct.pack(">qi", 0, size) + bytes(50)
    assert walk(records, [records]) == RecordsSeen(
        3, 162, complete_bytes=100, batches=1, cut_bytes=62, smallest=100, largest=100
    )


def test_records_largest_size_does_not_step_past_the_end() -> None:
    records = struct.pack(">qi", 0, 2**31 - 1) + bytes(50)
    found = walk(records, [records])
    assert (found.batches, found.cut_bytes, found.next_batch_size) == (0, 62, 2**31 + 11)


@pytest.mark.parametrize("first", range(1, 60))
def test_records_cut_between_chunks_anywhere_are_seen_alike(first: int) -> None:
    records = batch(26) + batch(30) + batch(40)[:13]
    assert walk(records, [records[:first], records[first:]]) == seen(3, records)


@given(fetch_data.records.filter(bool), st.lists(st.integers(0, 400), max_size=6))
def test_records_in_any_chunks_are_seen_as_slicing_sees_them(records: bytes, cuts: list[int]) -> None:
    expected = seen(3, records)
    assert expected.complete_bytes + expected.cut_bytes == expected.size
    assert walk(records, [records]) == expected
    assert walk(records, pieces(records, cuts)) == expected
    assert walk(records, single_bytes(records)) == expected

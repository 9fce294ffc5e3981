"""Frames are counted in whatever pieces they arrive."""

import random

import pytest

from tests.protocol.wire import frame
from weir.protocol.frame_cutter import FrameCutter


def cut_all(chunks: list[bytes], most: int) -> list[bytes]:
    """The pieces that `most` frames at a time make of `chunks`."""
    cutter, pieces = FrameCutter(), []
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            at, frames = cutter.cut(view, most)
            assert 0 < at <= len(view)
            assert frames <= most
            pieces.append(bytes(view[:at]))
            view = view[at:]
    return pieces


def test_a_view_of_many_frames_is_cut_behind_every_few() -> None:
    frames = [frame(bytes(size)) for size in (1, 20, 3, 400, 5)]
    assert cut_all([b"".join(frames)], 2) == [frames[0] + frames[1], frames[2] + frames[3], frames[4]]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 100])
def test_frames_in_pieces_are_cut_at_their_ends_without_loss(piece: int) -> None:
    rng = random.Random(piece)
    frames = [frame(bytes(rng.randrange(1, 12))) for _ in range(50)]
    data = b"".join(frames)
    pieces = cut_all([data[at : at + piece] for at in range(0, len(data), piece)], 1)
    assert b"".join(pieces) == data
    ends, at = set(), 0
    for one in frames:
        at += len(one)
        ends.add(at)
    cuts, at = set(), 0
    for one in pieces:
        at += len(one)
        cuts.add(at)
    assert ends <= cuts


def test_bytes_that_are_skipped_belong_to_the_frame_under_way() -> None:
    cutter = FrameCutter()
    assert cutter.cut(memoryview(frame(bytes(100))[:50]), 1) == (50, 1)
    cutter.skip(30)
    assert cutter.cut(memoryview(bytes(24) + frame(b"x")), 1) == (24, 1)


def test_a_size_below_zero_ends_at_once() -> None:
    assert FrameCutter().cut(memoryview(b"\xff" * 8), 1) == (4, 1)


@pytest.mark.parametrize("before", [0, 2, 50])
def test_a_place_it_was_in_is_one_to_begin_again_from(before: int) -> None:
    cutter, data = FrameCutter(), memoryview(frame(bytes(100)) + frame(b"x") + frame(b"y"))
    cutter.cut(data[:before], 1)
    place = cutter.place
    assert cutter.cut(data[before:], 3)[0] == len(data) - before
    cutter.place = place
    assert cutter.cut(data[before:], 2)[0] == 109 - before

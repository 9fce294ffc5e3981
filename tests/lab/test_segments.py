# SPDX-License-Identifier: Apache-2.0
import time
from pathlib import Path

import pytest

from weir.lab import segments
from weir.lab.segments import ReplicaSize, SegmentsDiffer, compare_logs, replica_size, segment_files


def written(folder: Path, *contents: bytes) -> list[Path]:
    folder.mkdir(parents=True)
    files = []
    for number, content in enumerate(contents):
        files.append(folder / f"{number:020}.log")
        files[-1].write_bytes(content)
    return files


def test_logs_cut_into_other_segments_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_CHUNK", 4)
    first = written(tmp_path / "a", b"abcdefghi", b"jk")
    second = written(tmp_path / "b", b"ab", b"cdefg", b"hijk")
    assert compare_logs("orders-0", first, second) == 11


@pytest.mark.parametrize(
    ("other", "position"),
    [(b"abcdefghiXk", 9), (b"abcdefghij", 10), (b"abcdefghijkl", 11), (b"", 0), (b"Xbcdefghijk", 0)],
)
def test_logs_that_differ_name_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bytes, position: int
) -> None:
    monkeypatch.setattr(segments, "_CHUNK", 4)
    with pytest.raises(SegmentsDiffer) as refused:
        compare_logs("orders-0", written(tmp_path / "a", b"abcdefghijk"), written(tmp_path / "b", other))
    assert refused.value.position == position
    assert refused.value.sizes == (11, len(other))


def test_empty_logs_are_the_same(tmp_path: Path) -> None:
    assert compare_logs("orders-0", [], written(tmp_path / "b", b"")) == 0


def test_segment_files_come_in_offset_order_without_indexes(tmp_path: Path) -> None:
    files = written(tmp_path / "orders-0", b"abc", b"de")
    (tmp_path / "orders-0" / f"{0:020}.index").write_bytes(bytes(99))
    assert segment_files(tmp_path, "orders", 0) == files
    assert replica_size(tmp_path, "orders", 0) == 5


def test_missing_replica_has_no_segments(tmp_path: Path) -> None:
    assert segment_files(tmp_path, "orders", 0) == []
    assert replica_size(tmp_path, "orders", 0) == 0


def test_size_read_again_sees_growth_new_segments_and_their_end(tmp_path: Path) -> None:
    size = ReplicaSize(tmp_path, "orders", 0)
    assert size.read() == 0
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / "0.log").write_bytes(b"12345")
    assert size.read() == 5
    (folder / "0.log").write_bytes(b"1234567")
    assert size.read() == 7
    time.sleep(0.01)  # a file system's clock is coarse
    (folder / "7.log").write_bytes(b"12")
    assert size.read() == 9
    time.sleep(0.01)
    (folder / "0.log").unlink()
    assert size.read() == 2

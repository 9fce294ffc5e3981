# SPDX-License-Identifier: Apache-2.0
"""What is said of a file that cannot be read to its end."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from weir.pipeline import damaged
from weir.pipeline.damaged import damaged_files, may_be_damage
from weir.pipeline.errors import BuildError

FILES = [f"hdfs://cluster/samples/broker-{number}.jsonl.gz" for number in range(9)]


def _found(monkeypatch: pytest.MonkeyPatch, said: str, *damaged_ones: int) -> tuple[list[str], int]:
    """What is said of FILES, of which reading some fails with these words, and how often files were read."""
    bad = {FILES[number] for number in damaged_ones}
    read = []

    def fail(_: object, paths: list[str]) -> None:
        read.append(paths)
        if bad & set(paths):
            raise PySparkException(f"Job aborted.\nCaused by: {said}")

    monkeypatch.setattr(damaged, "_read_through", fail)
    spark: Any = None
    return damaged_files(spark, FILES), sum(map(len, read))


@pytest.mark.parametrize(
    ("said", "is_damage"),
    [
        ("java.io.EOFException: Unexpected end of input stream", True),
        ("java.io.IOException: not a gzip file", True),
        ("java.io.IOException: gzip data not compressed with deflate method", True),
        ("java.io.IOException: invalid bit length repeat", True),
        ("java.util.zip.ZipException: invalid distance", True),
        ("java.io.EOFException: End of File Exception between local host is: a; destination host is: b", False),
        ("java.io.EOFException: Unexpected EOF while trying to read response from server", False),
        ("java.io.IOException: Input/output error", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_file_is_damaged_by_its_contents_not_by_being_away(
    monkeypatch: pytest.MonkeyPatch, said: str, is_damage: bool
) -> None:
    """For another error no file is read again: it would be the same."""
    assert may_be_damage(PySparkException(said)) is is_damage
    if is_damage:
        assert _found(monkeypatch, said, 4)[0] == [FILES[4]]
    else:
        with pytest.raises(PySparkException, match=said):
            _found(monkeypatch, said, 4)


def test_every_damaged_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "java.io.IOException: not a gzip file"
    assert _found(monkeypatch, said) == ([], 9)
    assert _found(monkeypatch, said, 1, 8)[0] == [FILES[1], FILES[8]]
    assert _found(monkeypatch, said, 0)[1] <= 4 * len(FILES)


def test_file_whose_lines_may_be_wrong_is_not_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=r"broker-3.jsonl.gz is not as it was written \(.*\): move it away to build"):
        _found(monkeypatch, "java.io.IOException: gzip stream CRC failure", 3)

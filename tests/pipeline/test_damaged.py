"""What is said of a file that cannot be read to its end."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JJavaError

from pipeline import damaged
from pipeline.damaged import damaged_files
from pipeline.errors import BuildError

FILE = "hdfs://cluster/samples/broker-1.jsonl.gz"


@pytest.mark.parametrize(
    ("error", "is_damage"),
    [
        ("java.io.EOFException: Unexpected end of input stream", True),
        ("java.io.IOException: not a gzip file", True),
        ("java.io.IOException: gzip data not compressed with deflate method", True),
        ("java.io.IOException: invalid bit length repeat", True),
        ("java.util.zip.ZipException: invalid distance", True),
        ("java.io.EOFException: End of File Exception between local host is: a; destination host is: b", False),
        ("java.io.EOFException: Unexpected EOF while trying to read response from server", False),
        ("java.io.IOException: Input/output error", False),
    ],
)
def test_file_is_damaged_where_its_contents_are_and_not_where_it_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, error: str, is_damage: bool
) -> None:
    if is_damage:
        assert found(monkeypatch, error) == [FILE]
    else:
        with pytest.raises(BuildError, match=f"{FILE} cannot be read: {error}"):
            found(monkeypatch, error)


def test_file_whose_lines_may_be_wrong_is_not_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=rf"{FILE} is not as it was written \(.*\): move it away to build without it$"):
        found(monkeypatch, "java.io.IOException: gzip stream CRC failure")


def found(monkeypatch: pytest.MonkeyPatch, error: str) -> list[str]:
    """What is said of FILE where reading it ends with this error."""

    def fail(*_: object) -> NoReturn:
        raise Py4JJavaError("", SimpleNamespace(_target_id="", _gateway_client=None, toString=lambda: error))

    monkeypatch.setattr(damaged, "_read_through", fail)
    spark: Any = None
    return damaged_files(spark, [FILE], date(2026, 11, 2))

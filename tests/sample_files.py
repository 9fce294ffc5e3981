# SPDX-License-Identifier: Apache-2.0
"""Reading exported samples back."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from weir.samples.schema import AnyLine, Line, by_partition, decode_line

Kind = TypeVar("Kind", bound=Line)


def finished_files(directory: Path) -> list[Path]:
    """The files that jobs read, oldest first."""
    return sorted(directory.glob("date=*/hour=*/broker-*.jsonl.gz"))


def unfinished_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("date=*/hour=*/.*.tmp"))


def lines_of(contents: Iterable[bytes]) -> list[AnyLine]:
    """All lines, with one for each partition."""
    return list(by_partition(decode_line(text) for content in contents for text in content.splitlines()))


def lines_in(directory: Path) -> list[AnyLine]:
    return lines_of(gzip.decompress(path.read_bytes()) for path in finished_files(directory))


def of_kind(lines: Iterable[Line], kind: type[Kind]) -> list[Kind]:
    return [line for line in lines if isinstance(line, kind)]

# SPDX-License-Identifier: Apache-2.0
"""Reads exported lines from folders of this machine into DuckDB, as `weir.pipeline.read` has Spark read them.

Python unpacks the files and looks at the types of a line's fields; DuckDB gets lines that it can read, from a file.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from duckdb import DuckDBPyConnection

from weir.pipeline.days import HOUR_SECONDS, Days
from weir.pipeline.duck.frame import DataFrame
from weir.pipeline.duck.functions import TYPES
from weir.pipeline.errors import BuildError
from weir.pipeline.lines import COLUMNS, CORRUPT, FIELDS, MAX_CHARACTERS, MAX_SECONDS

_PIECE: Final = 1 << 16
_LARGE: Final = 1_000_000
"""A line of more bytes is cut: DuckDB reads at most 16 MB as one."""
_IN_LINES: Final = FIELDS | {CORRUPT: "string", "file": "string", "folder_hour": "bigint"}
_KNOWN_IN_BAD_LINES: Final = {"kind": str, "start_id": str, "end_utc": str, "schema": int, "min_reader": int}

# Bounds that nothing comes near, within which sums of a few fit into 64 bits: DuckDB fails where Spark overflows.
_Integer = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_READ_AS: Final = {"bigint": _Integer, "double": _Seconds, "string": str, "array<bigint>": list[_Integer | None]}


def _struct(name: str, kinds: dict[str, Any]) -> Any:
    return msgspec.defstruct(name, [(of, kind | None, None) for of, kind in kinds.items()], omit_defaults=True)


_Columns: Final = _struct("_Columns", {name: _READ_AS[kind] for name, kind in COLUMNS.items()})
_Line: Final = _struct("_Line", {name: _READ_AS.get(kind, _Columns) for name, kind in FIELDS.items()})
_decoder: Final = msgspec.json.Decoder(_Line)
_encoder: Final = msgspec.json.Encoder()


def is_by_day(source: Path) -> bool:
    """Whether the source has its files in folders of days."""
    return any(source.glob("date=*"))


def read_lines(connection: DuckDBPyConnection, source: Path, days: Days) -> tuple[DataFrame, list[str]]:
    """Return the fields of every line that may belong to `days`, and the damaged files, which are read in part.

    As for Spark the frame has the columns `_corrupt`, `file` and `folder_hour` beside FIELDS. Raises BuildError.
    """
    if not source.exists():
        raise BuildError(f"there is no {source}")
    damaged = []
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as told:
        for file, hour in _files(source, days):
            try:
                text, is_whole = _unpacked(file)
            except OSError as error:
                raise BuildError(f"{file} cannot be read: {error.strerror}") from error
            name = f"file://{file.absolute()}"
            if not is_whole:
                damaged.append(name)
                text = text[: text.rfind(b"\n") + 1]
            of_file = _encoder.encode({"file": name, "folder_hour": hour})[:-1]
            for line in text.split(b"\n"):
                if line.strip():
                    fields = _encoder.encode(_read(line))[1:]
                    told.write(of_file + (b"" if fields == b"}" else b",") + fields + b"\n")
        told.flush()
        kinds = ", ".join(f"{name}: '{_type(kind)}'" for name, kind in _IN_LINES.items())
        query = f"FROM read_json('{told.name}', columns = {{{kinds}}}, format = 'newline_delimited')"
        return DataFrame(connection, query).kept(), damaged


def _type(kind: str) -> str:
    if kind.startswith("struct<"):
        return f"STRUCT({', '.join(f'{name} {_type(of)}' for name, of in COLUMNS.items())})"
    return f"{_type(kind[6:-1])}[]" if kind.startswith("array<") else TYPES[kind]


def _files(source: Path, days: Days) -> Iterator[tuple[Path, int | None]]:
    """Yield the files that may have lines of `days`, each with the begin of the hour that its folder names."""
    if not is_by_day(source):
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file() and not file.name.startswith((".", "_")):
                yield file, None
        return
    first, last = days.seconds()
    for begin in range(first - HOUR_SECONDS, last + 2, HOUR_SECONDS):
        hour = datetime.fromtimestamp(begin, UTC)
        for file in sorted((source / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}").glob("[!._]*")):
            yield file, begin


def _unpacked(file: Path) -> tuple[bytes, bool]:
    """Return what is in a file up to its damage, and whether it has none."""
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data, True
    found = []
    while data:  # a file may have several parts
        part = zlib.decompressobj(wbits=31)
        for begin in range(0, len(data), _PIECE):
            before = part.copy()
            try:
                found.append(part.decompress(data[begin : begin + _PIECE]))
            except zlib.error as error:
                if "incorrect data check" in str(error) or "incorrect length check" in str(error):
                    # told after the last byte: any of them may be wrong, although the sample looks whole
                    raise BuildError(
                        f"{file} is not as it was written ({error}): move it away to build without it"
                    ) from error
                return b"".join([*found, *_until_damage(before, data[begin : begin + _PIECE])]), False
            if part.eof:
                break
        if not part.eof:
            return b"".join(found), False
        data = part.unused_data + data[begin + _PIECE :]
    return b"".join(found), True


def _until_damage(part: Any, data: bytes) -> Iterator[bytes]:
    for number in range(len(data)):
        try:
            yield part.decompress(data[number : number + 1])
        except zlib.error:
            return


def _read(text: bytes) -> Any:
    """Return the fields of a line; of a bad one those that tell what it is."""
    if not text.isascii():
        text = text.decode(errors="replace").encode()
    try:
        line = _decoder.decode(text)
    except msgspec.DecodeError:
        return {CORRUPT: text[: 4 * MAX_CHARACTERS].decode(errors="replace") + _end(text), **_known(text)}
    if len(text) > _LARGE:
        for struct in (line, line.columns or line):
            for name in struct.__struct_fields__:
                setattr(struct, name, _cut(getattr(struct, name)))
    return line


def _cut(value: Any) -> Any:
    """Return as much of a long value as tells that it is too long."""
    if isinstance(value, str):
        return value[: MAX_CHARACTERS + 1]
    return value[: MAX_SECONDS + 1] if isinstance(value, list) else value


def _end(text: bytes) -> str:
    """What tells of a line that was cut above whether it broke off."""
    return "}" if len(text) > 4 * MAX_CHARACTERS and text.rstrip().endswith(b"}") else ""


def _known(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    told = line if isinstance(line, dict) else {}
    return {
        name: _cut(told[name])
        for name, kind in _KNOWN_IN_BAD_LINES.items()
        if type(told.get(name)) is kind and (kind is str or abs(told[name]) < 2**53)
    }

# SPDX-License-Identifier: Apache-2.0
"""Tables on stdout, and errors of an output that cannot be written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO, cast

_UNLIMITED_WIDTH = 10_000

WIDTH = 80
"""Characters of a line that a screen always has."""

_SHOWN = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters, also those that turn the direction of writing, and what is shown instead."""


def printable(text: str) -> str:
    """Return text of somebody else without control characters: they could clear a terminal, or hide what it shows."""
    return text.translate(_SHOWN)


def printable_value(value: Any) -> Any:
    """Return a value as JSON has it, with every string in it, names too, printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): printable_value(one) for name, one in value.items()}
    return [printable_value(one) for one in value] if isinstance(value, list) else value


class OutputError(OSError):
    """A write to stdout or stderr failed. Its type tells it from all other errors of the system."""

    def __init__(self, error: OSError | UnicodeEncodeError) -> None:
        number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        super().__init__(number, reason or str(error))

    def __str__(self) -> str:
        return str(self.strerror)


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Within the block, have failed writes to `sys.stdout` and `sys.stderr` raise OutputError."""
    before = sys.stdout, sys.stderr
    # None where the caller has closed it
    streams = [None if stream is None else cast(TextIO, _Output(stream)) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        # Typer replaces them, and its streams are to stay: after a broken pipe it puts in one that lets the last flush
        # fail.
        if sys.stdout is streams[0]:
            sys.stdout = before[0]
        if sys.stderr is streams[1]:
            sys.stderr = before[1]


class _Output:
    """A text stream whose write errors are OutputErrors; everything else is passed to the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, UnicodeEncodeError) as error:
            raise OutputError(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputError(error) from error


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[str] = (),
    width: int = _UNLIMITED_WIDTH,
) -> None:
    """Print a table, where stdout is no terminal with `width` characters a line at most.

    Columns named in `numbers` are aligned to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    Console(width=None if is_terminal else width, highlight=False, markup=False).print(table)

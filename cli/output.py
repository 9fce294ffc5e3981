"""Tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

_UNLIMITED_WIDTH = 10_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> None:
    """Print a table, the columns named in `numbers` aligned to the right; in full where stdout is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED_WIDTH
    Console(width=width, highlight=False, markup=False).print(table)

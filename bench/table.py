"""What the benches print: markdown tables for people, or JSON lines for programs, and which bounds were held."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime


class Report:
    """One run of a bench. `status` is what it exits with: 1 when a figure missed its bound, else 0."""

    def __init__(self, as_json: bool) -> None:
        self.status = 0
        self._as_json = as_json
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        self.say(f"{datetime.now(UTC):%Y-%m-%d}, {machine}")

    def say(self, line: str) -> None:
        """Print a line that only people need."""
        if not self._as_json:
            print(line, flush=True)

    def table(self, title: str, columns: Mapping[str, int], rows: Iterable[Sequence[object]]) -> None:
        """Print rows as they come; `columns` are the headings, each with its floats' digits after the point."""
        self.say(f"\n{title}:\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for row in rows:
            if self._as_json:
                print(json.dumps({"table": title, **dict(zip(columns, row, strict=True))}), flush=True)
            else:
                cells = (_cell(value, digits) for value, digits in zip(row, columns.values(), strict=True))
                self.say(f"| {' | '.join(cells)} |")

    def bound(self, what: str, figure: float, *, least: float | None = None, most: float | None = None) -> None:
        """Compare a figure with its bounds, and print how it went."""
        held = (least is None or figure >= least) and (most is None or figure <= most)
        if not held:
            self.status = 1
        if self._as_json:
            print(json.dumps({"bound": what, "figure": figure, "least": least, "most": most, "held": held}), flush=True)
            return
        wanted = " and ".join(
            f"at {name} {value:g}" for name, value in (("least", least), ("most", most)) if value is not None
        )
        self.say(f"{'held  ' if held else 'MISSED'} {what}: {figure:.3f}, {wanted}")


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """The options that all of these benches have."""
    found = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    found.add_argument("--json", action="store_true", help="print JSON lines")
    return found


def _cell(value: object, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

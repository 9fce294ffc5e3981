# SPDX-License-Identifier: Apache-2.0
"""The frame of a bench: options, turns of what it compares, tables for people or JSON lines for programs, bounds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from weir.control.errors import ControlError
from weir.lab.errors import LabError

T = TypeVar("T")


class Report:
    """One run of a bench. `status` is what it exits with: 1 when a figure missed its bound, else 0."""

    def __init__(self, as_json: bool) -> None:
        self.status = 0
        self._as_json = as_json
        self._held: list[str] | None = None  # what is to be said behind the table that is being printed
        self.say(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}")

    def say(self, line: str) -> None:
        """Print a line that only people need."""
        if self._held is not None:
            self._held.append(line)
        elif not self._as_json:
            print(line, flush=True)

    def table(self, title: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
        """Print rows as they come. `columns` are "links | mean .3": behind a point the digits of floats, if any.

        Bounds that are compared while rows are made are told behind the table.
        """
        found = [re.fullmatch(r"(.+?)(?: \.(\d))?", column) for column in columns.split(" | ")]
        names, digits = zip(*[(one[1], int(one[2] or 0)) for one in found if one is not None], strict=True)
        self.say(f"\n{title}:\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|")
        self._held = []
        for row in rows:
            if self._as_json:
                print(json.dumps({"table": title, **dict(zip(names, row, strict=True))}), flush=True)
            else:
                print(f"| {' | '.join(map(_cell, row, digits))} |", flush=True)
        held, self._held = self._held, None
        for line in held:
            self.say(line)

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


def parser(module: str, description: str, *, trees: bool = False) -> argparse.ArgumentParser:
    """The options that benches have in common; `trees`: other checkouts may be measured, by turns."""
    found = argparse.ArgumentParser(prog=f"python -m bench.{module}", description=description)
    found.add_argument("--json", action="store_true", help="print JSON lines")
    if trees:
        words = "measure the sidecars of these checkouts by turns (this one)"
        found.add_argument("--tree", type=Path, nargs="+", default=[Path.cwd()], help=words)
    return found


def begin(options: argparse.ArgumentParser) -> tuple[argparse.Namespace, Report]:
    """Read the options, and begin the report."""
    chosen = options.parse_args()
    return chosen, Report(chosen.json)


def add_parts(options: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Let `parts` of a bench be asked for by name; all of them are run where none is."""

    def part(word: str) -> str:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(known)}")
        return word

    known = [*names]
    words = f"{', '.join(known)} (all)"
    options.add_argument("parts", nargs="*", type=part, default=known, metavar="PART", help=words)


def with_trees(cases: Iterable[T], trees: Sequence[Path]) -> Iterator[tuple[T, Path, str]]:
    """Each case with each tree in turn, and what a row's name gets behind it: nothing where there is one tree."""
    for number, case in enumerate(cases):
        for tree in turned(trees, number):
            yield case, tree, f", {tree.name}" if len(trees) > 1 else ""


def turned(ways: Sequence[T], number: int) -> Sequence[T]:
    """The ways in the order of a round: what one leaves behind, such as warm caches, is not always the same one's."""
    return ways[:: 1 if number % 2 else -1]


SPREAD = "median | lowest | highest | x the first, by round .2"
"""The columns of `spread_of`."""


def spread_of(values: Sequence[float], first: Sequence[float]) -> tuple[float, float, float, float]:
    """The median of all rounds, the lowest, the highest, and the median of what each is of the first way's round."""
    return statistics.median(values), min(values), max(values), by_round(values, first)


def by_round(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios: each compares two measurements of the same moment."""
    return statistics.median(one / other for one, other in zip(values, others, strict=True))


def progress(line: str) -> None:
    """Tell how far it is, beside what is printed."""
    print(line, file=sys.stderr, flush=True)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a bench as the whole program: what keeps it from its end is one sentence."""
    try:
        sys.exit(main())
    except (LabError, ControlError) as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")


def _cell(value: object, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

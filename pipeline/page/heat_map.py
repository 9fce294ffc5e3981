# SPDX-License-Identifier: Apache-2.0
"""A heat map of bytes in, for the partitions with the most: the higher the rate, the stronger the colour."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from weir.pipeline.page.chart import axis_row, figure, legend, mark, row
from weir.pipeline.page.contents import PartitionBytes, Partitions
from weir.pipeline.page.markup import Element, behind, left_out_note, table
from weir.pipeline.page.texts import counted, round_up
from weir.pipeline.page.timeline import Timeline
from weir.planning.units import show_rate, show_size

LEVELS: Final = 7
"""Each level goes up to twice the rate of the level below; the last one ends at a round rate above all."""

_HEIGHT: Final = 20


def heat_map(partitions: Partitions, timeline: Timeline) -> Iterator[Element]:
    """Yield the map, and then the table with its figures."""
    highest = max((rate for of in partitions.shown for rate in of.means if rate is not None), default=0.0)
    top = round_up(highest)
    rows = [_row(of, top, timeline) for of in partitions.shown]
    share = sum(of.size for of in partitions.shown) / partitions.size if partitions.size else 1.0
    summary = f"{counted(len(rows), 'partition')} with {share:.0%} of all bytes in, {show_rate(highest)} at most"
    yield legend(
        *((f"heat{level}", f"≤ {show_rate(top / 2 ** (LEVELS - level))}") for level in range(1, LEVELS + 1)),
        ("gap", "no samples"),
    )
    yield figure(None, "Heat map of partitions", summary, *rows, axis_row(timeline.axis()))
    yield from left_out_note(len(rows), partitions.count, "partitions", "with the most bytes in")
    yield behind(f"The bytes in of {counted(len(rows), 'partition')} as a table", _table(partitions, timeline))


def level_of(rate: float, top: float) -> int:
    """Return the level of a rate, from 1 to LEVELS; 0 where nothing came."""
    if rate <= 0:
        return 0
    return next(level for level in range(1, LEVELS + 1) if level == LEVELS or rate <= top / 2 ** (LEVELS - level))


def _row(of: PartitionBytes, top: float, timeline: Timeline) -> Element:
    name = f"{of.topic}-{of.partition}"
    return row(name, show_size(of.size), _HEIGHT, _cells(name, of, top, timeline))


def _cells(name: str, of: PartitionBytes, top: float, timeline: Timeline) -> Iterator[Element]:
    count = timeline.columns.count
    for is_gap, cells in groupby(enumerate(of.means), key=lambda cell: cell[1] is None):
        if is_gap:
            numbers = [number for number, _ in cells]
            title = f"{name}, {timeline.show_column(numbers[0])}: no samples"
            yield mark("gap", title, numbers[0] / count, (numbers[-1] + 1) / count, 0, _HEIGHT)
            continue
        for number, rate in cells:
            level = level_of(rate or 0.0, top)
            if level:
                title = f"{name}, {timeline.show_column(number)}: {show_rate(rate)}"
                yield mark(f"heat{level}", title, number / count, (number + 1) / count, 0, _HEIGHT)


def _table(partitions: Partitions, timeline: Timeline) -> Element:
    columns = (
        ("partition", False),
        ("bytes in", True),
        ("seen on", False),
        ("highest sample", True),
        ("busiest time", False),
        ("rate then", True),
    )
    rows = []
    for of in partitions.shown:
        rate, number = max((rate or 0.0, -number) for number, rate in enumerate(of.means))
        busiest = timeline.time(timeline.start_of(-number))
        name = f"{of.topic}-{of.partition}"
        rows.append((name, show_size(of.size), of.side, show_rate(of.highest), busiest, show_rate(rate)))
    return table(columns, rows, "Bytes in by partition")

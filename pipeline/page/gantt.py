# SPDX-License-Identifier: Apache-2.0
"""Moves as a Gantt chart: a row for each replica, a bar for each span in which it was behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from weir.pipeline.page.chart import axis_row, figure, legend, mark, row
from weir.pipeline.page.contents import Move, Moves
from weir.pipeline.page.markup import Child, Element, behind, left_out_note, reaching_note, table
from weir.pipeline.page.texts import counted, show_seconds
from weir.pipeline.page.timeline import Timeline
from weir.pipeline.page.verdict import MoveCost, Verdict
from weir.planning.units import show_rate, show_size

_HEIGHT: Final = 22
_BAR: Final = 14  # pixels
_NARROWEST: Final = 0.004  # of the width: the narrowest bar that can be seen and pointed at


def gantt(moves: Moves, verdict: Verdict, timeline: Timeline) -> Iterator[Element]:
    """Yield the chart, and then the table with its figures and what the moves of each replica cost."""
    by_replica = [(replica, list(spans)) for replica, spans in groupby(moves.shown, key=lambda move: move.replica)]
    rows = [
        row(
            str(replica),
            show_size(sum(move.size for move in spans)),
            _HEIGHT,
            [*timeline.grid(_HEIGHT), *(_bar(move, timeline) for move in spans)],
        )
        for replica, spans in by_replica
    ]
    size = show_size(sum(move.size for move in moves.shown))
    summary = f"{counted(len(moves.shown), 'move')} of {counted(len(rows), 'replica')}, {size}"
    yield legend(("done", "caught up"), ("open", "not seen to catch up"))
    yield figure(None, "Gantt chart of moves", summary, *rows, axis_row(timeline.axis()))
    for shown, count, noun in ((len(rows), moves.replicas, "replicas"), (len(moves.shown), moves.count, "moves")):
        yield from left_out_note(shown, count, noun, "with the most bytes")
    yield from reaching_note(moves.reaching_out, "move")
    yield behind(f"{counted(len(moves.shown), 'move')} as a table", _table(moves, verdict, timeline))


def _bar(move: Move, timeline: Timeline) -> Element:
    start, end = timeline.part(move.start), timeline.part(move.seen_until)
    start = min(start, 1 - _NARROWEST)
    kind = "open" if move.end is None else "done"
    top = (_HEIGHT - _BAR) // 2
    return mark(kind, _title(move, timeline), start, max(end, start + _NARROWEST), top, _BAR)


def _title(move: Move, timeline: Timeline) -> str:
    if move.end is None:
        until = f"not seen to catch up until {timeline.show(move.seen_until)}"
    else:
        until = f"caught up {timeline.show(move.end)}, after {show_seconds((move.end - move.start).total_seconds())}"
    quota = "without a quota" if move.quota is None else f"quota {show_rate(move.quota)}"
    return (
        f"{move.replica}: behind since {timeline.show(move.start)}, {until};"
        f" {show_size(move.size)} at {show_rate(move.rate or 0)}, {quota},"
        f" longest stall {show_seconds(move.longest_stall)}"
    )


def _table(moves: Moves, verdict: Verdict, timeline: Timeline) -> Element:
    columns = (
        ("replica", False),
        ("behind since", False),
        ("caught up", False),
        ("took", True),
        ("bytes", True),
        ("throttled", True),
        ("mean rate", True),
        ("quota", True),
        ("longest stall", True),
        ("held back for", True),
        ("others out of sync for", True),
    )
    rows = (_cells(move, verdict.cost_of(move.replica), timeline) for move in moves.shown)
    return table(columns, rows, "Moves")


def _cells(move: Move, cost: MoveCost | None, timeline: Timeline) -> tuple[Child, ...]:
    took = show_seconds((move.seen_until - move.start).total_seconds())
    return (
        str(move.replica),
        timeline.time(move.start),
        "not seen" if move.end is None else timeline.time(move.end),
        f"> {took}" if move.end is None else took,
        show_size(move.size),
        show_size(move.throttled_size),
        "-" if move.rate is None else show_rate(move.rate),
        show_rate(move.quota),
        show_seconds(move.longest_stall),
        "-" if cost is None else show_seconds(cost.bound_seconds),
        "-" if cost is None else show_seconds(60 * cost.hurt_minutes),
    )

# SPDX-License-Identifier: Apache-2.0
"""The charts of docs/performance.md, from the tables in it: `python -m bench.charts` writes them beside the page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
ROW, TOP, LEFT, RIGHT, WIDE = 26, 54, 280, 66, 800
WEIR, KAFKA, GREY, INK = "#1f6feb", "#d29922", "#d0d7de", "#24292f"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: whose it is, how long, its colour, and what stands at its end."""

    name: str
    value: float
    colour: str
    text: str


def table(text: str, *columns: str) -> list[tuple[str, ...]]:
    """Return the rows of the page's table that has these columns."""
    head = "| " + " | ".join(columns) + " |\n"
    _, found, after = text.partition(head)
    if not found:
        raise ValueError(f"there is no table with the columns {', '.join(columns)}")
    rows = re.match(r"\|[-|]+\|\n((?:\|.*\|\n)+)", after)
    assert rows is not None
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in rows[1].splitlines()]


def charts(text: str) -> dict[str, str]:
    """Return the charts (SVG) that the page's tables make, by the names of their files."""
    kept = table(
        text, "quota, MB/s", "weir, mean", "weir, worst second", "Kafka's own, mean", "Kafka's own, worst second"
    )
    worst = [
        Bar(f"{name} at {quota} MB/s", float(value), colour, f"{value} x")
        for quota, _, weir, _, kafka in kept
        for name, value, colour in (("weir", weir, WEIR), ("Kafka's own throttle", kafka, KAFKA))
    ]
    passed = table(text, "what passes", "directly", "through weir", "x direct", "command")
    parts = [Bar(what, float(part), WEIR, f"{part} x: {through}") for what, _, through, part, _ in passed]
    return {
        "quota.svg": "".join(
            _drawn("Worst second of a move, x quota (logarithmic)", worst, (1, 2, 5, 10, 20), math.log)
        ),
        "through.svg": "".join(_drawn("Throughput through weir, x direct", parts, (0, 0.25, 0.5, 0.75, 1), float)),
    }


def _drawn(title: str, bars: Sequence[Bar], ticks: Sequence[float], scale: Callable[[float], float]) -> Iterator[str]:
    """Yield the parts of a chart whose bars begin at the first tick."""
    first, last = scale(ticks[0]), scale(ticks[-1])

    def at(value: float) -> float:
        return round(LEFT + (WIDE - LEFT - RIGHT) * (scale(value) - first) / (last - first), 1)

    bottom = TOP + ROW * len(bars)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{bottom + 12}" role="img"'
        f' font-family="sans-serif" font-size="13" fill="{INK}">\n'
        f"<title>{escape(title)}</title>\n"
        '<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="12" y="20" font-weight="bold">{escape(title)}</text>\n'
    )
    for tick in ticks:
        x = at(tick)
        yield f'<path d="M{x} {TOP - 6}V{bottom}" stroke="{GREY}"/>'
        yield f'<text x="{x}" y="{TOP - 10}" text-anchor="middle">{tick:g}</text>\n'
    for top, bar in zip(range(TOP, bottom, ROW), bars, strict=True):
        length = round(at(bar.value) - LEFT, 1)
        yield f'<text x="{LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(bar.name)}</text>'
        yield f'<rect x="{LEFT}" y="{top + 4}" width="{length}" height="{ROW - 8}" fill="{bar.colour}"/>'
        yield f'<text x="{LEFT + length + 5}" y="{top + 17}" font-size="12">{escape(bar.text)}</text>\n'
    yield "</svg>\n"


def main() -> None:
    """Write the charts beside the page."""
    for name, drawn in charts(PAGE.read_text()).items():
        (PAGE.parent / name).write_text(drawn)


if __name__ == "__main__":
    main()

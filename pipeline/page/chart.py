# SPDX-License-Identifier: Apache-2.0
"""The parts that all charts share: a caption, a line that reads out one mark, and marks that can be stepped through.

Each mark has a title. The title is read out on hover, by touch, or with the arrow keys (page.js).
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.pipeline.page.markup import Attributes, Child, Element, element


def figure(heading: Child, label: str, readout: str, *body: Element) -> Element:
    """Make a chart. `label` is its name for screen readers, and `readout` the line shown while no mark is chosen."""
    return element(
        "figure",
        None,
        element("figcaption", None, heading, element("p", {"class": "readout", "aria-live": "polite"}, readout)),
        element("div", {"class": "walk", "role": "group", "aria-label": label}, *body),
    )


def mark(kind: str, title: str, start: float, end: float, top: int, height: int) -> Element:
    """Make a mark with the title `title`, from `start` to `end` (0 to 1 of the width), at `top` pixels."""
    place: Attributes = {
        "class": f"m {kind}",
        "x": f"{start:.3%}",
        "width": f"{end - start:.3%}",
        "y": top,
        "height": height,
    }
    return element("rect", place, element("title", None, title))


def row(name: str, figures: str, height: int, marks: Iterable[Element]) -> Element:
    """Make a row of a chart: its name and figures, and a strip with its marks."""
    return element(
        "div",
        {"class": "row"},
        element("div", {"class": "name"}, element("b", None, name), " ", element("span", None, figures)),
        element("svg", {"class": "marks strip", "width": "100%", "height": height, "aria-hidden": "true"}, *marks),
    )


def axis_row(axis: Element) -> Element:
    """Return a row of a chart that has `axis` in place of a strip, and no name."""
    return element("div", {"class": "row"}, element("div", {"class": "name"}), axis)


def legend(*entries: tuple[str, str]) -> Element:
    """Explain the colours; each entry is a CSS class and what it stands for."""
    return element(
        "ul", {"class": "legend"}, *(element("li", None, element("i", {"class": kind}), text) for kind, text in entries)
    )

# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG elements. Text stays text: every name and value is escaped when the page is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias
from xml.etree import ElementTree

from weir.pipeline.page.texts import counted, left_out

Element: TypeAlias = ElementTree.Element
Child: TypeAlias = Element | str | None

Attributes: TypeAlias = Mapping[str, str | int | float]


def element(name: str, attributes: Attributes | None = None, *children: Child) -> Element:
    """Make an element; children that are None are left out."""
    made = ElementTree.Element(name, {key: _text(value) for key, value in (attributes or {}).items()})
    last = None
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            if last is None:
                made.text = (made.text or "") + child
            else:
                last.tail = (last.tail or "") + child
        else:
            made.append(child)
            last = child
    return made


def table(columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable[Child]], label: str) -> Element:
    """Make a table that scrolls sideways by itself. A column is its name, and whether it has numbers.

    The first cell of each row is its heading.
    """
    names = list(columns)
    kinds: list[Attributes] = [{"class": "number"} if is_number else {} for _, is_number in names]
    head = element(
        "tr",
        None,
        *(element("th", {"scope": "col", **kind}, name) for (name, _), kind in zip(names, kinds, strict=True)),
    )
    body = element("tbody")
    for row in rows:
        first, *others = row
        body.append(
            element(
                "tr",
                None,
                element("th", {"scope": "row", **kinds[0]}, first),
                *(element("td", kind, cell) for kind, cell in zip(kinds[1:], others, strict=True)),
            )
        )
    return element(
        "div",
        {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": label},
        element("table", None, element("thead", None, head), body),
    )


def behind(summary: str, *children: Child) -> Element:
    """Make a part that is folded until someone opens it."""
    return element("details", None, element("summary", None, summary), *children)


def html(root: Element) -> str:
    """Return an HTML document."""
    return f"<!DOCTYPE html>\n{ElementTree.tostring(root, encoding='unicode', method='html')}\n"


def _text(value: str | int | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def left_out_note(shown: int, count: int, noun: str, order: str) -> Iterator[Element]:
    """Yield a paragraph that says how many are not shown; nothing where all are."""
    if text := left_out(shown, count, noun, order):
        yield element("p", {"class": "note"}, text)


def reaching_note(count: int, one: str, many: str | None = None) -> Iterator[Element]:
    """Say how many rows have figures that are also of times outside the range, where there are some."""
    if count:
        text = f"The figures of {counted(count, one, many)} are also of times outside the range:"
        yield element("p", {"class": "note"}, f"{text} these tables do not have them by minute. Build them again.")

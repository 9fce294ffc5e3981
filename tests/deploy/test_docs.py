"""The pages: links between them lead to a file and a heading that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THROTTLE = ROOT / "docs/throttle.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])
_CONSTANT = re.compile(r"^\| `(\w+)` \| ([\d.]+) (s|%|MiB) \| `([\w/]+)\.py` \|$", re.MULTILINE)
_UNITS = {"s": 1.0, "%": 0.01, "MiB": 2.0**20}
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in _LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_examples_name_no_room_by_its_folder_alone() -> None:
    rooms = "|".join(link.name for link in (ROOT / "weir").iterdir() if link.is_symlink())
    wrong = re.compile(
        rf"^ *(?:(?:from|import) (?:{rooms})\b(?! \w)|.*python\S* (?:-\w+ )*-m (?:{rooms})\.)", re.MULTILINE
    )
    files = [
        *PAGES,
        ROOT / "Makefile",
        *(path for room in (*rooms.split("|"), "bench") for path in (ROOT / room).rglob("*.py")),
    ]
    assert {path.name: found for path in files if (found := wrong.findall(path.read_text()))} == {}
    for text in ("from limits.rate_limiter import Batch", "    import proxy", "Run `python -m lab.prepare`"):
        assert wrong.search(text)


def durations(text: str) -> Iterator[float]:
    """The seconds that a page tells: in no code block, row of times, or example, which goes on to its paragraph's end."""
    text = re.sub(r"^```.*?^```|^### Example$.*?^#|^\| \d.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"Example:.*?(\n\n|\Z)", "", text, flags=re.DOTALL)
    yield from map(float, re.findall(r"(?<![\d.,/])(\d[\d.]*)\s+s\b", text))


def test_constants_of_the_throttle_are_those_of_the_code() -> None:
    rows = _CONSTANT.findall(THROTTLE.read_text())
    assert len(rows) > 20
    told = {(module, name): float(value) * _UNITS[unit] for name, value, unit, module in rows}
    code = {(module, name): getattr(import_module(f"weir.{module.replace('/', '.')}"), name) for module, name in told}
    assert told == pytest.approx(code)


def test_durations_of_the_throttle_are_constants() -> None:
    text = THROTTLE.read_text()
    constants = {float(value) for _, value, unit, _ in _CONSTANT.findall(text) if unit == "s"}
    assert set(durations(text)) <= constants
    assert set(durations("waits 7 s. Example: 8 s\n\nand\n9 s")) == {7.0, 9.0}

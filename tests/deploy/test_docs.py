# SPDX-License-Identifier: Apache-2.0
"""The pages: links between them lead to a file and a heading that is there."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from weir.quota import figures as figures_of_code

ROOT = Path(__file__).resolve().parents[2]
THROTTLE = ROOT / "docs/throttle.md"
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "deploy/**/*.md", "bench/*.md") for path in ROOT.glob(pattern))
_CONSTANTS = re.compile(r"^\| `([\w/]+)\.py` \| (`[A-Z].*) \|$", re.MULTILINE)
_CONSTANT = re.compile(r"`(\w+)` ([\d.]+) (s|%|MiB)(?:, |$)")
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


def constants(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The table of constants, by module and name: each with its value and unit."""
    return {
        (module.replace("/", "."), name): (value, unit)
        for module, row in _CONSTANTS.findall(text)
        for name, value, unit in _CONSTANT.findall(row)
    }


def figures(text: str, unit: str) -> set[str]:
    """The figures with a unit before a page's table of constants. Paragraphs from "Example:" on are left out."""
    text = text.partition("\n## Constants")[0]
    examples = r"^```.*?^```|^### Example$.*?^#|Example:.*?(?:\n\n|\Z)"
    text = re.sub(examples, "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(rf"(?<![\d.,/])(\d[\d.]*)\s+{unit}(?!\w)", text))


def test_constants_of_the_throttle_are_those_of_the_code() -> None:
    told = constants(THROTTLE.read_text())
    assert len(told) > 20
    code = {(module, name): getattr(import_module(f"weir.{module}"), name) for module, name in told}
    assert {key: float(value) * _UNITS[unit] for key, (value, unit) in told.items()} == pytest.approx(code)


@pytest.mark.parametrize("unit", ["s", "%"])
def test_figures_of_the_throttle_are_constants(unit: str) -> None:
    text = THROTTLE.read_text()
    assert figures(text, unit) <= {value for value, its in constants(text).values() if its == unit}
    assert figures("waits 7 s, 3 %. Example: 8 s\n\nand\n9 s", "s") == {"7", "9"}


def test_share_of_a_line_and_the_window_are_those_of_the_code() -> None:
    text = THROTTLE.read_text()
    assert f"never more than {figures_of_code.ROUND_SECONDS} s / (n + 1)" in text
    assert set(re.findall(r"([\d.]+) x (?:quota|rate)", text)) == {str(1 + figures_of_code.WINDOW_SLACK)}

"""The pages: links between them lead to a file and a heading that is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])
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

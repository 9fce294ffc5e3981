# SPDX-License-Identifier: Apache-2.0
"""The box on top of the page: the five answers."""

from __future__ import annotations

from datetime import tzinfo

from weir.pipeline.page.answers import Answer, answers
from weir.pipeline.page.markup import Element, behind, element
from weir.pipeline.page.texts import counted
from weir.pipeline.page.verdict import Verdict


def verdict_box(verdict: Verdict, zone: tzinfo) -> Element:
    """Make the box. What `weir report show` prints has the same sentences."""
    heading = element("h2", {"id": "verdict-heading"}, "Answers")
    found = (_answer(answer) for answer in answers(verdict, zone))
    return element("section", {"id": "verdict", "aria-labelledby": "verdict-heading"}, heading, *found)


def _answer(answer: Answer) -> Element:
    more = None
    if answer.details:
        lines = element("ul", None, *(element("li", None, line) for line in answer.details))
        more = behind(f"{counted(len(answer.details), 'line')} more", lines)
    return element(
        "div",
        {"class": f"answer {answer.tone}"},
        element("h3", None, answer.question),
        element("p", None, answer.sentence),
        more,
        element("p", {"class": "source"}, answer.source),
    )

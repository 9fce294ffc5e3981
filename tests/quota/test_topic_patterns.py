# SPDX-License-Identifier: Apache-2.0
"""Which lists of patterns a topic's name matches, and what that costs."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.quota import topic_patterns
from weir.quota.topic_patterns import ANY, TopicPatterns

PATTERN = st.text("ab-*?[]!", min_size=1, max_size=8)
NAME = st.text("ab-é", max_size=8)


@given(st.lists(st.lists(PATTERN, min_size=1, max_size=3).map(tuple), max_size=5), st.lists(NAME, max_size=5))
def test_names_match_as_a_shell_matches_them(lists: list[tuple[str, ...]], names: list[str]) -> None:
    patterns = TopicPatterns([None, *lists])
    for name in names:
        matched = [one for one in dict.fromkeys(lists) if any(fnmatchcase(name, pattern) for pattern in one)]
        numbers = [patterns.numbers[one] for one in matched]
        assert patterns.matching(name.encode()) == (ANY, *sorted(numbers))
        assert patterns.matching(name.encode()) == (ANY, *sorted(numbers))  # as remembered


@pytest.mark.parametrize(
    ("pattern", "name", "is_matched"),
    [
        ("orders", b"orders", True),
        ("orders*", b"orders", True),
        ("orders*", b"order", False),
        ("*", b"orders", True),
        ("o*s", b"orders", True),
        ("*-eu", b"orders-eu", True),
        ("*-eu", b"orders-eu-2", False),
        ("orders-[12]?", b"orders-23", True),
        ("orders-[12]?", b"orders-33", False),
        ("orders[", b"orders[", True),  # no set begins here
        ("*\N{REPLACEMENT CHARACTER}", b"orders\xff", True),
    ],
)
def test_pattern_matches_whole_names(pattern: str, name: bytes, is_matched: bool) -> None:
    assert (TopicPatterns([(pattern,)]).matching(name) == (ANY, 1)) == is_matched


def test_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may fetch topics of any names."""
    monkeypatch.setattr(topic_patterns, "MOST_TOPICS", 10)
    patterns = TopicPatterns([("orders*",)])
    for number in range(25):
        assert patterns.matching(b"orders-%d" % number) == (ANY, 1)
        assert len(patterns._known) <= 10


def test_where_quotas_have_no_patterns_no_name_is_remembered() -> None:
    patterns = TopicPatterns([None])
    assert patterns.matching(b"orders") == (ANY,)
    assert not patterns._known


def test_most_patterns_that_are_looked_at_for_a_name_are_known() -> None:
    assert TopicPatterns([("a*b", "a?c"), ("abc*", "abc*d", "x*", "abd"), ("*e",)]).most_looked_at == 5
    assert TopicPatterns([("abd",), None]).most_looked_at == 0

# SPDX-License-Identifier: Apache-2.0
"""Which quotas' patterns match a topic's name. A name is matched once, and what it matched is remembered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Final

from weir.quota.figures import MOST_PATTERNS, MOST_TOPICS

Patterns = tuple[str, ...]
"""A quota's patterns, as of a shell: `orders*`."""

ANY: Final = 0  # the number of what covers topics of any name
_WILDCARD: Final = re.compile(r"[*?[]")


class TopicPatterns:
    """Several lists of patterns. `numbers` has a number for each, and ANY for None, which matches every name.

    Patterns are found by how they begin, before their first wildcard, so a pattern that begins otherwise than a name
    costs that name nothing. Those that begin alike, as all that begin with a wildcard, are looked at one by one: such a
    pattern is tried where the longest of its other parts is in the name.
    """

    def __init__(self, lists: Iterable[Patterns | None] = ()) -> None:
        self.numbers: dict[Patterns | None, int] = {None: ANY}
        self._names: dict[str, set[int]] = {}
        self._begins: dict[str, dict[str, tuple[str, set[int]]]] = {}  # patterns by how they begin
        self._known: dict[bytes, tuple[int, ...]] = {}
        for number, patterns in enumerate([one for one in dict.fromkeys(lists) if one is not None], start=ANY + 1):
            self.numbers[patterns] = number
            for pattern in patterns:
                self._add(pattern, number)
        self._lengths = sorted({len(begin) for begin in self._begins})
        alike = [sum([len(of) for of in self._beginning(begin)]) for begin in self._begins]
        self.most_looked_at = max(alike, default=0)  # patterns, for one name

    def _add(self, pattern: str, number: int) -> None:
        wildcard = _WILDCARD.search(pattern)
        if wildcard is None:
            self._names.setdefault(pattern, set()).add(number)
            return
        rest = pattern[wildcard.start() :]
        literal = "" if "[" in rest else max(_WILDCARD.split(rest), key=len)
        alike = self._begins.setdefault(pattern[: wildcard.start()], {})
        # whatever begins so matches `orders*`
        alike.setdefault("*" if rest == "*" else pattern, (literal, set()))[1].add(number)

    def matching(self, topic: bytes) -> tuple[int, ...]:
        """Return the numbers of what matches a topic's name (UTF-8), in order. ANY is the first."""
        known = self._known.get(topic) if len(self.numbers) > 1 else (ANY,)
        if known is None:
            known = (ANY, *sorted(self._match(topic.decode("utf-8", "replace"))))
            if len(self._known) >= MOST_TOPICS:
                self._known.clear()
            self._known[topic] = known
        return known

    def _beginning(self, name: str) -> list[dict[str, tuple[str, set[int]]]]:
        begins = [name[:length] for length in self._lengths if length <= len(name)]
        return [self._begins[begin] for begin in begins if begin in self._begins]

    def _match(self, name: str) -> set[int]:
        found = set(self._names.get(name, ()))
        for alike in self._beginning(name):
            for pattern, (literal, numbers) in alike.items():
                if literal in name and _regex(pattern).match(name):
                    found |= numbers
        return found


@lru_cache(MOST_PATTERNS)
def _regex(pattern: str) -> re.Pattern[str]:
    """Return what a pattern means; it is made when a name may match, as that takes 0.1 ms."""
    return re.compile(translate(pattern))

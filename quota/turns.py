"""Whose turn it is when several links want the same budget: one share each, urgent ones first, then first come."""

from __future__ import annotations

from collections.abc import Callable, Hashable

FLOOR = 0.05
"""Of the bytes granted: what is not the most urgent gets at least so much, so that none starves."""


class Turns:
    """Links that found too little budget, oldest first, each with the bytes it waits for.

    A link further back may only take what those ahead leave, so a link that polls often cannot starve one that polls
    seldom. Urgent links stand ahead of all others, but for the floor's share. A claim lapses when its link does not
    come back for it: a stuck peer blocks no one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims: dict[Hashable, tuple[float, float, bool]] = {}
        self._owed = 0.0  # bytes of the floor to come

    def ahead_of(self, link: Hashable, *, is_urgent: bool = False) -> float:
        """Bytes claimed by the links in front of `link` (all of them if it does not wait yet)."""
        now = self._clock()
        lapsed = [other for other, (_, until, _) in self._claims.items() if until < now and other != link]
        for other in lapsed:
            del self._claims[other]
        sizes = [size for size, _, other_is_urgent in self._claims.values() if not other_is_urgent]
        has_ranks = not sizes or self._owed < min(sizes)
        ahead = 0.0
        is_passed = False  # the place that `link` has among its like
        for other, (size, _, other_is_urgent) in self._claims.items():
            if other == link:
                is_passed = True
            elif has_ranks and other_is_urgent != is_urgent:
                ahead += size if other_is_urgent else 0
            elif not is_passed:
                ahead += size
        return ahead

    def wait(self, link: Hashable, size: float, until: float, *, is_urgent: bool = False) -> None:
        """Keep `link`'s place, or give it the last one; the claim lapses after `until` (clock seconds)."""
        self._claims[link] = (size, until, is_urgent)

    def served(self, link: Hashable, size: float, *, is_urgent: bool) -> None:
        """`link` had its turn, with `size` bytes."""
        self.leave(link)
        if not is_urgent:
            self._owed = max(0.0, self._owed - size)
        elif any(not other_is_urgent for _, _, other_is_urgent in self._claims.values()):
            self._owed += size * FLOOR / (1 - FLOOR)

    def leave(self, link: Hashable) -> None:
        """`link` needs no turn."""
        self._claims.pop(link, None)

    def __len__(self) -> int:
        return len(self._claims)

"""Whose turn it is when several links want the same budget: first come, first served, one share each."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Turns:
    """Links that found too little budget, oldest first, each with the bytes it waits for.

    A link further back may only take what those ahead leave, so a link that polls often cannot starve one that polls
    seldom. A claim lapses when its link does not come back for it: a stuck peer blocks no one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims: dict[Hashable, tuple[float, float]] = {}

    def ahead_of(self, link: Hashable) -> float:
        """Bytes claimed by the links in front of `link` (all of them if it does not wait yet)."""
        now = self._clock()
        lapsed = [other for other, (_, until) in self._claims.items() if until < now and other != link]
        for other in lapsed:
            del self._claims[other]
        ahead = 0.0
        for other, (size, _) in self._claims.items():
            if other == link:
                break
            ahead += size
        return ahead

    def wait(self, link: Hashable, size: float, until: float) -> None:
        """Keep `link`'s place, or give it the last one; the claim lapses after `until` (clock seconds)."""
        self._claims[link] = (size, until)

    def leave(self, link: Hashable) -> None:
        """`link` had its turn, or needs none."""
        self._claims.pop(link, None)

    def __len__(self) -> int:
        return len(self._claims)

"""Bounds what all connections together keep of replicas' fetch requests."""

from __future__ import annotations

from typing import Final, Protocol

DEFAULT_FETCH_MEMORY: Final = 100 * 2**20
"""Bytes of all fetches together: dozens of links may have a large one at the same moment."""


class Keeper(Protocol):
    """A link that keeps the bytes of fetch requests."""

    def evict(self) -> None:
        """Close, and keep no more."""


class FetchMemory:
    """The bytes that links keep of fetches being received, of those held back, and of what came behind those.

    All together may have as many as `limit`: when there are more, the link that keeps most is closed. So thousands of
    connections cannot take the memory that replication needs, and a real fetch, a few hundred KB at the most, is not
    the one to go.
    """

    def __init__(self, limit: int = DEFAULT_FETCH_MEMORY) -> None:
        self.limit = limit
        self.total = 0
        self._kept: dict[Keeper, int] = {}

    def keep(self, link: Keeper, size: int) -> None:
        """Note that `link` keeps `size` bytes now. This or another link may be evicted before it returns."""
        self.drop(link)
        if size:
            self._kept[link] = size
            self.total += size
        while self.total > self.limit:
            largest = max(self._kept, key=self._kept.__getitem__)
            self.drop(largest)
            largest.evict()

    def drop(self, link: Keeper) -> None:
        """Note that `link` keeps nothing any more."""
        self.total -= self._kept.pop(link, 0)

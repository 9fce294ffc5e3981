"""Bounds what all connections together keep of replicas' fetch requests, and for how long they keep half of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

DEFAULT_FETCH_MEMORY: Final = 100 * 2**20
"""Bytes of all fetches together: dozens of links may have a large one at the same moment."""

SILENT_SECONDS: Final = 10.0
"""How long a fetch that is being received may stand still. TCP sends a lost segment five times or more in this time."""

RECEIVE_SECONDS: Final = 30.0
"""How long receiving one may take in all: replica.socket.timeout.ms, after which its follower has given it up."""

_SWEEP_SECONDS: Final = 1.0
_SHARE_OF_ONE_SOURCE: Final = 2  # one address has at most half of the memory, but for a single large fetch

Why = Literal["fetch_memory", "fetch_stalled"]
"""Why a link has to go: for want of memory, or because the fetch that it receives does not come to its end."""


class Keeper(Protocol):
    """A link that keeps the bytes of fetch requests. `client_host` is the address that they came from."""

    client_host: str

    @property
    def is_reading(self) -> bool:
        """Whether it takes what its client sends; while it does not, the client is not to blame for what is missing."""

    def evict(self, why: Why) -> None:
        """Close, and keep no more."""


@dataclass(slots=True)
class _Kept:
    half: int = 0
    whole: int = 0
    began_at: float = 0.0
    grew_at: float = 0.0

    @property
    def size(self) -> int:
        return self.half + self.whole


@dataclass(slots=True)
class _Source:
    size: int = 0
    keepers: dict[Keeper, _Kept] = field(default_factory=dict)
    halves: dict[Keeper, None] = field(default_factory=dict)
    """Those that receive a fetch, in the order in which these began."""


class FetchMemory:
    """The bytes that links keep of fetches being received, of those held back, and of what came behind those.

    A single fetch may have as many as `limit`, and all together no more; all from one address may have half of it. When
    there are more, the address that keeps most gives way, and of its links the one whose half-received fetch is the
    oldest; a fetch that came whole goes only where there is no half one. So neither thousands of connections nor one
    that sends without an end take the memory that replication needs. `clock` gives monotonic seconds.
    """

    def __init__(self, limit: int = DEFAULT_FETCH_MEMORY, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.total = 0
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def keep(self, link: Keeper, *, half: int, whole: int, is_new: bool = False) -> None:
        """Note what `link` keeps now: `half` bytes of a fetch that it receives, and `whole` of what came whole.

        `is_new` says that the half is of another fetch than before. This or another link may be evicted before it
        returns.
        """
        if not half and not whole:
            self.drop(link)
            return
        source = self._sources.setdefault(link.client_host, _Source())
        kept = source.keepers.setdefault(link, _Kept())
        now = self._clock()
        grown = half + whole - kept.size
        if half != kept.half:
            kept.grew_at = now
        if is_new or not half or not kept.half:
            source.halves.pop(link, None)
            if half:
                source.halves[link] = None
                kept.began_at = now
        kept.half, kept.whole = half, whole
        source.size += grown
        self.total += grown
        if grown > 0:
            self._make_room(source)

    def drop(self, link: Keeper) -> None:
        """Note that `link` keeps nothing any more."""
        source = self._sources.get(link.client_host)
        if source is None or (kept := source.keepers.pop(link, None)) is None:
            return
        source.halves.pop(link, None)
        source.size -= kept.size
        self.total -= kept.size
        if not source.keepers:
            del self._sources[link.client_host]

    def expire(self) -> None:
        """Evict the links whose half of a fetch does not grow, or is not whole in its time."""
        now = self._clock()
        overdue = [
            link
            for source in self._sources.values()
            for link in source.halves
            if _is_overdue(source.keepers[link], now) and link.is_reading
        ]
        for link in overdue:
            self._evict(link, "fetch_stalled")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `expire` called while a fetch is being received."""
        if self._sweep is None and any(source.halves for source in self._sources.values()):
            self._sweep = loop.call_later(_SWEEP_SECONDS, self._expire_and_watch, loop)

    def _expire_and_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        self.expire()
        self.watch(loop)

    def _make_room(self, source: _Source) -> None:
        while source.size > self.limit // _SHARE_OF_ONE_SOURCE and len(source.keepers) > 1:
            self._evict(_next_to_go(source), "fetch_memory")
        while self.total > self.limit:
            largest = max(self._sources.values(), key=lambda one: one.size)
            self._evict(_next_to_go(largest), "fetch_memory")

    def _evict(self, link: Keeper, why: Why) -> None:
        self.drop(link)
        link.evict(why)


def _is_overdue(kept: _Kept, now: float) -> bool:
    return now - kept.grew_at >= SILENT_SECONDS or now - kept.began_at >= RECEIVE_SECONDS


def _next_to_go(source: _Source) -> Keeper:
    for oldest in source.halves:
        return oldest
    return max(source.keepers, key=lambda link: source.keepers[link].size)

# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory that all connections together keep of replicas' fetches, and of the answers that are held whole.

It also bounds how long they keep a request of which only a part has come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.relay.open_link import OpenLink, Why

DEFAULT_FETCH_MEMORY: Final = 100 * 2**20
"""The bound in bytes for all of them together: dozens of links may have a large fetch at the same time."""

SILENT_SECONDS: Final = 10.0
"""How long no byte of a fetch under way may arrive. TCP sends a lost segment at least five times in this time."""

RECEIVE_SECONDS: Final = 30.0
"""How long a fetch may take to arrive. After replica.socket.timeout.ms, the same time, its follower has given it up."""

_SWEEP_SECONDS: Final = 1.0
_SHARE_OF_ONE_SOURCE: Final = 2  # one address has at most half of the memory, except for a single large fetch


@dataclass(slots=True)
class _Kept:
    fetch: int = 0
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
    keepers: dict[OpenLink, _Kept] = field(default_factory=dict)
    halves: dict[OpenLink, None] = field(default_factory=dict)
    """Links of this address that receive a fetch, the one whose fetch began first in front."""


@dataclass(eq=False, slots=True)
class FetchMemory:
    """The bytes that links keep of fetches, of what came after those, and of answers that are held whole.

    A fetch counts from its first byte until the broker has taken it, an answer until its follower has taken it.

    A single fetch may have up to `limit` bytes, and all together no more; those from one address may have half of it.
    When there are more, the address that keeps most gives way. Of its links, the one goes whose half-received fetch is
    the oldest; one with whole ones goes only where no fetch is half received.

    So neither thousands of connections nor one endless request can take the memory that replication needs. `clock`
    gives monotonic seconds.
    """

    limit: int = DEFAULT_FETCH_MEMORY
    clock: Callable[[], float] = time.monotonic
    total: int = 0
    _sources: dict[str, _Source] = field(default_factory=dict)
    _sweep: asyncio.TimerHandle | None = None

    def keep(self, link: OpenLink, *, half: int, whole: int, fetch: int = 0) -> None:
        """Note what `link` keeps now: `half` bytes of a fetch under way, and `whole` bytes of whole requests.

        `fetch` is a number that tells the one under way from those before. This or another link may be evicted before
        the call returns.
        """
        if not half and not whole:
            self.drop(link)
            return
        source = self._sources.setdefault(link.client_host, _Source())
        kept = source.keepers.setdefault(link, _Kept())
        now, is_new = self.clock(), fetch != kept.fetch
        grown = half + whole - kept.size
        if is_new or half != kept.half:
            kept.grew_at = now
        if is_new or not half or not kept.half:
            source.halves.pop(link, None)
            if half:
                source.halves[link] = None
                kept.began_at = now
        kept.fetch, kept.half, kept.whole = fetch, half, whole
        source.size += grown
        self.total += grown
        if grown > 0:
            self._make_room(source)

    def has_room(self, host: str, size: int) -> bool:
        """Return whether a link of `host` may keep an answer of so many bytes as well.

        Answers leave half of the memory to fetches, and half of their own to other addresses. They alone make nobody
        go: one without room passes as it comes.
        """
        source = self._sources.get(host)
        kept = 0 if source is None else source.size
        return self.total + size <= self.limit // 2 and kept + size <= self.limit // 2 // _SHARE_OF_ONE_SOURCE

    def drop(self, link: OpenLink) -> None:
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
        """Evict links whose half-received fetch no longer grows, or takes too long."""
        now = self.clock()
        overdue = [
            link
            for source in self._sources.values()
            for link in source.halves
            if _is_overdue(source.keepers[link], now) and link.is_reading
        ]
        for link in overdue:
            self._evict(link, "fetch_stalled")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `expire` called regularly while a fetch is being received."""
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

    def _evict(self, link: OpenLink, why: Why) -> None:
        size = self._sources[link.client_host].keepers[link].size
        self.drop(link)
        link.evict(why, size)


def _is_overdue(kept: _Kept, now: float) -> bool:
    return now - kept.grew_at >= SILENT_SECONDS or now - kept.began_at >= RECEIVE_SECONDS


def _next_to_go(source: _Source) -> OpenLink:
    for oldest in source.halves:
        return oldest
    return max(source.keepers, key=lambda link: source.keepers[link].size)

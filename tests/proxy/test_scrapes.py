# SPDX-License-Identifier: Apache-2.0
"""Scrapes of the metrics: rendered once for many, written in turns, and bounded for those who read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy.admin import exposition as module
from weir.proxy.admin.exposition import Scrapes

OPENMETRICS = "application/openmetrics-text;version="
SLICE = b"weir_a 1\n" * 10_000  # more than one piece


class Metrics:
    """Renders two slices, each of which takes `cost` seconds, and counts how often."""

    def __init__(self, cost: float = 1000.0) -> None:
        self.clock = MovedClock()
        self.cost = cost
        self.renderings: list[str] = []
        self.error: Exception | None = None
        self.scrapes = Scrapes(self._render, self.clock)

    def _render(self, accept: str) -> Iterator[bytes]:
        number = len(self.renderings)
        self.renderings.append(accept)
        for _ in range(2):
            self.clock.now += self.cost
            yield b"# %d\n" % number + SLICE
            if self.error is not None:
                raise self.error

    async def scrape(self, accept: str = "") -> bytes:
        """Take it all at once."""
        found: list[bytes] = []

        async def write(piece: bytes) -> None:
            found.append(piece)

        await self.scrapes.write(accept, write)
        return b"".join(found)


def text(number: int) -> bytes:
    return 2 * (b"# %d\n" % number + SLICE)


@pytest.mark.parametrize("cost", [0.0, 1000.0])
async def test_scrapers_that_ask_at_once_get_one_rendering(cost: float) -> None:
    metrics = Metrics(cost)
    assert await asyncio.gather(*(metrics.scrape() for _ in range(20))) == [text(0)] * 20
    assert metrics.renderings == [""]


async def test_rendering_is_fresh_for_nine_times_its_cost_then_goes() -> None:
    metrics = Metrics(cost=1000.0)
    assert [await metrics.scrape() for _ in range(3)] == [text(0)] * 3
    (handle,) = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert handle.when() - asyncio.get_running_loop().time() == pytest.approx(18_000.0, abs=60.0)
    handle._run()
    assert metrics.scrapes._current == {}
    assert metrics.scrapes._written == []
    assert await metrics.scrape() == text(1)


async def test_a_rendering_that_took_little_is_not_kept() -> None:
    metrics = Metrics(cost=0.004)
    for number in range(3):
        assert await metrics.scrape() == text(number)
        await asyncio.sleep(0)


async def test_each_format_has_its_own_rendering_in_any_version() -> None:
    metrics = Metrics()
    accepted = ("", f"{OPENMETRICS}1.0.0", f"{OPENMETRICS}1.2.3", "text/plain;version=1.0.0")
    assert [await metrics.scrape(accept) for accept in accepted] == [text(0), text(1), text(1), text(0)]


async def test_one_piece_is_written_in_a_turn_however_many_read() -> None:
    metrics = Metrics()
    await metrics.scrape()
    written = [0]

    async def write(piece: bytes) -> None:
        written[-1] += 1

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            written.append(0)

    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(metrics.scrapes.write("", write) for _ in range(20)))
    counting.cancel()
    assert sum(written) > 20
    assert max(written) == 1


async def test_a_rendering_that_fails_is_made_anew() -> None:
    metrics = Metrics()
    metrics.error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await metrics.scrape()
    metrics.error = None
    assert await metrics.scrape() == text(1)


async def test_slowest_are_cut_off_where_too_much_would_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNREAD", 3 * len(text(0)))
    metrics = Metrics(cost=0.0)
    goes_on = asyncio.Event()
    slow = []
    for number in range(5):
        stuck = asyncio.Event()

        async def write(piece: bytes, stuck: asyncio.Event = stuck) -> None:
            stuck.set()
            await goes_on.wait()

        slow += [asyncio.create_task(metrics.scrapes.write("", write)) for _ in range(2)]
        async with asyncio.timeout(5):
            await stuck.wait()
        assert len(metrics.renderings) == number + 1
        assert len(metrics.scrapes._written) <= 4  # the three that are allowed, and the newest
    assert await metrics.scrape() == text(5)
    goes_on.set()
    found = await asyncio.gather(*slow, return_exceptions=True)
    assert [isinstance(one, TimeoutError) for one in found] == [True] * 4 + [False] * 6
    assert metrics.scrapes._written == []


async def test_writing_that_does_not_end_at_once_is_cut_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNREAD", 0)
    metrics = Metrics(cost=0.0)
    stuck, cut, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(piece: bytes) -> None:
        stuck.set()
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            cut.set()
            await goes_on.wait()
            raise

    slow = asyncio.create_task(metrics.scrapes.write("", write))
    async with asyncio.timeout(5):
        await stuck.wait()
        assert await metrics.scrape() == text(1)
        await cut.wait()
        assert await metrics.scrape() == text(2)
        goes_on.set()
        with pytest.raises(TimeoutError):
            await slow


async def test_scraper_that_gives_up_takes_the_metrics_from_nobody() -> None:
    metrics = Metrics()
    first, second = (asyncio.create_task(metrics.scrape()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == text(0)
    assert metrics.renderings == [""]

# SPDX-License-Identifier: Apache-2.0
"""Names that no server answers for: they keep nothing else waiting, and are asked for once at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from weir.proxy.event_loop import new_event_loop
from weir.proxy.name_lookups import MOST_ASKED


class Names:
    """A name server that answers for `known`, and for others when `answers` is set."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.answers = threading.Event()

    def getaddrinfo(self, host: str, port: int, *_: int) -> list[tuple[Any, ...]]:
        self.asked[host] += 1
        if host != "known":
            self.answers.wait()
        if host == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.9", port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    return names


async def look_up(name: str) -> str:
    async with asyncio.timeout(5.0):
        found = await asyncio.get_running_loop().getaddrinfo(name, 9092)
    return str(found[0][4][0])


async def soon(name: str) -> bool:
    """Whether a name is resolved while another one hangs."""
    try:
        async with asyncio.timeout(0.2):
            await look_up(name)
    except TimeoutError:
        return False
    return True


def run(names: Names, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(main)
        finally:
            names.answers.set()


def test_names_that_hang_keep_nothing_else_waiting(names: Names) -> None:
    async def main() -> None:
        hanging = [asyncio.create_task(look_up("hangs")) for _ in range(50)]
        hanging += [asyncio.create_task(look_up(f"hangs-{number}")) for number in range(50)]
        assert not await soon("hangs")
        assert await soon("known")
        assert await asyncio.wait_for(asyncio.to_thread(int, "7"), 1.0) == 7
        assert names.asked["hangs"] == 1
        names.answers.set()
        assert await asyncio.gather(*hanging) == ["127.0.0.9"] * 100
        assert await soon("hangs")
        assert names.asked["hangs"] == 2

    run(names, main())


def test_no_more_are_asked_at_once_than_are_kept(names: Names) -> None:
    async def main() -> None:
        hanging = [asyncio.create_task(look_up(f"hangs-{number}")) for number in range(MOST_ASKED)]
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await look_up("known")
        names.answers.set()
        await asyncio.gather(*hanging)
        assert await soon("known")

    run(names, main())


def test_who_asks_is_told_of_a_failure(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        assert not await soon("unknown")  # nobody waits for this answer any more
        names.answers.set()
        with pytest.raises(socket.gaierror, match="no such name"):
            await look_up("unknown")

    run(names, main())
    assert not caplog.records

# SPDX-License-Identifier: Apache-2.0
"""The channel between two processes of a sidecar: what is sent arrives, of any size."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import pytest_asyncio

from weir.proxy.tls_workers.channel import ProcessChannel


class Told(msgspec.Struct, tag="told"):
    text: str


class Ends:
    """Both ends; what one gives, the other has in `received`."""

    def __init__(self, *, needs_all: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.received: list[tuple[str, list[int]]] = []
        self.has_ended, self._changed = False, asyncio.Event()
        self.giver: ProcessChannel[Told] = ProcessChannel(ours, Told, lambda *_: None, lambda: None)
        self.taker: ProcessChannel[Told] = ProcessChannel(theirs, Told, self._taken, self._ended, needs_all=needs_all)

    def _taken(self, told: Told, descriptors: list[int]) -> None:
        self.received.append((told.text, descriptors))
        self._changed.set()

    def _ended(self) -> None:
        self.has_ended = True
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


@pytest_asyncio.fixture(params=[False, True])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    ends = Ends(needs_all=request.param)
    yield ends
    ends.giver.close()
    ends.taker.close()


@pytest.mark.parametrize("size", [1, 2**17 - 100, 2**17, 5_000_000])
async def test_message_of_any_size_arrives_with_its_descriptors_in_order(ends: Ends, size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ends.giver.give(Told("first"), ())
        ends.giver.give(Told("x" * size), (theirs.fileno(), ours.fileno()))
        ends.giver.send(Told("y" * size))
        await ends.until(lambda: len(ends.received) == 3)
        assert [(text, len(fds)) for text, fds in ends.received] == [("first", 0), ("x" * size, 2), ("y" * size, 0)]
        given, _ = ends.received[1][1]
        ours.sendall(b"hello")
        assert os.read(given, 5) == b"hello"
        for descriptor in ends.received[1][1]:
            os.close(descriptor)


async def test_message_that_is_not_understood_ends_a_channel_that_needs_all(ends: Ends) -> None:
    ends.giver.send({"type": "of another version"})
    ends.giver.send(Told("after"))
    if ends.taker.needs_all:
        await ends.until(lambda: ends.has_ended)
        assert (ends.received, ends.taker.is_open) == ([], False)
    else:
        await ends.until(lambda: len(ends.received) == 1)
        assert (ends.received, ends.has_ended) == ([("after", [])], False)

# SPDX-License-Identifier: Apache-2.0
"""Bytes of one direction that wait for their turn, with a core of the test's own."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from tests.fakes.links import FakeLink
from tests.fakes.relaying import ScriptedThrottle
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import Buffer
from weir.proxy.log import EventLog
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.connection import MOST_FRAMES, Connection
from weir.proxy.relay.direction import Direction
from weir.proxy.relay.open_link import Sender
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.transport import TcpTransport
from weir.proxy.relay.turn_budget import TurnBudget
from weir.quota.throttle import Throttle


class Core:
    """Takes all that it is given."""

    phase = "open"

    def __init__(self) -> None:
        self.requests = RequestStream()
        self.to_upstream: list[Buffer] = []
        self.taken: list[int] = []

    def takes(self, sender: Sender) -> bool:
        return True

    def passes(self, sender: Sender, view: memoryview) -> bool:
        return False

    def receive(self, sender: Sender, view: memoryview, most: int = MOST_FRAMES) -> int:
        for _ in self.requests.receive(view, most):
            pass
        taken = self.requests.consumed
        self.taken += [taken] if taken else []
        return taken


def frames(count: int, size: int = 10) -> memoryview:
    head = struct.pack(">ihhih", size, 3, 0, 1, -1)
    return memoryview((head + bytes(4 + size - len(head))) * count)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that nothing is read from."""
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def direction(turns: TurnBudget, ends: tuple[socket.socket, socket.socket]) -> tuple[Direction, Core]:
    side = Side(cast(Throttle, ScriptedThrottle()), RelayStats("leader"), EventLog("tests.direction"), turns=turns)
    source, target = map(TcpTransport, ends)
    core = Core()
    return Direction(FakeLink(), cast("Connection", core), "client", side, source, target), core


async def test_many_small_frames_wait_while_others_are_in_line(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred clients that begin to flood in the same turn would each have some taken at once."""
    monkeypatch.setattr("weir.proxy.relay.direction._AT_ONCE_SECONDS", 0.0)
    turns = TurnBudget()
    first, its_core = direction(turns, ends)
    first.received(frames(1000))
    assert its_core.taken == [len(frames(MOST_FRAMES))]
    second, core = direction(turns, ends)
    second.received(frames(1000))
    assert core.taken == []
    assert second.waits_in_line
    while len(turns):
        turns.run()
        await asyncio.sleep(0)
    assert sum(core.taken) == len(frames(1000))
    assert max(core.taken) == len(frames(MOST_FRAMES))


async def test_few_frames_and_large_ones_never_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    turns = TurnBudget()
    turns.add(lambda: None)
    for view in (frames(MOST_FRAMES), frames(5 * MOST_FRAMES, 2000)):
        one, core = direction(turns, ends)
        one.received(view)
        assert sum(core.taken) == len(view)
        assert not one.waits_in_line


@pytest.mark.parametrize(
    ("view", "is_large"),
    [
        (frames(1, SMALL_BUFFER_SIZE - 4), True),
        (frames(SMALL_BUFFER_SIZE)[:SMALL_BUFFER_SIZE], False),
        (frames(1, SMALL_BUFFER_SIZE - 5), False),  # the buffer did not come full
        (frames(1, 2 * SMALL_BUFFER_SIZE)[: SMALL_BUFFER_SIZE - 1], True),
        (frames(1, SMALL_BUFFER_SIZE)[:100], False),
    ],
)
async def test_large_buffer_is_read_into_where_large_frames_come(
    ends: tuple[socket.socket, socket.socket], view: memoryview, is_large: bool
) -> None:
    one, _ = direction(TurnBudget(), ends)
    one.received(view)
    assert one.large_reads is is_large

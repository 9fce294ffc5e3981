# SPDX-License-Identifier: Apache-2.0
"""What is on its way to a follower, over real sockets: no more than it takes soon, and told until it has arrived."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.relaying import Peer, relaying
from tests.protocol.wire import request, response
from weir.proxy.relay.buffers import BufferPool
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.pump import STOPPED, Pump
from weir.proxy.relay.transport import TcpTransport, unacknowledged
from weir.proxy.relay.turn_budget import TurnBudget
from weir.quota.figures import LEAST_BYTES

WINDOW = 4_096
ANSWER = 1_000_000


class Carried(Pump):
    """A pump that passes bytes as they are."""

    def received(self, view: memoryview) -> None:
        """As a link does."""
        self.unsent.append(view)

    def failed(self, error: Exception) -> None:
        """Nothing fails here."""
        raise error


class Carrying:
    """A pump from a broker to a follower, with a passage, and a quota that has room for `room` bytes."""

    def __init__(self) -> None:
        self.broker, source = socket.socketpair()
        listening = socket.create_server(("127.0.0.1", 0))
        self.follower = socket.socket()
        self.follower.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        self.follower.connect(listening.getsockname())
        self.client, _ = listening.accept()
        listening.close()
        for one in (self.broker, source, self.follower, self.client):
            one.setblocking(False)
        self.room = math.inf
        self.told: list[tuple[float, float]] = []
        """What may arrive at each question, and how much more may be sent since."""
        self.arrived = 0
        target = TcpTransport(self.client)
        loop = asyncio.get_running_loop()
        self.pump = Carried(loop, BufferPool(), TcpTransport(source), target, TurnBudget(), [])
        self.passage = Passage(loop, self.let_pass, self.pump, target)
        self.pump.held_back = self.passage.held_back
        self._source = source

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """What the quota has room for."""
        self.arrived += arrived
        size = min(most, self.room if waited < 1 else LEAST_BYTES)
        self.told.append((on_way, size))
        return size

    async def answer(self, size: int = ANSWER) -> None:
        """The broker sends an answer of so many bytes, as far as it is read."""
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.broker, bytes(size)), 5)

    async def take(self, size: int) -> None:
        """The follower reads so many bytes."""
        while size > 0:
            chunk = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.follower, size), 5)
            size -= len(chunk)

    def close(self) -> None:
        """Close all."""
        self.passage.close()
        self.pump.close()
        for one in (self.broker, self._source, self.follower, self.client):
            one.close()


@asynccontextmanager
async def carrying() -> AsyncIterator[Carrying]:
    """A pump that runs."""
    one = Carrying()
    one.pump.resume(STOPPED)
    try:
        yield one
    finally:
        one.close()


def sent(one: Carrying) -> int:
    """The bytes that the follower's kernel has, or may have at any time."""
    return one.pump.moved - sum(map(len, one.pump.unsent))


@pytest.mark.long
async def test_a_follower_that_reads_nothing_has_little_on_its_way() -> None:
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await asyncio.sleep(0.3)
        assert sent(one) <= 4 * LEAST_BYTES  # and what its kernel took at once
        assert one.told[-1][0] == math.inf, "it may still be fast"
        await asyncio.sleep(0.5)
        on_way = unacknowledged(one.client.fileno())
        assert 0 < on_way <= one.told[-1][0] <= 2 * LEAST_BYTES
        assert one.arrived == sent(one) - on_way


async def test_an_answer_without_a_grant_passes_at_once() -> None:
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.passage.begin(is_granted=False)
        await one.answer(100_000)
        await one.take(100_000)
        assert one.told[-1] == (math.inf, 0)
        assert not one.pump.unsent


@pytest.mark.parametrize("is_to_sidecar", [True, False])
async def test_what_a_sidecar_has_acknowledged_has_arrived(is_to_sidecar: bool) -> None:
    """It may hold the follower's next fetch. A follower that does not ask again may not have read it yet."""
    async with carrying() as one:
        one.passage.begin(is_granted=True, is_to_sidecar=is_to_sidecar)
        await one.answer(LEAST_BYTES)
        await one.take(LEAST_BYTES)
        one.passage._look()
        assert one.arrived == (LEAST_BYTES if is_to_sidecar else 0)
        await asyncio.sleep(0.5)
        assert one.arrived == LEAST_BYTES


async def test_follower_taking_all_at_once_is_soon_held_up_by_nothing() -> None:
    """A quota does not hold it up meanwhile."""
    async with carrying() as one:
        one.room = 0
        one.passage.begin(is_granted=True)
        sending = asyncio.ensure_future(one.answer())
        await one.take(ANSWER)
        await sending
        one.passage.begin(is_granted=True)
        assert one.pump.allowed >= 100_000
        assert {most for _, most in one.told} == {0}


async def test_follower_is_not_slow_as_the_sidecar_itself_stood_still() -> None:
    """So does a sidecar that is stopped, or has no CPU: a record in sync would then wait behind what is held back."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await one.take(LEAST_BYTES)
        time.sleep(0.6)  # noqa: ASYNC251 - the loop stands still
        await one.take(100_000 - LEAST_BYTES)
        assert {on_way for on_way, _ in one.told} == {math.inf}


@pytest.mark.long
async def test_slow_follower_has_half_a_second_on_its_way_at_most() -> None:
    """That is half a second of what it takes."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        sending = asyncio.ensure_future(one.answer())
        await one.take(ANSWER)
        await sending
        one.passage.begin(is_granted=True)
        await one.answer(20_000)
        await one.take(10_000)
        await asyncio.sleep(1.0)
        await one.take(10_000)
        one.passage.begin(is_granted=True)
        assert one.told[-1][1] <= 20_000


@pytest.mark.long
async def test_follower_that_takes_200_kilobytes_a_second_stays_slow() -> None:
    """What it takes in half a second is more than FAST_BYTES. Taken for a fast one, all of its answer would count."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        sending = asyncio.ensure_future(one.answer())
        for _ in range(150):
            await one.take(4_000)
            await asyncio.sleep(0.02)
        first = next(number for number, (on_way, _) in enumerate(one.told) if on_way < math.inf)
        as_slow = [on_way < ANSWER / 2 for on_way, _ in one.told[first:]]
        assert sum(as_slow) > 0.8 * len(as_slow)  # a machine that stands still for a moment reads all at once
        await one.take(ANSWER - 600_000)
        await sending


@pytest.mark.long
async def test_slow_followers_bytes_wait_a_second_for_window_room() -> None:
    async with carrying() as one:
        one.room = 0
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await asyncio.sleep(0.7)  # it is slow
        passed = sent(one)
        await one.take(passed)
        begun = asyncio.get_running_loop().time()
        await one.take(1)
        assert 0.2 <= asyncio.get_running_loop().time() - begun <= 2.5


@pytest.mark.long
async def test_nothing_passes_to_a_slow_follower_without_room() -> None:
    """It asks while the quota's window has no room."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        await one.answer(20_000)
        await asyncio.sleep(0.7)  # it is slow
        await one.take(20_000)
        one.passage.begin(is_granted=False)
        one.room = 0
        one.passage.begin(is_granted=True)
        before = sent(one)
        await one.answer(20_000)
        await asyncio.sleep(0.3)
        assert sent(one) == before
        one.room = math.inf
        await one.take(20_000)


async def test_link_looks_soon_how_much_of_what_it_holds_back_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.passage.LOOK_SECONDS", 1000.0)
    monkeypatch.setattr("weir.proxy.relay.passage._FIRST_LOOK_SECONDS", 500.0)
    async with relaying() as relay:
        _, broker = await relay.connect(request(3, 0, 1))
        (link,) = relay.listener.links
        link._passage.begin(is_granted=True)
        await broker.send(response(1, bytes(2 * LEAST_BYTES)))
        await relay.until(lambda: link.connection.to_client)
        timer = link._passage._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() < 501


def test_a_socket_that_is_closed_has_nothing_on_its_way() -> None:
    assert unacknowledged(10_000) == 0


async def test_nothing_is_on_its_way_to_a_follower_that_has_reset() -> None:
    """Else the passage would wait for these bytes for ever, and never send what tells that the follower is gone."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await asyncio.sleep(0.05)
        assert unacknowledged(one.client.fileno()) > 0
        one.follower.close()  # with unread bytes, so that is a reset
        assert unacknowledged(one.client.fileno()) == 0


async def test_link_ends_with_a_follower_that_had_sent_its_last_byte() -> None:
    """Nothing is read of it any more, so only what is on its way can tell."""
    async with relaying() as relay:
        client = relay.keep(Peer(socket.socket()))
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        await asyncio.get_running_loop().sock_connect(client.connection, ("127.0.0.1", relay.listener.address.port))
        broker = await relay.accept()
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        (link,) = relay.listener.links
        link._passage._most = 12_000  # as it has taken as much at once
        link._passage.begin(is_granted=True)
        await broker.send(response(1, bytes(100_000)))
        client.half_close()
        await relay.until(lambda: "client" in link.connection.ended and unacknowledged(link.descriptors[0]))
        client.reset()
        await relay.until(lambda: not relay.listener.links)


@pytest.mark.parametrize("taken", [0, 3_000])
async def test_end_of_a_connection_tells_what_may_have_arrived(taken: int) -> None:
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await one.take(taken)
        await asyncio.sleep(0.05)
        one.passage.end()
        on_way, more = one.told[-1]
        assert more == 0
        assert one.arrived + on_way == sent(one) <= 4 * LEAST_BYTES


async def test_of_an_answer_without_a_grant_nothing_is_told_at_the_end() -> None:
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.passage.begin(is_granted=False)
        told = list(one.told)
        one.passage.end()
        assert one.told == told


async def test_link_tells_at_its_end_what_may_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1))
        (link,) = relay.listener.links
        told: list[tuple[float, float]] = []

        def let_pass(arrived: int, on_way: float, most: float, waited: float) -> float:
            told.append((arrived, on_way))
            return most

        monkeypatch.setattr(link._passage, "_let_pass", let_pass)
        link._passage.begin(is_granted=True)
        await broker.send(response(1, bytes(100_000)))
        await client.receive(LEAST_BYTES)
        client.reset()
        await relay.until(lambda: not relay.listener.links)
        arrived, on_way = told[-1]
        assert LEAST_BYTES <= arrived + on_way < 100_000


@pytest.mark.parametrize("size", [0, 5])
def test_unread_bytes_on_loopback_are_acknowledged(size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as one:
        one.send(bytes(size))
        assert unacknowledged(one.fileno()) == 0


async def test_what_a_pausing_followers_socket_refuses_is_held_back() -> None:
    """It was fast, so that a whole answer may be on its way: what it has no room for has to count for nothing."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        while one.pump.allowed < 200_000:
            sending = asyncio.ensure_future(one.answer())
            await one.take(ANSWER)
            await sending
            one.passage.begin(is_granted=True)
        one.broker.send(bytes(200_000))
        await asyncio.sleep(1.0)
        assert one.pump.allowed == 0
        assert unacknowledged(one.client.fileno()) <= one.told[-1][0] <= 100_000


async def test_a_follower_that_goes_on_after_a_pause_waits_for_room() -> None:
    """Bytes wait for room from when it takes some again, however long the pause was."""
    async with carrying() as one:
        one.passage.begin(is_granted=True)
        one.broker.send(bytes(100_000))
        await asyncio.sleep(2.0)
        one.room = 0
        passed = sent(one)
        await one.take(passed)
        await asyncio.sleep(0.5)
        assert sent(one) == passed
        await one.take(1)

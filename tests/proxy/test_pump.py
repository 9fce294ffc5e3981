# SPDX-License-Identifier: Apache-2.0
"""One direction of a connection pair, with an owner that the test writes."""

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.fakes.poisoned_pool import PoisonedPool
from tests.fakes.relaying import Peer
from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE, SHOWN_BY, SMALL_BUFFER_SIZE
from weir.proxy.relay.pump import IN_LINE, STOPPED, UNTAKEN, Pump
from weir.proxy.relay.transport import TcpTransport, Transport
from weir.proxy.relay.turn_budget import TurnBudget

ON_BOTH_LOOPS = True


class Owner:
    """Passes what arrives in pieces as small as the test wants, and remembers what it was told."""

    def __init__(self) -> None:
        self.pump: Owned
        self.unsent: list[Buffer] = []
        self.sizes: list[int] = []
        self.told: list[object] = []
        self.cut: Callable[[memoryview], list[memoryview]] = lambda view: [view]

    def received(self, view: memoryview) -> None:
        self.sizes.append(len(view))
        self.unsent += self.cut(view)

    def unblocked(self) -> None:
        self.told.append("unblocked")

    def ended(self) -> None:
        self.told.append("ended")

    def failed(self, error: Exception) -> None:
        self.told.append(type(error))
        self.pump.close()


class Owned(Pump):
    """Tells its owner of all."""

    owner: Owner

    def received(self, view: memoryview) -> None:
        self.owner.received(view)

    def unblocked(self) -> None:
        self.owner.unblocked()

    def ended(self) -> None:
        self.owner.ended()

    def failed(self, error: Exception) -> None:
        self.owner.failed(error)


class LocalPeer(Peer):
    """A peer on a socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection


class WatchedTransport(TcpTransport):
    """A connection that notes when it begins and ceases to be watched."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.changes: list[str] = []

    def watch_reads(self, callback: Callable[[], None]) -> None:
        self.changes.append("watch")
        super().watch_reads(callback)

    def unwatch_reads(self) -> None:
        self.changes.append("unwatch")
        super().unwatch_reads()


class Piped:
    """A sender, a receiver, and what is between them: two sockets, an owner and a pool for the pump."""

    def __init__(self) -> None:
        self.connections = [*socket.socketpair(), *socket.socketpair()]
        for connection in self.connections:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        first, self.source, self.target, last = self.connections
        self.sender, self.receiver = LocalPeer(first), LocalPeer(last)
        self.owner = Owner()
        self.pool = PoisonedPool()

    def pump(self) -> Pump:
        source, target = TcpTransport(self.source), TcpTransport(self.target)
        return self.pump_between(source, target)

    def pump_between(self, source: Transport, target: Transport) -> Pump:
        """Give the owner a pump."""
        loop, owner = asyncio.get_running_loop(), self.owner
        owner.pump = Owned(loop, self.pool, source, target, TurnBudget(), owner.unsent)
        owner.pump.owner = owner
        return owner.pump


@pytest.fixture
def piped() -> Iterator[Piped]:
    piped = Piped()
    yield piped
    for connection in piped.connections:
        connection.close()


async def test_many_small_pieces_arrive_in_order_at_a_slow_target(piped: Piped) -> None:
    rng = random.Random(1)

    def cut(view: memoryview) -> list[memoryview]:
        at = sorted({0, len(view), *(rng.randrange(len(view)) for _ in range(300))})
        pieces = [view[start:end] for start, end in pairwise(at)]
        pieces.insert(rng.randrange(len(pieces)), view[:0])
        return pieces

    piped.owner.cut = cut
    pump = piped.pump()
    pump.large_reads = True
    pump.resume(STOPPED)
    data = rng.randbytes(500_000)
    sending = asyncio.create_task(piped.sender.send(data))
    await piped.receiver.expect(data)
    await sending
    piped.sender.half_close()
    await piped.receiver.expect_end()
    assert piped.owner.told[-1] == "ended"
    assert piped.pool.lent == []
    assert pump.moved == len(data)
    pump.close()


async def test_a_pump_reads_only_when_no_reason_to_pause_is_left(piped: Piped) -> None:
    pump = piped.pump()
    pump.pause(UNTAKEN)
    pump.pause(IN_LINE)
    await piped.sender.send(b"waits")
    for reason in (STOPPED, UNTAKEN):
        pump.resume(reason)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert piped.receiver.has_nothing()
    pump.resume(IN_LINE)
    await piped.receiver.expect(b"waits")
    pump.close()


@pytest.mark.parametrize("is_slow", [False, True])
async def test_what_costs_much_waits_for_its_turn_and_is_read_in_small_pieces(
    piped: Piped, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Others are served between two reads of bytes that take long to read, such as thousands of tiny partitions."""
    monkeypatch.setattr("weir.proxy.relay.pump._SLOW_SECONDS", -1.0 if is_slow else 60.0)
    pump, size = piped.pump(), 3 * SMALL_BUFFER_SIZE
    piped.connections[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * size)
    turns = list[object]()
    run = pump._turns.add

    def add(work: Callable[[], None]) -> None:
        turns.append(work)
        run(work)

    monkeypatch.setattr(TurnBudget, "add", lambda budget, work: add(work))
    monkeypatch.setattr(pump, "large_reads", True)
    await piped.sender.send(bytes(100))
    pump.resume(STOPPED)
    await piped.receiver.expect(bytes(100))
    await piped.sender.send(bytes(size))
    await piped.receiver.expect(bytes(size))
    assert (max(piped.owner.sizes) <= SMALL_BUFFER_SIZE) is is_slow
    assert bool(turns) is is_slow
    pump.close()


async def test_pump_stopped_while_nothing_comes_stays_in_the_loop(piped: Piped) -> None:
    """A fetch that is held stops the pump, and most go on before anything else comes."""
    source = WatchedTransport(piped.source)
    pump = piped.pump_between(source, TcpTransport(piped.target))
    for _ in range(3):
        pump.resume(STOPPED)
        pump.pause(STOPPED)
    assert source.changes == ["watch"]
    await piped.sender.send(b"waits")
    for _ in range(3):
        await asyncio.sleep(0)
    assert source.changes == ["watch", "unwatch"]
    assert piped.receiver.has_nothing()
    pump.resume(STOPPED)
    await piped.receiver.expect(b"waits")
    pump.close()


async def test_large_reads_are_as_large_as_a_large_buffer(piped: Piped) -> None:
    for connection in (piped.sender.connection, piped.target):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    pump = piped.pump()
    data = bytes(SMALL_BUFFER_SIZE * 5)
    for pump.large_reads, size in ((False, SMALL_BUFFER_SIZE), (True, LARGE_BUFFER_SIZE)):
        piped.owner.sizes.clear()
        pump.pause(UNTAKEN)
        await piped.sender.send(data)
        pump.resume(UNTAKEN)
        pump.resume(STOPPED)
        await piped.receiver.expect(data)
        assert max(piped.owner.sizes) == min(size, len(data))
    pump.close()


@pytest.mark.long
async def test_pump_whose_target_reads_has_large_buffers_beside_stuck(piped: Piped) -> None:
    for _ in range(piped.pool.large_limit):
        piped.pool.borrow(True, 0)
    pump = piped.pump()
    pump.large_reads = True
    pump.resume(STOPPED)
    for pump.moved, size in ((0, SMALL_BUFFER_SIZE), (SHOWN_BY, LARGE_BUFFER_SIZE)):
        await piped.sender.send_until_blocked(b"x" * 100_000)
        assert piped.pool.lent[-1] == size
        while not piped.receiver.has_nothing():
            await piped.receiver.receive(1)
            await asyncio.sleep(0)
    pump.close()


@pytest.mark.parametrize("is_told", [False, True])
async def test_endless_source_is_read_once_or_twice_in_a_turn(piped: Piped, is_told: bool) -> None:
    """Other connections wait for the rest of the turn. With TLS the loop may tell of what is left, or may not."""
    source, target = TcpTransport(piped.source), TcpTransport(piped.target)

    def receive_into(buffer: memoryview) -> int:
        if not is_told:
            with contextlib.suppress(BlockingIOError):
                piped.source.recv(1)
        return len(buffer)

    source.receive_into, source.tells_again, target.send = receive_into, False, len
    pump = piped.pump_between(source, target)
    pump.large_reads = True
    await piped.sender.send(b"x")
    pump.resume(STOPPED)
    turns = 40
    for _ in range(turns):
        await asyncio.sleep(0)
    pump.close()
    assert turns / 2 < len(piped.owner.sizes) <= (2 if is_told else 1) * turns + 2


async def test_a_closed_pump_sends_nothing_and_owns_no_buffer(piped: Piped) -> None:
    pump = piped.pump()
    pump.resume(STOPPED)
    await piped.sender.send_until_blocked(b"x" * 100_000)
    assert piped.pool.lent
    pump.close()
    assert piped.pool.lent == []
    pump.flush()
    while not piped.receiver.has_nothing():
        await piped.receiver.receive(1)
    await asyncio.sleep(0)
    assert piped.receiver.has_nothing()


@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_broken_socket_is_told_to_the_owner_once(which: str, piped: Piped) -> None:
    pump = piped.pump()
    if which == "target":
        piped.receiver.close()
        await piped.sender.send(b"for nobody")
        pump.resume(STOPPED)
    else:
        piped.source.send(b"unread by the sender: its close is a reset")
        pump.resume(STOPPED)
        piped.sender.close()
    for _ in range(10):
        await asyncio.sleep(0)
    (error,) = piped.owner.told
    assert error is (BrokenPipeError if which == "target" else ConnectionResetError)
    assert piped.pool.lent == []

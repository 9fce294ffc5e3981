"""One direction of a connection pair, with an owner that the test writes."""

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from proxy.buffers import LARGE_BUFFER_SIZE, SMALL_BUFFER_SIZE
from proxy.pump import CROWDED, HELD, STOPPED, Pump
from tests.proxy.relaying import Peer, PoisonedPool

ON_BOTH_LOOPS = True


class Owner:
    """Passes what arrives in pieces as small as the test wants, and remembers what it was told."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.told: list[object] = []
        self.cut: Callable[[memoryview], list[memoryview]] = lambda view: [view]

    def received(self, pump: Pump, view: memoryview) -> None:
        self.sizes.append(len(view))
        pump.unsent += self.cut(view)

    def unblocked(self, pump: Pump) -> None:
        self.told.append("unblocked")

    def ended(self, pump: Pump) -> None:
        self.told.append("ended")

    def failed(self, pump: Pump, error: Exception) -> None:
        self.told.append(type(error))
        pump.close()


@pytest.fixture
def ends() -> Iterator[tuple[Peer, socket.socket, socket.socket, Peer]]:
    """The sender, the pump's source, the pump's target and the receiver."""
    connections = [*socket.socketpair(), *socket.socketpair()]
    for connection in connections:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield LocalPeer(connections[0]), connections[1], connections[2], LocalPeer(connections[3])
    for connection in connections:
        connection.close()


class LocalPeer(Peer):
    """A peer on a socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection


async def test_many_small_pieces_arrive_in_order_though_the_target_takes_few_at_a_time(
    ends: tuple[Peer, socket.socket, socket.socket, Peer],
) -> None:
    sender, source, target, receiver = ends
    owner, pool, rng = Owner(), PoisonedPool(), random.Random(1)

    def cut(view: memoryview) -> list[memoryview]:
        at = sorted({0, len(view), *(rng.randrange(len(view)) for _ in range(300))})
        pieces = [view[start:end] for start, end in pairwise(at)]
        pieces.insert(rng.randrange(len(pieces)), view[:0])
        return pieces

    owner.cut = cut
    pump = Pump(owner, asyncio.get_running_loop(), pool, source, target)
    pump.large_reads = True
    pump.resume(STOPPED)
    data = rng.randbytes(500_000)
    sending = asyncio.create_task(sender.send(data))
    await receiver.expect(data)
    await sending
    sender.half_close()
    await receiver.expect_end()
    assert owner.told[-1] == "ended"
    assert pool.lent_bytes == 0
    assert pump.moved == len(data)
    pump.close()


async def test_a_pump_reads_only_when_no_reason_to_pause_is_left(
    ends: tuple[Peer, socket.socket, socket.socket, Peer],
) -> None:
    sender, source, target, receiver = ends
    pump = Pump(Owner(), asyncio.get_running_loop(), PoisonedPool(), source, target)
    pump.pause(HELD)
    pump.pause(CROWDED)
    await sender.send(b"waits")
    for reason in (STOPPED, HELD):
        pump.resume(reason)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert receiver.has_nothing()
    pump.resume(CROWDED)
    await receiver.expect(b"waits")
    pump.close()


async def test_a_read_limit_is_not_passed(ends: tuple[Peer, socket.socket, socket.socket, Peer]) -> None:
    sender, source, target, receiver = ends
    owner = Owner()
    pump = Pump(owner, asyncio.get_running_loop(), PoisonedPool(), source, target)
    pump.read_limit = 3
    await sender.send(b"0123456789")
    pump.resume(STOPPED)
    await receiver.expect(b"0123456789")
    assert owner.sizes == [3, 3, 3, 1]
    pump.close()


async def test_large_reads_are_as_large_as_a_large_buffer(
    ends: tuple[Peer, socket.socket, socket.socket, Peer],
) -> None:
    sender, source, target, receiver = ends
    for connection in (sender.connection, target):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    owner = Owner()
    pump = Pump(owner, asyncio.get_running_loop(), PoisonedPool(), source, target)
    data = bytes(SMALL_BUFFER_SIZE * 5)
    for pump.large_reads, size in ((False, SMALL_BUFFER_SIZE), (True, LARGE_BUFFER_SIZE)):
        owner.sizes.clear()
        pump.pause(HELD)
        await sender.send(data)
        pump.resume(HELD)
        pump.resume(STOPPED)
        await receiver.expect(data)
        assert max(owner.sizes) == min(size, len(data))
    pump.close()


async def test_a_closed_pump_sends_nothing_and_owns_no_buffer(
    ends: tuple[Peer, socket.socket, socket.socket, Peer],
) -> None:
    sender, source, target, receiver = ends
    pool = PoisonedPool()
    pump = Pump(Owner(), asyncio.get_running_loop(), pool, source, target)
    pump.resume(STOPPED)
    await sender.send_until_blocked(b"x" * 100_000)
    assert pool.lent_bytes > 0
    pump.close()
    assert pool.lent_bytes == 0
    pump.flush()
    while not receiver.has_nothing():
        await receiver.receive(1)
    await asyncio.sleep(0)
    assert receiver.has_nothing()


@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_broken_socket_is_told_to_the_owner_once(
    which: str, ends: tuple[Peer, socket.socket, socket.socket, Peer]
) -> None:
    sender, source, target, receiver = ends
    owner, pool = Owner(), PoisonedPool()
    pump = Pump(owner, asyncio.get_running_loop(), pool, source, target)
    if which == "target":
        receiver.close()
        await sender.send(b"for nobody")
        pump.resume(STOPPED)
    else:
        source.send(b"unread by the sender: its close is a reset")
        pump.resume(STOPPED)
        sender.close()
    for _ in range(10):
        await asyncio.sleep(0)
    (error,) = owner.told
    assert error is (BrokenPipeError if which == "target" else ConnectionResetError)
    assert pool.lent_bytes == 0

# SPDX-License-Identifier: Apache-2.0
"""What the relay is told of a TLS connection, where OpenSSL and the socket do not agree."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.fakes.relaying import relaying, round_trip
from tests.protocol.wire import fetch
from tests.proxy.tls.securing import Keys, secure_client
from weir.proxy.relay.tls_transport import MOST_AHEAD, TlsTransport
from weir.quota.fetch.decisions import Hold

ON_BOTH_LOOPS = True


class ScriptedConnection:
    """An SSLSocket that does what the test says: bytes received, a size sent, or an error."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self.receives: deque[bytes | Exception] = deque()
        self.sends: deque[int | Exception] = deque()
        self.sent: list[bytes] = []
        self.held_back = 0

    def fileno(self) -> int:
        return self._plain.fileno()

    def pending(self) -> int:
        return self.held_back

    def read(self, size: int, buffer: memoryview) -> int:
        happens = self.receives.popleft() if self.receives else ssl.SSLWantReadError()
        if isinstance(happens, Exception):
            raise happens
        if len(happens) > size:  # the rest of a record waits
            happens, rest = happens[:size], happens[size:]
            self.receives.appendleft(rest)
        buffer[: len(happens)] = happens
        return len(happens)

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.read(size, memoryview(buffer))])

    def send(self, data: bytes) -> int:
        self.sent.append(bytes(data))
        happens = self.sends.popleft() if self.sends else len(data)
        if isinstance(happens, Exception):
            raise happens
        return happens


@pytest.fixture
def plain() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


class Told(asyncio.Event):
    """Counts its calls."""

    times = 0

    def __call__(self) -> None:
        self.times += 1
        self.set()


async def soon(told: Told) -> None:
    async with asyncio.timeout(5):
        await told.wait()
    told.clear()


def transport_of(connection: ScriptedConnection) -> TlsTransport:
    return TlsTransport(cast(ssl.SSLSocket, connection))


async def test_bytes_openssl_holds_back_are_told_on_an_empty_socket(plain: Any) -> None:
    connection, told = ScriptedConnection(plain[0]), Told()
    transport = transport_of(connection)
    connection.held_back = 1
    transport.watch_reads(told)
    await soon(told)
    transport.unwatch_reads()
    transport.watch_reads(told)
    transport.unwatch_reads()
    await asyncio.sleep(0)
    assert told.times == 1


async def test_many_records_come_at_once_and_an_error_after_them(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    transport = transport_of(connection)
    connection.receives += [b"ab", b"cd", ConnectionResetError(), ConnectionResetError()]
    buffer = memoryview(bytearray(10))
    assert transport.receive_into(buffer) == 4
    assert bytes(buffer[:4]) == b"abcd"
    assert not transport.tells_again
    with pytest.raises(ConnectionResetError):
        transport.receive_into(buffer)


async def test_read_of_a_few_bytes_takes_no_more(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    connection.receives += [b"ab", b"cd"]
    transport = transport_of(connection)
    assert transport.receive_into(memoryview(bytearray(3))) == 3
    assert list(connection.receives) == [b"d"]


async def test_loop_tells_of_the_rest_only_after_a_read_to_the_end(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    transport = transport_of(connection)
    tells = isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)
    for arrives, is_left in ((b"ab", False), (b"abcdef", True), (b"", False)):
        connection.receives += [arrives] if arrives else []
        transport.receive_into(memoryview(bytearray(4)))
        assert transport.tells_again == (tells and not is_left)


@pytest.mark.parametrize("ends", [b"", ssl.SSLError(1, "broken")])
async def test_what_was_looked_at_is_read_all_the_same(plain: Any, ends: bytes | Exception) -> None:
    connection = ScriptedConnection(plain[0])
    transport = transport_of(connection)
    connection.receives += [b"abcdef", b"gh"]
    assert [transport.peek(most) for most in (1, 7, 3, 99)] == [b"a", b"abcdefg", b"abc", b"abcdefgh"]
    assert not transport.is_gone()
    connection.receives += [ends]
    assert transport.peek(99) == b"abcdefgh"
    buffer = bytearray(5)
    assert (transport.receive_into(memoryview(buffer)), bytes(buffer)) == (5, b"abcde")
    assert not transport.tells_again
    few = memoryview(bytearray(2))
    assert (transport.receive_into(few), transport.receive_into(few)) == (2, 1)
    assert transport.is_gone()


async def test_no_more_is_looked_at_than_what_memory_is_set_apart_for(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    connection.receives += [bytes(MOST_AHEAD - 1), b"abc"]
    transport = transport_of(connection)
    assert transport.peek(2 * MOST_AHEAD) == bytes(MOST_AHEAD - 1) + b"a"
    assert transport.ahead == MOST_AHEAD
    assert list(connection.receives) == [b"bc"]


async def test_who_watches_is_told_of_what_was_looked_at(plain: Any) -> None:
    """The socket no longer shows it."""
    connection, told = ScriptedConnection(plain[0]), Told()
    transport = transport_of(connection)
    transport.watch_reads(told)
    connection.receives += [b"ab"]
    assert transport.peek(9) == b"ab"
    await soon(told)
    transport.unwatch_reads()


async def test_read_that_has_to_send_first_goes_on_when_there_is_room(plain: Any) -> None:
    """A key update is answered by who reads it."""
    connection, told = ScriptedConnection(plain[0]), Told()
    transport = transport_of(connection)
    transport.watch_reads(told)
    connection.receives.append(ssl.SSLWantWriteError())
    with pytest.raises(BlockingIOError):
        transport.receive_into(memoryview(bytearray(10)))
    await soon(told)  # the socket has room at once
    transport.unwatch_reads()


async def test_send_that_has_to_read_first_goes_on_when_bytes_came(plain: Any) -> None:
    connection, told = ScriptedConnection(plain[0]), Told()
    transport = transport_of(connection)
    connection.sends.append(ssl.SSLWantReadError())
    with pytest.raises(BlockingIOError):
        transport.send(b"x")
    transport.watch_sends(told)
    await asyncio.sleep(0)
    assert not told.times
    plain[1].send(b"record")
    await soon(told)
    transport.unwatch_sends()


async def test_small_buffers_go_together_and_a_large_one_alone(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    transport = transport_of(connection)
    assert transport.send_many([b"ab", b"cd", b"e" * 20_000, b"f"]) == 20_004
    assert transport.send_many([b"e" * 20_000, b"f"]) == 20_000
    assert [len(sent) for sent in connection.sent] == [20_004, 20_000]


async def test_blocked_send_is_repeated_with_the_same_first_bytes(plain: Any) -> None:
    connection = ScriptedConnection(plain[0])
    transport = transport_of(connection)
    connection.sends.append(ssl.SSLWantWriteError())
    with pytest.raises(BlockingIOError):
        transport.send(b"ab")
    transport.send_many([b"ab", b"cd"])
    assert connection.sent[1].startswith(connection.sent[0])


async def test_follower_that_said_farewell_while_held_is_let_go(tmp_path: Any) -> None:
    """TLS's farewell is bytes on the socket: without reading it the follower would look alive."""
    keys = Keys(tmp_path)
    async with relaying(tls=keys.server()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await relay.accept()
        await round_trip(client, broker, 1)
        relay.throttle.decisions.append(Hold(float("inf")))
        await client.send(fetch(10, 5))
        await relay.until(lambda: len(relay.relay.held))
        with pytest.raises(ssl.SSLWantReadError):
            client.connection.unwrap()
        while relay.stats.connections:
            relay.relay.held.wake_now()
            await asyncio.sleep(0.001)
        await broker.expect_end()

# SPDX-License-Identifier: Apache-2.0
"""Listeners: where they listen, upstreams that are down, and the orderly end."""

import asyncio
import contextlib
import errno
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fakes.relaying import DEADLINE_SECONDS, Peer, Relaying, relaying, round_trip, start_listener
from tests.protocol.wire import fetch, fetch_response, produce, request, response
from weir.protocol.fetch_response import encode_fetch_response
from weir.protocol.response_scanner import Buffer
from weir.proxy.config.address import Address
from weir.proxy.relay.listener import Upstream
from weir.proxy.relay.transport import TcpTransport, set_options
from weir.quota.fetch.decisions import Answer, Hold

ON_BOTH_LOOPS = True
LONG = 30.0
"""A limit that must not be reached."""


async def test_listener_on_port_0_tells_which_and_a_taken_one_fails() -> None:
    async with relaying() as relay:
        assert relay.listener.address.port > 0
        with pytest.raises(OSError, match="in use"):
            await start_listener(relay.relay, relay.listener.address, relay.upstream)


async def test_an_upstream_is_found_by_name() -> None:
    async with relaying() as relay:
        named = await start_listener(relay.relay, Address("localhost", 0), Address("localhost", relay.upstream.port))
        client = socket.create_connection(("localhost", named.address.port))
        broker = await relay.accept()
        client.sendall(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        client.close()
        named.abort()


async def test_small_frames_are_sent_at_once_on_both_sides() -> None:
    async with relaying() as relay:
        await relay.connect()
        await relay.until(lambda: relay.listener.links)
        (link,) = relay.listener.links
        for transport in (link._client, link._upstream):
            assert isinstance(transport, TcpTransport)
            assert transport.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert transport.connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_an_upstream_that_refuses_closes_the_client_at_once() -> None:
    async with relaying() as relay:
        relay.broker.close()
        for _ in range(3):
            client = await relay.client()
            await client.expect_end()
        assert relay.stats.upstream_failures == {"refused": 3}
        assert relay.stats.connections == 0
        (line,) = relay.log.of("upstream_failed")
        assert line["kind"] == "refused"
        assert line["peer"] == str(relay.listener.upstream)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("is_up", [True, False])
async def test_who_only_looks_whether_the_port_is_open_is_told_apart(is_up: bool, reset: bool) -> None:
    """As a peer's sidecar does with an upstream that nobody uses. That nobody is behind the port is not its failure."""
    async with relaying() as relay:
        if not is_up:
            relay.broker.close()
        with socket.create_connection((relay.listener.address.host, relay.listener.address.port)) as client:
            looking = Peer(client)
            if reset:
                looking.reset()
        if is_up and not reset:
            (await relay.accept()).close()  # as a broker does when its client has
        await relay.until(lambda: relay.stats.connections_silent)
        assert (relay.stats.connections_accepted, relay.stats.connections) == (1, 0)
        assert not relay.stats.upstream_failures
        assert relay.log.lines == []


async def test_who_asks_is_not_counted_as_who_only_looks() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await round_trip(client, broker, 1)
        for end in (client, broker):
            end.close()
        await relay.until(lambda: not relay.stats.connections)
        assert relay.stats.connections_silent == 0


@pytest.fixture
def upstream_that_hangs() -> Iterator[Address]:
    """A port whose backlog is full: Linux drops the SYN of further connections."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield Address(*listening.getsockname())


async def test_hanging_upstream_closes_the_client_when_time_is_over(upstream_that_hangs: Address) -> None:
    async with relaying(connect_seconds=0.05) as relay:
        relay.listener.upstream = Upstream(upstream_that_hangs)
        client = await relay.client()
        await client.expect_end()
        assert relay.stats.upstream_failures == {"timeout": 1}
        (line,) = relay.log.of("upstream_failed")
        assert line["reason"] == "no answer in 0.05 s"


async def test_an_upstream_whose_name_is_unknown_closes_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relaying() as relay:

        async def fail(*args: object) -> socket.socket:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr("weir.proxy.relay.listener.connect", fail)
        client = await relay.client()
        await client.expect_end()
        assert relay.stats.upstream_failures == {"unreachable": 1}


async def test_a_process_without_descriptors_accepts_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.listener._ACCEPT_PAUSE_SECONDS", 0.02)
    async with relaying() as relay:
        listening = relay.listener._socket
        assert listening is not None
        relay.listener._socket = Exhausted(listening)  # type: ignore[assignment]
        started = time.monotonic()
        await relay.connect(request(3, 0, 1))
        assert relay.stats.accept_errors == 2
        assert time.monotonic() - started >= 0.035
        assert len(relay.log.of("accept_failed")) == 1


class Exhausted:
    """A listening socket that fails twice."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.left = 2

    def fileno(self) -> int:
        return self.listening.fileno()

    def close(self) -> None:
        self.listening.close()

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.listening.accept()


async def test_closed_listener_frees_its_port_and_keeps_connections() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        relay.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await relay.client()
        again = await start_listener(relay.relay, relay.listener.address, relay.upstream)
        again.close()
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        await broker.send(response(1))
        await client.expect(response(1))


async def test_drain_drops_connections_the_upstream_has_not_taken(upstream_that_hangs: Address) -> None:
    async with relaying() as relay:
        relay.listener.upstream = Upstream(upstream_that_hangs)
        client = await relay.client()
        await relay.until(lambda: relay.stats.connections)
        async with draining(relay):
            await client.expect_end()
        assert relay.stats.connections == 0


@contextlib.asynccontextmanager
async def draining(relay: Relaying, client: Peer | None = None, broker: Peer | None = None) -> AsyncIterator[None]:
    """Drain while the block runs. After it the peers' connections are at their end, without another byte; then so is
    the drain, once the client has closed too.
    """
    drained = asyncio.create_task(relay.listener.drain(LONG))
    await asyncio.sleep(0)
    yield
    if client is not None:
        await client.expect_end()
        client.close()
    if broker is not None:
        assert await broker.receive(1) == b""
    async with asyncio.timeout(DEADLINE_SECONDS):
        await drained


async def test_drain_closes_idle_connections_at_once() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await round_trip(client, broker, 1)
        started = time.monotonic()
        async with draining(relay, client, broker):
            pass
        assert time.monotonic() - started < 1


async def test_drain_waits_for_due_responses_and_takes_no_requests() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1) + fetch(2, 5))
        async with draining(relay, client, broker):
            await client.send(request(18, 0, 3))
            data = response(1, b"z" * 500_000) + fetch_response(2)
            await broker.send(data)
            await client.expect(data)
        assert relay.throttle.told("settle") == [("settle", [b"orders"])]


async def test_drain_lets_a_request_that_is_under_way_end() -> None:
    """Up to its last byte, not one more, however it is cut."""
    async with relaying() as relay:
        client, broker = await relay.connect()
        data = request(3, 0, 1, b"b" * 40_000)
        await client.send(data[:20_000])
        await broker.expect(data[:20_000])
        async with draining(relay, client, broker):
            await client.send(data[20_000:] + request(3, 0, 2))
            await broker.expect(data[20_000:])
            await broker.send(response(1))
            await client.expect(response(1))


@pytest.mark.parametrize("cut", [1, 5, 13, 24, 40])
async def test_drain_lets_a_request_whose_head_was_cut_end(cut: int) -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        data = produce(1, 0) if cut < 13 else fetch(1, 5)
        await client.send(data[:cut])
        await relay.until(lambda: sum(link.from_client.moved for link in relay.listener.links) == cut)
        async with draining(relay, client, broker):
            await client.send(data[cut:] + request(3, 0, 2))
            await broker.expect(data)
            if cut >= 13:
                await broker.send(fetch_response(1))
                await client.expect(fetch_response(1))


async def test_drain_gives_up_a_held_fetch_and_what_is_behind_it() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(request(3, 0, 1) + fetch(2, 5) + request(3, 0, 3))
        await broker.expect(request(3, 0, 1))
        async with draining(relay, client, broker):
            relay.relay.held.wake_now()
            await broker.send(response(1))
            await client.expect(response(1))


async def test_drain_does_not_hold_a_fetch_begun_before_it() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.append(Hold(float("inf")))
        client, broker = await relay.connect()
        await client.send(fetch(1, 5)[:-1])
        await relay.until(lambda: sum(link.from_client.moved for link in relay.listener.links))
        async with draining(relay, client, broker):
            await client.send(fetch(1, 5)[-1:])


async def test_drain_sends_an_answer_whose_turn_comes_last() -> None:
    async with relaying() as relay:
        answer = encode_fetch_response(3, 2, 0, [])
        relay.throttle.decisions.append(Answer(answer))
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1) + fetch(2, 5))
        await broker.expect(request(3, 0, 1))
        async with draining(relay, client, broker):
            await broker.send(response(1))
            await client.expect(response(1) + answer)


async def test_drain_delivers_what_a_slow_client_has_not_read_yet() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1))
        data = response(1, b"z" * 30_000_000)
        sending = asyncio.create_task(broker.send(data))
        await relay.until(lambda: relay.pool.lent)
        async with draining(relay, client, broker):
            await client.send(request(3, 0, 2))  # unread by the relay: closing on it would reset the connection
            await client.expect(data)
            await sending


async def test_drain_delivers_bytes_that_could_not_be_sent_at_once() -> None:
    """They are the last that were read."""
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1))
        (link,) = relay.listener.links
        assert isinstance(link._client, TcpTransport)
        link.from_upstream._target = Reluctant(link._client.connection)
        async with draining(relay, client, broker):
            await broker.send(response(1))
            await client.expect(response(1))


class Reluctant(TcpTransport):
    """A connection that takes nothing the first time."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.send = self._send_nothing_first

    def _send_nothing_first(self, data: Buffer) -> int:
        self.send = self.connection.send
        raise BlockingIOError


async def test_drain_closes_what_is_left_when_the_limit_is_over() -> None:
    async with relaying() as relay:
        stuck, its_broker = await relay.connect()
        await stuck.send(request(3, 0, 1))
        await its_broker.expect(request(3, 0, 1))
        opaque, other_broker = await relay.connect()
        await opaque.send(b"\x16\x03\x01 hello")
        await other_broker.expect(b"\x16\x03\x01 hello")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await relay.listener.drain(0.02)
        await stuck.expect_end()
        await opaque.expect_end()
        await its_broker.expect_end()
        assert relay.stats.connections == 0


async def test_drain_ends_a_connection_the_upstream_takes_just_then() -> None:
    async with relaying() as relay:
        relay.listener._draining = True
        client, broker = await relay.connect()
        await client.expect_end()
        client.close()
        await broker.expect_end()


async def test_drain_gives_a_client_that_does_not_close_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.link.LINGER_SECONDS", 0.02)
    async with relaying() as relay:
        client, broker = await relay.connect()
        await relay.until(lambda: relay.listener.links)
        async with draining(relay, broker=broker):
            await client.send(b"x" * 100)


@pytest.mark.long
async def test_nothing_of_a_closed_connection_stays_in_memory() -> None:
    async with relaying() as relay:
        for _ in range(3):
            client, broker = await relay.connect(fetch(1, 5))
            client.close()
            broker.close()
        await relay.until(lambda: relay.stats.connections == 0)
        gc.collect()
        assert not relay.listener.links
        assert [one for one in gc.get_objects() if type(one).__name__ in ("Link", "Pump", "ReplicaFetches")] == []


def test_peer_whose_machine_is_gone_is_noticed_after_2_minutes() -> None:
    with socket.socket() as connection:
        set_options(connection)
        asked = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, interval, probes = (connection.getsockopt(socket.IPPROTO_TCP, option) for option in asked)
        assert idle + interval * probes == 120
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

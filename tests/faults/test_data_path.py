# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol, break off, or stop: a closed connection at worst, and no one else is disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying
from tests.protocol.wire import fetch, fetch_response, frame, produce, request, response
from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE, SMALL_BUFFER_SIZE
from weir.proxy.relay.connection import Connection
from weir.proxy.relay.transport import TcpTransport
from weir.quota.fetch.decisions import Hold

ON_BOTH_LOOPS = True


@contextlib.asynccontextmanager
async def beside_another(fetch_size_limit: int = 100 * 2**20) -> AsyncIterator[tuple[Relaying, Peer, Peer]]:
    """A relay and a connection, whose client waits for a response meanwhile and receives it whole in the end."""
    async with relaying(fetch_size_limit=fetch_size_limit) as relay:
        other, its_broker = await relay.connect()
        await other.send(request(3, 0, 77) + fetch(78, 5))
        await its_broker.expect(request(3, 0, 77) + fetch(78, 5))
        data = response(77, b"m" * 1000)
        await its_broker.send(data[:500])
        await other.expect(data[:500])
        client, broker = await relay.connect()
        await relay.until(lambda: len(relay.listener.links) == 2)
        yield relay, client, broker
        await its_broker.send(data[500:] + fetch_response(78))
        await other.expect(data[500:] + fetch_response(78))
        await other.send(request(3, 0, 79))
        await its_broker.expect(request(3, 0, 79))
        await relay.until(lambda: relay.stats.connections == len(relay.listener.links))


async def refused(relay: Relaying, client: Peer, broker: Peer, kind: str, sent_by: str) -> dict[str, object]:
    """Check that the connection ends at both ends, counted and logged once; returns the line."""
    await client.expect_end()
    await broker.expect_end()
    await relay.until(lambda: relay.stats.connections == 1)
    assert relay.stats.protocol_errors == {kind: 1}
    (line,) = relay.log.of("protocol_error")
    assert (line["kind"], line["sent_by"], line["side"]) == (kind, sent_by, "leader")
    assert str(line["reason"]).endswith(".")
    return line


# Frames


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7])
async def test_a_request_of_an_impossible_size_ends_its_connection(size: int) -> None:
    async with beside_another() as (relay, client, broker):
        await client.send(produce(1, 0) + struct.pack(">i", size))
        await broker.expect(produce(1, 0))  # what came before it passes
        line = await refused(relay, client, broker, "invalid_frame_size", "client")
        assert str(size) in str(line["reason"])


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3])
async def test_a_response_of_an_impossible_size_ends_its_connection(size: int) -> None:
    async with beside_another() as (relay, client, broker):
        await client.send(request(3, 0, 1) + request(3, 0, 2))
        await broker.expect(request(3, 0, 1) + request(3, 0, 2))
        await broker.send(response(1, b"good") + struct.pack(">i", size))
        await client.expect(response(1, b"good"))
        await refused(relay, client, broker, "invalid_frame_size", "upstream")


async def test_fetch_above_the_limit_passes_as_far_as_it_comes() -> None:
    async with beside_another(fetch_size_limit=1000) as (relay, client, broker):
        begun = struct.pack(">ihhihi", 2**31 - 1, 1, 3, 9, -1, 5) + b"x" * 100_000
        await client.send(begun)
        await broker.expect(begun)
        assert relay.stats.passthrough == {"fetch_too_large": 1}
        assert relay.relay.fetch_memory.total == 0


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(frame(fetch(1, 5)[4:-3]), id="cut"),
        pytest.param(frame(fetch(1, 5)[4:] + b"x"), id="longer than its content"),
        pytest.param(fetch(1, 5, topics=())[:-4] + struct.pack(">i", 2**31 - 1), id="huge count of topics"),
        pytest.param(fetch(1, 5, topics=())[:-4] + struct.pack(">i", -5), id="negative count of topics"),
        pytest.param(frame(fetch(1, 5, topics=())[4:-4] + struct.pack(">ih", 1, 32767) + b"t"), id="long name"),
    ],
)
async def test_a_malformed_fetch_ends_its_connection(broken: bytes) -> None:
    async with beside_another() as (relay, client, broker):
        await client.send(broken)
        await refused(relay, client, broker, "malformed_frame", "client")


async def test_a_topic_name_of_32767_bytes_is_relayed() -> None:
    async with beside_another() as (_, client, broker):
        topics = ((b"t" * 32767, ((0, 1, 2),)),)
        await client.send(fetch(1, 5, topics=topics))
        await broker.expect(fetch(1, 5, topics=topics))
        data = fetch_response(1, topics=((b"t" * 32767, ((0, 1, b"r"),)),))
        await broker.send(data)
        await client.expect(data)


async def test_response_that_no_request_awaits_ends_its_connection() -> None:
    async with beside_another() as (relay, client, broker):
        await broker.send(response(5))
        line = await refused(relay, client, broker, "unexpected_response", "upstream")
        assert " 5 " in str(line["reason"])


@pytest.mark.parametrize("asked", [request(3, 0, 1), fetch(1, 5)], ids=["passed", "scanned"])
async def test_a_response_to_another_request_ends_its_connection(asked: bytes) -> None:
    async with beside_another() as (relay, client, broker):
        await client.send(asked)
        await broker.expect(asked)
        await broker.send(fetch_response(2))
        await refused(relay, client, broker, "correlation_mismatch", "upstream")
        assert len(relay.throttle.told("close")) == len(relay.throttle.told("plan")) - 1


async def test_malformed_response_to_a_replica_ends_its_connection() -> None:
    """The fetch is given up: nothing is settled, and its throttle is closed."""
    async with beside_another() as (relay, client, broker):
        await client.send(fetch(1, 5))
        await broker.expect(fetch(1, 5))
        broken = bytearray(fetch_response(1))
        broken[12:16] = struct.pack(">i", 2**31 - 1)
        await broker.send(bytes(broken))
        await refused(relay, client, broker, "malformed_frame", "upstream")
        assert relay.throttle.told("close") == [("close",)]
        assert relay.throttle.told("settle") == []


@pytest.mark.parametrize("asked", [request(3, 0, 1, b"body"), fetch(1, 5)], ids=["passed", "collected"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_request_cut_anywhere_leaves_nothing_behind(asked: bytes, end: str) -> None:
    async with beside_another() as (relay, client, broker):
        client.close()
        await broker.expect_end()
        for cut in range(1, len(asked), 3):
            one, its_broker = await relay.connect()
            await one.send(asked[:cut])
            getattr(one, end)()
            with contextlib.suppress(ConnectionResetError):
                assert asked.startswith(await its_broker.receive(len(asked)))
            its_broker.close()
        broker.close()
        await relay.until(lambda: relay.stats.connections == 1)
        assert relay.stats.protocol_errors == {}


@pytest.mark.parametrize("asked", [request(3, 0, 1), fetch(1, 5)], ids=["passed", "scanned"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_broker_that_dies_in_a_response_ends_the_connection(asked: bytes, end: str) -> None:
    """Wherever the response is cut, its client's connection ends, and nothing is settled."""
    data = fetch_response(1, topics=((b"t", ((0, 1, b"r" * 20), (1, 2, b""))),))
    async with beside_another() as (relay, client, broker):
        client.close()
        broker.close()
        for cut in range(0, len(data), 5):
            one, its_broker = await relay.connect()
            await one.send(asked)
            await its_broker.expect(asked)
            await its_broker.send(data[:cut])
            getattr(its_broker, end)()
            with contextlib.suppress(ConnectionResetError):
                assert data.startswith(await one.receive(len(data)))
            one.close()
        await relay.until(lambda: relay.stats.connections == 1)
        planned = len(relay.throttle.told("plan")) - 1  # one is the other connection's
        assert len(relay.throttle.told("close")) == planned
        assert relay.throttle.told("settle") == []


# Peers


@pytest.mark.parametrize("who", ["client", "broker"])
async def test_a_reset_is_passed_as_a_close(who: str) -> None:
    async with beside_another() as (relay, client, broker):
        gone, left = (client, broker) if who == "client" else (broker, client)
        gone.reset()
        await left.expect_end()
        await relay.until(lambda: relay.stats.connections == 1)
        assert relay.log.lines == []


async def test_client_that_reads_nothing_stops_reads_from_the_broker() -> None:
    """What it costs is one buffer; when it reads again, all bytes come."""
    async with beside_another() as (relay, client, broker):
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        size = 60_000_000
        await broker.send(struct.pack(">ii", size + 4, 1))
        block = bytes(range(256)) * 4096
        sent = await broker.send_until_blocked(block)
        assert 0 < sent < size
        assert sum(relay.pool.lent) <= LARGE_BUFFER_SIZE
        await client.expect(struct.pack(">ii", size + 4, 1))
        whole = block * (size // len(block) + 1)
        await client.expect(whole[:sent])
        await relay.until(lambda: not relay.pool.lent)
        await broker.send(whole[sent : sent + 1000])
        await client.expect(whole[sent : sent + 1000])


async def test_broker_that_reads_nothing_stops_reads_from_its_client() -> None:
    async with beside_another() as (relay, client, broker):
        await client.send(struct.pack(">ihhi", 2**31 - 1, 3, 0, 1))
        sent = await client.send_until_blocked(b"x" * 1_000_000)
        assert sum(relay.pool.lent) <= LARGE_BUFFER_SIZE
        assert len(await broker.receive(12 + sent)) == 12 + sent


@pytest.mark.long
async def test_many_stuck_clients_cost_a_small_buffer_each() -> None:
    async with beside_another() as (relay, *_):
        relay.pool.large_limit = 4
        clients, brokers = [], []
        for _ in range(60):
            one, its_broker = await relay.connect()
            await one.send(request(3, 0, 1))
            await its_broker.expect(request(3, 0, 1))
            await its_broker.send(struct.pack(">ii", 2**31 - 1, 1))
            await one.expect(struct.pack(">ii", 2**31 - 1, 1))
            for link in relay.listener.links:  # to be stuck sooner
                assert isinstance(link._client, TcpTransport)
                link._client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            clients.append(one)
            brokers.append(its_broker)
        for its_broker in brokers:
            await its_broker.send_until_blocked(b"x" * 500_000)
        assert relay.pool.lent.count(LARGE_BUFFER_SIZE) <= 2  # the others are for clients that read
        assert relay.pool.lent.count(SMALL_BUFFER_SIZE) <= 60
        for one in clients:
            one.reset()
        await relay.until(lambda: not relay.pool.lent)


async def test_silent_clients_and_silent_brokers_cost_nothing() -> None:
    async with beside_another() as (relay, *_):
        silent = [await relay.connect() for _ in range(20)]
        assert relay.pool.lent == []
        assert relay.stats.connections == 22
        for one, its_broker in silent:
            one.close()
            await its_broker.expect_end()


@pytest.mark.long
@pytest.mark.parametrize("asked", [produce(1, -1, version=9), fetch(1, 5)], ids=["produce", "fetch"])
async def test_a_client_that_sends_byte_by_byte_is_served(asked: bytes) -> None:
    async with beside_another() as (relay, client, broker):
        (link,) = [link for link in relay.listener.links if not link.from_client.moved]
        for index in range(len(asked)):
            await client.send(asked[index : index + 1])
            await relay.until(lambda: link.from_client.moved > index)  # noqa: B023
            assert relay.pool.lent == []
        await broker.expect(asked)
        data = fetch_response(1)
        for index in range(len(data)):
            await broker.send(data[index : index + 1])
            await relay.until(lambda: link.from_upstream.moved > index)  # noqa: B023
        await client.expect(data)


async def test_client_that_vanishes_leaves_nothing_of_its_held_fetch() -> None:
    async with beside_another() as (relay, client, broker):
        relay.throttle.decisions.append(Hold(float("inf")))
        await client.send(fetch(1, 5))
        await relay.until(lambda: len(relay.relay.held))
        client.reset()
        await asyncio.sleep(0)
        relay.relay.held.wake_now()
        await broker.expect_end()
        assert len(relay.relay.held) == 0


async def test_a_bug_of_the_relays_own_ends_one_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        other, its_broker = await relay.connect()
        await relay.until(lambda: len(relay.listener.links) == 2)

        def fail(self: Connection, sender: str, view: memoryview, most: int) -> None:
            raise ZeroDivisionError("bug")

        monkeypatch.setattr(Connection, "receive", fail)
        await client.send(request(3, 0, 1))
        await client.expect_end()
        await broker.expect_end()
        monkeypatch.undo()
        await other.send(request(3, 0, 1))
        await its_broker.expect(request(3, 0, 1))
        (line,) = relay.log.of("relay_error")
        assert "ZeroDivisionError" in str(line["error"])
        assert relay.stats.relay_errors == 1
        relay.stats.relay_errors = 0

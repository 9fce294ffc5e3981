# SPDX-License-Identifier: Apache-2.0
"""A listener that ends TLS, and that begins it again towards the broker; over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from tests.fakes.relaying import relaying, round_trip
from tests.protocol.wire import produce, request, response
from tests.proxy.tls.securing import FOLLOWER, Keys, secure_broker, secure_client
from weir.proxy.relay.unread import MOST_ROOM

ON_BOTH_LOOPS = True
WITH_WORKERS = True


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


async def test_requests_and_answers_pass_through_tls_on_both_ends(keys: Keys) -> None:
    server = keys.server(allowed_names=(FOLLOWER,))
    async with relaying(tls=server, upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await round_trip(client, broker, 1)
        certificate = broker.connection.getpeercert()
        assert certificate is not None
        assert certificate["subject"] == ((("commonName", "broker-1.test"),),), "the broker sees its own certificate"
        await round_trip(client, broker, 2)
        client.close()
        await broker.expect_end()
        await asyncio.sleep(0.01)  # the time for an alert
        broker.close()
        await relay.until(lambda: not relay.stats.connections)
        assert relay.log.of("tls_broken") == [], "without TLS's farewell the broker would answer the end with an alert"
        assert relay.relay.tls.handshakes == {("leader", "client", "ok"): 1, ("leader", "upstream", "ok"): 1}


async def test_tls_ends_at_the_listener_where_the_broker_has_none(keys: Keys) -> None:
    async with relaying(tls=keys.server("none")) as relay:
        client = await secure_client(relay, keys, None)
        await round_trip(client, await relay.accept(), 1)


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 1_000_000])
async def test_bytes_of_any_size_arrive_whole_and_in_order(keys: Keys, size: int) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await client.send(request(3, 0, 7))
        await broker.expect(request(3, 0, 7))
        body = bytes(range(256)) * (size // 256 + 1)
        answer = response(7, body[:size])
        sending = asyncio.create_task(broker.send(answer))
        await client.expect(answer)
        await sending


@pytest.mark.long
async def test_client_that_does_not_read_stops_broker_without_loss(keys: Keys) -> None:
    """Back-pressure: what weir keeps is bounded, and after it every byte still comes."""
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await client.send(request(3, 0, 7))
        await broker.expect(request(3, 0, 7))
        answer = response(7, bytes(range(256)) * 2**17)  # 32 MB: more than the buffers of all sockets
        sending = asyncio.create_task(broker.send(answer))
        [link] = relay.listener.links
        before = -1
        while before != link.relayed.answers:
            before = link.relayed.answers
            await asyncio.sleep(0.05)
        assert 0 < before < len(answer), "the broker was read although the client does not read"
        assert not sending.done()
        await client.expect(answer)
        await sending


async def test_both_directions_at_once_do_not_disturb_each_other(keys: Keys) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        body = bytes(200_000)
        for number in range(5):
            await client.send(request(3, 0, number))
            await broker.expect(request(3, 0, number))
        produced = request(3, 0, 99, body)
        sending = [
            asyncio.create_task(client.send(produced)),
            asyncio.create_task(broker.send(b"".join(response(number, body) for number in range(5)))),
        ]
        await asyncio.gather(
            client.expect(b"".join(response(number, body) for number in range(5))), broker.expect(produced)
        )
        await asyncio.gather(*sending)


async def test_drained_connection_ends_after_its_last_answer(keys: Keys) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        draining = asyncio.create_task(relay.listener.drain(5.0))
        await broker.send(response(1))
        await client.expect(response(1))
        await client.expect_end()
        client.close()
        await draining


@pytest.mark.parametrize("ending", ["reset", "close"])
async def test_client_that_is_gone_is_seen_while_its_broker_reads_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("weir.proxy.relay.unread.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("weir.proxy.relay.link.STUCK_SECONDS", 0.05)
    monkeypatch.setattr("weir.proxy.relay.link.MOST_ROOM", 0)  # a client that goes on to send would fill any room
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        await secure_broker(relay, keys)
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**18)
        data, idle = produce(9, 0, records=bytes(100_000)), 0
        while idle < 50:
            try:
                client.connection.send(data)
                idle = 0
            except ssl.SSLWantWriteError:
                idle += 1
                await asyncio.sleep(0.001)
        monkeypatch.setattr("weir.proxy.relay.link.MOST_ROOM", MOST_ROOM)
        getattr(client, ending)()
        await relay.until(lambda: not relay.listener.links)

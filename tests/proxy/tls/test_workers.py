# SPDX-License-Identifier: Apache-2.0
"""Worker processes that do TLS: who dies takes its connections along and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.relaying import Relaying, relaying, round_trip
from tests.limits.limiters import rule
from tests.protocol.wire import request, response
from tests.proxy.limited import SINK, fetch, fetched, limited, read_fetched
from tests.proxy.tls.securing import BROKER, FOLLOWER, Keys, SecurePeer, secure_broker, secure_client
from weir.proxy.limits.gate import LOOK_SECONDS
from weir.proxy.relay.transport import Transport
from weir.proxy.tls.keys import load_client_keys
from weir.proxy.tls_workers import pool
from weir.proxy.tls_workers.transport import WorkerTransport

pytestmark = [pytest.mark.long, pytest.mark.newest]

ON_BOTH_LOOPS = True


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def pids(relay: Relaying) -> list[int]:
    return [worker.pid for worker in relay.workers.workers if worker.pid is not None]


@contextlib.contextmanager
def away(name: str) -> Iterator[None]:
    """A file is not there."""
    path = Path(name)
    path.rename(f"{name}.away")
    yield
    Path(f"{name}.away").rename(path)


async def all_there_is(client: SecurePeer) -> bytes:
    """What a client can read until nothing more comes."""
    found, idle = bytearray(), 0
    while idle < 100:
        try:
            found += client.connection.recv(2**16)
            idle = 0
        except ssl.SSLWantReadError:
            idle += 1
            await asyncio.sleep(0.002)
    return bytes(found)


def ends(relay: Relaying) -> list[Transport]:
    """Both ends of the only link."""
    [link] = relay.listener.links
    return [link._client, link._upstream]


async def test_ends_of_a_link_are_with_two_workers(keys: Keys) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client(), workers=2) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await round_trip(client, broker, 1)
        assert [type(end) for end in ends(relay)] == [WorkerTransport, WorkerTransport]
        assert [len(worker.handed) for worker in relay.workers.workers] == [1, 1]
        assert all(worker.cpu_seconds() > 0 for worker in relay.workers.workers)


async def test_pipelined_answers_pass_whole_by_one_worker(keys: Keys) -> None:
    """What is decrypted while the sidecar does not read, and encrypted while the client does not."""
    async with relaying(tls=keys.server(), upstream_tls=keys.client(), workers=1) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        body = bytes(500_000)
        for first in range(0, 40, 4):
            numbers = range(first, first + 4)
            await client.send(b"".join(request(3, 0, number) for number in numbers))
            await broker.expect(b"".join(request(3, 0, number) for number in numbers))
            sending = asyncio.create_task(broker.send(b"".join(response(number, body) for number in numbers)))
            await client.expect(b"".join(response(number, body) for number in numbers))
            await sending


async def test_killed_worker_takes_its_connections_and_is_restarted(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIRST_PAUSE_SECONDS", 0.05)
    async with relaying(tls=keys.server(), workers=2) as relay:
        clients = [await secure_client(relay, keys, keys.follower) for _ in range(2)]
        brokers = [await relay.accept() for _ in clients]
        for client, broker in zip(clients, brokers, strict=True):
            await round_trip(client, broker, 1)
        doomed = pids(relay)[0]
        os.kill(doomed, signal.SIGKILL)
        await relay.until(lambda: relay.stats.connections == 1)
        await brokers[0].expect_end()
        await clients[0].expect_end()
        await round_trip(clients[1], brokers[1], 2)
        assert relay.workers.ended == 1
        [line] = relay.log.of("tls_worker_ended")
        assert line["reason"] == "exit status -9"
        again = await secure_client(relay, keys, keys.follower)  # by whom is there
        await round_trip(again, await relay.accept(), 3)
        await relay.until(lambda: all(worker.is_ready for worker in relay.workers.workers), 30)
        assert doomed not in pids(relay)


async def test_connection_waits_for_the_worker_that_is_started_again(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(pool, "WAIT_SECONDS", 60.0)
    async with relaying(tls=keys.server(), workers=1) as relay:
        os.kill(pids(relay)[0], signal.SIGKILL)
        await relay.until(lambda: relay.workers.ended)
        relay.relay.handshakes.seconds = 60.0
        context = load_client_keys(keys.files(keys.follower), checks_name=True).context
        plain = (await relay.client()).connection
        client = relay.keep(
            SecurePeer(context.wrap_socket(plain, server_hostname=BROKER, do_handshake_on_connect=False))
        )
        with contextlib.suppress(ssl.SSLWantReadError):
            client.connection.do_handshake()  # its first message
        await relay.until(lambda: relay.workers.workers[0].is_ready, 60)
        await client.shake_hands()
        await round_trip(client, await relay.accept(), 1)
        assert isinstance(ends(relay)[0], WorkerTransport)


async def test_without_a_worker_that_lives_tls_is_done_here(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WAIT_SECONDS", 0.1)
    async with relaying(tls=keys.server(), workers=1) as relay:
        os.kill(pids(relay)[0], signal.SIGKILL)
        await relay.until(lambda: relay.workers.ended)
        client = await secure_client(relay, keys, keys.follower)
        await round_trip(client, await relay.accept(), 1)
        assert not isinstance(ends(relay)[0], WorkerTransport)


async def test_sidecar_s_supervisor_stops_no_worker(keys: Keys) -> None:
    """systemd sends SIGTERM to all processes of a unit, and what is open has to be drained first."""
    async with relaying(tls=keys.server(), workers=1) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await relay.accept()
        await round_trip(client, broker, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pids(relay)[0], number)
        await asyncio.sleep(0.1)
        await round_trip(client, broker, 2)
        assert not relay.workers.ended


async def test_new_keys_are_those_of_the_next_connection(keys: Keys) -> None:
    server = keys.server("none")
    async with relaying(tls=server, workers=1) as relay:
        first = await secure_client(relay, keys, None)
        broker = await relay.accept()
        old = first.connection.getpeercert(binary_form=True)
        keys.broker = keys.authority.issue("broker-1.test")  # into the same files
        assert server.keys.reload()
        second = await secure_client(relay, keys, None)
        assert second.connection.getpeercert(binary_form=True) != old
        await round_trip(second, await relay.accept(), 1)
        await round_trip(first, broker, 2)


async def test_worker_without_its_keys_leaves_a_connection_as_it_is(keys: Keys) -> None:
    """The sidecar has what the files were before."""
    server = keys.server("none")
    with away(server.keys.files.certificate or ""):
        async with relaying(tls=server, workers=1) as relay:
            client = await secure_client(relay, keys, None)
            await round_trip(client, await relay.accept(), 1)
            assert not isinstance(ends(relay)[0], WorkerTransport)
            assert relay.log.of("tls_keys_refused")


async def test_bytes_on_their_way_are_those_the_client_has_not_taken(keys: Keys) -> None:
    """What quotas at a follower stand on: none of them is forgotten on the way through a worker."""
    async with relaying(tls=keys.server(allowed_names=(FOLLOWER,)), workers=1) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await relay.accept()
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        body = bytes(30_000_000)  # more than the buffers of all sockets
        sending = asyncio.create_task(broker.send(response(1, body)))
        near, before = ends(relay)[0], -1
        [link] = relay.listener.links
        while before != link.from_upstream.sent:
            before = link.from_upstream.sent
            await asyncio.sleep(0.3)
        assert isinstance(near, WorkerTransport)
        on_way = near.unacknowledged()
        os.kill(pids(relay)[0], signal.SIGSTOP)  # what it has does not come now, nor what is on its way to it
        taken = await all_there_is(client)
        sent, later = link.from_upstream.sent, near.unacknowledged()
        os.kill(pids(relay)[0], signal.SIGCONT)
        assert len(taken) >= before - on_way, "what has not arrived counts as on its way"
        assert sent - len(taken) > 100_000, "some of it is with the worker, or on its way to it"
        assert later >= sent - len(taken) - 2**14, "and that counts as on its way, but for a part of a record"
        rest = len(response(1, body)) - len(taken)
        assert len(await client.receive(rest)) == rest
        await sending
        await relay.until(lambda: near.unacknowledged() == 0)


async def test_half_closed_client_still_gets_its_answer(keys: Keys) -> None:
    async with relaying(tls=keys.server(), workers=1) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await relay.accept()
        await client.send(request(3, 0, 1))
        await broker.expect(request(3, 0, 1))
        with contextlib.suppress(ssl.SSLWantReadError):
            client.connection.unwrap()  # TLS's farewell
        socket.socket.shutdown(client.connection, socket.SHUT_WR)  # SSLSocket's own would give TLS up
        await broker.expect_end()
        await broker.send(response(1))
        await client.expect(response(1))
        broker.close()
        with pytest.raises(ssl.SSLZeroReturnError):
            await client.receive(1)


async def test_held_fetch_gives_way_to_what_its_client_sends_next(keys: Keys) -> None:
    """What came is with the worker; what stands behind the held request is seen there."""
    async with limited(rule(SINK, 100), tls=keys.server(), workers=1) as found:
        client = await secure_client(found.relay, keys, keys.follower)
        broker = await found.relay.accept()
        await found.passes_with(client, broker, fetch(1), fetched(1, 300))
        await found.is_held(client, broker, fetch(2))
        await found.move(LOOK_SECONDS)
        await asyncio.sleep(0.05)
        assert found.has_held()
        await client.send(request(3, 0, 3))
        async with asyncio.timeout(5):
            while found.has_held():
                await found.move(0.001)
                await asyncio.sleep(0.01)
        assert read_fetched(await client.receive_frame(), 12).error_code == 71  # its session begins anew
        await broker.expect(request(3, 0, 3))
        assert found.clock() < 1002.9, "not because its pause was over"

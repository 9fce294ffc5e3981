# SPDX-License-Identifier: Apache-2.0
"""Handshakes that fail: each is closed with a result, and a connection beside it goes on."""

from __future__ import annotations

import os
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.pki import Authority
from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import request, response
from tests.proxy.tls.securing import BROKER, FOLLOWER, Keys, SecurePeer, secure_broker, secure_client
from weir.proxy.tls.keys import load_client_keys
from weir.proxy.tls.results import HandshakeResult

WITH_WORKERS = True


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@asynccontextmanager
async def secured(keys: Keys) -> AsyncIterator[tuple[Relaying, SecurePeer, SecurePeer]]:
    """A relay with one connection that has to go on, whatever happens to others."""
    server = keys.server(allowed_names=(FOLLOWER, BROKER))
    async with relaying(tls=server, upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await round_trip(client, broker, 1)
        yield relay, client, broker
        await round_trip(client, broker, 2)


async def expect_failure(relay: Relaying, result: HandshakeResult, end: str = "client") -> None:
    """Wait until a handshake failed so, and was logged."""
    await relay.until(lambda: relay.relay.tls.handshakes["leader", end, result])  # type: ignore[index]
    assert [line["result"] for line in relay.log.of("tls_failed")] == [result]


async def expect_refusal(client: SecurePeer) -> None:
    """The client is told, or is cut off."""
    try:
        assert await client.receive(1) == b""
    except OSError:
        return


async def test_expired_certificate_is_refused(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        await expect_refusal(await secure_client(relay, keys, keys.authority.issue("old", names=[FOLLOWER], days=-1)))
        await expect_failure(relay, "certificate_expired")


async def test_certificate_of_another_authority_is_refused(keys: Keys) -> None:
    other = Authority(keys.authority.folder / "other", "other-ca").issue(FOLLOWER)
    async with secured(keys) as (relay, _, _):
        await expect_refusal(await secure_client(relay, keys, other))
        await expect_failure(relay, "unknown_ca")


async def test_client_without_a_certificate_is_refused(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        await expect_refusal(await secure_client(relay, keys, None))
        await expect_failure(relay, "no_certificate")


async def test_certificate_with_another_name_is_refused(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        await expect_refusal(await secure_client(relay, keys, keys.authority.issue("somebody.test")))
        await expect_failure(relay, "wrong_name")
        assert "somebody.test" in str(relay.log.of("tls_failed")[0]["reason"])


async def test_plaintext_on_a_listener_with_tls_is_refused(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        client = await relay.client()
        await client.send(request(3, 0, 1))
        await client.expect_end()
        await expect_failure(relay, "not_tls")


async def test_client_of_tls_1_1_is_refused(keys: Keys) -> None:
    context = load_client_keys(keys.files(keys.follower), checks_name=True).context
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with secured(keys) as (relay, _, _):
        with pytest.raises(OSError):
            await secure_client(relay, keys, None, context=context)
        await expect_failure(relay, "version")


async def test_tls_of_an_older_version_than_configured_is_refused(keys: Keys) -> None:
    context = load_client_keys(keys.files(keys.follower), checks_name=True).context
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(keys) as (relay, _, _):
        with pytest.raises(OSError):
            await secure_client(relay, keys, None, context=context)
        await expect_failure(relay, "version")


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_handshake_that_never_ends_is_given_up(keys: Keys, sent: bytes) -> None:
    async with secured(keys) as (relay, _, _):
        relay.relay.handshakes.seconds = 0.05
        client = await relay.client()
        await client.send(sent)
        await client.expect_end()
        await relay.until(lambda: relay.relay.tls.handshakes["leader", "client", "timeout"])
        relay.relay.handshakes.seconds = 5.0


async def test_who_only_looks_whether_the_port_is_open_is_not_logged(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        (await relay.client()).close()
        await relay.until(lambda: relay.stats.connections_silent)
        assert not relay.relay.tls.handshakes["leader", "client", "closed"]
        assert relay.log.of("tls_failed") == []


async def test_oldest_handshake_gives_way_to_one_too_many(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        relay.relay.handshakes.most = 2
        waiting: list[Peer] = []
        for _ in range(3):
            waiting.append(await relay.client())
            await waiting[-1].send(b"\x16\x03")
        await waiting[0].expect_end()
        await expect_failure(relay, "too_many")
        assert waiting[1].has_nothing() and waiting[2].has_nothing()


async def test_broker_with_another_name_is_refused(keys: Keys) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        with pytest.raises(OSError):
            broker = await secure_broker(relay, keys, keys.authority.issue("somebody.test"))
            await broker.receive(1)
            raise OSError
        await expect_refusal(client)
        await expect_failure(relay, "wrong_name", "upstream")


async def test_broker_without_tls_is_refused(keys: Keys) -> None:
    async with relaying(tls=keys.server(), upstream_tls=keys.client()) as relay:
        client = await secure_client(relay, keys, keys.follower)
        broker = await relay.accept()
        await broker.send(b"no TLS here")
        await expect_refusal(client)
        await expect_failure(relay, "not_tls", "upstream")


async def test_broker_that_refuses_the_certificate_later_is_logged(keys: Keys) -> None:
    """In TLS 1.3 the handshake of who connects ends before the other end has looked at its certificate."""
    other = Authority(keys.authority.folder / "third", "third-ca").issue(BROKER)
    async with relaying(tls=keys.server(), upstream_tls=keys.client(other)) as relay:
        client = await secure_client(relay, keys, keys.follower)
        with pytest.raises(OSError):
            await secure_broker(relay, keys)
        await expect_refusal(client)
        await relay.until(lambda: relay.log.of("tls_failed") or relay.log.of("tls_broken"))


async def test_without_keys_tls_passes_as_it_is_and_is_counted(keys: Keys) -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(b"\x16\x03\x01\x00\x05hello")
        await broker.send(response(1))
        await client.expect(response(1))
        assert relay.stats.passthrough == {"tls": 1}


async def test_connection_with_a_broken_record_ends_alone(keys: Keys) -> None:
    async with secured(keys) as (relay, _, _):
        client = await secure_client(relay, keys, keys.follower)
        broker = await secure_broker(relay, keys)
        await round_trip(client, broker, 1)
        with socket.socket(fileno=os.dup(client.connection.fileno())) as raw:
            raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that nobody has encrypted
        await broker.expect_end()
        await relay.until(lambda: relay.log.of("tls_broken"))

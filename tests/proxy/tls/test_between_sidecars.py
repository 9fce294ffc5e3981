# SPDX-License-Identifier: Apache-2.0
"""TLS between sidecars around plaintext brokers: negotiated by each connection, in either order of a roll-out."""

from __future__ import annotations

import contextlib

import pytest

from tests.fakes.pki import Authority
from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import request, response
from tests.proxy.tls.securing import BROKER, FOLLOWER, Keys, secure_broker, secure_client
from weir.proxy.relay.handshakes import PLAINTEXT_SECONDS

ON_BOTH_LOOPS = True
WITH_WORKERS = True

NAMES = (BROKER, FOLLOWER)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


async def connected_by(relay: Relaying, data: bytes) -> tuple[Peer, Peer]:
    """A client and its connection's end at the broker, which is there as soon as the client's first byte is."""
    client = await relay.client()
    await client.send(data)
    broker = await relay.accept()
    await broker.expect(data)
    return client, broker


async def test_leaders_sidecar_takes_tls_and_plaintext_on_one_port(keys: Keys) -> None:
    async with relaying(tls=keys.server(allowed_names=NAMES, takes_plaintext=True)) as relay:
        secured = await secure_client(relay, keys, keys.follower)
        await round_trip(secured, await relay.accept(), 1)
        plain, broker = await connected_by(relay, request(3, 0, 2))
        await broker.send(response(2))
        await plain.expect(response(2))
        assert relay.relay.tls.handshakes == {("leader", "client", "ok"): 1}


async def test_client_that_sends_nothing_for_long_counts_as_plaintext(keys: Keys) -> None:
    async with relaying(tls=keys.server(allowed_names=NAMES, takes_plaintext=True)) as relay:
        relay.relay.handshakes.seconds = 0.05
        client = await relay.client()
        broker = await relay.accept()
        await round_trip(client, broker, 1)


async def test_followers_sidecar_speaks_tls_with_one_that_takes_it(keys: Keys) -> None:
    upstream = keys.client(keys.follower, server_name=None, allowed_names=NAMES, falls_back=True)
    async with relaying(upstream_tls=upstream) as relay:
        client = await relay.client()
        await client.send(request(3, 0, 1))
        broker = await secure_broker(relay, keys)
        await broker.expect(request(3, 0, 1))
        await broker.send(response(1))
        await client.expect(response(1))
        assert relay.relay.tls.plaintext == {}


async def test_followers_sidecar_falls_back_without_tls_and_retries(keys: Keys) -> None:
    """It falls back where TLS is not spoken, and tries TLS again later."""
    upstream = keys.client(keys.follower, server_name=None, allowed_names=NAMES, falls_back=True)
    async with relaying(upstream_tls=upstream) as relay:
        client = await relay.client()
        await client.send(request(3, 0, 1))
        refused = await relay.accept()
        assert (await refused.receive(1)) == b"\x16"
        refused.close()  # as a broker does with a request of 369 MB
        broker = await relay.accept()
        await broker.expect(request(3, 0, 1))
        await broker.send(response(1))
        await client.expect(response(1))
        assert [line["event"] for line in relay.log.lines] == ["tls_failed", "tls_not_spoken"]
        await connected_by(relay, request(3, 0, 2))
        assert relay.relay.tls.plaintext == {"leader": 2}
        relay.later += PLAINTEXT_SECONDS
        third = await relay.client()
        await third.send(request(3, 0, 3))
        secured = await secure_broker(relay, keys)
        await secured.expect(request(3, 0, 3))


async def test_followers_sidecar_never_falls_back_if_tls_is_required(keys: Keys) -> None:
    upstream = keys.client(keys.follower, server_name=None, allowed_names=NAMES)
    async with relaying(upstream_tls=upstream) as relay:
        client = await relay.client()
        await client.send(request(3, 0, 1))
        (await relay.accept()).close()
        await client.expect_end()
        assert relay.relay.tls.handshakes == {("leader", "upstream", "closed"): 1}


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_wrong_certificate_is_no_reason_to_fall_back(keys: Keys, wrong: str) -> None:
    other = Authority(keys.authority.folder / wrong, "other-ca") if wrong == "authority" else keys.authority
    issued = other.issue(BROKER if wrong == "authority" else "somebody.test")
    upstream = keys.client(keys.follower, server_name=None, allowed_names=NAMES, falls_back=True)
    async with relaying(upstream_tls=upstream) as relay:
        client = await relay.client()
        await client.send(request(3, 0, 1))
        with contextlib.suppress(OSError):
            broker = await secure_broker(relay, keys, issued)
            assert await broker.receive(1) == b""
        await client.expect_end()
        assert relay.relay.tls.plaintext == {}


async def test_tls_of_a_broker_is_not_wrapped_once_more(keys: Keys) -> None:
    upstream = keys.client(keys.follower, server_name=None, allowed_names=NAMES, falls_back=True)
    async with relaying(upstream_tls=upstream) as relay:
        hello = b"\x16\x03\x01\x00\x05hello"
        client, broker = await connected_by(relay, hello)
        await broker.send(b"answer")
        await client.expect(b"answer")
        assert relay.stats.passthrough == {"tls": 1}

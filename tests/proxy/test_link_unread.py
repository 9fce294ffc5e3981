# SPDX-License-Identifier: Apache-2.0
"""A client that is gone is seen whatever of it is unread, while its broker does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying
from tests.protocol.wire import produce

ON_BOTH_LOOPS = True

SENT = produce(9, 0, records=b"r" * 100_000)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look often."""
    monkeypatch.setattr("weir.proxy.relay.unread.LOOK_SECONDS", 0.01)
    yield


async def blocked(relay: Relaying) -> tuple[Peer, Peer, int]:
    """A client that has sent as much as it could, to a broker that has read nothing."""
    client, broker = await relay.connect()
    client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**18)
    return client, broker, await client.send_until_blocked(SENT)


async def test_client_that_resets_is_seen_while_its_broker_reads_nothing() -> None:
    async with relaying() as relay:
        client, _, _ = await blocked(relay)
        client.reset()
        await relay.until(lambda: not relay.listener.links)


async def test_client_that_closes_is_seen_while_its_broker_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.link.STUCK_SECONDS", 0.05)
    async with relaying() as relay:
        client, broker, sent = await blocked(relay)
        client.close()
        await relay.until(lambda: not relay.listener.links)
        assert len(await broker.receive(sent)) < sent, "the rest was dropped, and the broker was told"


async def test_all_that_a_client_sent_before_it_closed_passes_when_the_broker_reads_again() -> None:
    """A producer with acks=0 closes as soon as it has sent everything."""
    async with relaying() as relay:
        client, broker, sent = await blocked(relay)
        client.close()
        await asyncio.sleep(0.05)  # the looks see it
        received = await broker.receive(sent)
        assert received == (SENT * (sent // len(SENT) + 1))[:sent]
        await broker.expect_end()


async def test_client_that_stays_is_kept_while_its_broker_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.link.STUCK_SECONDS", 0.01)
    async with relaying() as relay:
        client, broker, sent = await blocked(relay)
        await asyncio.sleep(0.1)
        assert len(relay.listener.links) == 1
        assert len(await broker.receive(sent)) == sent
        client.close()
        await broker.expect_end()

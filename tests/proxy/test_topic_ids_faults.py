# SPDX-License-Identifier: Apache-2.0
"""Learning the names of topic ids, from brokers that answer badly or not at all."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.proxy.watched import ORDERS, PAYMENTS, POLL_SECONDS, Watched, events, fields, until
from weir.proxy.cluster import channel
from weir.proxy.cluster.client import FIRST_RETRY_SECONDS


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "larger than the limit of 33554432 bytes"),
        (bytes.fromhex("15030300020228"), "larger than the limit of 33554432 bytes"),  # a TLS alert
        (bytes.fromhex("ffffffff"), "a size of -1 bytes"),
        (bytes.fromhex("0000000a 00000063 0000 00000000"), "correlation id 99 where 0 was due"),
        (bytes.fromhex("0000000a 00000000 0000 00000001"), "1 elements cannot stand in 0 bytes"),
    ],
)
async def test_resolver_goes_on_after_a_garbage_answer_and_recovers(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture, garbage: bytes, said: str
) -> None:
    caplog.set_level(logging.INFO, "weir")
    naming_broker.garbage = garbage
    await watched.asked_at(0)
    assert events(caplog) == ["topic_ids_not_asked"]
    assert said in str(fields(caplog, "topic_ids_not_asked")["error"])
    naming_broker.garbage = None
    await watched.asked_at(FIRST_RETRY_SECONDS)
    assert watched.names.name_of(ORDERS) == b"orders"
    assert events(caplog) == ["topic_ids_not_asked", "topic_ids_recovered"]


async def test_resolver_with_nothing_to_ask_has_not_recovered(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    naming_broker.garbage = bytes.fromhex("ffffffff")
    await watched.asked_at(0)
    watched.throttled = set()
    await watched.asked_at(0)
    assert events(caplog) == ["topic_ids_not_asked"]
    watched.throttled, naming_broker.garbage = {"orders"}, None
    await watched.asked_at(POLL_SECONDS)
    assert events(caplog) == ["topic_ids_not_asked", "topic_ids_recovered"]
    assert naming_broker.connections == 2


@pytest.mark.long
async def test_resolver_gives_up_a_silent_broker_and_keeps_its_names(
    naming_broker: MetadataBroker,
    watched: Watched,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.5)
    await watched.asked_at(0)
    naming_broker.silent = True
    watched.names.name_of(PAYMENTS)
    await watched.asked_at(1)
    assert fields(caplog, "topic_ids_not_asked")["error"] == f"{naming_broker.address}: no answer within 0.5 s"
    assert watched.names.name_of(ORDERS) == b"orders"
    assert watched.names.wanted() == [PAYMENTS]  # nobody said that it is unknown
    naming_broker.silent = False
    await watched.asked_at(1 + FIRST_RETRY_SECONDS)
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert naming_broker.connections == 2  # on the first an answer might come late, to another question


async def test_resolver_reconnects_after_the_broker_has_closed(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.asked_at(0)
    naming_broker.disconnect()
    (connection,) = watched.client.connections._channels.values()
    await until(lambda: connection.closed)
    await watched.asked_at(POLL_SECONDS)
    assert (naming_broker.connections, len(naming_broker.asked)) == (2, 2)
    assert events(caplog) == []


async def test_resolver_asks_the_next_server_if_one_fails_and_stays(
    naming_broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with metadata_broker(hangs_up=True) as bad:
        watched = Watched(bad.address, naming_broker.address)
        await watched.asked_at(0)
        await watched.asked_at(POLL_SECONDS)
        watched.client.connections.close()
        assert (bad.connections, naming_broker.connections, len(naming_broker.asked)) == (1, 1, 2)
        assert events(caplog) == []


@pytest.mark.long
async def test_resolver_asks_the_next_server_if_one_hangs_a_second(
    naming_broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """For as long as names are missing, more is throttled than is meant to be."""
    begin = asyncio.get_running_loop().time()
    async with metadata_broker(silent=True) as hanging:
        watched = Watched(hanging.address, naming_broker.address)
        watched.names.name_of(PAYMENTS)
        await watched.asked_at(0)
        watched.client.connections.close()
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert asyncio.get_running_loop().time() - begin < 2.0
    assert events(caplog) == []


@pytest.mark.long
async def test_servers_that_are_all_slow_are_waited_for(
    naming_broker: MetadataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SOON_SECONDS", 0.05)
    naming_broker.released = asyncio.Event()
    async with metadata_broker(silent=True) as hanging:
        monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.5)
        watched = Watched(hanging.address, naming_broker.address)
        watched.names.name_of(PAYMENTS)
        asyncio.get_running_loop().call_later(0.8, naming_broker.released.set)
        await watched.asked_at(0)
        watched.client.connections.close()
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert (hanging.connections, naming_broker.connections) == (2, 2)


async def test_resolver_with_no_server_names_them_all_and_backs_off(caplog: pytest.LogCaptureFixture) -> None:
    async with metadata_broker() as broker:
        gone = broker.address
    async with metadata_broker(hangs_up=True) as closes:
        watched = Watched(gone, closes.address)
        watched.names.name_of(PAYMENTS)
        assert await watched.retries(7) == [0.5, 1, 2, 4, 8, 10, 10]
    assert str(fields(caplog, "topic_ids_not_asked")["error"]) == (
        f"{gone}: Connection refused; {closes.address}: closed the connection without an answer"
    )
    assert set(events(caplog)) == {"topic_ids_not_asked"}


async def test_resolver_failing_with_no_id_wanted_asks_seldom() -> None:
    """A miss ends that."""
    async with metadata_broker(hangs_up=True) as broker:
        watched = Watched(broker.address)
        assert await watched.retries(9) == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
        watched.clock.move(-55)
        watched.names.name_of(PAYMENTS)
        assert watched.client.due_at() - watched.clock() == 5
        assert await watched.retries(2) == [5, 10]


async def test_resolver_that_fails_is_not_busy_however_often_woken() -> None:
    rounds = []
    async with metadata_broker(hangs_up=True) as broker:
        watched = Watched(broker.address)
        watched.client.begin_round = lambda: rounds.append(watched.client.due_at())
        async with watched.running():
            await until(lambda: broker.connections == 1)
            for number in range(100):
                watched.names.name_of(bytes([number]) * 16)
                await asyncio.sleep(0.001)
    assert len(rounds) == 1


@pytest.mark.long
async def test_resolver_survives_a_bug_in_what_it_calls(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.throttled = None  # type: ignore[assignment]
    async with watched.running():
        await until(lambda: events(caplog) == ["cluster_poll_not_taken"])
        watched.throttled = {"orders"}
        watched.clock.move(FIRST_RETRY_SECONDS)
        watched.client.ask_now()
        await until(lambda: watched.changes == 1)

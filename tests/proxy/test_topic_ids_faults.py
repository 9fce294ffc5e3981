"""Learning the names of topic ids, from brokers that answer badly or not at all."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.proxy.resolving import DEADLINE_SECONDS, ORDERS, PAYMENTS, POLL_SECONDS, Resolving, Waits, events, fields
from weir.proxy.cluster import client, servers
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
async def test_resolver_of_a_broker_that_answers_garbage_goes_on_and_recovers(
    naming_broker: MetadataBroker, resolving: Resolving, caplog: pytest.LogCaptureFixture, garbage: bytes, said: str
) -> None:
    caplog.set_level(logging.INFO, "weir")
    naming_broker.garbage = garbage
    await resolving.asked_at(0)
    assert events(caplog) == ["topic_ids_not_asked"]
    assert said in str(fields(caplog, "topic_ids_not_asked")["error"])
    naming_broker.garbage = None
    await resolving.asked_at(0)
    assert resolving.names.name_of(ORDERS) == b"orders"
    assert events(caplog) == ["topic_ids_not_asked", "topic_ids_recovered"]


async def test_resolver_with_nothing_to_ask_has_not_recovered(
    naming_broker: MetadataBroker, resolving: Resolving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    naming_broker.garbage = bytes.fromhex("ffffffff")
    await resolving.asked_at(0)
    resolving.throttled = set()
    await resolving.asked_at(0)
    assert events(caplog) == ["topic_ids_not_asked"]
    resolving.throttled, naming_broker.garbage = {"orders"}, None
    await resolving.asked_at(POLL_SECONDS)
    assert events(caplog) == ["topic_ids_not_asked", "topic_ids_recovered"]
    assert naming_broker.connections == 2


async def test_resolver_gives_a_broker_that_does_not_answer_up_and_keeps_what_it_knows(
    naming_broker: MetadataBroker,
    resolving: Resolving,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "QUESTION_TIMEOUT_SECONDS", 0.5)
    await resolving.asked_at(0)
    naming_broker.silent = True
    resolving.names.name_of(PAYMENTS)
    await resolving.asked_at(1)
    assert fields(caplog, "topic_ids_not_asked")["error"].args == (  # type: ignore[attr-defined]
        f"{naming_broker.address}: no answer within 0.5 s",
    )
    assert resolving.names.name_of(ORDERS) == b"orders"
    assert resolving.names.wanted() == [PAYMENTS]  # nobody said that it is unknown
    naming_broker.silent = False
    await resolving.asked_at(1)
    assert resolving.names.name_of(PAYMENTS) == b"payments"
    assert naming_broker.connections == 2  # on the first an answer might come late, to another question


async def test_resolver_uses_a_new_connection_after_the_broker_closed_the_first(
    naming_broker: MetadataBroker, resolving: Resolving, caplog: pytest.LogCaptureFixture
) -> None:
    await resolving.asked_at(0)
    naming_broker.disconnect()
    connection = resolving.client._channel
    assert connection is not None
    await resolving.until(lambda: connection.closed)
    await resolving.asked_at(POLL_SECONDS)
    assert (naming_broker.connections, len(naming_broker.asked)) == (2, 2)
    assert events(caplog) == []


async def test_resolver_asks_the_next_server_when_one_fails_and_stays_with_it(
    naming_broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with metadata_broker(hangs_up=True) as bad:
        resolving = Resolving(bad.address, naming_broker.address)
        await resolving.asked_at(0)
        await resolving.asked_at(POLL_SECONDS)
        resolving.client.disconnect()
        assert (bad.connections, naming_broker.connections, len(naming_broker.asked)) == (1, 1, 2)
        assert events(caplog) == []


async def test_resolver_asks_the_next_server_when_one_hangs_for_a_second(
    naming_broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """For as long as names are missing, more is throttled than is meant to be."""
    begin = asyncio.get_running_loop().time()
    async with metadata_broker(silent=True) as hanging:
        resolving = Resolving(hanging.address, naming_broker.address)
        resolving.names.name_of(PAYMENTS)
        await resolving.asked_at(0)
        resolving.client.disconnect()
    assert resolving.names.name_of(PAYMENTS) == b"payments"
    assert asyncio.get_running_loop().time() - begin < 2.0
    assert events(caplog) == []


async def test_servers_that_are_all_slow_are_waited_for(
    naming_broker: MetadataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SOON_SECONDS", 0.05)
    naming_broker.released = asyncio.Event()
    async with metadata_broker(silent=True) as hanging:
        monkeypatch.setattr(servers, "QUESTION_TIMEOUT_SECONDS", 0.5)
        resolving = Resolving(hanging.address, naming_broker.address)
        resolving.names.name_of(PAYMENTS)
        asyncio.get_running_loop().call_later(0.8, naming_broker.released.set)
        await resolving.asked_at(0)
        resolving.client.disconnect()
    assert resolving.names.name_of(PAYMENTS) == b"payments"
    assert (hanging.connections, naming_broker.connections) == (2, 2)


async def test_resolver_with_no_server_there_names_them_all_and_backs_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits()
    async with metadata_broker() as broker:
        gone = broker.address
    async with metadata_broker(hangs_up=True) as closes:
        resolving = Resolving(gone, closes.address)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", waits.sleep)
            async with resolving.running(), asyncio.timeout(DEADLINE_SECONDS):
                while len(waits.slept) < 7:
                    resolving.names.name_of(bytes([len(waits.slept)]) * 16)  # a miss does not shorten the wait
                    await waits.pause(0.001)
    assert waits.slept[:7] == [FIRST_RETRY_SECONDS * factor for factor in (1, 2, 4, 8, 16, 20, 20)]
    assert str(fields(caplog, "topic_ids_not_asked")["error"]) == (
        f"{gone}: Connection refused; {closes.address}: closed the connection without an answer"
    )
    assert events(caplog) == ["topic_ids_not_asked"]


async def test_resolver_that_fails_while_no_id_is_wanted_asks_seldom_and_a_miss_ends_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = Waits()
    async with metadata_broker(hangs_up=True) as broker:
        resolving = Resolving(broker.address)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", waits.sleep)
            patched.setattr(client, "wait_at_most", waits.wait_at_most)
            async with resolving.running(), asyncio.timeout(DEADLINE_SECONDS):
                while len(waits.waited) < 4:
                    await waits.pause(0.001)
                resolving.names.name_of(PAYMENTS)
                waited, slept = len(waits.waited), len(waits.slept)
                while len(waits.slept) < slept + 3:
                    await waits.pause(0.001)
    assert waits.waited[:4] == [16 - 10, 32 - 10, 60 - 10, 60 - 10]
    assert len(waits.waited) <= waited + 1


async def test_resolver_survives_a_bug_in_what_it_calls(
    naming_broker: MetadataBroker,
    resolving: Resolving,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "FIRST_RETRY_SECONDS", 0.001)
    seen = []

    def changed() -> None:
        seen.append(resolving.names.name_of(ORDERS))
        raise RuntimeError("a bug")

    resolving.on_change = changed  # type: ignore[method-assign]
    async with resolving.running():
        await resolving.until(lambda: len(seen) == 1)
        resolving.names.name_of(PAYMENTS)
        await resolving.until(lambda: len(seen) == 2)
    assert "cluster_poll_not_taken" in events(caplog)

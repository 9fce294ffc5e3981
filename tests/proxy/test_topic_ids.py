# SPDX-License-Identifier: Apache-2.0
"""Learning the names of topic ids, from brokers that answer well."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.metadata_broker import MetadataBroker, Question
from tests.proxy.watched import ORDERS, ORDERS_AGAIN, PAYMENTS, POLL_SECONDS, STRANGER, Watched, events, fields, until
from weir.protocol.metadata import NO_ID
from weir.proxy.cluster import topics
from weir.proxy.cluster.watch import metadata_servers
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config


async def test_resolver_names_throttled_topics_before_any_fetch(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.throttled = {"orders", "not-there"}
    await watched.asked_at(0)
    assert naming_broker.asked == [Question(["not-there", "orders"], [], may_create=False, version=12)]
    assert watched.names.name_of(ORDERS) == b"orders"
    assert watched.changes == 1


async def test_resolver_polls_throttled_topics_and_sees_recreation(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    await watched.asked_at(0)
    await watched.asked_at(POLL_SECONDS - 1)
    assert len(naming_broker.asked) == 1
    await watched.asked_at(POLL_SECONDS)
    assert (len(naming_broker.asked), watched.changes) == (2, 1)
    naming_broker.topics["orders"] = ORDERS_AGAIN
    await watched.asked_at(2 * POLL_SECONDS)
    assert watched.changes == 2
    assert watched.names.name_of(ORDERS_AGAIN) == b"orders"
    assert naming_broker.connections == 1


async def test_resolver_learns_no_topic_without_an_id_or_with_error(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.throttled = {"orders", "payments"}
    naming_broker.topics["orders"] = NO_ID  # a broker in ZooKeeper mode, at an older level than itself
    naming_broker.errors["payments"] = 29  # TOPIC_AUTHORIZATION_FAILED
    await watched.asked_at(0)
    assert watched.changes == 0
    assert watched.names.name_of(NO_ID) is None
    assert watched.names.name_of(PAYMENTS) is None


async def test_resolver_without_a_throttle_asks_only_for_wanted_ids(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.throttled = set()
    await watched.asked_at(0)
    assert naming_broker.connections == 0
    watched.names.name_of(PAYMENTS)
    await watched.asked_at(0)
    assert naming_broker.asked == [Question([], [PAYMENTS], may_create=False, version=12)]
    assert watched.names.name_of(PAYMENTS) == b"payments"


async def test_resolver_asks_one_question_for_several_misses_at_once(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    async with watched.running():
        await until(lambda: watched.changes == 1)
        watched.names.name_of(PAYMENTS)
        watched.names.name_of(ORDERS_AGAIN)
        await until(lambda: watched.changes == 2)
        assert naming_broker.asked[1:] == [Question([], [PAYMENTS, ORDERS_AGAIN], may_create=False, version=12)]
        assert watched.names.name_of(PAYMENTS) == b"payments"


async def test_resolver_asks_again_for_ids_missed_during_an_answer(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.throttled = set()
    naming_broker.released = asyncio.Event()
    async with watched.running():
        watched.names.name_of(ORDERS)
        await until(lambda: len(naming_broker.asked) == 1)
        watched.names.name_of(PAYMENTS)
        naming_broker.released.set()
        await until(lambda: watched.changes == 2)
        assert [question.topic_ids for question in naming_broker.asked] == [[ORDERS], [PAYMENTS]]


async def test_resolver_asks_at_once_when_other_topics_are_throttled(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    async with watched.running():
        await until(lambda: watched.changes == 1)
        watched.throttled = {"payments"}
        watched.client.ask_now()
        await until(lambda: watched.changes == 2)  # the clock stands still: no poll is due
        assert [question.names for question in naming_broker.asked] == [["orders"], ["payments"]]


async def test_resolver_woken_while_it_asks_asks_again(naming_broker: MetadataBroker, watched: Watched) -> None:
    naming_broker.released = asyncio.Event()
    async with watched.running():
        await until(lambda: len(naming_broker.asked) == 1)
        watched.throttled = {"payments"}
        watched.client.ask_now()
        naming_broker.released.set()
        await until(lambda: watched.changes == 2)


async def test_resolver_reports_an_unknown_id_and_asks_again_later(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.throttled = set()
    assert watched.names.name_of(STRANGER) is None
    for seconds in (0, 0.2, 0.25, 0.7, 0.75):  # twice before an id without a name passes
        await watched.asked_at(seconds)
    assert [question.topic_ids for question in naming_broker.asked] == [[STRANGER]] * 3
    assert watched.names.unknown_count == 1
    assert events(caplog) == ["topic_id_unknown"]
    shown = fields(caplog, "topic_id_unknown")
    assert (shown["ids"], shown["count"]) == ("_____________________w", 1)  # as Kafka's Uuid writes it
    naming_broker.topics["late"] = STRANGER
    await watched.asked_at(1.75)
    assert watched.names.name_of(STRANGER) == b"late"
    assert watched.names.unknown_count == 0


async def test_resolver_asks_again_for_an_unknown_id_without_a_miss(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.names.name_of(STRANGER)
    async with watched.running():
        await until(lambda: watched.changes == 1)
        naming_broker.topics["late"] = STRANGER
        watched.clock.now = 1
        await until(lambda: watched.changes == 2)
    assert watched.names.name_of(STRANGER) == b"late"


async def test_resolver_asks_in_questions_of_bounded_size(
    naming_broker: MetadataBroker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "IDS_PER_QUESTION", 2)
    monkeypatch.setattr(topics, "TOPICS_PER_QUESTION", 2)
    watched.throttled = {"orders", "payments"}
    wanted = [bytes([number]) * 16 for number in (7, 8, 9)]
    for topic_id in wanted:
        watched.names.name_of(topic_id)
    await watched.asked_at(0)
    assert [(question.topic_ids, question.names) for question in naming_broker.asked] == [
        (wanted[:2], []),
        (wanted[2:], []),
        ([], ["orders", "payments"]),
    ]
    assert watched.names.name_of(ORDERS) == b"orders"
    assert watched.names.name_of(PAYMENTS) == b"payments"


@pytest.mark.parametrize("version", [10, 11])
async def test_resolver_asks_for_all_where_ids_cannot_be_asked_for(
    naming_broker: MetadataBroker, watched: Watched, version: int
) -> None:
    naming_broker.newest_metadata = version
    naming_broker.topics["other"] = STRANGER
    await watched.asked_at(0)
    watched.names.name_of(PAYMENTS)
    await watched.asked_at(1)
    assert naming_broker.asked == [
        Question(["orders"], [], may_create=False, version=version),
        Question(None, [], may_create=False, version=version),
    ]
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert watched.names.name_of(STRANGER) is None  # not wanted: a cluster may have more topics than are kept


async def test_resolver_of_a_broker_without_ids_waits_for_a_seen_id(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    naming_broker.newest_metadata = 9
    await watched.asked_at(0)
    await watched.asked_at(POLL_SECONDS)
    assert (naming_broker.asked, naming_broker.connections) == ([], 1)
    assert events(caplog) == []
    watched.names.name_of(PAYMENTS)
    await watched.asked_at(POLL_SECONDS)
    assert naming_broker.connections == 2
    assert fields(caplog, "topic_id_unknown")["reason"] == "the broker is older than topic ids"
    naming_broker.newest_metadata = 12  # upgraded
    watched.clock.now = POLL_SECONDS + 1
    async with watched.running():
        await until(lambda: watched.changes == 2)  # of payments, then at once of the throttled topic
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert watched.names.name_of(ORDERS) == b"orders"


ROUTES = """
broker_id = 1
{ingress}
[[egress]]
peer = 2
listen = "127.0.0.1:9092"
upstream = "127.0.0.1:9202"
[[egress]]
peer = 3
listen = "127.0.0.1:9093"
upstream = "127.0.0.1:9203"
{cluster}
"""
INGRESS = '[[ingress]]\nlisten = "127.0.0.1:9501"\nupstream = "127.0.0.1:9201"\n'
CLUSTER = '[cluster]\nbootstrap_servers = "127.0.0.1:9101,127.0.0.1:9102"\n'


@pytest.mark.parametrize(
    ("ingress", "cluster", "ports"),
    [
        (INGRESS, CLUSTER, [9101, 9102]),
        (INGRESS, "", [9201]),
        ("", "", [9202, 9203]),
    ],
)
def test_servers_are_bootstrap_ones_else_own_broker_else_peers(ingress: str, cluster: str, ports: list[int]) -> None:
    config = parse_config(ROUTES.format(ingress=ingress, cluster=cluster))
    assert metadata_servers(config) == tuple(Address("127.0.0.1", port) for port in ports)

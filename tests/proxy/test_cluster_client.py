# SPDX-License-Identifier: Apache-2.0
"""One client for all that is asked of the cluster: what is asked together, what fails together, and what it costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import DescribeConfigsRequest

from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.proxy.watched import FOLLOWER, ORDERS, PAYMENTS, Watched, events, fields
from weir.proxy.cluster.channel import PlainChannel, metadata_version
from weir.proxy.cluster.client import FIRST_RETRY_SECONDS
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.metadata import describe, names_of_ids
from weir.proxy.cluster.removed_replicas import Replicas
from weir.proxy.cluster.view import Broker, ClusterView, Topic


@pytest_asyncio.fixture
async def naming_broker() -> AsyncIterator[MetadataBroker]:
    topics = {"orders": ORDERS, "payments": PAYMENTS}
    async with metadata_broker(topics=topics, replicas={"orders": {0: [1, FOLLOWER]}}) as broker:
        yield broker


@pytest_asyncio.fixture
async def watched(naming_broker: MetadataBroker) -> AsyncIterator[Watched]:
    watched = Watched(naming_broker.address, cluster="", poll_seconds=5.0)
    yield watched
    await watched.close()


async def test_cluster_one_question_serves_everyone(naming_broker: MetadataBroker, watched: Watched) -> None:
    told = await watched.asked_at(0)
    assert [name for name, _ in told] == ["brokers", "racks", "names_generation", "in_sync"]
    assert dict(told)["in_sync"] == {(b"orders", 0): frozenset({1})}
    assert watched.names.name_of(ORDERS) == b"orders"
    assert [question.names for question in naming_broker.asked] == [["orders"]]
    assert naming_broker.connections == 1
    assert watched.view == ClusterView(
        brokers={1: Broker("127.0.0.1", naming_broker.port, None)},
        racks={1: None},
        topics={b"orders": Topic(ORDERS, {0: Replicas(1, frozenset({FOLLOWER}), frozenset({1}))})},
        in_sync={(b"orders", 0): frozenset({1})},
        names_generation=1,
    )


async def test_cluster_tells_nothing_again_but_where_brokers_are(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    """Their names are resolved with each answer, as what they stand for may change."""
    await watched.asked_at(0)
    assert await watched.asked_at(5) == [("brokers", watched.view.brokers)]
    naming_broker.replicas = {"orders": {0: [3, FOLLOWER]}}
    naming_broker.leader = 3
    assert [name for name, _ in await watched.asked_at(10)] == ["brokers", "in_sync"]
    assert len(naming_broker.asked) == 3


async def test_cluster_whose_broker_knows_none_yet_leaves_known_ones(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    await watched.asked_at(0)
    naming_broker.knows_brokers = False
    await watched.asked_at(5)
    assert (list(watched.view.brokers), watched.view.racks) == ([1], {1: None})


async def test_cluster_is_asked_for_an_id_at_once_on_same_connection(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    await watched.asked_at(0)
    watched.names.name_of(PAYMENTS)
    told = await watched.asked_at(1)
    assert [name for name, _ in told] == ["names_generation"]
    assert (naming_broker.asked[-1].topic_ids, naming_broker.connections) == ([PAYMENTS], 1)


async def test_cluster_without_the_table_tells_nobody_who_is_in_sync(naming_broker: MetadataBroker) -> None:
    watched = Watched(naming_broker.address)
    told = await watched.asked_at(0)
    assert [name for name, _ in told] == ["names_generation"]
    assert watched.view.topics == {b"orders": Topic(ORDERS)}  # partitions are not even read
    await watched.close()


async def test_cluster_that_fails_is_forgotten_and_asked_again_soon(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    await watched.asked_at(0)
    naming_broker.hangs_up = True
    watched.names.name_of(PAYMENTS)
    told = await watched.asked_at(5)
    assert told == [("in_sync", {})]
    assert events(caplog) == ["min_isr_refused", "cluster_poll_failed"]
    assert "topics that have ids only are throttled as if they were listed" in str(
        fields(caplog, "cluster_poll_failed")["effect"]
    )
    assert watched.view.topics == {}
    assert watched.view.brokers  # what is known of them stays
    naming_broker.hangs_up = False
    told = await watched.asked_at(5 + FIRST_RETRY_SECONDS)
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert dict(told)["in_sync"] == {(b"orders", 0): frozenset({1})}
    assert events(caplog)[2:] == ["cluster_poll_recovered"]


async def test_cluster_that_fails_is_asked_again_within_poll_seconds(
    watched: Watched, naming_broker: MetadataBroker
) -> None:
    naming_broker.hangs_up = True
    assert await watched.retries(6) == [0.5, 1, 2, 4, 5, 5]


async def test_cluster_bug_in_one_receiver_keeps_nothing_from_others(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: str, value: object) -> None:
        if name == "in_sync":
            raise RuntimeError("a bug")
        watched.told.append((name, value))

    watched.take = broken  # type: ignore[method-assign]
    told = await watched.asked_at(0)
    assert [name for name, _ in told] == ["brokers", "racks", "names_generation"]
    assert fields(caplog, "cluster_poll_not_taken")["peer"] == "in_sync"
    del watched.take
    assert "in_sync" in dict(await watched.asked_at(5))  # it is told again


async def test_cluster_polls_are_counted_with_their_bytes_and_seconds(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    assert watched.stats.polls == dict.fromkeys(
        ((what, result) for what in ("topics", "topic_ids", "configs") for result in ("ok", "failed")), 0
    )
    moved = [watched.stats.bytes["topics"]]
    for seconds in (5, 10, 15):
        await watched.asked_at(seconds)
        moved.append(watched.stats.bytes["topics"])
    connecting, first, second = (after - before for before, after in pairwise(moved))
    assert connecting > first == second > 100  # ApiVersions comes first
    assert watched.stats.confirmed_at == 15
    naming_broker.hangs_up = True
    await watched.asked_at(20)
    assert (watched.stats.polls["topics", "ok"], watched.stats.polls["topics", "failed"]) == (3, 1)
    assert watched.stats.confirmed_at == 15
    assert watched.stats.seconds["topics"] == 0  # the clock stands still


async def test_cluster_with_topic_ids_again_is_asked_at_once() -> None:
    """It is asked for the ids of throttled topics."""
    async with metadata_broker(topics={"orders": ORDERS, "payments": PAYMENTS}, newest_metadata=9) as broker:
        watched = Watched(broker.address)
        await watched.asked_at(0)
        broker.newest_metadata = 12  # upgraded
        await watched.asked_at(1)
        assert broker.asked == []
        watched.names.name_of(PAYMENTS)
        await watched.asked_at(2)
        assert [(question.topic_ids, question.names) for question in broker.asked] == [
            ([PAYMENTS], []),
            ([], ["orders"]),
        ]
        await watched.close()


async def test_channel_without_a_known_metadata_version_is_refused() -> None:
    async with metadata_broker(newest_metadata=0) as broker:
        with pytest.raises(ConnectionError, match="no version of Metadata"):
            await KafkaChannel.open(broker.address)
        await asyncio.sleep(0)


async def test_channel_that_was_closed_a_moment_ago_says_so(naming_broker: MetadataBroker) -> None:
    channel = await KafkaChannel.open(naming_broker.address)
    channel.close()
    with pytest.raises(ConnectionError, match="No connection"):
        await channel.send(DescribeConfigsRequest([]))
    await asyncio.sleep(0)


@pytest.mark.parametrize("newest", [10, 12])
async def test_both_channels_tell_the_same(naming_broker: MetadataBroker, newest: int) -> None:
    naming_broker.newest_metadata = newest
    told = []
    for opened in (PlainChannel.open(naming_broker.address), KafkaChannel.open(naming_broker.address)):
        channel = await opened
        before = channel.moved
        described = await describe(channel, [b"orders", b"gone"], [b"orders"])
        names = await names_of_ids(channel, [ORDERS, b"?" * 16])
        told.append((described, names, channel.moved - before, channel.metadata_version, channel.closed))
        channel.close()
        assert channel.closed
        await asyncio.sleep(0)
    assert told[0] == told[1]
    assert told[0][0].topics[b"orders"].topic_id == ORDERS
    assert told[0][1] == {ORDERS: b"orders"}


@pytest.mark.parametrize(
    ("oldest", "newest", "version"),
    [
        (0, 13, 12),
        (0, 10, 10),
        (0, 9, 5),
        (0, 4, 4),
        (1, 1, 1),
        (0, 0, None),
        (6, 9, None),
        (13, 14, None),
        (0, -1, None),
    ],
)
def test_metadata_is_asked_in_the_newest_version_that_both_know(oldest: int, newest: int, version: int | None) -> None:
    assert metadata_version(oldest, newest) == version

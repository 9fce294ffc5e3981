"""One client for all that is asked of the cluster: what is asked together, what fails together, and what it costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from itertools import pairwise

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import DescribeConfigsRequest

from tests.fakes.clock import MovedClock
from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.proxy.resolving import FOLLOWER, ORDERS, PAYMENTS, Waits, events, fields
from weir.proxy.cluster import client
from weir.proxy.cluster.channel import PlainChannel, metadata_version
from weir.proxy.cluster.client import FIRST_RETRY_SECONDS
from weir.proxy.cluster.followers import Followers
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.metadata import describe, names_of_ids
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.view import Broker, ClusterView, Topic
from weir.proxy.cluster.watch import ClusterWatch, Consumers
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.log import EventLog
from weir.quota.removed_replicas import RemovedReplicas, Replicas
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames

CONFIG = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:{port}"
{cluster}
"""


class Watched:
    """A sidecar's watch of the cluster, and what it is told."""

    def __init__(self, server: Address, cluster: str) -> None:
        self.clock = MovedClock(0.0)
        self.names = TopicNames(self.clock)
        self.throttle = Throttle("leader", 1, self.clock, topic_names=self.names)
        self.throttle.brokers.learn([FOLLOWER])
        self.throttled: Collection[str] = {"orders"}
        self.told: list[tuple[str, object]] = []
        self.stats = PollStats()
        self.watch = ClusterWatch(
            parse_config(CONFIG.format(port=server.port, cluster=cluster)),
            self.names,
            RemovedReplicas([self.throttle]),
            Consumers(
                throttled_topics=lambda: self.throttled,
                names_changed=lambda: self.told.append(("names", self.names.generation)),
                in_sync=lambda found: self.told.append(("in sync", found)),
                under_min_isr=lambda found: self.told.append(("under min ISR", found)),
                broker_addresses=lambda found: self.told.append(("addresses", found)),
                followers=Followers(
                    throttle=lambda layer: self.told.append(("throttle", layer)),
                    moves=lambda moves: self.told.append(("moves", moves)),
                    racks=lambda racks: self.told.append(("racks", racks)),
                    wants_facts=lambda: False,
                ),
            ),
            EventLog(clock=self.clock),
            self.stats,
            self.clock,
        )

    async def asked_at(self, seconds: float) -> list[tuple[str, object]]:
        """Return who was told what in one round."""
        self.clock.now = seconds
        self.told.clear()
        await self.watch.client.round()
        await asyncio.sleep(0)
        return self.told

    async def close(self) -> None:
        self.watch.client.disconnect()
        await self.watch.close()
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def naming_broker() -> AsyncIterator[MetadataBroker]:
    topics = {"orders": ORDERS, "payments": PAYMENTS}
    async with metadata_broker(topics=topics, replicas={"orders": {0: [1, FOLLOWER]}}) as broker:
        yield broker


@pytest_asyncio.fixture
async def watched(naming_broker: MetadataBroker) -> AsyncIterator[Watched]:
    watched = Watched(naming_broker.address, f'[cluster]\nbootstrap_servers = "{naming_broker.address}"')
    yield watched
    await watched.close()


async def test_cluster_one_question_serves_everyone(naming_broker: MetadataBroker, watched: Watched) -> None:
    told = await watched.asked_at(0)
    assert [who for who, _ in told] == ["in sync", "names", "under min ISR", "addresses"]
    assert dict(told)["in sync"] == {(b"orders", 0): frozenset({1})}
    assert watched.names.name_of(ORDERS) == b"orders"
    assert [question.names for question in naming_broker.asked] == [["orders"]]
    assert naming_broker.connections == 1
    view = watched.watch.client.view
    assert view == ClusterView(
        brokers={1: Broker("127.0.0.1", naming_broker.port, None)},
        controller=-1,
        topics={b"orders": Topic(ORDERS, {0: Replicas(1, frozenset({FOLLOWER}), frozenset({1}))})},
    )
    await watched.asked_at(5)
    assert watched.watch.client.view is not view
    assert len(naming_broker.asked) == 2


async def test_cluster_an_id_is_asked_for_at_once_on_the_same_connection(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    await watched.asked_at(0)
    watched.names.name_of(PAYMENTS)
    told = await watched.asked_at(1)
    assert [who for who, _ in told] == ["names"]
    assert (naming_broker.asked[-1].topic_ids, naming_broker.connections) == ([PAYMENTS], 1)


async def test_cluster_without_the_table_nobody_is_told_who_is_in_sync(naming_broker: MetadataBroker) -> None:
    watched = Watched(naming_broker.address, "")
    told = await watched.asked_at(0)
    assert [who for who, _ in told] == ["names"]
    assert watched.watch.client.view.topics == {b"orders": Topic(ORDERS)}  # partitions are not even read
    await watched.close()


async def test_cluster_that_fails_is_forgotten_by_everyone_and_asked_again_soon(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    await watched.asked_at(0)
    naming_broker.hangs_up = True
    watched.names.name_of(PAYMENTS)
    told = await watched.asked_at(5)
    assert told == [("in sync", {}), ("under min ISR", frozenset())]
    assert events(caplog) == ["min_isr_refused", "cluster_poll_failed"]
    assert "topics that have ids only are throttled as if they were listed" in str(
        fields(caplog, "cluster_poll_failed")["effect"]
    )
    assert watched.watch.client.view.topics == {}
    assert watched.watch.client.view.brokers  # what is known of them stays
    naming_broker.hangs_up = False
    await watched.asked_at(5 + FIRST_RETRY_SECONDS)
    assert watched.names.name_of(PAYMENTS) == b"payments"
    assert dict(watched.told)["in sync"] == {(b"orders", 0): frozenset({1})}
    assert events(caplog)[2:] == ["cluster_poll_recovered"]


async def test_cluster_that_fails_is_asked_again_within_poll_seconds(
    watched: Watched, naming_broker: MetadataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits()
    naming_broker.hangs_up = True
    monkeypatch.setattr(asyncio, "sleep", waits.sleep)
    monkeypatch.setattr(client, "wait_at_most", waits.wait_at_most)
    watched.watch.start()
    while len(waits.slept) < 6:
        await waits.pause(0.001)
    monkeypatch.undo()
    assert [seconds for seconds in waits.slept if seconds][:6] == [0.5, 1, 2, 4, 5, 5]
    assert waits.waited == []


async def test_cluster_a_bug_in_one_who_is_told_keeps_nothing_from_the_others(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(found: object) -> None:
        raise RuntimeError("a bug")

    watched.watch.client._polls[1]._subscribers[0]._publish = broken  # type: ignore[attr-defined]
    told = await watched.asked_at(0)
    assert [who for who, _ in told] == ["names", "under min ISR", "addresses"]
    assert fields(caplog, "cluster_poll_not_taken")["what"] == "topics"


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
    assert watched.stats.told_at == 15
    naming_broker.hangs_up = True
    await watched.asked_at(20)
    assert (watched.stats.polls["topics", "ok"], watched.stats.polls["topics", "failed"]) == (3, 1)
    assert watched.stats.told_at == 15
    assert watched.stats.seconds["topics"] == 0  # the clock stands still


async def test_cluster_whose_brokers_have_topic_ids_again_is_asked_for_throttled_ones_at_once() -> None:
    async with metadata_broker(topics={"orders": ORDERS, "payments": PAYMENTS}, newest_metadata=9) as broker:
        watched = Watched(broker.address, "")
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


async def test_channel_to_a_broker_without_a_version_of_metadata_that_is_known_is_refused() -> None:
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

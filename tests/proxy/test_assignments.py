# SPDX-License-Identifier: Apache-2.0
"""Asking the cluster by the way whether silent replicas are assigned at all."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataResponse

from tests.fakes.metadata_broker import Broker, MetadataBroker, Partition, Question, Topic
from tests.proxy.answered import Answered
from tests.proxy.loop_gaps import longest_gaps
from tests.proxy.watched import FOLLOWER, POLL_SECONDS, Watched, events, fields
from weir.proxy.cluster.metadata import describe
from weir.proxy.cluster.removed_replicas import Replicas


def fetched(watched: Watched, *topics: bytes) -> None:
    """A follower is caught up on partition 0 of these, and fetches no more."""
    asker = watched.throttle.lag.asker()
    asker.fetched(watched.clock())
    for topic in topics:
        asker.topic(FOLLOWER, topic).update(0, 10, 10, watched.clock())
    asker.close()


def forgotten(watched: Watched) -> bool:
    return not list(watched.throttle.lag.rows())


async def test_replica_moved_away_is_forgotten_by_the_topic_ids_poll(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    naming_broker.replicas = {"payments": {0: [1, FOLLOWER]}}
    fetched(watched, b"payments")
    await watched.asked_at(0)
    assert [question.names for question in naming_broker.asked] == [["orders"]]
    await watched.asked_at(POLL_SECONDS)
    assert naming_broker.asked[1:] == [Question(["orders", "payments"], [], may_create=False, version=12)]
    naming_broker.replicas = {"payments": {0: [1, 3]}}
    await watched.asked_at(2 * POLL_SECONDS)
    await watched.asked_at(3 * POLL_SECONDS - 1)
    assert not forgotten(watched)
    assert len(naming_broker.asked) == 3  # it is not asked more often for that
    await watched.asked_at(3 * POLL_SECONDS)
    assert forgotten(watched)
    assert events(caplog) == ["replicas_not_assigned"]
    assert fields(caplog, "replicas_not_assigned")["partitions"] == 1
    await watched.asked_at(4 * POLL_SECONDS)
    assert naming_broker.asked[-1].names == ["orders"]


async def test_deleted_topics_replica_is_forgotten_without_throttle(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    watched.throttled = set()
    fetched(watched, b"deleted")
    for polls in range(3):
        await watched.asked_at(polls * POLL_SECONDS)
    assert [question.names for question in naming_broker.asked] == [["deleted"]] * 2
    assert forgotten(watched)


@pytest.mark.parametrize(
    "how",
    [
        {"replicas": {"payments": {0: [1, FOLLOWER]}}},
        {"errors": {"payments": 29}},  # TOPIC_AUTHORIZATION_FAILED
        {"errors": {"payments": 5}},  # LEADER_NOT_AVAILABLE
        {"partition_errors": {0: 5}, "replicas": {"payments": {0: [1]}}},
        {"topics": {}, "knows_brokers": False},  # in ZooKeeper mode, before the controller told it anything
        {"replicas": {}},  # a topic without partitions is none
        {"hangs_up": True},
        {"newest_metadata": 9},
    ],
)
async def test_replica_is_kept_if_the_broker_does_not_say_it_is_gone(
    naming_broker: MetadataBroker, watched: Watched, how: dict[str, object]
) -> None:
    for name, value in how.items():
        setattr(naming_broker, name, value)
    fetched(watched, b"payments")
    for polls in range(10):
        await watched.asked_at(polls * POLL_SECONDS)
    assert not forgotten(watched)


async def test_replica_of_a_broker_down_is_not_assigned_if_replaced(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    """REPLICA_NOT_AVAILABLE, of older brokers, is no reason to doubt the answer."""
    naming_broker.partition_errors, naming_broker.replicas = {0: 9}, {"payments": {0: [1, 3]}}
    fetched(watched, b"payments")
    for polls in range(3):
        await watched.asked_at(polls * POLL_SECONDS)
    assert forgotten(watched)


async def test_replica_that_became_the_leader_is_forgotten_here(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    naming_broker.replicas, naming_broker.leader = {"payments": {0: [1, FOLLOWER]}}, FOLLOWER
    fetched(watched, b"payments")
    for polls in range(3):
        await watched.asked_at(polls * POLL_SECONDS)
    assert forgotten(watched)


async def test_replica_that_the_cluster_says_is_in_sync_has_no_lag(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    naming_broker.replicas, naming_broker.leader = {"payments": {0: [FOLLOWER, 1]}}, 1
    fetched(watched, b"payments")
    for polls in range(10):
        await watched.asked_at(polls * POLL_SECONDS)
    assert [row.lag_seconds for row in watched.throttle.lag.rows()] == [0]


async def test_replica_of_a_partition_led_elsewhere_is_forgotten(
    naming_broker: MetadataBroker, watched: Watched
) -> None:
    """This broker was restarted, and leads nothing any more."""
    naming_broker.replicas, naming_broker.leader = {"payments": {0: [3, 1, FOLLOWER]}}, 3
    fetched(watched, b"payments")
    for polls in range(3):
        await watched.asked_at(polls * POLL_SECONDS)
    assert forgotten(watched)


async def test_replica_id_that_somebody_made_up_has_no_lag(
    naming_broker: MetadataBroker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    naming_broker.replicas = {"payments": {0: [1, FOLLOWER]}}
    asker = watched.throttle.lag.asker()
    asker.fetched(0.0)
    asker.topic(1000, b"payments").update(0, 10, 10, 0.0)
    await watched.asked_at(0)
    assert forgotten(watched)
    await watched.asked_at(1)
    assert events(caplog) == ["replica_ids_refused"]
    assert fields(caplog, "replica_ids_refused")["count"] == 1


async def test_lag_without_room_is_logged_once_in_a_while(
    watched: Watched, naming_broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for seconds in range(4):
        watched.throttle.lag.evicted += seconds % 2
        await watched.asked_at(seconds)
    assert events(caplog) == ["lag_evicted"]


@pytest.mark.long
async def test_assignments_of_20000_partitions_never_hold_the_loop() -> None:
    """The longest step is a small part of all the work."""
    partitions = [
        Partition(partition_index=number, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2], offline_replicas=[])
        for number in range(20_000)
    ]
    topic = Topic(name="large", topic_id=UUID(int=1), partitions=partitions)
    channel = Answered(b"\x00" + bytes(MetadataResponse(brokers=[Broker(host="h")], topics=[topic]).encode(version=12)))
    channel.metadata_version = 12
    found = [await longest_gaps(describe(channel, [b"large"], [b"large"])) for _ in range(3)]
    of_each = Replicas(1, frozenset({2, 3}), frozenset({1, 2}))
    assert all(told.topics[b"large"].partitions == dict.fromkeys(range(20_000), of_each) for told, _ in found)
    # About 100 ms of work; of all of it, as a slow machine takes longer for each. The best of three runs.
    assert min(gaps[0] / sum(gaps) for _, gaps in found) < 1 / 25

"""The ISR poll, against a broker made of aiokafka's own codec."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import ApiVersionResponse_v0, DescribeConfigsRequest_v2, DescribeConfigsResponse_v2
from aiokafka.protocol.metadata import (
    MetadataRequest_v1,
    MetadataRequest_v5,
    MetadataResponse_v1,
    MetadataResponse_v5,
)

from proxy import cluster, min_isr
from proxy.address import Address
from proxy.cluster import ClusterPoller, InSyncReplicas, in_sync_replicas
from proxy.config import Cluster
from proxy.log import EventLog
from proxy.min_isr import REFRESH_SECONDS, RETRY_SECONDS, Partitions
from quota.throttle import Throttle
from quota.unassigned import UnassignedReplicas
from tests.fakes.clock import MovedClock
from tests.fakes.servers import serving
from tests.proxy.loop_gaps import longest_gaps

ISR = {("orders", 0): [1, 2], ("orders", 1): [1], ("payments", 0): [3, 1]}


@dataclass
class Broker:
    """Answers ApiVersions, Metadata and DescribeConfigs.

    `asked` holds what each Metadata request named, `configs_asked` the topics of each DescribeConfigs.
    """

    newest_metadata: int = 5
    newest_configs: int = 4
    min_isr: dict[str, str] = field(default_factory=lambda: {"orders": "2", "payments": "2"})
    config_error: int = 0
    configs_silent: bool = False
    configs_garbage: bool = False
    configs_asked: list[list[str]] = field(default_factory=list)
    connections: int = 0
    asked: list[list[str] | None] = field(default_factory=list)
    may_create: list[bool] = field(default_factory=list)
    port: int = 0
    server: asyncio.Server | None = None
    broken: bool = False
    silent: bool = False
    partition_error: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if self.broken:
                    return
                if self.silent:
                    continue
                api_key = int.from_bytes(frame[:2])
                body = self.answer(api_key, frame[10 + int.from_bytes(frame[8:10]) :])
                if api_key == 32 and self.configs_silent:
                    continue
                writer.write((4 + len(body)).to_bytes(4) + frame[4:8] + body)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def answer(self, api_key: int, request: bytes) -> bytes:
        if api_key == 18:
            apis = [(18, 0, 0), (3, 0, self.newest_metadata), (32, 1, self.newest_configs)]
            return bytes(ApiVersionResponse_v0(0, apis if self.newest_configs else apis[:2]).encode())
        if api_key == 32:
            return self.configs(DescribeConfigsRequest_v2.decode(request))
        old = self.newest_metadata < 5
        asked = (MetadataRequest_v1 if old else MetadataRequest_v5).decode(io.BytesIO(request))
        self.asked.append(asked.topics)
        self.may_create.append(old or asked.allow_auto_topic_creation)
        known = {topic for topic, _ in ISR}
        names = sorted(known) if asked.topics is None else asked.topics
        topics = [(0 if name in known else 3, name, False, self.partitions(name, old)) for name in names]
        brokers = [(1, "127.0.0.1", self.port, None)]
        if old:
            return bytes(MetadataResponse_v1(brokers, 1, topics).encode())
        return bytes(MetadataResponse_v5(0, brokers, "cluster", 1, topics).encode())

    def configs(self, asked: Any) -> bytes:
        assert all(resource[0] == 2 and resource[2] == ["min.insync.replicas"] for resource in asked.resources)
        topics = [name for _, name, _ in asked.resources]
        self.configs_asked.append(topics)
        if self.configs_garbage:
            return b"garbage"
        answers = []
        for name in topics:
            error = self.config_error or (0 if name in self.min_isr else 3)
            entries: list[tuple[Any, ...]] = []
            if not error:
                entries.append(("min.insync.replicas", self.min_isr[name], False, 5, False, []))
            answers.append((error, None, 2, name, entries))
        return bytes(DescribeConfigsResponse_v2(0, answers).encode())

    def partitions(self, name: str, old: bool) -> list[tuple[Any, ...]]:
        rows = [
            (self.partition_error, number, 1, [1, 2, 3], isr) for (topic, number), isr in ISR.items() if topic == name
        ]
        return rows if old else [(*row, []) for row in rows]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    async with serving(broker.serve) as (broker.server, broker.port):
        yield broker


class Harness:
    """A poller whose publications and counts are recorded."""

    def __init__(self, broker: Broker, topics: set[str]) -> None:
        self.topics = topics
        self.published: list[InSyncReplicas] = []
        self.published_again = asyncio.Event()
        self.under_min_isr: list[Partitions] = []
        self.clock = MovedClock(0.0)
        self.counted: list[str] = []
        self.brokers: list[Mapping[int, str]] = []
        self.poller = ClusterPoller(
            Cluster(bootstrap_servers=(Address("127.0.0.1", broker.port),)),
            lambda: self.topics,
            self.publish,
            self.under_min_isr.append,
            EventLog(),
            self.counted.append,
            self.clock,
            self.brokers.append,
        )

    def publish(self, in_sync: InSyncReplicas) -> None:
        self.published.append(in_sync)
        self.published_again.set()


@pytest_asyncio.fixture
async def harness(broker: Broker) -> AsyncIterator[Harness]:
    harness = Harness(broker, {"orders"})
    yield harness
    harness.poller._disconnect()
    await asyncio.sleep(0)


ORDERS_IN_SYNC = {(b"orders", 0): frozenset({1, 2}), (b"orders", 1): frozenset({1})}


async def test_cluster_poll_publishes_the_isr_of_throttled_topics(broker: Broker, harness: Harness) -> None:
    await harness.poller.poll()
    assert harness.published == [ORDERS_IN_SYNC]
    assert harness.counted == ["ok"]


@pytest.mark.parametrize("newest", [1, 5])
async def test_cluster_poll_publishes_the_brokers_hosts(newest: int, broker: Broker, harness: Harness) -> None:
    broker.newest_metadata = newest
    await harness.poller.poll()
    assert harness.brokers == [{1: "127.0.0.1"}]
    assert harness.published[-1]


async def test_cluster_poll_names_throttled_topics_only_and_creates_none(broker: Broker, harness: Harness) -> None:
    harness.topics = {"orders", "gone"}
    await harness.poller.poll()
    assert broker.asked == [[], ["gone", "orders"]]
    assert broker.may_create[-1] is False
    assert harness.published == [ORDERS_IN_SYNC]


async def test_cluster_poll_of_an_old_broker_names_no_topic(broker: Broker, harness: Harness) -> None:
    """Before Metadata v4 a name that is not there is created."""
    broker.newest_metadata = 1
    await harness.poller.poll()
    assert broker.asked == [[], None]
    assert harness.published == [ORDERS_IN_SYNC]


async def test_cluster_poll_again_uses_the_same_connection(broker: Broker, harness: Harness) -> None:
    await harness.poller.poll()
    await harness.poller.poll()
    assert broker.asked == [[], ["orders"], ["orders"]]


async def test_cluster_poll_without_throttled_topics_asks_nothing(broker: Broker, harness: Harness) -> None:
    harness.topics = set()
    await harness.poller.poll()
    assert broker.asked == []
    assert harness.published == [{}]


async def test_cluster_partition_with_an_error_is_not_known(broker: Broker, harness: Harness) -> None:
    broker.partition_error = 5
    await harness.poller.poll()
    assert harness.published == [{}]


@pytest.mark.parametrize("topic_count", [1, 200])
async def test_cluster_of_20000_partitions_never_holds_the_loop_for_long(topic_count: int) -> None:
    count = 20_000 // topic_count
    topics: list[tuple[Any, ...]] = [
        (0, f"topic-{number}", False, [(0, partition, 1, [1, 2, 3], [1, 2], []) for partition in range(count)])
        for number in range(topic_count)
    ]
    answer = MetadataResponse_v5(0, [(1, "127.0.0.1", 9092, None)], "cluster", 1, topics).encode()
    names = {name for _, name, *_ in topics}
    schema = MetadataResponse_v5.SCHEMA
    found = [await longest_gaps(in_sync_replicas(schema, io.BytesIO(answer), names)) for _ in range(3)]
    assert all(len(in_sync) == 20_000 for in_sync, _ in found)
    # The best of three, for a machine that does other work too.
    assert min(gaps[0] for _, gaps in found) < 0.005


async def test_cluster_that_fails_publishes_nothing_known_and_is_asked_again(
    broker: Broker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    await harness.poller.poll()
    broker.broken = True
    await harness.poller.poll()
    await harness.poller.poll()
    assert harness.published == [ORDERS_IN_SYNC, {}, {}]
    assert harness.counted == ["ok", "failed", "failed"]
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["cluster_poll_failed"]
    broker.broken = False
    await harness.poller.poll()
    assert harness.published[-1] == ORDERS_IN_SYNC
    assert caplog.records[-1].msg == "cluster_poll_recovered"


async def test_cluster_that_does_not_answer_is_asked_again_on_a_new_connection(
    broker: Broker, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the old one the answer might come late, to another question."""
    monkeypatch.setattr(cluster, "REQUEST_TIMEOUT_SECONDS", 0.05)
    await harness.poller.poll()
    broker.silent = True
    await harness.poller.poll()
    assert harness.counted == ["ok", "failed"]
    broker.silent = False
    await harness.poller.poll()
    assert harness.counted == ["ok", "failed", "ok"]
    assert broker.connections == 2


async def test_cluster_with_no_server_there_fails_and_says_which(
    broker: Broker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    assert broker.server is not None
    broker.server.close()
    await broker.server.wait_closed()
    await harness.poller.poll()
    assert harness.counted == ["failed"]
    failure = next(record for record in caplog.records if record.msg == "cluster_poll_failed")
    assert f"127.0.0.1:{broker.port}" in str(failure.__dict__["weir_fields"]["error"])


ONE_IN_SYNC = frozenset({(b"orders", 1)})


async def test_cluster_poll_publishes_the_partitions_under_their_min_isr(
    broker: Broker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.topics = {"orders", "payments", "gone"}
    await harness.poller.poll()
    assert broker.configs_asked == [["gone", "orders", "payments"]]
    assert harness.under_min_isr == [ONE_IN_SYNC]
    broker.min_isr["orders"] = "3"
    harness.topics = {"orders"}  # other topics are throttled: asked for at once
    await harness.poller.poll()
    assert harness.under_min_isr[-1] == {(b"orders", 0), (b"orders", 1)}
    assert caplog.records == []  # that a throttled topic is not there is no fault


async def test_cluster_min_isr_is_asked_for_again_after_a_while(broker: Broker, harness: Harness) -> None:
    for seconds in (0, REFRESH_SECONDS - 1, REFRESH_SECONDS, 2 * REFRESH_SECONDS - 1):
        harness.clock.now = seconds
        await harness.poller.poll()
        broker.min_isr["orders"] = "1"
    assert len(broker.configs_asked) == 2
    assert harness.under_min_isr == [ONE_IN_SYNC, ONE_IN_SYNC, frozenset(), frozenset()]


async def test_cluster_min_isr_of_many_topics_is_asked_for_in_several_questions(
    broker: Broker, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(min_isr, "TOPICS_PER_QUESTION", 2)
    harness.topics = {"a", "b", "orders", "payments", "z"}
    broker.min_isr["payments"] = "3"
    await harness.poller.poll()
    assert broker.configs_asked == [["a", "b"], ["orders", "payments"], ["z"]]
    assert harness.under_min_isr == [ONE_IN_SYNC | {(b"payments", 0)}]


@pytest.mark.parametrize(
    ("refusing", "said"),
    [
        ({"config_error": 29}, "TopicAuthorizationFailedError for 1 of 1 topics, as orders"),
        ({"newest_configs": 0}, "the broker has no version of DescribeConfigs that is known here"),
    ],
)
async def test_cluster_that_refuses_min_isr_still_tells_the_isr_and_is_warned_of_once(
    broker: Broker, harness: Harness, caplog: pytest.LogCaptureFixture, refusing: dict[str, Any], said: str
) -> None:
    for name, value in refusing.items():
        setattr(broker, name, value)
    for seconds in (0, 5, REFRESH_SECONDS):
        harness.clock.now = seconds
        await harness.poller.poll()
    assert harness.published == [ORDERS_IN_SYNC] * 3
    assert harness.under_min_isr == [frozenset()] * 3
    assert harness.counted == ["ok"] * 3
    assert broker.connections == 1
    (warned,) = (record for record in caplog.records if record.name == "weir")
    assert (warned.msg, str(warned.__dict__["weir_fields"]["error"])) == ("min_isr_refused", said)


@pytest.mark.parametrize("fault", ["configs_silent", "configs_garbage"])
async def test_cluster_whose_min_isr_is_not_answered_tells_the_isr_and_keeps_what_was_known(
    broker: Broker,
    harness: Harness,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_TIMEOUT_SECONDS", 0.05)
    await harness.poller.poll()
    setattr(broker, fault, True)
    for seconds in (REFRESH_SECONDS, REFRESH_SECONDS + RETRY_SECONDS - 1):
        harness.clock.now = seconds
        await harness.poller.poll()
    assert harness.published == [ORDERS_IN_SYNC] * 3
    assert harness.under_min_isr == [ONE_IN_SYNC] * 3
    assert len(broker.configs_asked) == 2
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["min_isr_not_answered"]
    setattr(broker, fault, False)
    broker.min_isr["orders"] = "1"
    harness.clock.now = REFRESH_SECONDS + RETRY_SECONDS
    await harness.poller.poll()
    assert harness.under_min_isr[-1] == frozenset()


async def test_cluster_that_fails_leaves_no_partition_under_min_isr(broker: Broker, harness: Harness) -> None:
    await harness.poller.poll()
    broker.broken = True
    await harness.poller.poll()
    assert harness.under_min_isr == [ONE_IN_SYNC, frozenset()]


async def test_cluster_run_goes_on_when_what_takes_the_isr_raises(
    broker: Broker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    taken = asyncio.Event()

    def take(in_sync: InSyncReplicas) -> None:
        if not caplog.records:
            raise RuntimeError("a bug")
        taken.set()

    harness.poller._publish = take
    running = asyncio.create_task(harness.poller.run())
    async with asyncio.timeout(2):
        while not caplog.records:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.001)
        harness.poller.wake()
        await taken.wait()
    assert caplog.records[0].msg == "cluster_poll_not_taken"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cluster_run_polls_at_once_when_woken(broker: Broker, harness: Harness) -> None:
    running = asyncio.create_task(harness.poller.run())
    await harness.published_again.wait()
    harness.published_again.clear()
    harness.topics = {"payments"}
    harness.poller.wake()
    async with asyncio.timeout(2):  # the next one by itself is due after 5 s
        await harness.published_again.wait()
    assert harness.published[-1] == {(b"payments", 0): frozenset({1, 3})}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("newest_metadata", [1, 5])
async def test_replicas_that_lag_are_asked_for_too_where_brokers_have_no_topic_ids(
    broker: Broker, harness: Harness, newest_metadata: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 2 follows `orders`, broker 9 nothing; `deleted` is not there any more."""
    caplog.set_level(logging.INFO, "weir")
    broker.newest_metadata = newest_metadata
    harness.topics = {"payments"}
    throttle = Throttle("leader", 1, harness.clock)
    throttle.brokers.learn([2, 9])
    asker = throttle.lag.asker()
    asker.fetched(0.0)
    for replica, topic in ((2, b"orders"), (9, b"orders"), (2, b"deleted")):
        asker.topic(replica, topic).update(0, 10, 10, 0.0)
    asker.close()
    lagging = UnassignedReplicas([throttle])
    harness.poller._lagging = lambda: lagging
    for _ in range(6):
        harness.clock.move(5.0)
        await harness.poller.poll()
    assert [(row.replica, row.topic, row.lag_seconds) for row in throttle.lag.rows()] == [(2, b"orders", 0)]
    assert harness.published[-1] == {(b"payments", 0): frozenset({1, 3})}
    assert broker.asked[-1] == (["orders", "payments"] if newest_metadata == 5 else None)
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["replicas_not_assigned"]

"""The ISR poll, against a broker made of aiokafka's own codec."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import (
    MetadataRequest_v1,
    MetadataRequest_v5,
    MetadataResponse_v1,
    MetadataResponse_v5,
)

from proxy import cluster
from proxy.address import Address
from proxy.cluster import ClusterPoller, InSyncReplicas
from proxy.config import Cluster
from proxy.log import EventLog
from tests.proxy.servers import serving

ISR = {("orders", 0): [1, 2], ("orders", 1): [1], ("payments", 0): [3, 1]}


@dataclass
class Broker:
    """Answers ApiVersions and Metadata; `asked` holds what each Metadata request named."""

    newest_metadata: int = 5
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
                body = self.answer(int.from_bytes(frame[:2]), frame[10 + int.from_bytes(frame[8:10]) :])
                writer.write((4 + len(body)).to_bytes(4) + frame[4:8] + body)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def answer(self, api_key: int, request: bytes) -> bytes:
        if api_key == 18:
            return bytes(ApiVersionResponse_v0(0, [(18, 0, 0), (3, 0, self.newest_metadata)]).encode())
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
        self.counted: list[str] = []
        self.poller = ClusterPoller(
            Cluster(bootstrap_servers=(Address("127.0.0.1", broker.port),)),
            lambda: self.topics,
            self.publish,
            EventLog(),
            self.counted.append,
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

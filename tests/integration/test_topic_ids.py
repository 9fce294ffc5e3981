"""What a sidecar learns from the metadata of a real cluster: names of topic ids, and partitions under their min ISR."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Cluster
from lab.modes import KraftCluster
from proxy.address import Address
from proxy.cluster import ClusterPoller
from proxy.config import Cluster as ClusterTable
from proxy.log import EventLog
from proxy.min_isr import Partitions
from proxy.topic_ids import TopicIdResolver
from quota.topic_names import TopicNames
from tests.quota.clock import ManualClock

pytestmark = pytest.mark.integration

TWO_IN_SYNC = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with KraftCluster("4.1.0", brokers=2, properties={"auto.create.topics.enable": "true"}) as cluster:
        cluster.create_topic("orders", {0: [1, 2]}, TWO_IN_SYNC)
        cluster.create_topic("alone", {0: [1]}, TWO_IN_SYNC)
        cluster.create_topic("payments", {0: [1, 2]})
        yield cluster


class Resolving:
    """A resolver whose clock stands still unless it is moved; `ask` asks the brokers once."""

    def __init__(self, cluster: Cluster, *throttled: str) -> None:
        self.clock = ManualClock()
        self.names = TopicNames(self.clock)
        self.changes = 0
        servers = [Address.parse(server) for server in cluster.bootstrap_servers]
        self.resolver = TopicIdResolver(
            self.names, servers, lambda: throttled, self.on_change, EventLog(), clock=self.clock
        )

    def on_change(self) -> None:
        self.changes += 1

    async def ask(self) -> None:
        self.clock.now += 5  # seconds: as often as it polls
        await self.resolver.resolve()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.1)
                await self.ask()


def id_on_disk(cluster: Cluster, topic: str) -> bytes:
    """The topic's id as broker 1 wrote it beside the log of partition 0."""
    metadata = (cluster.brokers[1].data / f"{topic}-0" / "partition.metadata").read_text()
    text = metadata.partition("topic_id:")[2].strip()
    return base64.urlsafe_b64decode(text + "==")


async def test_ids_have_names_and_a_topic_that_is_created_again_has_a_new_one(cluster: Cluster) -> None:
    resolving = Resolving(cluster, "orders", "not-there")
    names = resolving.names
    orders, payments, stranger = id_on_disk(cluster, "orders"), id_on_disk(cluster, "payments"), b"\xfe" * 16
    await resolving.ask()
    assert (names.name_of(orders), names.name_of(payments), names.name_of(stranger)) == (b"orders", None, None)
    await resolving.ask()
    assert (names.name_of(payments), names.name_of(stranger), names.unknown_count) == (b"payments", None, 1)
    assert resolving.changes == 2

    await asyncio.to_thread(cluster.admin.delete_topic, "orders")
    await asyncio.to_thread(cluster.create_topic, "orders", {0: [1, 2]}, TWO_IN_SYNC)
    again = id_on_disk(cluster, "orders")
    assert again != orders
    await resolving.until(lambda: resolving.changes == 3)
    assert names.name_of(again) == b"orders"

    later = Resolving(cluster)
    later.names.name_of(orders)
    await later.ask()
    assert (later.names.name_of(orders), later.names.unknown_count) == (None, 1)
    assert {topic for topic, _ in cluster.admin.partitions()} >= {"orders", "payments"}
    assert not {topic for topic, _ in cluster.admin.partitions()} & {"not-there"}  # no question creates a topic
    for resolved in (resolving, later):
        resolved.resolver._disconnect()
    cluster.check_logs()


async def test_partitions_with_fewer_in_sync_than_min_isr_are_published(cluster: Cluster) -> None:
    published: list[Partitions] = []
    servers = tuple(map(Address.parse, cluster.bootstrap_servers[:1]))
    topics = {"orders", "alone", "payments", "not-there"}
    poller = ClusterPoller(
        ClusterTable(bootstrap_servers=servers),
        lambda: topics,
        lambda in_sync: None,
        published.append,
        EventLog(),
        lambda result: None,
    )
    await poller.poll()
    assert published == [{(b"alone", 0)}]  # payments has the brokers' default, 1
    await asyncio.to_thread(cluster.stop_broker, 2)
    async with asyncio.timeout(30):
        while published[-1] != {(b"orders", 0), (b"alone", 0)}:
            await asyncio.sleep(0.1)
            await poller.poll()
    poller._disconnect()

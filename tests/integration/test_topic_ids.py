"""What a sidecar learns from the metadata of a real cluster: names of topic ids, and partitions under their min ISR."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import pytest

from lab.cluster import Cluster
from lab.modes import KraftCluster
from proxy.address import Address
from proxy.cluster import ClusterPoller
from proxy.config import Cluster as ClusterTable
from proxy.log import EventLog
from proxy.min_isr import Partitions
from tests.proxy.resolving import POLL_SECONDS, Resolving

pytestmark = pytest.mark.integration

TWO_IN_SYNC = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with KraftCluster("4.1.0", brokers=2, properties={"auto.create.topics.enable": "true"}) as cluster:
        cluster.create_topic("orders", {0: [1, 2]}, TWO_IN_SYNC)
        cluster.create_topic("alone", {0: [1]}, TWO_IN_SYNC)
        cluster.create_topic("payments", {0: [1, 2]})
        yield cluster


async def resolving(cluster: Cluster, *throttled: str) -> Resolving:
    """A resolver that asked the brokers once."""
    asking = Resolving(*map(Address.parse, cluster.bootstrap_servers))
    asking.throttled = set(throttled)
    await asking.asked_at(0)
    return asking


def id_on_disk(cluster: Cluster, topic: str) -> bytes:
    """The topic's id as broker 1 wrote it beside the log of partition 0."""
    metadata = (cluster.brokers[1].data / f"{topic}-0" / "partition.metadata").read_text()
    text = metadata.partition("topic_id:")[2].strip()
    return base64.urlsafe_b64decode(text + "==")


async def test_ids_have_names_and_a_topic_that_is_created_again_has_a_new_one(cluster: Cluster) -> None:
    orders, payments, stranger = id_on_disk(cluster, "orders"), id_on_disk(cluster, "payments"), b"\xfe" * 16
    first = await resolving(cluster, "orders", "not-there")
    names = first.names
    assert (names.name_of(orders), names.name_of(payments), names.name_of(stranger)) == (b"orders", None, None)
    await first.asked_at(1)
    assert (names.name_of(payments), names.name_of(stranger), names.unknown_count) == (b"payments", None, 1)
    assert first.changes == 2

    await asyncio.to_thread(cluster.admin.delete_topic, "orders")
    await asyncio.to_thread(cluster.create_topic, "orders", {0: [1, 2]}, TWO_IN_SYNC)
    again = id_on_disk(cluster, "orders")
    assert again != orders
    await first.asked_at(POLL_SECONDS)
    assert (names.name_of(again), first.changes) == (b"orders", 3)

    later = await resolving(cluster)
    later.names.name_of(orders)
    await later.asked_at(1)
    assert (later.names.name_of(orders), later.names.unknown_count) == (None, 1)
    assert {topic for topic, _ in cluster.admin.partitions()} == {"orders", "alone", "payments"}  # none by asking
    for asking in (first, later):
        asking.resolver._disconnect()
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

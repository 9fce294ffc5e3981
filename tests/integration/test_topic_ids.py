# SPDX-License-Identifier: Apache-2.0
"""What a sidecar learns from the metadata of a real cluster: names of topic ids, and partitions under their min ISR."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.moves import MB, assert_identical, assert_keeps, assert_throttled, filled, moving, throttle
from tests.proxy.watched import POLL_SECONDS, Watched
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS, KraftCluster
from weir.proxy.config.address import Address

pytestmark = pytest.mark.integration

RATE = 2 * MB
TWO_IN_SYNC = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with KraftCluster(brokers=2, properties={"auto.create.topics.enable": "true"}) as cluster:
        cluster.create_topic("orders", {0: [1, 2]}, TWO_IN_SYNC)
        cluster.create_topic("alone", {0: [1]}, TWO_IN_SYNC)
        cluster.create_topic("payments", {0: [1, 2]})
        # Brokers write it a moment after they have the topic.
        cluster.wait_for("ids on disk", lambda: all(id_on_disk(cluster, name) for name in ("orders", "payments")), 30)
        yield cluster


@asynccontextmanager
async def resolving(cluster: Cluster, *throttled: str) -> AsyncIterator[Watched]:
    """A watch that asked the brokers once."""
    asking = Watched(*map(Address.parse, cluster.bootstrap_servers))
    asking.throttled = set(throttled)
    await asking.asked_at(0)
    try:
        yield asking
    finally:
        await asking.close()


def id_on_disk(cluster: Cluster, topic: str) -> bytes:
    """The topic's id as broker 1 wrote it beside the log of partition 0; b"" before that."""
    path = cluster.brokers[1].data / f"{topic}-0" / "partition.metadata"
    text = path.read_text().partition("topic_id:")[2].strip() if path.exists() else ""
    return base64.urlsafe_b64decode(text + "==") if text else b""


async def test_ids_have_names_and_a_topic_made_anew_has_a_new_one(cluster: Cluster) -> None:
    orders, payments, stranger = id_on_disk(cluster, "orders"), id_on_disk(cluster, "payments"), b"\xfe" * 16
    async with resolving(cluster, "orders", "not-there") as asking:
        names = asking.names
        assert (names.name_of(orders), names.name_of(payments), names.name_of(stranger)) == (b"orders", None, None)
        for second in range(1, 10):  # a question may fail where a broker is slow: it is asked again
            await asking.asked_at(second)
            if names.name_of(payments):
                break
        assert (names.name_of(payments), names.name_of(stranger), names.unknown_count) == (b"payments", None, 1)
        assert asking.changes == 2

        await asyncio.to_thread(cluster.admin.delete_topic, "orders")
        await asyncio.to_thread(cluster.create_topic, "orders", {0: [1, 2]}, TWO_IN_SYNC)
        # Broker 1 may take both up a moment later than the broker that the admin client asked.
        await asyncio.to_thread(
            cluster.wait_for, "a new id", lambda: id_on_disk(cluster, "orders") not in (orders, b""), 30
        )
        await asking.asked_at(POLL_SECONDS)
        assert (names.name_of(id_on_disk(cluster, "orders")), asking.changes) == (b"orders", 3)

    async with resolving(cluster) as asking:
        asking.names.name_of(orders)
        await asking.asked_at(1)
        assert (asking.names.name_of(orders), asking.names.unknown_count) == (None, 1)
    assert {topic for topic, _ in cluster.admin.partitions()} == {"orders", "alone", "payments"}  # none by asking
    cluster.check_logs()


async def test_partitions_under_their_min_isr_are_published(cluster: Cluster) -> None:
    polling = Watched(Address.parse(cluster.bootstrap_servers[0]), cluster="")
    polling.throttled = {"orders", "alone", "payments", "not-there"}
    await polling.poll()
    assert polling.view.under_min_isr == {(b"alone", 0)}  # payments has the brokers' default, 1
    await asyncio.to_thread(cluster.stop_broker, 2)
    async with asyncio.timeout(30):
        while polling.view.under_min_isr != {(b"orders", 0), (b"alone", 0)}:
            await asyncio.sleep(0.1)
            await polling.poll()
    await polling.close()


def test_a_new_topic_is_throttled_from_its_first_fetch_on() -> None:
    """The throttle is older than the topic. No poll has shown the topic's id, so the first fetch with it asks."""
    never = {"cluster": {"poll_seconds": 3600}}
    with CORNERS[-1].cluster(2, sidecars=True, poll_isr=True, sidecar_tables=never) as cluster:
        cluster.sidecars[1].put_throttle(throttle("orders", leader=RATE))
        topic = filled(cluster, "orders", [1], 12 * MB)
        with moving(cluster, [topic], [1, 2]) as received:
            pass
        assert_keeps(received.series(), RATE)
        assert_identical(cluster, [topic], 1, 2)
        assert_throttled(cluster, 1, "leader")
        assert cluster.sidecars[1].metrics().value("weir_topic_ids_unknown") == 0
        cluster.check_logs()

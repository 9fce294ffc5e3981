"""Clients that others wrote, with and without a limit: the rate is kept, each record comes once, nothing complains."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from functools import partial
from itertools import count as numbers
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tests.clients.drivers import LANGUAGES, Drivers, Outcome
from weir.lab.cluster import Cluster
from weir.lab.connect import through_sidecar

pytestmark = pytest.mark.clients

SIZE: Final = 20  # bytes of a value
LEAST, MOST = 0.97, 1.02  # x the limit
BUSY: Final = 2  # processes a core that run or want to: then clients are late for reasons of their own
_HARMLESS: Final = re.compile("blocking the event loop|No partition metadata")
"""What kafka-python says now and then: where the machine is slow, and when its group is ready before its metadata."""
_ids = numbers()

every_client = pytest.mark.parametrize("client", LANGUAGES)


def limit(cluster: Cluster, client_id: str | None, records: float = 0) -> None:
    entries = [] if client_id is None else [{"client_id": client_id, "record.rate.limit": records}]
    status, body = cluster.sidecars[1].http("PUT", "/v1/limits", {"client": entries})
    assert status == 200, body


def filled(cluster: Cluster, records: int, batch: int) -> str:
    """Make a topic of one partition with that many records, the numbers from 0 on."""
    topic = f"read-{next(_ids)}"
    cluster.create_topic(topic, {0: [1]})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers[0], "linger.ms": 1000, "batch.size": 10**6})
    for number in range(records):
        producer.produce(topic, f"{number:08d}".ljust(SIZE, "x"), partition=0)
        if number % batch == batch - 1:
            producer.flush()
    producer.flush()
    return topic


def written(cluster: Cluster, topic: str) -> Counter[bytes]:
    """Return how often each record is in a topic's log, read past the sidecar."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers[0], "group.id": "check"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    found: Counter[bytes] = Counter()
    while found.total() < end:
        for message in consumer.consume(5000, timeout=5):
            found[(message.value() or b"")[:8]] += 1
    consumer.close()
    return found


def arrived(cluster: Cluster, topic: str, count: int) -> bool:
    """Return whether a topic has so many records."""
    return written(cluster, topic).total() >= count


def run(cluster: Cluster, drivers: Drivers, client: str, role: str, topic: str, count: int, **job: Any) -> Outcome:
    found: dict[str, Any] = {"role": role, "topic": topic, "count": count, "size": SIZE, "batch": 25, "acks": -1}
    found |= {"bootstrap": through_sidecar(cluster, 1), "client_id": topic, "fetch_bytes": 1500, "seconds": 60}
    found |= {"producers": 1}
    outcome = drivers.run(client, found | job)
    print(f"{client}: {outcome}")
    return outcome


def complaints(outcome: Outcome, free: Outcome | None = None) -> list[str]:
    """Return what a client complains of under a limit, without what it says of Kafka alone."""
    known = {_kind(error) for error in free.errors} if free else set()
    known |= {_kind(error) for error in outcome.errors if _HARMLESS.search(error)}
    return [error for error in outcome.errors if _kind(error) not in known]


def _kind(error: str) -> str:
    return re.sub(r"\d+", "0", error)


def check_rate(outcome: Outcome, limit: float, batch: int) -> None:
    """Check that a client kept to its limit, and that it reached it, if the machine has time for it."""
    rate = outcome.rate(together=batch / limit / 2) / limit
    assert rate <= MOST
    assert rate >= LEAST or os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


def rebalances(cluster: Cluster, group: str) -> int:
    """Return how many generations a group had with a member in it, by the coordinator's log."""
    text = cluster.brokers[1].log.read_text(errors="replace")
    return len(set(re.findall(rf"Stabilized group {re.escape(group)} generation (\d+)", text)))


def consumed(cluster: Cluster, drivers: Drivers, client: str, role: str = "consume", **more: Any) -> None:
    """Read a topic without a limit, then one with it."""
    per_second, batch, seconds = more.pop("limit"), more.pop("batch"), more.pop("seconds")
    count = int(per_second * seconds)
    free_topic = filled(cluster, count, batch)
    limit(cluster, None)
    free = run(cluster, drivers, client, role, free_topic, count, **more)
    assert (free.records, free.distinct) == (count, count)
    topic = filled(cluster, count, batch)
    limit(cluster, topic, per_second)
    limited = run(cluster, drivers, client, role, topic, count, seconds=3 * seconds + 30, **more)
    assert complaints(limited, free) == []
    assert (limited.records, limited.distinct) == (count, count)
    check_rate(limited, per_second, batch)
    assert rebalances(cluster, topic) <= max(1, rebalances(cluster, free_topic))


@every_client
def test_consumer_of_small_answers(cluster: Cluster, drivers: Drivers, client: str) -> None:
    consumed(cluster, drivers, client, limit=500, batch=25, seconds=6)


@every_client
def test_consumer_of_answers_worth_seconds_of_the_limit(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """Each answer is followed by a pause of 3 s."""
    consumed(cluster, drivers, client, limit=100, batch=300, seconds=15, fetch_bytes=12_000)


def produced(cluster: Cluster, drivers: Drivers, client: str, per_second: int, count: int, **job: Any) -> Outcome:
    """Write without a limit, then with it; each record has to be in the log once."""
    outcomes = []
    for some in (None, per_second):
        topic = f"written-{next(_ids)}"
        cluster.create_topic(topic, {0: [1]})
        limit(cluster, topic if some else None, per_second)
        outcomes.append(run(cluster, drivers, client, "produce", topic, count, **job))
        if job.get("acks") == 0:
            cluster.wait_for("every record", partial(arrived, cluster, topic, count), 60)
    free, limited = outcomes
    found = written(cluster, topic)
    assert complaints(limited, free) == []
    assert (len(found), found.total()) == (count, count)
    assert rebalances(cluster, topic) == 0
    return limited


@every_client
def test_producer_of_small_batches(cluster: Cluster, drivers: Drivers, client: str) -> None:
    limited = produced(cluster, drivers, client, 250, 1500)
    check_rate(limited, 250, 25)


@every_client
def test_producer_of_batches_worth_seconds_of_the_limit(cluster: Cluster, drivers: Drivers, client: str) -> None:
    limited = produced(cluster, drivers, client, 100, 1500, batch=300, acks=1)
    check_rate(limited, 100, 300)


@every_client
def test_what_a_producer_sent_without_acks_arrives(cluster: Cluster, drivers: Drivers, client: str) -> None:
    begin = time.monotonic()
    produced(cluster, drivers, client, 250, 1250, acks=0)
    assert time.monotonic() - begin > 0.9 * 1250 / 250


def test_sixty_sends_at_once(cluster: Cluster, drivers: Drivers) -> None:
    """They take 36 s, and KafkaJS gives up what it has sent after 30: its sixth waits until one is answered."""
    produced(cluster, drivers, "kafkajs", 100, 3600, batch=60, in_flight=5, seconds=90)


@pytest.mark.parametrize("client", ["franz-go", "java"])
def test_share_group(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """Its members fetch with ShareFetch (KIP-932)."""
    limited = []
    for per_second in (None, 200):
        topic = filled(cluster, 2000, 50)
        start_at_the_begin(cluster, topic)
        limit(cluster, topic if per_second else None, per_second or 0)
        limited.append(run(cluster, drivers, client, "share", topic, 2000, batch=100))
    free, held = limited
    assert complaints(held, free) == []
    assert (held.records, held.distinct) == (2000, 2000)
    check_rate(held, 200, 100)


def start_at_the_begin(cluster: Cluster, group: str) -> None:
    """Have a share group read what is there: its default is what comes."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    resource = ConfigResource(ConfigResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})
    admin.alter_configs([resource], incremental=True)
    admin.close()

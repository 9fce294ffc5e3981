# SPDX-License-Identifier: Apache-2.0
"""What the tests of foreign clients share: topics, jobs for a client, and what must hold of its outcome."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import count as numbers
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tests.clients.drivers import LANGUAGES, Drivers, Outcome
from weir.lab.cluster import Cluster
from weir.lab.connect import through_sidecar

SIZE: Final = 20  # bytes of a value
LEAST, MOST = 0.97, 1.02  # x the limit
BUSY: Final = 2  # processes a core that run or want to: then clients are late for reasons of their own
_HARMLESS: Final = re.compile(
    "blocking the event loop|No partition metadata|CONCURRENT_TRANSACTIONS|OUT_OF_ORDER_SEQUENCE_NUMBER"
    "|Coordinator load in progress|Broker handle destroyed without termination"
)
"""What kafka-python says now and then, where the machine is slow, and when its group is ready before its metadata; and
Java where a transaction begins before the markers of the one before are written; librdkafka while the broker makes the
topic of transactions, and when it learns a broker's id while it asks that one for its own."""
_ids = numbers()

every_client = pytest.mark.parametrize("client", LANGUAGES)


def new_topic(cluster: Cluster) -> str:
    """Make a topic of one partition; its name is also the id of the client that uses it."""
    topic = f"topic-{next(_ids)}"
    cluster.create_topic(topic, {0: [1]}, {"message.timestamp.type": "LogAppendTime"})
    return topic


def limit(cluster: Cluster, client_id: str | None, records: float = 0) -> None:
    entries = [] if client_id is None else [{"client_id": client_id, "record.rate.limit": records}]
    status, body = cluster.sidecars[1].http("PUT", "/v1/limits", {"client": entries})
    assert status == 200, body


def filled(cluster: Cluster, records: int, batch: int) -> str:
    """Make a topic of one partition with that many records, the numbers from 0 on."""
    topic = new_topic(cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers[0], "linger.ms": 1000, "batch.size": 10**6})
    for number in range(records):
        producer.produce(topic, f"{number:08d}".ljust(SIZE, "x"), partition=0)
        if number % batch == batch - 1:
            producer.flush()
    producer.flush()
    return topic


def written(cluster: Cluster, topic: str) -> Outcome:
    """Return the committed records of a topic's log, by when the broker appended them, read past the sidecar."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers[0], "group.id": "check", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: set[bytes] = set()
    arrivals: Counter[int] = Counter()
    is_read = False
    while not is_read:
        for message in consumer.consume(5000, timeout=1):
            if (error := message.error()) is None:
                seen.add((message.value() or b"")[:8])
                arrivals[message.timestamp()[1] // 10] += 1
            else:
                is_read = error.code() == KafkaError._PARTITION_EOF
    consumer.close()
    return Outcome(arrivals.total(), len(seen), {str(at): records for at, records in arrivals.items()}, [])


def arrived(cluster: Cluster, topic: str, count: int) -> bool:
    """Return whether a topic without transactions has so many records."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers[0], "group.id": "check"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return int(end) >= count


def run(cluster: Cluster, drivers: Drivers, client: str, role: str, topic: str, count: int, **job: Any) -> Outcome:
    found: dict[str, Any] = {"role": role, "topic": topic, "count": count, "size": SIZE, "batch": 25, "acks": -1}
    found |= {"bootstrap": through_sidecar(cluster, 1), "client_id": topic, "fetch_bytes": 1500, "seconds": 60}
    found |= {"producers": 1, "metadata_ms": 300_000}
    outcome = drivers.run(client, found | job)
    print(f"{client}: {outcome}")
    return outcome


def counted(cluster: Cluster, client_id: str) -> float:
    """Return how many records of a client the sidecar has seen."""
    return cluster.sidecars[1].metrics().value("weir_task_records_total", client_id=client_id)


def complaints(outcome: Outcome, free: Outcome | None = None) -> list[str]:
    """Return what a client complains of under a limit, without what it says of Kafka alone."""
    known = {_kind(error) for error in free.errors} if free else set()
    known |= {_kind(error) for error in outcome.errors if _HARMLESS.search(error)}
    return [error for error in outcome.errors if _kind(error) not in known]


def _kind(error: str) -> str:
    return re.sub(r"\d+", "0", error)


def check_rate(outcome: Outcome, limit: float, batch: int) -> None:
    """Check that a client kept to its limit, and that it reached it, if the machine has time for it.

    A batch's last records may be told late: sarama's with the next answer, which may bring an aborted batch. So what
    comes up to three quarters of the way to the next batch is this one's.
    """
    rate = outcome.rate(together=0.75 * batch / limit) / limit
    print(f"rate: {rate:.3f} x the limit, load {os.getloadavg()[0]:.1f}")
    assert rate <= MOST
    assert rate >= LEAST or os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


def joins(cluster: Cluster, group: str) -> int:
    """Return how often a group took a member in: once each, unless it lost one or was left.

    A member that rejoins is not among them: kafka-python's does where it joined before its metadata came, and Java's
    too where all of its brokers' ports refused for a moment, as it begins with its bootstrap addresses anew (KIP-899).
    """
    text = cluster.brokers[1].log.read_text(errors="replace")
    return len(re.findall(rf"Preparing to rebalance group {re.escape(group)} .*reason: Adding new member", text))


def lost(cluster: Cluster, group: str) -> int:
    """Return how many members a group lost as their heartbeats did not come in time."""
    text = cluster.brokers[1].log.read_text(errors="replace")
    return len(re.findall(rf"Preparing to rebalance group {re.escape(group)} .*heartbeat expiration", text))


def start_at_the_begin(cluster: Cluster, group: str) -> None:
    """Have a share group read what is there: its default is what comes."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    resource = ConfigResource(ConfigResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})
    admin.alter_configs([resource], incremental=True)
    admin.close()

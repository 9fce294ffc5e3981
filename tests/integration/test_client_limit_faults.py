# SPDX-License-Identifier: Apache-2.0
"""What befalls limited clients on a real broker: a sidecar that is killed, limits that change, clients that go."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer

from tests.integration.limited_clients import start
from weir.lab.cluster import Cluster
from weir.lab.connect import file_source, start_exactly_once_connect, through_sidecar
from weir.lab.modes import KraftCluster
from weir.lab.settings import Route

pytestmark = pytest.mark.integration

PER_BATCH, BATCHES = 25, 12
COUNT = PER_BATCH * BATCHES


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with KraftCluster(brokers=1, routes=Route.INGRESS) as running:
        yield running


def limit(cluster: Cluster, client_id: str, records: float, **more: Any) -> None:
    entry = {"client_id": client_id, "record.rate.limit": records, **more}
    status, body = cluster.sidecars[1].http("PUT", "/v1/limits", {"client": [entry]})
    assert status == 200, body


def fill(cluster: Cluster, topic: str) -> None:
    """Make a topic with the numbers from 0 on, in batches of PER_BATCH."""
    cluster.create_topic(topic, {0: [1]})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers[0], "linger.ms": 1000})
    for number in range(COUNT):
        producer.produce(topic, f"{number:06d}", partition=0)
        if number % PER_BATCH == PER_BATCH - 1:
            producer.flush()


class Reader:
    """A member of a group that reads batch by batch, and what befell it."""

    def __init__(self, cluster: Cluster, topic: str, client_id: str) -> None:
        self.numbers: list[int] = []
        self.assigned = 0
        self.timed_out: list[str] = []
        settings = {
            "bootstrap.servers": through_sidecar(cluster, 1),
            "client.id": client_id,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 1,
            "reconnect.backoff.max.ms": 500,
            "error_cb": self._error,
        }
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self._assign)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1

    def _error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT):
            self.timed_out.append(str(error))

    def read_until(self, count: int, seconds: float) -> float:
        """Read until there are so many; returns how long it took."""
        begin = time.monotonic()
        while len(self.numbers) < count:
            assert time.monotonic() < begin + seconds, (len(self.numbers), count)
            found = [message for message in self.consumer.consume(COUNT, timeout=0.05) if message.error() is None]
            self.numbers += [int(message.value() or b"") for message in found]
        return time.monotonic() - begin


def test_a_reader_bears_a_killed_sidecar_and_changed_limits(cluster: Cluster) -> None:
    fill(cluster, "borne")
    client_id = "connector-consumer-borne-0"
    limit(cluster, client_id, 5)
    reader = Reader(cluster, "borne", client_id)
    reader.read_until(PER_BATCH, 30)  # and five seconds of a pause follow
    cluster.kill_sidecar(1)
    cluster.start_sidecar(1)
    limit(cluster, client_id, 50)
    reader.read_until(2 * PER_BATCH, 20)
    limit(cluster, client_id, 0.5)  # what is left of the last batch's pause takes a hundred times as long
    time.sleep(3)
    limit(cluster, client_id, 1000)
    assert reader.read_until(COUNT, 20) < 15
    reader.consumer.close()
    assert reader.numbers == list(range(COUNT))
    assert reader.assigned == 1
    assert reader.timed_out == []


def test_a_writer_bears_a_killed_sidecar_and_changed_limits(cluster: Cluster) -> None:
    cluster.create_topic("written", {0: [1]})
    client_id = "connector-producer-written-0"
    limit(cluster, client_id, 10)
    errors: list[str] = []
    delivered: list[object] = []  # what went wrong with each record, None for nothing
    settings = {
        "bootstrap.servers": through_sidecar(cluster, 1),
        "client.id": client_id,
        "enable.idempotence": True,
        "batch.num.messages": PER_BATCH,
        "reconnect.backoff.max.ms": 500,
        "error_cb": lambda error: errors.append(str(error)) if error.fatal() else None,
    }
    producer = Producer(settings)
    for number in range(COUNT):
        producer.produce("written", f"{number:06d}", on_delivery=lambda error, _: delivered.append(error))

    def written(count: int) -> bool:
        producer.poll(0.05)
        return len(delivered) >= count

    cluster.wait_for("the first batch", lambda: written(1), 30)  # and 2.5 s of a pause follow
    assert not written(COUNT)
    cluster.kill_sidecar(1)
    cluster.start_sidecar(1)
    limit(cluster, client_id, 50)
    cluster.wait_for("another batch", lambda: written(2 * PER_BATCH + 1), 30)
    limit(cluster, client_id, 0.5)  # what is left of the last batch's pause takes a hundred times as long
    time.sleep(2)
    assert not written(COUNT)
    limit(cluster, client_id, 1000)
    cluster.wait_for("every record", lambda: written(COUNT), 20)
    assert producer.flush(10) == 0
    assert (errors, set(delivered)) == ([], {None})
    consumer = KafkaConsumer(
        "written", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=2000
    )
    assert [int(record.value) for record in consumer] == list(range(COUNT))
    consumer.close()


def test_a_killed_task_leaves_its_limit_to_the_others(cluster: Cluster) -> None:
    fill(cluster, "left")
    limit(cluster, "connector-consumer-left-*", 100, per="connector")

    def connections() -> float:
        return cluster.sidecars[1].metrics().value("weir_connections", side="leader")

    before = connections()
    gone = start("sink", through_sidecar(cluster, 1), "connector-consumer-left-0", "left", [0], seconds=60)
    try:

        def is_held() -> bool:
            found = cluster.sidecars[1].metrics().samples("weir_task_throttled_ratio")
            return any(one.labels["client_id"] == "connector-consumer-left-0" and one.value > 0 for one in found)

        cluster.wait_for("the first task's pause", is_held, 30)
    finally:
        gone.kill()
        gone.communicate()
    cluster.wait_for("its connections to be closed", lambda: connections() <= before, 20)
    reader = Reader(cluster, "left", "connector-consumer-left-1")
    reader.read_until(COUNT, 40)
    reader.consumer.close()
    assert reader.numbers == list(range(COUNT))


def test_no_transaction_is_aborted_because_of_a_limit(cluster: Cluster, tmp_path: Path) -> None:
    # Kafka's file source keeps up to 8 KB of its last lines until more are written: what is asked for is less.
    lines, count = tmp_path / "in.txt", 1000
    lines.write_text("".join(f"{number:06d}\n" for number in range(2 * count)))
    cluster.create_topic("exactly", {0: [1]})
    limit(cluster, "connector-producer-exactly-*", 150)
    source = file_source("exactly", "exactly", lines, **{"batch.size": PER_BATCH})
    worker = start_exactly_once_connect(cluster, through_sidecar(cluster, 1), tmp_path / "connect", [source])

    def records() -> float:
        found = cluster.sidecars[1].metrics().samples("weir_task_records_total")
        return sum(one.value for one in found if "connector-producer-exactly" in one.labels["client_id"])

    cluster.wait_for("the first records", lambda: records() > 0, 60)
    begin, before = time.monotonic(), records()
    cluster.wait_for("every record", lambda: records() >= count, 60)
    seconds = time.monotonic() - begin
    assert count - before <= 150 * (seconds + 2)
    limit(cluster, "connector-producer-exactly-*", 100_000)
    found = {}
    for level in ("read_committed", "read_uncommitted"):
        consumer = KafkaConsumer(
            "exactly",
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level=level,
            consumer_timeout_ms=3000,
        )
        found[level] = sorted(int(record.value) for record in consumer)
        consumer.close()
    worker.stop()
    read = found["read_committed"]
    assert len(read) >= count
    assert read == found["read_uncommitted"] == list(range(len(read)))  # an aborted transaction's would come twice
    assert not re.search(r"TimeoutException|ProducerFenced|InvalidProducerEpoch|[Aa]borting", worker.output())

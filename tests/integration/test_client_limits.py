# SPDX-License-Identifier: Apache-2.0
"""Real clients, and Kafka Connect, held to rates of records through a sidecar."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.browser import Browser
from weir.lab.cluster import Cluster
from weir.lab.connect import file_sink, file_source, mirror_source, start_connect, through_sidecar
from weir.lab.modes import KraftCluster
from weir.lab.settings import Route

pytestmark = pytest.mark.integration

SECONDS = 8.0
SINK_LIMIT, SOURCE_LIMIT = 1000, 500
PER_BATCH = 25

Arrival = tuple[float, list[int]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with KraftCluster(brokers=1, routes=Route.INGRESS) as running:
        yield running


def limit(cluster: Cluster, *entries: dict[str, Any]) -> None:
    status, body = cluster.sidecars[1].http("PUT", "/v1/limits", {"client": list(entries)})
    assert status == 200, body


def fill(cluster: Cluster, topic: str, records: int) -> None:
    """Make a topic of two partitions whose values are the numbers from 0 on, in small batches."""
    cluster.create_topic(topic, {0: [1], 1: [1]})
    settings = {"bootstrap.servers": cluster.bootstrap_servers[0], "batch.num.messages": PER_BATCH, "linger.ms": 50}
    producer = Producer(settings)
    for number in range(records):
        producer.produce(topic, f"{number:06d}", partition=number // PER_BATCH % 2)
        if number % 1000 == 0:
            producer.flush()
    producer.flush()


def by_kafka_python(servers: str, topic: str, client_id: str) -> list[Arrival]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        client_id=client_id,
        group_id=client_id,
        auto_offset_reset="earliest",
        fetch_max_bytes=1000,
        max_partition_fetch_bytes=1000,
    )
    found: list[Arrival] = []
    while not found or time.monotonic() < found[0][0] + SECONDS:
        polled = consumer.poll(timeout_ms=200).values()
        found += [(time.monotonic(), [int(record.value) for record in records]) for records in polled]
    consumer.close()
    return found


def by_confluent(servers: str, topic: str, client_id: str) -> list[Arrival]:
    settings = {"bootstrap.servers": servers, "client.id": client_id, "group.id": client_id}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "max.partition.fetch.bytes": 1000})
    consumer.subscribe([topic])
    found: list[Arrival] = []
    while not found or time.monotonic() < found[0][0] + SECONDS:
        messages = [message for message in consumer.consume(1000, timeout=0.02) if message.error() is None]
        if messages:
            found.append((time.monotonic(), [int(message.value() or b"") for message in messages]))
    consumer.close()
    return found


def by_aiokafka(servers: str, topic: str, client_id: str) -> list[Arrival]:
    async def read() -> list[Arrival]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            client_id=client_id,
            group_id=client_id,
            auto_offset_reset="earliest",
            fetch_max_bytes=1000,
            max_partition_fetch_bytes=1000,
        )
        await consumer.start()
        found: list[Arrival] = []
        while not found or time.monotonic() < found[0][0] + SECONDS:
            polled = (await consumer.getmany(timeout_ms=200)).values()
            found += [(time.monotonic(), [int(record.value) for record in records]) for records in polled]
        await consumer.stop()
        return found

    return asyncio.run(read())


def test_python_consumers_are_held_to_their_rate(cluster: Cluster) -> None:
    fill(cluster, "read", 12_000)
    limit(cluster, {"client_id": "connector-consumer-*", "record.rate.limit": SINK_LIMIT})
    servers = through_sidecar(cluster, 1)
    readers: dict[str, Callable[[str, str, str], list[Arrival]]] = {
        "connector-consumer-kp-0": by_kafka_python,
        "connector-consumer-confluent-0": by_confluent,
        "connector-consumer-aio-0": by_aiokafka,
        "free": by_confluent,
    }
    with ThreadPoolExecutor(len(readers)) as threads:
        running = {name: threads.submit(read, servers, "read", name) for name, read in readers.items()}
        found = {name: future.result(60) for name, future in running.items()}
    for name, arrivals in found.items():
        numbers = [number for _, batch in arrivals for number in batch]
        assert Counter(numbers).most_common(1)[0][1] == 1, name
        if name == "free":
            assert len(numbers) == 12_000
            continue
        seconds = arrivals[-1][0] - arrivals[0][0]
        rate = sum(len(batch) for _, batch in arrivals[:-1]) / seconds
        assert 0.6 * SINK_LIMIT < rate < 1.05 * SINK_LIMIT, (name, rate)
        metrics = cluster.sidecars[1].metrics()
        assert metrics.value("weir_task_throttled_ratio", client_id=name) > 0.5


def test_page_shows_a_client_against_its_limit(cluster: Cluster, browser: Browser, tmp_path: Path) -> None:
    """On a desk and on a phone: its rate, how much of the time it waits, and what was before the page was opened."""
    name = "connector-consumer-shown-0"
    waits = "parseInt(document.querySelector('#limits tbody').rows[0].cells[3].textContent)"
    fill(cluster, "shown", 3000)
    limit(cluster, {"client_id": "connector-consumer-shown-*", "record.rate.limit": 100})
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(by_confluent, through_sidecar(cluster, 1), "shown", name)
        for width, scheme in ((1280, "light"), (360, "dark")):
            browser.look(width, 740, scheme=scheme, touch=width == 360)
            browser.open(f"http://{cluster.sidecars[1].admin_address}/")
            browser.wait_for(f"document.querySelector('#limits tbody')?.rows.length === 1 && {waits} > 30", 30)
            browser.wait_for("document.querySelector('#limits .readout')?.textContent.startsWith('Last minute: ')")
            assert browser.evaluate("document.documentElement.scrollWidth") == width
            (tmp_path / f"{width}.png").write_bytes(browser.picture())
        shown = browser.evaluate("[...document.querySelector('#limits tbody').rows[0].cells].map((c) => c.textContent)")
        assert shown[0] == f"{name}shown, sink task 0"
        assert shown[2] == "100/s"
        assert browser.complaints == []
        reading.result(60)


def test_python_producers_are_held_to_their_rate(cluster: Cluster) -> None:
    """One of them by transactions, none of which is aborted."""
    servers, count = through_sidecar(cluster, 1), 2000
    for topic in ("by-kp", "by-confluent", "by-aio", "by-transactions"):
        cluster.create_topic(topic, {0: [1]})
    limit(cluster, {"client_id": "connector-producer-*", "record.rate.limit": SOURCE_LIMIT})

    def kafka_python() -> None:
        producer = KafkaProducer(bootstrap_servers=servers, client_id="connector-producer-kp-0", batch_size=1000)
        sent = [producer.send("by-kp", b"%06d" % number) for number in range(count)]
        for future in sent:
            future.get(60)
        producer.close()

    def confluent() -> None:
        settings = {"bootstrap.servers": servers, "client.id": "connector-producer-confluent-0"}
        producer = Producer(settings | {"batch.num.messages": PER_BATCH})
        for number in range(count):
            producer.produce("by-confluent", b"%06d" % number)
        assert producer.flush(60) == 0

    def transactions() -> None:
        settings = {"bootstrap.servers": servers, "client.id": "connector-producer-exactly-0"}
        producer = Producer(settings | {"transactional.id": "t", "batch.num.messages": PER_BATCH})
        producer.init_transactions(30)
        for begin in range(0, count, 200):
            producer.begin_transaction()
            for number in range(begin, begin + 200):
                producer.produce("by-transactions", b"%06d" % number)
            producer.commit_transaction(30)

    def aiokafka() -> None:
        async def write() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers, client_id="connector-producer-aio-0", max_batch_size=1000
            )
            await producer.start()
            sent = [await producer.send("by-aio", b"%06d" % number) for number in range(count)]
            await asyncio.gather(*sent)
            await producer.stop()

        asyncio.run(write())

    begin = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(write) for write in (kafka_python, confluent, transactions, aiokafka)]
        for future in running:
            future.result(90)
    seconds = time.monotonic() - begin
    assert seconds >= 0.95 * count / SOURCE_LIMIT
    assert seconds < 3 * count / SOURCE_LIMIT
    for topic in ("by-kp", "by-confluent", "by-aio", "by-transactions"):
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=2000,
        )
        assert sorted(int(record.value) for record in consumer) == list(range(count)), topic
        consumer.close()


def test_sink_source_and_mirror_are_held_to_their_limits(cluster: Cluster, tmp_path: Path) -> None:
    servers, count = through_sidecar(cluster, 1), 10_000
    fill(cluster, "sinked", count)
    fill(cluster, "mirrored", count)
    cluster.create_topic("sourced", {0: [1]})
    lines, written = tmp_path / "in.txt", tmp_path / "out.txt"
    lines.write_text("".join(f"{number:06d}\n" for number in range(8000)))
    limit(
        cluster,
        {"client_id": "connector-consumer-files-*", "record.rate.limit": SINK_LIMIT, "per": "connector"},
        {"client_id": "connector-producer-lines-*", "record.rate.limit": SOURCE_LIMIT},
        {"client_id": "A->B|*|replication-consumer", "record.rate.limit": SINK_LIMIT},
    )
    small = {"consumer.override.max.partition.fetch.bytes": 1000, "consumer.override.fetch.max.bytes": 1000}
    fetches = {"source.consumer.max.partition.fetch.bytes": 1000, "source.consumer.fetch.max.bytes": 1000}
    connectors = [
        file_sink("files", "sinked", written, **small),
        file_source("lines", "sourced", lines, **{"batch.size": PER_BATCH}),
        mirror_source("flow", servers, servers, "mirrored", **fetches),
    ]
    worker = start_connect(cluster, servers, tmp_path / "connect", connectors)

    def records() -> dict[str, float]:
        found = cluster.sidecars[1].metrics().samples("weir_task_records_total")
        return {sample.labels["client_id"]: sample.value for sample in found}

    ids = {
        "connector-consumer-files-0": SINK_LIMIT,
        "connector-producer-lines-0": SOURCE_LIMIT,
        "A->B|flow-0|replication-consumer": SINK_LIMIT,
    }
    cluster.wait_for("all three tasks", lambda: all(records().get(one, 0) > 500 for one in ids), 60)
    begin, before = time.monotonic(), records()
    time.sleep(8)
    end, after = time.monotonic(), records()
    # While a source's producer waits, up to 16 KB of records (batch.size) come together in its next Produce.
    in_a_batch = {"connector-producer-lines-0": 16_384 // len("000000") // 2}
    for one, rate in ids.items():
        moved, expected, slack = after[one] - before[one], rate * (end - begin), in_a_batch.get(one, 0)
        assert 0.6 * expected - slack < moved < 1.1 * expected + slack, (one, before, after)
    cluster.wait_for("every record in the sink's file", lambda: records()["connector-consumer-files-0"] >= count, 30)
    worker.stop()
    assert sorted(written.read_text().split()) == [f"{number:06d}" for number in range(count)]
    log = worker.output()
    assert len(re.findall(r"groupId=connect-files\] Successfully joined group", log)) == 1
    assert not re.search(r"TimeoutException|Disconnect|Expiring \d+ record", log)

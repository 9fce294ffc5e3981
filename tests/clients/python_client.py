# SPDX-License-Identifier: Apache-2.0
"""Runs one of Python's Kafka clients as a job says, and prints what happened as one line of JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

Job = dict[str, Any]


class Outcome(logging.Handler):
    """What came or was acknowledged, by hundredths of a second since the start, and what clients complained of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._begin = time.monotonic()
        self._seen: set[bytes] = set()
        self._arrivals: Counter[int] = Counter()
        self._errors: list[str] = []

    def add(self, value: bytes) -> None:
        """Note a record."""
        self._seen.add(value[:8])
        self._arrivals[int((time.monotonic() - self._begin) * 100)] += 1

    def fail(self, error: object) -> None:
        """Note what went wrong."""
        self._errors.append(str(error))

    def emit(self, record: logging.LogRecord) -> None:
        """Note what a client logs."""
        self.fail(record.getMessage())

    def goes_on(self, job: Job) -> bool:
        """Return whether there is something left to do, and time for it."""
        return len(self._seen) < job["count"] and self.left(job) > 0

    def left(self, job: Job) -> float:
        """Return the seconds that are left."""
        return max(0.0, float(job["seconds"]) - (time.monotonic() - self._begin))

    def show(self) -> None:
        """Print it."""
        found = {"records": self._arrivals.total(), "distinct": len(self._seen)}
        print(json.dumps({**found, "arrivals": self._arrivals, "errors": self._errors}))


def _values(job: Job) -> list[bytes]:
    """Return what one of the job's producers writes."""
    numbers = range(job["first"], job["count"], job["producers"])
    return [f"{number:08d}".ljust(job["size"], "x").encode() for number in numbers]


def _librdkafka(job: Job, outcome: Outcome) -> None:
    settings = {"bootstrap.servers": job["bootstrap"], "client.id": job["client_id"], "error_cb": outcome.fail}
    settings |= {"logger": logging.getLogger("librdkafka")}
    if job["role"] == "transact":
        _transact(job, outcome, Producer(settings | {"transactional.id": job["client_id"]}))
        return
    if job["role"] == "produce":
        more = {"batch.num.messages": job["batch"], "acks": job["acks"], "enable.idempotence": job["acks"] == -1}
        producer = Producer(settings | more | {"max.in.flight": 5, "linger.ms": 20})
        for value in _values(job):
            producer.produce(
                job["topic"],
                value,
                on_delivery=lambda error, message: (
                    outcome.fail(error) if error else outcome.add(message.value() or b"")
                ),
            )
        producer.flush(outcome.left(job))
        return
    consumer = Consumer(
        settings
        | {"group.id": job["client_id"], "auto.offset.reset": "earliest"}
        | {"max.partition.fetch.bytes": job["fetch_bytes"]}
    )
    consumer.subscribe([job["topic"]])
    while outcome.goes_on(job):
        for message in consumer.consume(1000, timeout=0.02):
            if message.error() is None:
                outcome.add(message.value() or b"")
    consumer.close()


def _transact(job: Job, outcome: Outcome, producer: Producer) -> None:
    """Write `batch` records in each transaction, and abort every second one."""
    producer.init_transactions()
    values = _values(job)
    for number, first in enumerate(range(0, len(values), job["batch"])):
        part = values[first : first + job["batch"]]
        producer.begin_transaction()
        for value in part:
            producer.produce(job["topic"], value, on_delivery=lambda error, _: outcome.fail(error) if error else None)
        producer.flush(outcome.left(job))
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            for value in part:
                outcome.add(value)


def _kafka_python(job: Job, outcome: Outcome) -> None:
    settings = {"bootstrap_servers": job["bootstrap"], "client_id": job["client_id"]}
    if job["role"] == "produce":
        acks = {-1: "all"}.get(job["acks"], job["acks"])
        size = job["batch"] * (job["size"] + 8) + 100
        producer = KafkaProducer(**settings, acks=acks, enable_idempotence=acks == "all", batch_size=size, linger_ms=20)
        for value in _values(job):
            sent = producer.send(job["topic"], value)
            sent.add_callback(lambda _, value=value: outcome.add(value))
            sent.add_errback(outcome.fail)
        producer.flush(outcome.left(job))
        producer.close()
        return
    consumer = KafkaConsumer(
        job["topic"],
        **settings,
        group_id=job["client_id"],
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=job["fetch_bytes"],
    )
    while outcome.goes_on(job):
        for records in consumer.poll(timeout_ms=100).values():
            for record in records:
                outcome.add(record.value)
    consumer.close()


def _aiokafka(job: Job, outcome: Outcome) -> None:
    asyncio.run(_by_aiokafka(job, outcome))


async def _by_aiokafka(job: Job, outcome: Outcome) -> None:
    settings = {"bootstrap_servers": job["bootstrap"], "client_id": job["client_id"]}
    if job["role"] == "produce":
        acks = {-1: "all"}.get(job["acks"], job["acks"])
        size = job["batch"] * (job["size"] + 8) + 100
        producer = AIOKafkaProducer(
            **settings, acks=acks, enable_idempotence=acks == "all", max_batch_size=size, linger_ms=20
        )
        await producer.start()

        async def send(value: bytes) -> None:
            try:
                await (await producer.send(job["topic"], value))
                outcome.add(value)
            except Exception as error:  # noqa: BLE001 - any error is what is asked for
                outcome.fail(error)

        await asyncio.wait([asyncio.ensure_future(send(value)) for value in _values(job)], timeout=outcome.left(job))
        await producer.stop()
        return
    consumer = AIOKafkaConsumer(
        job["topic"],
        **settings,
        group_id=job["client_id"],
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=job["fetch_bytes"],
    )
    await consumer.start()
    while outcome.goes_on(job):
        for records in (await consumer.getmany(timeout_ms=100)).values():
            for record in records:
                outcome.add(record.value)
    await consumer.stop()


CLIENTS: Final[dict[str, Callable[..., None]]] = {
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
}


def main() -> None:
    """Do the job that the first argument describes."""
    job, outcome = json.loads(sys.argv[1]), Outcome()
    logging.getLogger().addHandler(outcome)
    jobs = [{**job, "first": first} for first in range(job["producers"])]
    with ThreadPoolExecutor(len(jobs)) as together:
        list(together.map(partial(CLIENTS[job["client"]], outcome=outcome), jobs))
    outcome.show()


if __name__ == "__main__":
    main()

"""Clients of the bench of limits, each in a process of its own: `python -m bench.limited_clients KIND OPTIONS`.

They print when how many records came or were acknowledged, as JSON: [[monotonic seconds, records], ...].
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

VALUE = b"x" * 20
_GRAIN = 0.005  # seconds that are told as one
_QUEUED = 4  # batches that a source has ready


class Arrivals:
    """Counts of records by time."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, records: int) -> None:
        """Count records that came now."""
        self._counts[int(time.monotonic() / _GRAIN)] += records

    def show(self) -> None:
        """Print all of them."""
        print(json.dumps([[at * _GRAIN, records] for at, records in sorted(self._counts.items())]))


def sink(options: argparse.Namespace, found: Arrivals) -> None:
    """Read from the begin of the partitions; after `--move-after` seconds from those of `--move-to` only."""
    settings = {"bootstrap.servers": options.servers, "client.id": options.client_id, "group.id": options.client_id}
    small = {} if options.large else {"max.partition.fetch.bytes": 1}  # then an answer has one batch
    consumer = Consumer(settings | small | {"enable.auto.commit": False})
    every = [*options.partitions, *options.move_to]
    consumer.assign([TopicPartition(options.topic, one, 0) for one in every])
    if options.move_to:
        consumer.pause([TopicPartition(options.topic, one) for one in options.move_to])
    begin = time.monotonic()
    has_moved = not options.move_to
    while (now := time.monotonic()) < begin + options.seconds:
        if not has_moved and now >= begin + options.move_after:
            has_moved = True
            consumer.pause([TopicPartition(options.topic, one) for one in options.partitions])
            consumer.resume([TopicPartition(options.topic, one) for one in options.move_to])
        if messages := consumer.consume(5000, timeout=0.005):
            found.add(sum([message.error() is None for message in messages]))
    consumer.close()


def python_sink(options: argparse.Namespace, found: Arrivals) -> None:
    """Read as kafka-python does."""
    small = {} if options.large else {"max_partition_fetch_bytes": 1}
    consumer = KafkaConsumer(
        bootstrap_servers=options.servers, client_id=options.client_id, auto_offset_reset="earliest", **small
    )
    consumer.assign([PythonPartition(options.topic, one) for one in options.partitions])
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        polled = consumer.poll(timeout_ms=50, max_records=5000)
        if polled:
            found.add(sum([len(records) for records in polled.values()]))
    consumer.close()


def source(options: argparse.Namespace, found: Arrivals) -> None:
    """Write whole batches to one partition after the other, never more ahead than a few."""
    settings = {"bootstrap.servers": options.servers, "client.id": options.client_id, "linger.ms": 50}
    batches = {"batch.num.messages": options.batch, "batch.size": 10_000_000, "max.in.flight": 5}
    producer = Producer(settings | batches | {"queue.buffering.max.messages": 2_000_000})
    end = time.monotonic() + options.seconds
    number = 0

    def delivered(error: object, _: object) -> None:
        if error is None:
            found.add(1)

    while time.monotonic() < end:
        if len(producer) > _QUEUED * len(options.partitions) * options.batch:
            producer.poll(0.005)
            continue
        partition = options.partitions[number % len(options.partitions)]
        number += 1
        for _ in range(options.batch):
            producer.produce(options.topic, VALUE, partition=partition, on_delivery=delivered)
        producer.poll(0)
    producer.purge()
    producer.flush(5)


def fill(options: argparse.Namespace, found: Arrivals) -> None:
    """Fill each partition with `--records` in whole batches."""
    settings = {"bootstrap.servers": options.servers, "client.id": "fill", "linger.ms": 1000}
    batches = {"batch.num.messages": options.batch, "batch.size": 10_000_000}
    producer = Producer(settings | batches | {"queue.buffering.max.messages": 2_000_000})
    for partition in options.partitions:
        for number in range(max(options.batch, options.records // options.batch * options.batch)):
            while True:
                try:
                    producer.produce(options.topic, VALUE, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
    producer.flush()


KINDS = {"sink": sink, "python-sink": python_sink, "source": source, "fill": fill}


def main() -> int:
    """Run one client for some seconds."""
    options = argparse.ArgumentParser(prog="python -m bench.limited_clients")
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--servers", required=True)
    options.add_argument("--client-id", required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--partitions", type=int, nargs="+", required=True)
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--batch", type=int, default=100)
    options.add_argument("--records", type=int, default=0)
    options.add_argument("--large", action="store_true", help="answers as large as the client likes")
    options.add_argument("--move-to", type=int, nargs="*", default=[])
    options.add_argument("--move-after", type=float, default=0)
    chosen = options.parse_args()
    found = Arrivals()
    KINDS[chosen.kind](chosen, found)
    found.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Clients that limits are for, each in a process of its own (`start`), for tests and the bench of limits.

They print when how many records came or were acknowledged, as JSON: [[monotonic seconds, records], ...].
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

Client = subprocess.Popen[str]

VALUE = b"x" * 20
_GRAIN = 0.005  # seconds that are told as one
_QUEUED = 4  # batches that a source has ready
_CHECKOUT = Path(__file__).parents[2]


def start(kind: str, servers: str, client_id: str, topic: str, partitions: Sequence[int], **more: object) -> Client:
    """Start a client: a `sink`, a `source`, or one that fills a topic (`fill`), with more of their arguments."""
    options = {"servers": servers, "client_id": client_id, "topic": topic, "partitions": [*partitions], **more}
    code = f"from tests.integration.limited_clients import {kind}; {kind}(**{options!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=_CHECKOUT)


class _Arrivals:
    """Counts of records by time."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, records: int) -> None:
        self._counts[int(time.monotonic() / _GRAIN)] += records

    def show(self) -> None:
        print(json.dumps([[at * _GRAIN, records] for at, records in sorted(self._counts.items())]))


def sink(
    servers: str,
    client_id: str,
    topic: str,
    partitions: list[int],
    seconds: float,
    move_to: Sequence[int] = (),
    move_after: float = 0.0,
) -> None:
    """Read from the begin of the partitions, a batch an answer; after `move_after` seconds from `move_to` only."""
    settings = {"bootstrap.servers": servers, "client.id": client_id, "group.id": client_id}
    consumer = Consumer(settings | {"max.partition.fetch.bytes": 1, "enable.auto.commit": False})
    before, after = ([TopicPartition(topic, one, 0) for one in some] for some in (partitions, move_to))
    consumer.assign(before + after)
    consumer.pause(after)
    found = _Arrivals()
    begin = time.monotonic()
    has_moved = not move_to
    while (now := time.monotonic()) < begin + seconds:
        if not has_moved and now >= begin + move_after:
            has_moved = True
            consumer.pause(before)
            consumer.resume(after)
        if messages := consumer.consume(5000, timeout=0.005):
            found.add(sum([message.error() is None for message in messages]))
    consumer.close()
    found.show()


def source(servers: str, client_id: str, topic: str, partitions: list[int], seconds: float, batch: int) -> None:
    """Write whole batches to one partition after the other, never more ahead than a few."""
    producer = _producer(servers, client_id, batch, linger=50)
    found = _Arrivals()
    end = time.monotonic() + seconds
    number = 0

    def delivered(error: object, _: object) -> None:
        if error is None:
            found.add(1)

    while time.monotonic() < end:
        if len(producer) > _QUEUED * len(partitions) * batch:
            producer.poll(0.005)
            continue
        for _ in range(batch):
            producer.produce(topic, VALUE, partition=partitions[number % len(partitions)], on_delivery=delivered)
        number += 1
        producer.poll(0)
    producer.purge()
    producer.flush(5)
    found.show()


def fill(servers: str, client_id: str, topic: str, partitions: list[int], batch: int, records: int) -> None:
    """Fill each partition with so many records in whole batches."""
    producer = _producer(servers, client_id, batch, linger=1000)
    for partition in partitions:
        for _ in range(max(1, records // batch)):
            for _ in range(batch):
                producer.produce(topic, VALUE, partition=partition)
            while len(producer) > 1_000_000:
                producer.poll(0.1)
    producer.flush()
    _Arrivals().show()


def _producer(servers: str, client_id: str, batch: int, linger: int) -> Producer:
    settings = {"bootstrap.servers": servers, "client.id": client_id, "linger.ms": linger, "max.in.flight": 5}
    batches = {"batch.num.messages": batch, "batch.size": 10_000_000, "queue.buffering.max.messages": 2_000_000}
    return Producer(settings | batches)

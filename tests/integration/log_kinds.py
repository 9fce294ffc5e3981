# SPDX-License-Identifier: Apache-2.0
"""Topics of every kind that a log can hold: each codec, transactions, compaction, batches larger than a fetch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaProducer

from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.produce import fill, in_own_loop, numbered, read_numbers, read_records
from weir.lab.settings import has_record_batches, has_zstd

REPLICA_FETCH_MAX_BYTES: Final = 65_536
LARGE_BATCH_BYTES: Final = 200_000
PROPERTIES: Final[Mapping[str, object]] = {
    "replica.fetch.max.bytes": REPLICA_FETCH_MAX_BYTES,
    "log.cleaner.backoff.ms": 200,  # instead of 15 s between looks for something to clean
}
"""Properties that the brokers of such topics need."""

_PARTITIONS: Final = (0, 1)
_BATCH_BYTES: Final = 50_000  # below replica.fetch.max.bytes
_MESSAGE_BYTES: Final = 2_000
_TRANSACTIONS: Final = 30
_KEYS: Final = 50
_SEGMENT_BYTES: Final = 2**20  # the smallest that Kafka 4 allows (KIP-1030)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKinds:
    """Topics of every kind, and what has to be read from any replica of them.

    `committed` are the numbers of the records in `transactions` that were not aborted; `last_values` has the last value
    of every key in `compacted`. On a level without transactions there is no such topic.
    """

    topics: tuple[str, ...]
    committed: frozenset[int]
    last_values: Mapping[bytes, bytes]

    def check_records(self, cluster: Cluster) -> None:
        """Read the topics whose records are known from their present leaders, and compare. Raises LabError."""
        servers = cluster.bootstrap_servers
        if "transactions" in self.topics:
            numbers = read_numbers(servers, "transactions", _PARTITIONS, committed=True)
            if sorted(numbers) != sorted(self.committed):
                raise LabError(f"{len(numbers)} records read as committed, {len(self.committed)} were.")
        records = read_records(servers, "compacted", _PARTITIONS)
        if len(records) == _compacted_records():
            raise LabError("The cleaner removed no record.")
        last = {record.key: record.value for record in records}
        if wrong := [
            key for key in last.keys() | self.last_values.keys() if last.get(key) != self.last_values.get(key)
        ]:
            raise LabError(f"{len(wrong)} keys of the compacted topic have another last value, as {wrong[0]!r}.")


def create_log_kinds(cluster: Cluster, level: str, replicas: Sequence[int], topic_bytes: int) -> LogKinds:
    """Create and fill a topic of each kind that the level has, of about `topic_bytes` each, and have one compacted.

    The cluster's brokers need PROPERTIES.
    """
    codecs = ["lz4", "snappy", "gzip", *(["zstd"] if has_zstd(level) else [])]
    transactions = ["transactions"] if has_record_batches(level) else []
    topics = (*codecs, "large", "compacted", *transactions)
    for topic in topics:
        configs = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0"}
        cluster.create_topic(topic, dict.fromkeys(_PARTITIONS, replicas), configs if topic == "compacted" else None)
    servers = cluster.bootstrap_servers
    sizes = dict.fromkeys(_PARTITIONS, topic_bytes // len(_PARTITIONS))
    for codec in codecs:
        fill(servers, codec, sizes, message_bytes=_MESSAGE_BYTES, compression=codec, batch_bytes=_BATCH_BYTES)
    # one batch each, also on levels that keep single messages
    fill(servers, "large", sizes, message_bytes=LARGE_BATCH_BYTES)
    committed = in_own_loop(_transactions(servers, topic_bytes)) if transactions else frozenset()
    last_values = in_own_loop(_keyed(servers))
    cluster.wait_for("a cleaned log", lambda: _is_cleaned(cluster, replicas[0]), 60)
    return LogKinds(topics=topics, committed=committed, last_values=last_values)


async def _transactions(servers: Sequence[str], total: int) -> frozenset[int]:
    """Send transactions, and abort every third one. Returns the numbers of the records in the others."""
    committed: set[int] = set()
    each = total // _TRANSACTIONS // _MESSAGE_BYTES
    async with AIOKafkaProducer(bootstrap_servers=list(servers), transactional_id="lab", linger_ms=5) as producer:
        for transaction in range(_TRANSACTIONS):
            numbers = range(transaction * each, (transaction + 1) * each)
            await producer.begin_transaction()
            for number in numbers:
                value = numbered(number, _MESSAGE_BYTES)
                await producer.send("transactions", value, partition=number % len(_PARTITIONS))
            if transaction % 3 == 2:
                await producer.flush()  # otherwise nothing of it might have been sent
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                committed.update(numbers)
    return frozenset(committed)


def _compacted_records() -> int:
    """Return how many records fill two segments of each partition and a part of a third."""
    return len(_PARTITIONS) * 5 * _SEGMENT_BYTES // 2 // _MESSAGE_BYTES


async def _keyed(servers: Sequence[str]) -> dict[bytes, bytes]:
    """Write every key several times. Returns the last value of each."""
    source = random.Random(2)
    last: dict[bytes, bytes] = {}
    async with AIOKafkaProducer(bootstrap_servers=list(servers), acks="all", linger_ms=5) as producer:
        for number in range(_compacted_records()):
            key = number % _KEYS
            name = b"key-%d" % key
            last[name] = source.randbytes(_MESSAGE_BYTES)
            await producer.send("compacted", last[name], key=name, partition=key % len(_PARTITIONS))
    return last


def _is_cleaned(cluster: Cluster, broker_id: int) -> bool:
    """Return whether a broker's cleaner has reached the active segment of every partition, and so is done.

    Its checkpoint file has a line for each partition: topic, partition, and the offset up to which it has cleaned.
    """
    checkpoint = cluster.brokers[broker_id].data / "cleaner-offset-checkpoint"
    cleaned = set(checkpoint.read_text().splitlines()) if checkpoint.exists() else set()
    return all(
        f"compacted {partition} {int(cluster.segments('compacted', partition, broker_id)[-1].stem)}" in cleaned
        for partition in _PARTITIONS
    )

# SPDX-License-Identifier: Apache-2.0
"""The records of a chaos run: what was sent and acknowledged, what was read back, and whether the two agree."""

from __future__ import annotations

import struct
import time
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.chaos.watch import Background
from weir.control.cluster_admin import Partition
from weir.lab.errors import LabError
from weir.lab.produce import read_records

_HEAD: Final = struct.Struct(">QI")  # of a record: its number within its partition, and the checksum of the rest
_PADDING: Final = Random(1).randbytes(1 << 20)
_UNKNOWN_FOR_NOW: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_QUEUED: Final = 50_000  # records that may wait in the client: minutes of a stalled cluster
_POLL_SECONDS: Final = 0.02
_SHOWN: Final = 5  # numbers of a kind that are named
_BATCH: Final = struct.Struct(">qi4xb6xi16xqhi4x")  # of a log: what Batch names, the sizes, and what lies between
_RECORD_BATCHES: Final = 2  # the magic byte of logs whose batches tell their producer
_BATCH_HEAD: Final = 12  # bytes before those that a batch's size counts


class Entry(NamedTuple):
    """A record as it was read: its number, whether its bytes are the ones that were sent, where, and who sent it."""

    number: int
    whole: bool
    offset: int = -1
    producer: tuple[int, int] | None = None  # id and epoch


class Batch(NamedTuple):
    """The producer (id and epoch) of the records up to an offset."""

    last_offset: int
    producer: tuple[int, int]


def pack(number: int, size: int) -> bytes:
    """Return a record of about `size` bytes that tells its number."""
    start = number * 31 % (len(_PADDING) - size) if size < len(_PADDING) else 0
    padding = _PADDING[start : start + size - _HEAD.size]
    return _HEAD.pack(number, zlib.crc32(padding, number)) + padding


def unpack(value: bytes) -> Entry:
    """Return what a record says of itself."""
    if len(value) < _HEAD.size:
        return Entry(-1, False)
    number, checksum = _HEAD.unpack_from(value)
    return Entry(number, checksum == zlib.crc32(memoryview(value)[_HEAD.size :], number))


WRONG: Final = {
    "lost": "acked records are lost",
    "twice": "records came twice",
    "late": "records came behind later ones",
    "damaged": "records are damaged",
    "unknown": "records were read that nobody sent",
}
_NOT_IDEMPOTENT: Final = {"twice", "late"}


@dataclass(slots=True)
class Verdict:
    """The accounts of all partitions together: `counts` by kind, and a few sentences' worth of examples.

    The kinds are those of WRONG, and `acked`, `read` and `sent_again`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def violations(self, idempotent: bool) -> list[str]:
        """Return what must not be, a sentence each.

        A producer that is not idempotent sends a batch again whose answer was lost, and the next one beside it when the
        leader changes: its records may come twice, and behind later ones.
        """
        allowed = set() if idempotent else _NOT_IDEMPOTENT
        found = [(self.counts[kind], what) for kind, what in WRONG.items() if kind not in allowed]
        return [f"{count} {what}: {'; '.join(self.examples)}" for count, what in found if count]


def account(
    sent: Mapping[Partition, int], acked: Mapping[Partition, Collection[int]], read: Mapping[Partition, Sequence[Entry]]
) -> Verdict:
    """Compare what was sent (numbers from 0 below `sent`), what was acknowledged, and what was read in its order.

    A record that was sent and not acknowledged may be there, once, or not. A record that comes again is a duplicate
    wherever it stands, unless it has another producer: a client that gives up its producer id, as librdkafka does when
    a new leader finds its numbers out of order, sends again whatever was not acknowledged, and no broker can know that.
    A record that first comes behind a later one is out of order.
    """
    verdict = Verdict()
    for partition in sorted(sent):
        entries, wanted = read.get(partition, ()), acked.get(partition, ())
        whole = [entry for entry in entries if entry.whole]
        known = [entry for entry in whole if 0 <= entry.number < sent[partition]]
        first: dict[int, Entry] = {}
        again = [entry for entry in known if first.setdefault(entry.number, entry) is not entry]
        twice = [entry.number for entry in again if entry.producer == first[entry.number].producer]
        found = {
            "lost": sorted(set(wanted) - first.keys()),
            "twice": twice,
            "late": [number for number, highest in zip(first, accumulate(first, max), strict=True) if number < highest],
            "damaged": [entry.number for entry in entries if not entry.whole],
            "unknown": [entry.number for entry in whole if not 0 <= entry.number < sent[partition]],
        }
        verdict.counts.update(acked=len(wanted), read=len(entries), sent_again=len(again) - len(twice))
        verdict.counts.update({kind: len(numbers) for kind, numbers in found.items()})
        verdict.examples += [
            f"{partition.topic}-{partition.partition} {kind} {', '.join(map(str, numbers[:_SHOWN]))}"
            f"{f' and {len(numbers) - _SHOWN} more' if len(numbers) > _SHOWN else ''} of {sent[partition]}"
            for kind, numbers in found.items()
            if numbers
        ]
    return verdict


class Records:
    """What was sent and acknowledged so far, for one or more producers one after the other."""

    def __init__(self) -> None:
        self.sent: Counter[Partition] = Counter()
        self.acked: dict[Partition, set[int]] = {}
        self.failed: list[str] = []
        self.fatal: list[str] = []
        self.begin()

    def next_number(self, partition: Partition) -> int:
        """Return the number of the next record of a partition."""
        self.sent[partition] += 1
        return self.sent[partition] - 1

    def begin(self) -> None:
        """Forget when records were acknowledged, and how many: what counts begins now."""
        self.count, self.last_ack = 0, 0.0  # of acknowledged records, and monotonic seconds
        self.longest_gap = (0.0, 0.0)  # seconds, and when it began

    def take(self, partition: Partition, number: int, now: float) -> None:
        """Note an acknowledgement."""
        self.acked.setdefault(partition, set()).add(number)
        self.count += 1
        if self.last_ack:
            self.longest_gap = max(self.longest_gap, (now - self.last_ack, self.last_ack))
        self.last_ack = now


class RecordProducer(Background):
    """Sends records of `size` bytes with acks=all, to each partition at its rate (records/s), while it is a context.

    Idempotent where the level has that; elsewhere with one request in flight to each broker. No record expires. Those
    that the client gives up itself (a broker that has just started may know no topic) are counted in `failed`.
    """

    def __init__(
        self,
        servers: Sequence[str],
        records: Records,
        *,
        idempotent: bool,
        rates: Mapping[Partition, float] | None = None,
        size: int = 0,
        **more: object,
    ) -> None:
        super().__init__()
        self.records = records
        self._rates = rates or {}
        self._size = size
        settings: dict[str, object] = {
            "bootstrap.servers": ",".join(servers),
            "broker.address.family": "v4",
            "acks": "all",
            "enable.idempotence": idempotent,
            "max.in.flight.requests.per.connection": 5 if idempotent else 1,
            "message.timeout.ms": 0,
            "request.timeout.ms": 20_000,
            "socket.timeout.ms": 30_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "linger.ms": 5,
            "batch.size": 200_000,
            "error_cb": self._failed,
            "log_level": 0,
        }
        self._producer = Producer(settings | more)

    def send(self, partition: Partition, size: int) -> None:
        """Send a record; waits while the client's queue is full, and while it was told that there is no such topic."""
        number = self.records.next_number(partition)
        topic, id_ = partition
        on_delivery = partial(self._delivered, partition, number)
        while True:
            try:
                self._producer.produce(topic, pack(number, size), partition=id_, on_delivery=on_delivery)
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN_FOR_NOW or self._stop.is_set():
                    raise
                self._producer.poll(_POLL_SECONDS)

    def finish(self, seconds: float) -> None:
        """Stop, and wait until all that was sent is acknowledged. Raises LabError."""
        self.stop()
        if left := self._producer.flush(seconds):
            raise LabError(f"{left} records were not acknowledged within {seconds:g} s.")

    def _run(self) -> None:
        begun = time.monotonic()
        sent = dict.fromkeys(self._rates, 0)
        try:
            while not self._stop.is_set() and not self.records.fatal:
                now = time.monotonic()
                for partition, rate in self._rates.items():
                    while sent[partition] < (now - begun) * rate and len(self._producer) < _QUEUED:
                        self.send(partition, self._size)
                        sent[partition] += 1
                self._producer.poll(_POLL_SECONDS)
        except KafkaException as error:
            self.records.fatal.append(str(error))

    def _delivered(
        self, partition: Partition, number: int, error: KafkaError | None, message: Message[Any, Any]
    ) -> None:
        if error is None:
            self.records.take(partition, number, time.monotonic())
        else:
            self.records.failed.append(f"{partition.topic}-{partition.partition} {number}: {error}")

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.records.fatal.append(str(error))


def batches(log: bytes) -> list[Batch]:
    """Return the batches of a segment; none of a log that is older than record batches."""
    found, at = [], 0
    while at + _BATCH.size <= len(log):
        base_offset, size, magic, last_delta, producer_id, epoch, _ = _BATCH.unpack_from(log, at)
        if magic == _RECORD_BATCHES:
            found.append(Batch(base_offset + last_delta, (producer_id, epoch)))
        at += _BATCH_HEAD + size
    return found


def with_producers(entries: Sequence[Entry], log: Sequence[Batch]) -> list[Entry]:
    """Return the entries of a partition, each with its producer, as the batches of its log tell."""
    ends = [batch.last_offset for batch in log]
    if not ends:
        return list(entries)
    return [entry._replace(producer=log[bisect_left(ends, entry.offset)].producer) for entry in entries]


def read_back(servers: Sequence[str], partitions: Sequence[Partition]) -> dict[Partition, list[Entry]]:
    """Read partitions from their beginnings to the ends they have now. Raises LabError where a batch is damaged."""
    found: dict[Partition, list[Entry]] = {partition: [] for partition in partitions}
    for topic in {partition.topic for partition in partitions}:
        ids = [partition.partition for partition in partitions if partition.topic == topic]
        for record in read_records(servers, topic, ids):
            entry = unpack(record.value or b"")
            found[Partition(topic, record.partition)].append(entry._replace(offset=record.offset))
    return found

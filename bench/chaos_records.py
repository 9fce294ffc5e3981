"""The records of a chaos run: what was sent and acknowledged, what was read back, and whether the two agree."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from weir.control.cluster_admin import Partition
from weir.lab.errors import LabError

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


@dataclass(slots=True)
class Verdict:
    """The accounts of all partitions together; each list holds a few sentences' worth of examples."""

    acked: int = 0
    read: int = 0
    lost: int = 0
    duplicates: int = 0
    sent_again: int = 0
    disordered: int = 0
    damaged: int = 0
    unknown: int = 0
    examples: list[str] = field(default_factory=list)

    def violations(self, idempotent: bool) -> list[str]:
        """Return what must not be, a sentence each.

        A producer that is not idempotent sends a batch again whose answer was lost, and the next one beside it when the
        leader changes: its records may come twice, and behind later ones.
        """
        wrong = {
            "acked records are lost": self.lost,
            "records came twice": self.duplicates if idempotent else 0,
            "records came behind later ones": self.disordered if idempotent else 0,
            "records are damaged": self.damaged,
            "records were read that nobody sent": self.unknown,
        }
        return [f"{count} {what}: {'; '.join(self.examples)}" for what, count in wrong.items() if count]


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
        seen: dict[int, tuple[int, int] | None] = {}
        highest = -1
        found: dict[str, list[int]] = {"lost": [], "twice": [], "late": [], "damaged": [], "unknown": []}
        for number, whole, _, producer in read.get(partition, ()):
            if not whole:
                found["damaged"].append(number)
            elif not 0 <= number < sent[partition]:
                found["unknown"].append(number)
            elif number in seen:
                if producer == seen[number]:
                    found["twice"].append(number)
                else:
                    verdict.sent_again += 1
            else:
                if number < highest:
                    found["late"].append(number)
                highest = max(highest, number)
                seen[number] = producer
        wanted = acked.get(partition, ())
        found["lost"] = sorted(number for number in wanted if number not in seen)
        verdict.acked += len(wanted)
        verdict.read += len(read.get(partition, ()))
        verdict.lost += len(found["lost"])
        verdict.duplicates += len(found["twice"])
        verdict.disordered += len(found["late"])
        verdict.damaged += len(found["damaged"])
        verdict.unknown += len(found["unknown"])
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
        self.sent: dict[Partition, int] = {}
        self.acked: dict[Partition, set[int]] = {}
        self.failed: list[str] = []
        self.fatal: list[str] = []
        self.count = 0  # of acknowledged records
        self.last_ack = 0.0  # monotonic seconds
        self.longest_gap = (0.0, 0.0)  # seconds, and when it began

    def next_number(self, partition: Partition) -> int:
        """Return the number of the next record of a partition."""
        number = self.sent.get(partition, 0)
        self.sent[partition] = number + 1
        return number

    def begin(self) -> None:
        """Forget when records were acknowledged, and how many: what counts begins now."""
        self.count, self.last_ack, self.longest_gap = 0, 0.0, (0.0, 0.0)

    def take(self, partition: Partition, number: int, now: float) -> None:
        """Note an acknowledgement."""
        self.acked.setdefault(partition, set()).add(number)
        self.count += 1
        if self.last_ack:
            self.longest_gap = max(self.longest_gap, (now - self.last_ack, self.last_ack))
        self.last_ack = now


class RecordProducer:
    """Sends records with acks=all, by itself at a steady rate in a thread while it is a context, or as told.

    Idempotent where the level has that; elsewhere with one request in flight to each broker. No record expires. Those
    that the client gives up itself (a broker that has just started may know no topic) are counted in `failed`.
    """

    def __init__(
        self, servers: Sequence[str], records: Records, *, idempotent: bool, compression: str = "none", linger: int = 5
    ) -> None:
        self.records = records
        self._producer = Producer(
            {
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
                "linger.ms": linger,
                "batch.size": 200_000,
                "compression.type": compression,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, partition: Partition, size: int) -> None:
        """Send a record; waits while the client's queue is full, and while it was told that there is no such topic."""
        number = self.records.next_number(partition)
        on_delivery = partial(self._delivered, partition, number)
        while True:
            try:
                self._producer.produce(
                    partition.topic, pack(number, size), partition=partition.partition, on_delivery=on_delivery
                )
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN_FOR_NOW or self._stop.is_set():
                    raise
                self._producer.poll(_POLL_SECONDS)

    def run(self, partitions: Mapping[Partition, float], size: int) -> Self:
        """Send to each partition at its rate (records/s) until the block ends."""
        self._thread = threading.Thread(target=self._run, args=(partitions, size), name="chaos-records", daemon=True)
        return self

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def finish(self, seconds: float) -> None:
        """Stop, and wait until all that was sent is acknowledged. Raises LabError."""
        self.__exit__(None, None, None)
        if left := self._producer.flush(seconds):
            raise LabError(f"{left} records were not acknowledged within {seconds:g} s.")

    def _run(self, partitions: Mapping[Partition, float], size: int) -> None:
        try:
            self._produce(partitions, size)
        except KafkaException as error:
            self.records.fatal.append(str(error))

    def _produce(self, partitions: Mapping[Partition, float], size: int) -> None:
        begun = time.monotonic()
        sent = dict.fromkeys(partitions, 0)
        while not self._stop.is_set() and not self.records.fatal:
            now = time.monotonic()
            for partition, rate in partitions.items():
                while sent[partition] < (now - begun) * rate and len(self._producer) < _QUEUED:
                    self.send(partition, size)
                    sent[partition] += 1
            self._producer.poll(_POLL_SECONDS)

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


def read_back(
    servers: Sequence[str], partitions: Sequence[Partition], seconds: float = 120
) -> dict[Partition, list[Entry]]:
    """Read partitions from their beginnings to the ends they have now. Raises LabError."""
    found: dict[Partition, list[Entry]] = {partition: [] for partition in partitions}
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(servers),
            "broker.address.family": "v4",
            "group.id": "chaos",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + seconds
    try:
        wanted = {Partition(*one): TopicPartition(*one, 0) for one in partitions}
        ends = {one: consumer.get_watermark_offsets(wanted[one], timeout=30)[1] for one in wanted}
        left = {one for one, end in ends.items() if end > 0}
        consumer.assign(list(wanted.values()))
        while left:
            for message in consumer.consume(1000, timeout=0.5):
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._BAD_MSG:
                        raise LabError(f"A batch of {message.topic()}-{message.partition()} is damaged: {error}")
                    continue
                one = Partition(message.topic() or "", message.partition() or 0)
                offset = message.offset() or 0
                if offset < ends[one]:
                    found[one].append(unpack(message.value() or b"")._replace(offset=offset))
                if offset >= ends[one] - 1:
                    left.discard(one)
            if time.monotonic() > deadline:
                raise LabError(f"Reading back did not end within {seconds:g} s; {len(left)} partitions are left.")
    except KafkaException as error:
        raise LabError(f"Reading back failed: {error}") from error
    finally:
        consumer.close()
    return found

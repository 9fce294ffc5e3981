# SPDX-License-Identifier: Apache-2.0
"""Puts records into partitions, exact amounts at full speed (`fill`) or a steady stream (`LiveProducer`), and reads
them back, afterwards (`read_numbers`) or while they come (`LiveConsumer`).
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from weir.lab.errors import LabError

_T = TypeVar("_T")
_IN_FLIGHT: Final = 8  # batches of a fill that wait for an answer
_LIVE_HEAD: Final = struct.Struct(">Qd")  # of a live record: its number, and when it was sent (monotonic seconds)
_POLL_MS: Final = 200  # how long a consumer waits for records before it looks whether it is to stop
_CATCH_UP_SECONDS: Final = 30.0


def fill(
    bootstrap_servers: Sequence[str],
    topic: str,
    sizes: Mapping[int, int],
    *,
    message_bytes: int = 10_240,
    compression: str | None = None,
    batch_bytes: int = 200_000,
    seed: int = 1,
) -> int:
    """Append at least `sizes[partition]` bytes of messages to each partition, and return how many messages that were.

    `batch_bytes` bounds one batch of the log (where the level keeps batches: magic 0 and 1 keep single messages unless
    they are compressed). The messages are random bytes, so compression does not make them smaller. All of a partition's
    in-sync replicas have them when this returns.
    """
    return in_own_loop(_fill(bootstrap_servers, topic, sizes, message_bytes, compression, batch_bytes, seed))


async def _fill(
    bootstrap_servers: Sequence[str],
    topic: str,
    sizes: Mapping[int, int],
    message_bytes: int,
    compression: str | None,
    batch_bytes: int,
    seed: int,
) -> int:
    source = random.Random(seed)  # noqa: S311 - the same bytes in every run
    producer = AIOKafkaProducer(
        bootstrap_servers=list(bootstrap_servers),
        acks="all",
        compression_type=compression,
        max_batch_size=max(batch_bytes, message_bytes + 1024),
        max_request_size=max(2 * batch_bytes, 2 * message_bytes, 1 << 20),
    )
    messages = 0
    waiting: set[asyncio.Future[Any]] = set()
    async with producer:
        left = dict(sizes)
        while left:
            for partition in list(left):
                batch = producer.create_batch()
                while left[partition] > 0 and batch.append(
                    value=source.randbytes(message_bytes), key=None, timestamp=None
                ):
                    left[partition] -= message_bytes
                    messages += 1
                if left[partition] <= 0:
                    del left[partition]
                waiting.add(await producer.send_batch(batch, topic, partition=partition))
                if len(waiting) >= _IN_FLIGHT:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for sent in done:
                        sent.result()
        await asyncio.gather(*waiting)
    return messages


def append_to(address: str, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Append records with acks=1, a batch each, to the broker at `address` (host:port), whatever others say of it.

    A client of the usual kind would ask who leads the partition. Raises LabError when the broker refuses.
    """
    in_own_loop(_append_to(address, topic, partition, values))


async def _append_to(address: str, topic: str, partition: int, values: Sequence[bytes]) -> None:
    host, port = address.split(":")
    connection = await create_conn(host, int(port))
    try:
        for value in values:
            batch = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, len(value) + 1024)
            batch.append(0, int(time.time() * 1000), None, value, [])
            request = ProduceRequest(None, 1, 10_000, [(topic, [(partition, bytes(batch.build()))])])
            ((_, ((_, error, *_),)),) = (await connection.send(request)).topics
            if error:
                raise LabError(f"{address} refused a record for {topic}-{partition}: error code {error}.")
    finally:
        connection.close()


class LiveRecord(NamedTuple):
    """A live record: its `number`, and how long after it was sent it was acknowledged or consumed (s)."""

    number: int
    latency: float


def latency(records: Sequence[LiveRecord], quantile: float) -> float:
    """Return a quantile (0 to 1) of the records' latencies in seconds. Raises LabError when there is no record."""
    ordered = sorted(record.latency for record in records)
    if not ordered:
        raise LabError("No live record has a latency yet.")
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


class _LiveClient(ABC):
    """A client in a thread of its own; a context manager. What broke it is raised at its beginning or its end."""

    def __init__(self, kind: str, bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int]) -> None:
        self._kind = kind
        self._servers = list(bootstrap_servers)
        self._topic = topic
        self._partitions = list(partitions)
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"live-{kind}", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(60)
        if self._error is not None:
            raise LabError(f"The live {self._kind} could not start: {self._error}") from self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise LabError(f"The live {self._kind} ended: {self._error}") from self._error

    @abstractmethod
    async def _work(self) -> None:
        """Set `_ready` when work begins, and end soon after `_stop` was set."""

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except (KafkaError, OSError, LabError) as error:
            self._error = error
        finally:
            self._ready.set()


class LiveProducer(_LiveClient):
    """Produces at a steady rate in a thread until it is stopped; a context manager.

    Each record holds its number and when it was sent (monotonic seconds), 8 bytes each, and random bytes up to
    `message_bytes`. `rate` is records/s; records go round the partitions. A record that could not be delivered is
    counted in `failed` and not tried again.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        topic: str,
        partitions: Sequence[int],
        *,
        rate: float,
        message_bytes: int = 1024,
        acks: int | str = "all",
        linger_ms: int = 0,
        batch_bytes: int = 16_384,
    ) -> None:
        super().__init__("producer", bootstrap_servers, topic, partitions)
        self._batch_bytes = batch_bytes
        self._rate = rate
        self._message_bytes = message_bytes
        self._acks = acks
        self._linger_ms = linger_ms
        # Where produce stands still, a batch that is sent would wake all that wait for room, and one would have it.
        self._turns = {partition: asyncio.Lock() for partition in self._partitions}
        self.acked: list[LiveRecord] = []
        self.sent = 0
        self.failed = 0

    def latency(self, quantile: float) -> float:
        """Return a quantile (0 to 1) of the acknowledged records' latencies in seconds."""
        return latency(self.acked, quantile)

    async def _work(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            acks=self._acks,
            linger_ms=self._linger_ms,
            max_batch_size=self._batch_bytes,
        )
        waiting: set[asyncio.Task[None]] = set()
        padding = random.Random(1).randbytes(max(0, self._message_bytes - _LIVE_HEAD.size))  # noqa: S311 - no secret
        async with producer:
            await producer.partitions_for(self._topic)
            self._ready.set()
            begun = time.monotonic()
            while not self._stop.is_set():
                due = int((time.monotonic() - begun) * self._rate) + 1
                while self.sent < due:
                    task = asyncio.create_task(self._send(producer, self.sent, padding))
                    self.sent += 1
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                await asyncio.sleep(max(0.0, begun + self.sent / self._rate - time.monotonic()))
            await asyncio.gather(*waiting)

    async def _send(self, producer: AIOKafkaProducer, number: int, padding: bytes) -> None:
        partition = self._partitions[number % len(self._partitions)]
        begun = time.monotonic()
        try:
            value = _LIVE_HEAD.pack(number, begun) + padding
            async with self._turns[partition]:
                delivered = await producer.send(self._topic, value, partition=partition)
            await delivered
        except KafkaError:
            self.failed += 1
            return
        self.acked.append(LiveRecord(number, time.monotonic() - begun))


class LiveConsumer(_LiveClient):
    """Consumes a LiveProducer's topic from its beginning, in a thread, while it is produced; a context manager.

    `consumed` has every record as often as it came, with its latency from end to end. Its end waits until all that the
    partitions hold by then has come, so stop the producer first:
    `with LiveConsumer(...) as consumer, LiveProducer(...) as producer:`.
    """

    def __init__(self, bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int]) -> None:
        super().__init__("consumer", bootstrap_servers, topic, partitions)
        self.consumed: list[LiveRecord] = []

    async def _work(self) -> None:
        wanted = [TopicPartition(self._topic, partition) for partition in self._partitions]
        async with _consumer_of(self._servers, wanted) as consumer:
            self._ready.set()
            while not self._stop.is_set():
                await self._take(consumer)
            ends = await consumer.end_offsets(wanted)
            try:
                async with asyncio.timeout(_CATCH_UP_SECONDS):
                    while await _is_behind(consumer, ends):
                        await self._take(consumer)
            except TimeoutError:
                raise LabError(f"it did not come to the topic's end within {_CATCH_UP_SECONDS:g} s.") from None

    async def _take(self, consumer: AIOKafkaConsumer) -> None:
        fetched = await consumer.getmany(timeout_ms=_POLL_MS)
        now = time.monotonic()
        for records in fetched.values():
            for record in records:
                number, sent = _LIVE_HEAD.unpack_from(record.value)
                self.consumed.append(LiveRecord(number, now - sent))


def read_numbers(
    bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int], *, committed: bool = False
) -> list[int]:
    """Read a LiveProducer's topic from its beginning and return its records' numbers, in each partition's order.

    With `committed`, records of transactions that were aborted are left out.
    """
    records = read_records(bootstrap_servers, topic, partitions, committed=committed)
    return [_LIVE_HEAD.unpack_from(record.value)[0] for record in records]


def numbered(number: int, message_bytes: int) -> bytes:
    """Return a record as a LiveProducer sends it now, filled up with random bytes."""
    padding = random.Random(number).randbytes(max(0, message_bytes - _LIVE_HEAD.size))  # noqa: S311 - no secret
    return _LIVE_HEAD.pack(number, time.monotonic()) + padding


def read_records(
    bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int], *, committed: bool = False
) -> list[ConsumerRecord]:
    """Read partitions from their beginnings to the ends they have now; `committed` leaves aborted transactions out."""
    return in_own_loop(_read_records(bootstrap_servers, topic, partitions, committed))


async def _read_records(
    bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int], committed: bool
) -> list[ConsumerRecord]:
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    found: list[ConsumerRecord] = []
    level = "read_committed" if committed else "read_uncommitted"
    async with _consumer_of(bootstrap_servers, wanted, isolation_level=level) as consumer:
        ends = await consumer.end_offsets(wanted)
        while await _is_behind(consumer, ends):
            for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                found += records
    return found


@asynccontextmanager
async def _consumer_of(
    bootstrap_servers: Sequence[str], wanted: list[TopicPartition], **options: str
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group that reads these partitions from their beginnings."""
    servers = list(bootstrap_servers)
    async with AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign(wanted)
        yield consumer


async def _is_behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    return any([await consumer.position(partition) < end for partition, end in ends.items()])


def in_own_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in a thread, so that it may be called where an event loop runs already."""
    with ThreadPoolExecutor(1, "lab-produce") as pool:
        try:
            return pool.submit(asyncio.run, work).result()
        except KafkaError as error:
            raise LabError(f"Kafka's client gave up: {error}") from error

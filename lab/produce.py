"""Puts records into partitions: exact amounts at full speed (`fill`), or a steady stream (`LiveProducer`)."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from lab.errors import LabError

_T = TypeVar("_T")
_IN_FLIGHT = 8  # batches of a fill that wait for an answer


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
    return _in_own_loop(_fill(bootstrap_servers, topic, sizes, message_bytes, compression, batch_bytes, seed))


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


class Acked(NamedTuple):
    """One record that the broker acknowledged: its `number`, and how long that took (s)."""

    number: int
    latency: float


class LiveProducer:
    """Produces at a steady rate in a thread until it is stopped; a context manager.

    Each record holds its number (8 bytes, big-endian) and random bytes up to `message_bytes`. `rate` is records/s;
    records go round the partitions. A record that could not be delivered is counted in `failed` and not tried again.
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
    ) -> None:
        self._servers = list(bootstrap_servers)
        self._topic = topic
        self._partitions = list(partitions)
        self._rate = rate
        self._message_bytes = message_bytes
        self._acks = acks
        self._linger_ms = linger_ms
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-producer", daemon=True)
        self._error: BaseException | None = None
        self.acked: list[Acked] = []
        self.sent = 0
        self.failed = 0

    def __enter__(self) -> LiveProducer:
        self._thread.start()
        self._ready.wait(60)
        if self._error is not None:
            raise LabError(f"The live producer could not start: {self._error}") from self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise LabError(f"The live producer ended: {self._error}") from self._error

    def latency(self, quantile: float) -> float:
        """Return a quantile (0 to 1) of the acknowledged records' latencies in seconds."""
        ordered = sorted(acked.latency for acked in self.acked)
        if not ordered:
            raise LabError("The live producer has no acknowledged record.")
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except (KafkaError, OSError) as error:
            self._error = error
        finally:
            self._ready.set()

    async def _produce(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks=self._acks, linger_ms=self._linger_ms)
        waiting: set[asyncio.Task[None]] = set()
        padding = random.Random(1).randbytes(max(0, self._message_bytes - 8))  # noqa: S311 - no secret
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
            value = number.to_bytes(8, "big") + padding
            await (await producer.send(self._topic, value, partition=partition))
        except KafkaError:
            self.failed += 1
            return
        self.acked.append(Acked(number, time.monotonic() - begun))


def read_numbers(bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int]) -> list[int]:
    """Read a LiveProducer's topic from its beginning and return its records' numbers, in each partition's order."""
    return _in_own_loop(_read_numbers(bootstrap_servers, topic, partitions))


async def _read_numbers(bootstrap_servers: Sequence[str], topic: str, partitions: Sequence[int]) -> list[int]:
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    consumer = AIOKafkaConsumer(bootstrap_servers=list(bootstrap_servers), auto_offset_reset="earliest")
    found: list[int] = []
    async with consumer:
        consumer.assign(wanted)
        ends = await consumer.end_offsets(wanted)
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += [int.from_bytes(record.value[:8], "big") for record in records]
    return found


def _in_own_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in a thread, so that it may be called where an event loop runs already."""
    with ThreadPoolExecutor(1, "lab-produce") as pool:
        return pool.submit(asyncio.run, work).result()

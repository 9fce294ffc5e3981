# SPDX-License-Identifier: Apache-2.0
"""Sends samples to a Kafka topic: the same JSON lines as in files, some per message, keyed by the broker's id.

Messages are compressed with zstd. Import it only where `[export.kafka]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from weir.proxy.config.tables import KafkaExport
from weir.proxy.export.sample import ExportStats, Sample
from weir.proxy.log import EventLog, os_error_reason
from weir.proxy.slices import stopped

REQUEST_TIMEOUT_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0

_STOP_SECONDS: Final = 1.0


@dataclass(eq=False, repr=False)  # `_options` may have a password
class KafkaSink:
    """Sends samples with an idempotent producer. Has to be made in the event loop that it is used in.

    Samples that the topic does not accept are kept and sent again by another producer, so a line may be there twice. At
    most `max_buffer_bytes` are kept; beyond that the oldest sample is dropped. `_options` are of its connections.
    """

    _config: KafkaExport
    _broker_id: int
    _stats: ExportStats
    _log: EventLog
    _options: Mapping[str, Any]
    _buffer: deque[Sample] = field(default_factory=deque)
    _size: int = 0
    _offered: asyncio.Event = field(default_factory=asyncio.Event)
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._key = str(self._broker_id).encode()
        self._empty.set()
        self._stats.add_sink("kafka")
        self._running = asyncio.create_task(self._run())

    def offer(self, sample: Sample) -> None:
        """Have a sample sent, and drop the oldest ones beyond the bound."""
        self._buffer.append(sample)
        self._size += sample.size
        while self._size > self._config.max_buffer_bytes:
            self._drop("buffer_full")
        self._empty.clear()
        self._offered.set()

    def count_failed(self) -> None:
        self._stats.dropped["kafka", "failed"] += 1

    async def close(self, seconds: float) -> None:
        """Have everything sent, within `seconds`."""
        with contextlib.suppress(TimeoutError):  # nothing is left to wait for where all were dropped
            async with asyncio.timeout(seconds):
                while self._buffer and not self._running.done():
                    await self._empty.wait()
        await stopped(self._running)
        if self._buffer:
            self._log.fault("samples_lost", self._peer(), samples=len(self._buffer))
        while self._buffer:
            self._drop("closed")

    def _drop(self, reason: str) -> None:
        self._size -= self._buffer.popleft().size
        self._stats.dropped["kafka", reason] += 1

    def _peer(self) -> str:
        return ",".join(map(str, self._config.bootstrap_servers))

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            written = self._stats.written["kafka"]
            producer = self._producer()
            try:
                await producer.start()
                await self._send_all(producer)
            except Exception as error:  # noqa: BLE001 - on a malformed answer aiokafka raises almost anything
                reason = os_error_reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__
                waiting = len(self._buffer)
                self._log.fault("samples_not_sent", self._peer(), reason=reason, topic=self._config.topic, kept=waiting)
            finally:
                await _stop(producer)
            if self._stats.written["kafka"] > written:
                pause = FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _producer(self) -> Any:  # aiokafka has no types
        return AIOKafkaProducer(
            bootstrap_servers=[str(server) for server in self._config.bootstrap_servers],
            client_id="weir",
            compression_type="zstd",
            enable_idempotence=True,
            request_timeout_ms=round(REQUEST_TIMEOUT_SECONDS * 1000),
            **self._options,
        )

    async def _send_all(self, producer: Any) -> None:
        """Send samples as they come, the oldest first. Raises what the producer raises."""
        while True:
            while self._buffer:
                sample = self._buffer[0]
                try:
                    await self._send(producer, sample)
                except (MessageSizeTooLargeError, RecordListTooLargeError):
                    self._log.fault("sample_refused", self._peer(), reason="too large", topic=self._config.topic)
                    self._sent(sample, refused=True)
                else:
                    self._sent(sample)
            self._empty.set()
            self._offered.clear()
            await self._offered.wait()

    async def _send(self, producer: Any, sample: Sample) -> None:
        sent = [await producer.send(self._config.topic, value=chunk, key=self._key) for chunk in sample.chunks]
        for outcome in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _sent(self, sample: Sample, *, refused: bool = False) -> None:
        if not self._buffer or self._buffer[0] is not sample:
            return  # dropped and counted meanwhile
        if refused:
            self._drop("refused")
        else:
            self._size -= self._buffer.popleft().size
            self._stats.written["kafka"] += 1


async def _stop(producer: Any) -> None:
    """Stop a producer for good; its own `stop` would wait for brokers that may be gone."""
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await producer.stop()
    except TimeoutError:
        # its sender waits for pending responses, up to the request time-out, unless it is cancelled twice
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await producer._sender.close()
        await producer.client.close()

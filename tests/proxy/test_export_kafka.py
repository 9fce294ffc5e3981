# SPDX-License-Identifier: Apache-2.0
"""Samples for a topic: in order while it takes them, and bounded, counted and never in the way while it does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from tests.fakes.servers import serving
from tests.proxy.exporting import counted, sample, until
from weir.proxy.config.address import Address
from weir.proxy.config.tables import KafkaExport
from weir.proxy.export import kafka as export_kafka
from weir.proxy.export.kafka import KafkaSink
from weir.proxy.export.sample import ExportStats, Sample
from weir.proxy.log import EventLog

SIZE = sample(1, padding=1_000).size


class Connections:
    """A producer's, of which `stop` waits for brokers that are gone."""

    async def close(self) -> None:
        Producer.closed += 1


class Sender(Connections):
    """What sends on them."""


class Producer:
    """As much of an AIOKafkaProducer as the sink uses; `fail` returns the errors of samples that are not taken."""

    made = 0
    closed = 0
    stop_hangs = False
    taken: list[int]
    fail: Callable[[int], BaseException | None]

    def __init__(self, **options: Any) -> None:
        assert options["enable_idempotence"] is True
        assert (options["compression_type"], options["security_protocol"]) == ("zstd", "PLAINTEXT")
        Producer.made += 1
        self._sender, self.client = Sender(), Connections()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        if Producer.stop_hangs:
            await asyncio.Event().wait()

    async def send(self, topic: str, value: bytes, key: bytes) -> asyncio.Future[None]:
        assert (topic, key) == ("samples", b"1")
        sequence = int(value.split(b'"sequence":')[1].split(b",")[0])
        sent = asyncio.get_running_loop().create_future()
        error = Producer.fail(sequence)
        if error is None:
            Producer.taken.append(sequence)
            sent.set_result(None)
        else:
            sent.set_exception(error)
        return sent


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> type[Producer]:
    Producer.made, Producer.taken, Producer.fail = 0, [], lambda sequence: None
    Producer.closed, Producer.stop_hangs = 0, False
    monkeypatch.setattr(export_kafka, "AIOKafkaProducer", Producer)
    monkeypatch.setattr(export_kafka, "FIRST_PAUSE_SECONDS", 0.01)
    return Producer


def sink_of(port: int = 9, max_buffer_bytes: int = 1_000_000) -> tuple[KafkaSink, ExportStats]:
    config = KafkaExport(
        bootstrap_servers=(Address("127.0.0.1", port),), topic="samples", max_buffer_bytes=max_buffer_bytes
    )
    stats = ExportStats()
    return KafkaSink(config, 1, stats, EventLog(), {"security_protocol": "PLAINTEXT"}), stats


def offer(sink: KafkaSink, *sequences: int) -> list[Sample]:
    samples = [sample(sequence, padding=1_000) for sequence in sequences]
    for one in samples:
        sink.offer(one)
    return samples


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


async def test_dead_topic_keeps_what_fits_and_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    sink, stats = sink_of(free_port(), max_buffer_bytes=3 * SIZE + 100)
    offer(sink, *range(1, 10))
    assert counted(stats) == {("kafka", "buffer_full"): 6}
    sink.count_failed()
    await until(lambda: "samples_not_sent" in caplog.text)
    async with asyncio.timeout(2):
        await sink.close(0.1)
    assert counted(stats) == {("kafka", "buffer_full"): 6, ("kafka", "failed"): 1, ("kafka", "closed"): 3}
    assert "samples_lost" in caplog.text


async def test_broker_that_never_answers_does_not_hold_up_the_end() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        closed.set()

    async with serving(silent) as (_, port):
        sink, stats = sink_of(port)
        offer(sink, 1)
        async with asyncio.timeout(3):
            await sink.close(0.1)
            await closed.wait()
    assert counted(stats) == {("kafka", "closed"): 1}


async def test_close_waits_for_nothing_when_all_was_dropped() -> None:
    sink, stats = sink_of(free_port(), max_buffer_bytes=10)
    offer(sink, 1)
    async with asyncio.timeout(2):
        await sink.close(60)
    assert counted(stats) == {("kafka", "buffer_full"): 1}


async def test_samples_are_sent_in_order_and_close_sends_the_last(producer: type[Producer]) -> None:
    sink, stats = sink_of()
    offer(sink, 1, 2)
    await until(lambda: producer.taken == [1, 2])
    offer(sink, 3)
    await sink.close(5)
    assert producer.taken == [1, 2, 3]
    assert counted(stats) == {"kafka": 3}
    assert producer.made == 1


async def test_sample_that_failed_is_sent_again_by_another_producer(producer: type[Producer]) -> None:
    failures = [KafkaTimeoutError(), KafkaTimeoutError()]
    producer.fail = lambda sequence: failures.pop() if sequence == 2 and failures else None
    sink, stats = sink_of()
    offer(sink, 1, 2, 3)
    await sink.close(5)
    assert producer.taken == [1, 2, 3]
    assert counted(stats) == {"kafka": 3}
    assert producer.made == 3


@pytest.mark.long
async def test_producer_that_cannot_stop_is_cut_off(producer: type[Producer]) -> None:
    producer.stop_hangs = True
    sink, stats = sink_of()
    offer(sink, 1)
    async with asyncio.timeout(3):
        await sink.close(5)
    assert producer.closed == 2
    assert counted(stats) == {"kafka": 1}


async def test_producer_whose_sender_waits_for_an_answer_is_cut_off(
    producer: type[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As aiokafka's does when it is cancelled: until the request's timeout."""

    async def close(sender: Connections) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Producer, "stop_hangs", True)
    monkeypatch.setattr(export_kafka, "_STOP_SECONDS", 0.01)
    monkeypatch.setattr(Sender, "close", close)
    sink, stats = sink_of()
    offer(sink, 1)
    async with asyncio.timeout(3):
        await sink.close(5)
    assert producer.closed == 1
    assert counted(stats) == {"kafka": 1}


async def test_sample_too_large_for_brokers_is_dropped_not_the_next(producer: type[Producer]) -> None:
    producer.fail = lambda sequence: MessageSizeTooLargeError() if sequence == 2 else None
    sink, stats = sink_of()
    offer(sink, 1, 2, 3)
    await sink.close(5)
    assert producer.taken == [1, 3]
    assert counted(stats) == {"kafka": 2, ("kafka", "refused"): 1}


async def test_sample_dropped_while_it_was_sent_is_counted_once(producer: type[Producer]) -> None:
    sink, stats = sink_of(max_buffer_bytes=2 * SIZE + 100)

    def offer_more(sequence: int) -> None:
        if sequence == 1:
            offer(sink, 2, 3, 4)

    producer.fail = offer_more
    offer(sink, 1)
    await sink.close(5)
    assert counted(stats) == {"kafka": 2, ("kafka", "buffer_full"): 2}
    assert producer.taken == [1, 3, 4]

# SPDX-License-Identifier: Apache-2.0
"""A relay that limits clients, with a clock that tests move, and what clients and brokers say, by kafka-python."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tests.fakes.clock import MovedClock
from tests.fakes.relaying import Peer, Relaying, relaying
from tests.protocol.test_batch_counter import NONE, built
from tests.protocol.wire import frame
from weir.limits.rules import Rule
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.stage import LimitStage

SINK, SOURCE = "connector-consumer-s3-0", "connector-producer-files-0"
TOPIC_ID = UUID(int=7)


@dataclass
class Limited:
    """The running relay, and a way to say things."""

    relay: Relaying
    stage: LimitStage
    clock: MovedClock

    def has_held(self) -> bool:
        """Whether a request waits."""
        return any(link.connection.hold is not None for link in self.relay.listener.links)

    async def move(self, seconds: float) -> None:
        """Let time pass, and have what is held decided about."""
        self.clock.move(seconds)
        self.relay.relay.held.wake(list(self.relay.listener.links))

    async def passes_with(self, client: Peer, broker: Peer, data: bytes, answer: bytes) -> bytes:
        """Have a request go to the broker and its answer come back; returns it as the client gets it."""
        await client.send(data)
        await broker.expect(data)
        await broker.send(answer)
        return await client.receive_frame()

    async def is_held(self, client: Peer, broker: Peer, data: bytes) -> None:
        """Send a request that has to wait."""
        await client.send(data)
        await self.relay.until(self.has_held)
        assert broker.has_nothing()


@contextlib.asynccontextmanager
async def limited(*rules: Rule, **options: Any) -> AsyncIterator[Limited]:
    """Run a relay with these rules, and with `options` of `relaying`."""
    async with relaying(**options) as relay:
        clock = MovedClock()
        stage = LimitStage(clock, relay.relay.log, {TOPIC_ID.bytes: b"orders"}.get)
        stage.configure(rules)
        relay.relay.clock = relay.relay.held.clock = clock
        relay.relay.new_gate = lambda link: LinkGate(stage, relay.relay, link)
        yield Limited(relay, stage, clock)


def fetch(
    number: int,
    version: int = 12,
    *,
    client_id: str | None = SINK,
    session: tuple[int, int] = (9, 3),
    max_wait_ms: int = 500,
    partitions: Sequence[int] = (),
) -> bytes:
    """A consumer's Fetch, in a session where its version has them."""
    asked = FetchRequest(version=version, session_id=session[0], session_epoch=session[1], max_wait_ms=max_wait_ms)
    if partitions:
        topics = FetchRequest.FetchTopic
        listed = [topics.FetchPartition(partition=one, fetch_offset=5, partition_max_bytes=1000) for one in partitions]
        asked.topics = [topics(topic="orders", topic_id=TOPIC_ID, partitions=listed)]
    asked.with_header(correlation_id=number, client_id=client_id)
    return bytes(asked.encode(version=version, header=True, framed=True))


def fetched(
    number: int, records: int, version: int = 12, topic: str = "orders", throttle_time_ms: int = 0, size: int = 50
) -> bytes:
    """The answer to it, with values of so many bytes."""
    topics = FetchResponse.FetchableTopicResponse
    answer = FetchResponse(
        throttle_time_ms=throttle_time_ms,
        responses=[
            topics(
                topic=topic,
                topic_id=TOPIC_ID,
                partitions=[topics.PartitionData(partition_index=0, records=built(2, NONE, [size] * records))],
            )
        ]
        if records
        else [],
        version=version,
    )
    return frame(struct.pack(">i", number) + (b"\x00" if version >= 12 else b"") + answer.encode(version=version))


def read_fetched(data: bytes, version: int) -> Any:
    """Read an answer as kafka-python does."""
    return FetchResponse.decode(data[8 + (version >= 12) :], version=version)


def produce(
    number: int,
    records: int,
    version: int = 9,
    client_id: str = SOURCE,
    acks: int = 1,
    transactional: str | None = None,
    timeout_ms: int = 30_000,
    topic: str = "orders",
) -> bytes:
    """A producer's request."""
    topics = ProduceRequest.TopicProduceData
    asked = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional,
        topic_data=[
            topics(
                name=topic,
                topic_id=TOPIC_ID,
                partition_data=[topics.PartitionProduceData(index=0, records=built(2, NONE, [50] * records))],
            )
        ],
        version=version,
    )
    asked.with_header(correlation_id=number, client_id=client_id)
    return bytes(asked.encode(version=version, header=True, framed=True))


def produced(number: int, version: int = 9, partitions: int = 1, **fields: Any) -> bytes:
    """The answer to it."""
    topics = ProduceResponse.TopicProduceResponse
    answer = ProduceResponse(
        responses=[
            topics(
                name="orders",
                topic_id=TOPIC_ID,
                partition_responses=[
                    topics.PartitionProduceResponse(index=index, **fields) for index in range(partitions)
                ],
            )
        ],
        version=version,
    )
    return frame(struct.pack(">i", number) + (b"\x00" if version >= 9 else b"") + answer.encode(version=version))


def read_produced(data: bytes, version: int) -> Any:
    """Read an answer as kafka-python does."""
    return ProduceResponse.decode(data[8 + (version >= 9) :], version=version)

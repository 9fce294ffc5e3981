# SPDX-License-Identifier: Apache-2.0
"""A made-up cluster that tells of its brokers, Kafka's throttle and reassignments; made of aiokafka's own codec."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.protocol.admin import (
    ApiVersionResponse_v0,
    DescribeConfigsRequest_v0,
    DescribeConfigsRequest_v2,
    DescribeConfigsResponse_v0,
    DescribeConfigsResponse_v2,
    ListPartitionReassignmentsResponse_v0,
)
from aiokafka.protocol.metadata import MetadataResponse_v5

from weir.proxy.config.address import Address

METADATA, API_VERSIONS, CONFIGS, MOVES = 3, 18, 32, 46
NOT_CONTROLLER, UNKNOWN_TOPIC = 41, 3

_TOPIC, _BROKER = 2, 4
_DYNAMIC, _STATIC = 2, 4  # ConfigSource

Moves = Mapping[str, Mapping[int, tuple[list[int], list[int]]]]
"""(replicas, adding) of each partition that is being reassigned."""


@dataclass
class ThrottleBroker:
    """One broker. `asked` holds the API key of each request, `lists_asked` the topics of each question for lists."""

    broker_id: int
    cluster: ThrottleCluster
    port: int = 0
    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {METADATA: (0, 5), CONFIGS: (0, 2), MOVES: (0, 0)}
    )
    static: set[str] = field(default_factory=set)
    """Settings that stand in its server.properties."""
    silent: set[int] = field(default_factory=set)
    garbage: set[int] = field(default_factory=set)
    connections: int = 0
    asked: list[int] = field(default_factory=list)
    lists_asked: list[list[str]] = field(default_factory=list)
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what one connection asks."""
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                api_key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
                self.asked.append(api_key)
                body = self._answer(api_key, version, frame[10 + int.from_bytes(frame[8:10]) :])
                if api_key in self.silent:
                    continue
                body = b"\xff" if api_key in self.garbage else body
                writer.write((4 + len(body)).to_bytes(4) + frame[4:8] + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    async def stop(self) -> None:
        """End all connections, and refuse new ones."""
        assert self.server is not None
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await self.server.wait_closed()

    async def start(self) -> None:
        """Listen, after a stop on the same port."""
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    def _answer(self, api_key: int, version: int, request: bytes) -> bytes:
        if api_key == API_VERSIONS:
            ranges = [(key, *versions) for key, versions in self.versions.items()]
            return bytes(ApiVersionResponse_v0(0, [(API_VERSIONS, 0, 0), *ranges]).encode())
        if api_key == METADATA:
            return self.cluster.metadata()
        if api_key == CONFIGS:
            return self._configs(version, request)
        assert api_key == MOVES
        if self.cluster.only_controller_tells_moves and self.broker_id != self.cluster.controller:
            return b"\0" + bytes(ListPartitionReassignmentsResponse_v0(0, NOT_CONTROLLER, None, [], {}).encode())
        topics: list[tuple[Any, ...]] = [
            (topic, [(number, *move, [], {}) for number, move in rows.items()], {})
            for topic, rows in self.cluster.moves.items()
        ]
        return b"\0" + bytes(ListPartitionReassignmentsResponse_v0(0, 0, None, topics, {}).encode())

    def _configs(self, version: int, request: bytes) -> bytes:
        old = version == 0
        asked = (DescribeConfigsRequest_v0 if old else DescribeConfigsRequest_v2).decode(request).resources
        if asked[0][0] == _TOPIC:
            self.lists_asked.append([name for _, name, _ in asked])
        answers = []
        for kind, name, keys in asked:
            assert kind != _BROKER or name in ("", str(self.broker_id)), "a broker tells its own configurations only"
            error, found = self.cluster.configs(kind, name)
            entries: list[tuple[Any, ...]] = []
            for key in [key for key in keys if key in found]:
                source = _STATIC if key in self.static else _DYNAMIC
                entries.append((key, found[key], False, *((False, False) if old else (source, False, []))))
            answers.append((error, None, kind, name, entries))
        response = DescribeConfigsResponse_v0 if old else DescribeConfigsResponse_v2
        return bytes(response(0, answers).encode())


@dataclass
class ThrottleCluster:
    """What the brokers tell: `rates` by broker (0: the cluster's default), `lists` by topic, both by name."""

    rates: dict[int, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, dict[str, str | None]] = field(default_factory=dict)
    moves: Moves = field(default_factory=dict)
    racks: dict[int, str | None] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    """The error code that is told in place of a topic's lists, by its name; of a broker's rates by its id."""
    controller: int = 2
    only_controller_tells_moves: bool = False
    unnamed: set[int] = field(default_factory=set)
    """Brokers that metadata does not name."""
    brokers: dict[int, ThrottleBroker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.brokers = {broker_id: ThrottleBroker(broker_id, self) for broker_id in (1, 2)}

    def addresses(self, *broker_ids: int) -> list[Address]:
        """Return where brokers listen."""
        return [Address("127.0.0.1", self.brokers[broker_id].port) for broker_id in broker_ids]

    def forget_asked(self) -> None:
        """Forget what was asked so far."""
        for broker in self.brokers.values():
            broker.asked.clear()
            broker.lists_asked.clear()

    def configs(self, kind: int, name: str) -> tuple[int, Mapping[str, str | None]]:
        """Return a resource's error code and configurations."""
        if name in self.errors:
            return self.errors[name], {}
        if kind == _BROKER:
            return 0, self.rates.get(int(name or 0), {})
        return (0, self.lists[name]) if name in self.lists else (UNKNOWN_TOPIC, {})

    def metadata(self) -> bytes:
        """Return the answer to a question for all topics."""
        brokers = [
            (one.broker_id, "127.0.0.1", one.port, self.racks.get(one.broker_id))
            for one in self.brokers.values()
            if one.broker_id not in self.unnamed
        ]
        topics: list[tuple[Any, ...]] = [(0, topic, False, []) for topic in self.lists]
        return bytes(MetadataResponse_v5(0, brokers, "cluster", self.controller, topics).encode())


@asynccontextmanager
async def throttle_cluster(**told: Any) -> AsyncIterator[ThrottleCluster]:
    """A cluster of the brokers 1 and 2."""
    cluster = ThrottleCluster(**told)
    async with AsyncExitStack() as running:
        for broker in cluster.brokers.values():
            await broker.start()
            running.push_async_callback(broker.stop)
        yield cluster


@contextmanager
def throttle_cluster_aside(**told: Any) -> Iterator[ThrottleCluster]:
    """The same in a thread of its own: it takes nothing of the test's event loop."""
    up, found, loop = threading.Event(), list[ThrottleCluster](), asyncio.new_event_loop()
    end: Final = asyncio.Event()

    async def run() -> None:
        async with throttle_cluster(**told) as cluster:
            found.append(cluster)
            up.set()
            await end.wait()

    def run_loop() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(run())
        loop.close()

    thread = threading.Thread(target=run_loop)
    thread.start()
    assert up.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()

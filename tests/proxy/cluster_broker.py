# SPDX-License-Identifier: Apache-2.0
"""A broker older than topic ids, made of aiokafka's own codec."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from typing import Any

from aiokafka.protocol.admin import ApiVersionResponse_v0, DescribeConfigsRequest_v2, DescribeConfigsResponse_v2
from aiokafka.protocol.metadata import (
    MetadataRequest_v1,
    MetadataRequest_v5,
    MetadataResponse_v1,
    MetadataResponse_v5,
)

ISR = {("orders", 0): [1, 2], ("orders", 1): [1], ("payments", 0): [3, 1]}


@dataclass
class Broker:
    """Answers ApiVersions, Metadata and DescribeConfigs.

    `asked` holds what each Metadata request named, `configs_asked` the topics of each DescribeConfigs.
    """

    newest_metadata: int = 5
    newest_configs: int = 4
    min_isr: dict[str, str] = field(default_factory=lambda: {"orders": "2", "payments": "2"})
    config_error: int = 0
    configs_silent: bool = False
    configs_garbage: bool = False
    configs_asked: list[list[str]] = field(default_factory=list)
    connections: int = 0
    asked: list[list[str] | None] = field(default_factory=list)
    may_create: list[bool] = field(default_factory=list)
    port: int = 0
    server: asyncio.Server | None = None
    broken: bool = False
    silent: bool = False
    partition_error: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if self.broken:
                    return
                if self.silent:
                    continue
                api_key = int.from_bytes(frame[:2])
                body = self.answer(api_key, frame[10 + int.from_bytes(frame[8:10]) :])
                if api_key == 32 and self.configs_silent:
                    continue
                writer.write((4 + len(body)).to_bytes(4) + frame[4:8] + body)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def answer(self, api_key: int, request: bytes) -> bytes:
        if api_key == 18:
            apis = [(18, 0, 0), (3, 0, self.newest_metadata), (32, 1, self.newest_configs)]
            return bytes(ApiVersionResponse_v0(0, apis if self.newest_configs else apis[:2]).encode())
        if api_key == 32:
            return self.configs(DescribeConfigsRequest_v2.decode(request))
        old = self.newest_metadata < 5
        asked = (MetadataRequest_v1 if old else MetadataRequest_v5).decode(io.BytesIO(request))
        self.asked.append(asked.topics)
        self.may_create.append(old or asked.allow_auto_topic_creation)
        known = {topic for topic, _ in ISR}
        names = sorted(known) if asked.topics is None else asked.topics
        topics = [(0 if name in known else 3, name, False, self.partitions(name, old)) for name in names]
        brokers = [(1, "127.0.0.1", self.port, None)]
        if old:
            return bytes(MetadataResponse_v1(brokers, 1, topics).encode())
        return bytes(MetadataResponse_v5(0, brokers, "cluster", 1, topics).encode())

    def configs(self, asked: Any) -> bytes:
        assert all(resource[0] == 2 and resource[2] == ["min.insync.replicas"] for resource in asked.resources)
        topics = [name for _, name, _ in asked.resources]
        self.configs_asked.append(topics)
        if self.configs_garbage:
            return b"garbage"
        answers = []
        for name in topics:
            error = self.config_error or (0 if name in self.min_isr else 3)
            entries: list[tuple[Any, ...]] = []
            if not error:
                entries.append(("min.insync.replicas", self.min_isr[name], False, 5, False, []))
            answers.append((error, None, 2, name, entries))
        return bytes(DescribeConfigsResponse_v2(0, answers).encode())

    def partitions(self, name: str, old: bool) -> list[tuple[Any, ...]]:
        rows = [
            (self.partition_error, number, 1, [1, 2, 3], isr) for (topic, number), isr in ISR.items() if topic == name
        ]
        return rows if old else [(*row, []) for row in rows]

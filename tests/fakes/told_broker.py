# SPDX-License-Identifier: Apache-2.0
"""A broker that tells who it is: ApiVersions, Metadata, DescribeConfigs and DescribeCluster, with faults as told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from tests.fakes.servers import serving
from weir.proxy.config.address import Address

FETCH, METADATA, API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_CLUSTER, BROKER_HEARTBEAT = 1, 3, 18, 32, 60, 63
OF_A_BROKER = {FETCH: (4, 17), METADATA: (0, 12), DESCRIBE_CONFIGS: (1, 4), DESCRIBE_CLUSTER: (0, 1)}
OF_A_CONTROLLER = {FETCH: (4, 17), BROKER_HEARTBEAT: (0, 1)}
ALL_OPERATIONS = frozenset(range(3, 13))


@dataclass
class ToldBroker:
    """Broker `broker_id` of a cluster whose brokers advertise `brokers` and which has `topics`."""

    broker_id: int = 1
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    apis: Mapping[int, tuple[int, int]] = field(default_factory=lambda: dict(OF_A_BROKER))
    operations: frozenset[int] = ALL_OPERATIONS
    may_describe: bool = True
    wants_authentication: bool = False
    hangs_up: bool = False
    port: int = 0

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                if self.hangs_up or size > 100 * 2**20:  # socket.request.max.bytes
                    return
                frame = await reader.readexactly(size)
                api_key = int.from_bytes(frame[:2])
                if self.wants_authentication and api_key != API_VERSIONS:
                    return
                answer = self._answer(api_key, int.from_bytes(frame[2:4]), frame)
                writer.write(len(answer).to_bytes(4) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _answer(self, api_key: int, version: int, frame: bytes) -> bytes:
        response: Any
        if api_key == API_VERSIONS:
            api = ApiVersionsResponse.ApiVersion
            apis = [api(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.apis.items()]
            return frame[4:8] + bytes(ApiVersionsResponse(version=0, api_keys=apis).encode(version=0))
        if api_key == METADATA:
            response, tags = self._metadata(MetadataRequest.decode(frame, version=version, header=True)), b"\x00"
        elif api_key == DESCRIBE_CONFIGS:
            asked = DescribeConfigsRequest.decode(frame, version=version, header=True)
            result = DescribeConfigsResponse.DescribeConfigsResult
            results = [
                result(error_code=self._error(one.resource_name), resource_type=4, resource_name=one.resource_name)
                for one in asked.resources
            ]
            response, tags = DescribeConfigsResponse(version=version, results=results), b""
        else:
            assert api_key == DESCRIBE_CLUSTER
            assert DescribeClusterRequest.decode(frame, version=version, header=True)
            operations = set(self.operations)
            response, tags = DescribeClusterResponse(version=version, authorized_operations=operations), b"\x00"
            response.cluster_id = "made-up"
        return frame[4:8] + tags + bytes(response.encode(version=version))

    def _error(self, name: str) -> int:
        """As KafkaApis and ConfigHelper: who may not describe, and then whose configuration it is not."""
        return 31 if not self.may_describe else 0 if name == str(self.broker_id) else 42

    def _metadata(self, request: Any) -> Any:
        broker, topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        names = self.topics if request.topics is None else [one.name for one in request.topics]
        return MetadataResponse(
            brokers=[broker(node_id=number, host=host, port=port) for number, (host, port) in self.brokers.items()],
            topics=[
                topic(
                    error_code=0 if name in self.topics else 3,
                    name=name,
                    partitions=[partition] if name in self.topics else [],
                )
                for name in names
            ],
        )


@asynccontextmanager
async def told_broker(tls: ssl.SSLContext | None = None, **how: Any) -> AsyncIterator[ToldBroker]:
    """A broker on a free port of 127.0.0.1; `how` are fields of ToldBroker."""
    broker = ToldBroker(**how)
    async with serving(broker.serve, tls) as (_, broker.port):
        yield broker

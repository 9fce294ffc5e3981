# SPDX-License-Identifier: Apache-2.0
"""Looks at one address: whether it is reached, what it speaks, which broker it is, and what that broker tells."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

from weir.access.tls_contexts import verification_words
from weir.protocol.errors import ProtocolError
from weir.protocol.metadata import (
    METADATA,
    MetadataTopic,
    decode_cluster,
    encode_metadata_request,
)
from weir.proxy.cluster.channel import CLIENT_ID, Channel, PlainChannel, answers_tls, metadata_version, versions_of
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.metadata import describe
from weir.proxy.cluster.view import Broker
from weir.proxy.config.address import Address
from weir.proxy.config.route_checks import addresses_of
from weir.proxy.log import os_error_reason
from weir.proxy.tls.keys import fits, names_in
from weir.proxy.tls.live_keys import TlsClient

STEP_SECONDS: Final = 5.0

FETCH: Final = 1
_DESCRIBE_CONFIGS: Final = 32
_DESCRIBE_CLUSTER: Final = 60
_BROKER_HEARTBEAT: Final = 63  # only controllers take it
_BROKER: Final = 4  # ConfigResource.Type
_NO_ERROR: Final = 0
_CLUSTER_AUTHORIZATION_FAILED: Final = 31
CLUSTER_ACTION: Final = 9  # AclOperation

Trouble = Literal["unresolved", "refused", "unreachable", "timeout", "silent", "plaintext", "certificate"]

_Failure = (OSError, EOFError, ProtocolError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look at an address found.

    - `trouble`, with `reason`: why nothing could be asked. `plaintext`: TLS was expected.
    - `speaks_tls`: whether what listens there has TLS.
    - `not_told`: why the broker did not tell of the cluster, or who it is; empty where it did.
    - `apis`: the oldest and newest version by api_key.
    - `brokers`: those that run, and what they advertise on this listener.
    - `broker_id`: who answered.
    - `operations`: what whoever connects so may do with the cluster, as bits by AclOperation; None: not told.
    - `missing`: those of the topics asked for that do not exist, each with the nearest name that does, or None.
    """

    address: Address
    trouble: Trouble | None = None
    reason: str = ""
    speaks_tls: bool = False
    not_told: str = ""
    apis: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    broker_id: int | None = None
    operations: int | None = None
    missing: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def is_controller(self) -> bool:
        """Whether it is a listener of a KRaft controller."""
        return METADATA not in self.apis and _BROKER_HEARTBEAT in self.apis


async def look(
    address: Address, tls: TlsClient | None, access: Mapping[str, Any], topics: Collection[str] = ()
) -> Seen:
    """Look at what listens on an address. Nothing is changed there, and no topic is made.

    `tls`: how the route connects. `access`: options of aiokafka's connections, for a broker that wants credentials.
    """
    if not await asyncio.to_thread(addresses_of, address.host):
        return Seen(address=address, trouble="unresolved")
    try:
        async with asyncio.timeout(STEP_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.transport.abort()
    except TimeoutError:
        return Seen(address=address, trouble="timeout", reason=f"no answer within {STEP_SECONDS:g} s")
    except ConnectionRefusedError as error:
        return Seen(address=address, trouble="refused", reason=os_error_reason(error))
    except OSError as error:
        return Seen(address=address, trouble="unreachable", reason=os_error_reason(error))
    seen, channel = await _greeted(address, tls)
    if channel is None:
        return seen if seen.trouble is not None or not _fits(access, seen) else await _with_access(seen, access, topics)
    try:
        found = await _asked(seen, channel, topics)
    finally:
        channel.close()
    if found.not_told and not found.brokers and str(access.get("sasl_mechanism", "")) and _fits(access, seen):
        return await _with_access(found, access, topics)
    return found


async def _greeted(address: Address, tls: TlsClient | None) -> tuple[Seen, Channel | None]:
    """Return what listens there, and a channel on which it has told its versions; None where it speaks TLS alone."""
    seen = Seen(address=address)
    if tls is not None:
        seen, channel = await _greeted_in_tls(address, tls)
        if channel is not None or seen.trouble == "certificate":
            return seen, channel
    plain = await _opened(address)
    if plain is not None:
        channel, apis = plain
        if tls is None or tls.falls_back:
            return Seen(address=address, apis=apis), channel
        channel.close()
        return Seen(address=address, trouble="plaintext", apis=apis), None
    if seen.trouble is not None:
        return seen, None
    try:
        async with asyncio.timeout(STEP_SECONDS):
            if await answers_tls(address):
                return Seen(address=address, speaks_tls=True, not_told="it speaks TLS"), None
    except OSError:
        pass  # it was there a moment ago, and is nothing that Kafka could be
    return Seen(address=address, trouble="silent"), None


async def _greeted_in_tls(address: Address, tls: TlsClient) -> tuple[Seen, Channel | None]:
    name = tls.server_name or address.host
    context = tls.keys.keys.context
    try:
        async with asyncio.timeout(STEP_SECONDS):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=name
            )
            channel = PlainChannel(reader, writer)
            certificate = writer.get_extra_info("peercert")
            if tls.allowed_names is not None and not fits(certificate, tls.allowed_names):
                channel.close()
                reason = f"it has the names {', '.join(names_in(certificate)) or 'none'}, and none of them is allowed"
                return Seen(address=address, trouble="certificate", speaks_tls=True, reason=reason), None
            try:
                return Seen(address=address, speaks_tls=True, apis=await versions_of(channel)), channel
            except _Failure as error:
                channel.close()
                refused = os_error_reason(error) if isinstance(error, OSError) else "it closes the connection"
                reason = f"it does not take this sidecar's certificate: {refused}"
                return Seen(address=address, trouble="certificate", speaks_tls=True, reason=reason), None
    except ssl.SSLCertVerificationError as error:
        reason = verification_words(error)
        return Seen(address=address, trouble="certificate", speaks_tls=True, reason=reason), None
    except OSError as error:
        return Seen(address=address, trouble="silent", reason=os_error_reason(error)), None


async def _opened(address: Address) -> tuple[Channel, Mapping[int, tuple[int, int]]] | None:
    try:
        async with asyncio.timeout(STEP_SECONDS):
            channel = PlainChannel(*await asyncio.open_connection(address.host, address.port))
            try:
                return channel, await versions_of(channel)
            except BaseException:
                channel.close()
                raise
    except _Failure:
        return None


def _fits(access: Mapping[str, Any], seen: Seen) -> bool:
    """Whether these options are for a listener with TLS, if this one has it, and for one without, if it has none."""
    return bool(access) and str(access.get("security_protocol", "")).endswith("SSL") == seen.speaks_tls


async def _with_access(seen: Seen, access: Mapping[str, Any], topics: Collection[str]) -> Seen:
    try:
        async with asyncio.timeout(STEP_SECONDS):
            channel = await KafkaChannel.open(seen.address, access)
    except _Failure as error:
        return replace(seen, not_told=f"with cluster.properties it refuses: {error}".rstrip("."))
    try:
        # What it may do is that of the sidecar's own questions, and not that of what passes on the route.
        return replace(await _asked(seen, channel, topics), operations=None)
    finally:
        channel.close()


async def _asked(seen: Seen, channel: Channel, topics: Collection[str]) -> Seen:
    try:
        async with asyncio.timeout(STEP_SECONDS):
            apis = seen.apis or await versions_of(channel)
            seen = replace(seen, apis=apis, not_told="")
            version = metadata_version(*apis.get(METADATA, (0, -1)))
            if version is None:
                return replace(seen, not_told="it has no version of Metadata that is known here")
            channel.metadata_version = version
            names = [topic.encode() for topic in topics]
            told = await describe(channel, names, names)
            gone = [name.decode() for name, topic in told.topics.items() if topic.partitions == {}]
            near = await _nearest(channel, gone) if gone else {}
            seen = replace(seen, brokers=told.brokers, missing=near)
    except _Failure:
        return replace(seen, not_told="it closes the connection of whoever has not authenticated")
    try:
        async with asyncio.timeout(STEP_SECONDS):
            broker_id, not_told = await _identity(channel, seen)
            return replace(seen, broker_id=broker_id, not_told=not_told, operations=await _operations(channel, apis))
    except _Failure:
        return replace(seen, not_told="it closes the connection when it is asked for its configuration")


async def _nearest(channel: Channel, gone: Iterable[str]) -> dict[str, str | None]:
    version = channel.metadata_version
    answer = await channel.ask(lambda number: encode_metadata_request(version, number, CLIENT_ID, None))
    _, rows = decode_cluster(answer.frame, version, answer.correlation_id, ())
    there = [row.name.decode("utf-8", "replace") for row in rows if isinstance(row, MetadataTopic) and row.name]
    return {name: next(iter(get_close_matches(name, there, 1)), None) for name in gone}


async def _identity(channel: Channel, seen: Seen) -> tuple[int | None, str]:
    """Return which broker answers, or why it is not known. A broker tells its own configuration and no other's."""
    newest = seen.apis.get(_DESCRIBE_CONFIGS, (0, -1))[1]
    if newest < 0:
        return None, "it is older than Kafka 0.11, and does not tell who it is"
    version = min(newest, 1)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [
        resource(resource_type=_BROKER, resource_name=str(broker_id), configuration_keys=["advertised.listeners"])
        for broker_id in seen.brokers
    ]
    request = DescribeConfigsRequest(version=version, resources=wanted, include_synonyms=False)
    answer = await _kafka(channel, request, version, DescribeConfigsResponse)
    for result in answer.results:
        if result.error_code == _NO_ERROR:
            return int(result.resource_name), ""
    if any(result.error_code == _CLUSTER_AUTHORIZATION_FAILED for result in answer.results):
        return None, "it tells who it is only to those who may describe its configuration (DescribeConfigs)"
    return None, "it is none of the brokers that it knows"


async def _operations(channel: Channel, apis: Mapping[int, tuple[int, int]]) -> int | None:
    if _DESCRIBE_CLUSTER not in apis:
        return None
    request = DescribeClusterRequest(version=0, include_cluster_authorized_operations=True)
    answer = await _kafka(channel, request, 0, DescribeClusterResponse)
    operations = answer.authorized_operations
    if answer.error_code != _NO_ERROR or operations is None:
        return None
    # a principal that may not describe the cluster is told of no operation at all
    return sum(1 << int(operation) for operation in operations) or None


async def _kafka(channel: Channel, request: Any, version: int, response: Any) -> Any:
    """Ask with one of kafka-python's requests, which have no types."""

    def question(correlation_id: int) -> bytes:
        request.with_header(correlation_id=correlation_id, client_id=CLIENT_ID.decode())
        return bytes(request.encode(version=version, header=True, framed=True))

    answer = await channel.ask(question)
    return response.decode(answer.frame, version=version, header=True)

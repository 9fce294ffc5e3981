# SPDX-License-Identifier: Apache-2.0
"""What real brokers and sidecars say on the wire, kept by a third party between the leader's sidecar and its broker."""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest as TheirRequest
from kafka.protocol.consumer import FetchResponse as TheirResponse

from tests.integration.moves import MB, assert_identical, filled, moving, throttle, wait_for_bytes
from tests.integration.recorder import Recorder
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS, Mode
from weir.lab.options import weir_run
from weir.lab.produce import LiveProducer
from weir.protocol.fetch_request import decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_session import INITIAL_EPOCH
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import FetchResponseScanner

pytestmark = pytest.mark.integration

RATE = 2 * MB


@contextmanager
def recorded_cluster(mode: Mode) -> Iterator[tuple[Cluster, list[Recorder]]]:
    """Two brokers with a recorder between each sidecar and its broker; the recorders are in the brokers' order."""
    recorders: list[Recorder] = []

    def command(config: Path) -> list[str]:
        text = config.read_text()
        upstream = tomllib.loads(text)["ingress"][0]["upstream"]
        host, port = upstream.rsplit(":", 1)
        recorders.append(Recorder((host, int(port))))
        recorded = "{}:{}".format(*recorders[-1].address)
        config.write_text(text.replace(json.dumps(upstream), json.dumps(recorded)))
        return weir_run(config)

    try:
        with mode.cluster(2, sidecars=True, sidecar_command=command) as cluster:
            yield cluster, recorders
    finally:
        for recorder in recorders:
            recorder.close()


@pytest.fixture(scope="module", params=CORNERS[1:], ids=lambda mode: mode.name)
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, list[Recorder]]]:
    with recorded_cluster(request.param) as running:
        yield running
        running[0].check_logs()


def test_captured_frames_are_read_alike_by_another_codec(recorded: tuple[Cluster, list[Recorder]]) -> None:
    cluster, recorders = recorded
    topic = filled(cluster, "orders", [1], 16 * MB)
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2]) as received:
        wait_for_bytes(cluster, received, RATE)
        begun = len(list(recorders[0].fetches()))
        wait_for_bytes(cluster, received, 5 * RATE)
        steady = list(recorders[0].fetches())[begun:]
    assert_identical(cluster, [topic], 1, 2)
    assert len(steady) > 20
    requests = [decode_fetch_request(request) for request, _ in steady]
    assert {request.header.api_version for request in requests} == {cluster.fetch_version}
    assert not [request for request in requests if request.session_epoch == INITIAL_EPOCH]
    for request, response in recorders[0].fetches():
        assert_read_alike(request, response)


@pytest.mark.parametrize("recorded", CORNERS[1:2], indirect=True, ids=lambda mode: mode.name)
def test_what_is_granted_beside_live_records_goes_with_one(recorded: tuple[Cluster, list[Recorder]]) -> None:
    """A grant alone would be answered at once, and the next live record would wait behind that answer.

    The mode is the newest that has names on the wire.
    """
    cluster, recorders = recorded
    topic = filled(cluster, "beside-live", [1], 10 * MB)
    cluster.create_topic("live", {0: [1, 2]})
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with (
        LiveProducer(cluster.bootstrap_servers, "live", [0], rate=200) as producer,
        moving(cluster, [topic], [1, 2]) as received,
    ):
        wait_for_bytes(cluster, received, RATE)
        begun = len(list(recorders[0].fetches()))
        wait_for_bytes(cluster, received, 4 * RATE)
        steady = list(recorders[0].fetches())[begun:]
    assert producer.failed == 0
    assert_identical(cluster, [topic, "live"], 1, 2)
    assert cluster.fetch_version is not None
    answers = [_topics_with_records(cluster.fetch_version, response) for _, response in steady]
    moved = [topics for topics in answers if topic.encode() in topics]
    assert len(moved) > 20
    # Quiet: 0.95. A busy machine delays records, and an answer then goes without one: 0.35. Without it: 0.02.
    assert sum(b"live" in topics for topics in moved) > 0.2 * len(moved)


def _topics_with_records(version: int, response: bytes) -> set[bytes]:
    scanner = FetchResponseScanner(version, *struct.unpack_from(">i", response))
    scanner.receive(memoryview(len(response).to_bytes(4, "big") + response))
    return {
        name
        for name, headers, _, _ in scanner.topics
        if any(size > 0 for *_, size in RESPONSE_ENTRY.iter_unpack(headers))
    }


def assert_read_alike(request: bytes, response: bytes) -> None:
    """Compare what our codec and kafka-python's read, and that ours writes a request as it came."""
    ours = decode_fetch_request(request)
    assert encode_fetch_request(ours)[4:] == request
    version = ours.header.api_version
    row = fetch_version(version)
    theirs: Any = TheirRequest.decode(request, version=version, header=True)
    topics = [(_name(version, topic), topic) for topic in theirs.topics]
    assert [
        (block.name, *entry)
        for block in ours.topics
        for entry in row.requested(block.stride).iter_unpack(block.entries)
    ] == [
        (name, one.partition, one.fetch_offset, one.partition_max_bytes)
        for name, topic in topics
        for one in topic.partitions
    ]
    assert (ours.session_id, ours.session_epoch) == (theirs.session_id, theirs.session_epoch)

    scanner = FetchResponseScanner(version, ours.header.correlation_id)
    scanner.receive(memoryview(len(response).to_bytes(4, "big") + response))
    assert scanner.done
    answered: Any = TheirResponse.decode(response, version=version, header=True)
    assert (scanner.head.error_code, scanner.head.session_id) == (answered.error_code, answered.session_id)
    assert [
        (name, *entry[:3], max(0, entry[3]))
        for name, headers, _, _ in scanner.topics
        for entry in RESPONSE_ENTRY.iter_unpack(headers)
    ] == [
        (_name(version, topic), one.partition_index, one.error_code, one.high_watermark, len(one.records or b""))
        for topic in answered.responses
        for one in topic.partitions
    ]


def _name(version: int, topic: Any) -> bytes:
    return bytes(topic.topic_id.bytes) if fetch_version(version).names_topics_by_id else str(topic.topic).encode()

# SPDX-License-Identifier: Apache-2.0
"""A response that holds more than was asked for is refused by its counts, before any of it is kept."""

import tracemalloc

import pytest

from tests.protocol.fetch_data import (
    VERSIONS,
    Partition,
    Topics,
    batch,
    feed,
    response,
    scanned,
    single_bytes,
    with_ids,
)
from weir.protocol.errors import MalformedFrame
from weir.protocol.response_scanner import Expected, FetchResponseScanner

TOPICS: Topics = [
    (b"orders", [Partition(0, 0, 7, batch(40)), Partition(1, 0, 7, b""), Partition(2, 0, 7, batch(30))]),
    (b"idle", [Partition(0, 0, 7, b""), Partition(1, 0, 7, None)]),
    (b"orders", [Partition(3, 0, 7, b"")]),
    (b"none", []),
]
PARTITIONS = 6


def error_of(frame: bytes, version: int, most_partitions: int, most_topics: int) -> MalformedFrame:
    """What is raised, the same whether the response comes whole or byte by byte."""
    errors = []
    for chunks in ([frame], single_bytes(frame)):
        scanner = FetchResponseScanner(version, 7, Expected(most_partitions=most_partitions, most_topics=most_topics))
        with pytest.raises(MalformedFrame) as error:
            feed(scanner, chunks)
        errors.append(error.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_response_with_as_much_as_was_asked_for_passes(version: int) -> None:
    topics = with_ids(version, TOPICS)
    frame = response(version, 7, topics)
    for chunks in ([frame], single_bytes(frame), [frame[:60], frame[60:]]):
        scanner = FetchResponseScanner(version, 7, Expected(most_partitions=PARTITIONS, most_topics=len(TOPICS)))
        assert feed(scanner, chunks) == frame
        assert scanner.topics == scanned(topics, (), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [TOPICS, TOPICS[1:], [*TOPICS[1:], *TOPICS[:1]]], ids=["last", "idle", "active"])
def test_response_of_one_partition_more_is_malformed_at_count(version: int, topics: Topics) -> None:
    """A topic may come in several pieces: they count together."""
    partitions = sum(len(partitions) for _, partitions in topics)
    error = error_of(response(version, 7, with_ids(version, topics)), version, partitions - 1, len(topics))
    assert "asked for" in error.reason


@pytest.mark.parametrize("version", VERSIONS)
def test_response_with_a_topic_more_is_malformed_at_its_head(version: int) -> None:
    frame = response(version, 7, with_ids(version, TOPICS))
    error = error_of(frame, version, 100, len(TOPICS) - 1)
    assert "4 topics" in error.reason
    assert error.offset < 30


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < 13])
def test_response_with_a_name_longer_than_any_is_malformed(version: int) -> None:
    """A name is kept: many long ones would take memory that no count bounds."""
    for length in (255, 256, 32_767):
        frame = response(version, 7, [(b"n" * length, [Partition(0, 0, 7, b"")])])
        if length == 255:
            feed(FetchResponseScanner(version, 7, Expected(most_partitions=1, most_topics=1)), [frame])
        else:
            assert f"{length} bytes" in error_of(frame, version, 1, 1).reason


@pytest.mark.parametrize("version", [3, 7, 12, 18])
@pytest.mark.parametrize("shape", ["topics", "partitions"])
def test_response_of_much_not_asked_for_takes_no_memory(version: int, shape: str) -> None:
    idle = [Partition(0, 0, 7, b"")]
    made: Topics = [(b"t", idle)] * 2_000 if shape == "topics" else [(b"t", idle), (b"u", idle * 2_000)]
    frame = memoryview(response(version, 7, with_ids(version, made)))
    scanner = FetchResponseScanner(version, 7, Expected(most_partitions=10, most_topics=11))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            scanner.receive(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 1024

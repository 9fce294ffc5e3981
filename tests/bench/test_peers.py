# SPDX-License-Identifier: Apache-2.0
"""The peers of the benches: a broker answers with as much as is asked for, a follower goes through a leader's logs."""

from __future__ import annotations

import struct

import pytest

from bench.peers import DIRECTORY_ID, RESPONSE_MAX_BYTES, Follower, Leader, batch_of, fetch_request, keys_of
from bench.sockets import Broker, metadata_request, worst_second
from weir.protocol.header import SIZE
from weir.protocol.metadata import encode_api_versions_request
from weir.protocol.records import RecordsSeen
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner

KEYS = keys_of(3, 2)


def scanned(follower: Follower, leader: Leader, *, is_full: bool = False) -> FetchResponseScanner:
    """One fetch."""
    answer = leader.answer(follower.request(is_full=is_full)[SIZE.size :])
    scanner = FetchResponseScanner(follower.version, follower.correlation_id, Expected(walk=follower.topics))
    scanner.receive(memoryview(answer))
    assert scanner.done
    follower.take(scanner.topics, scanner.head)
    return scanner


def told(scanner: FetchResponseScanner) -> int:
    """Of how many partitions an answer tells."""
    return sum(len(topic.headers) // RESPONSE_ENTRY.size for topic in scanner.topics)


def exchange(follower: Follower, leader: Leader) -> dict[tuple[bytes, int], RecordsSeen]:
    """One fetch; what it brought of each partition."""
    scanner = scanned(follower, leader)
    return {(name, one.partition): one for name, _, records, _ in scanner.topics for one in records}


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (metadata_request(7, 64), 64),
        (fetch_request(7, 4096), 4096),
        # Of a sidecar that asks whether anybody is there: no size can be read from its client id.
        (encode_api_versions_request(7, b"weir"), 14),
    ],
)
def test_answer_has_the_size_that_was_asked_for(request_: bytes, size: int) -> None:
    unread = bytearray(request_ + request_[:5])
    answer = Broker(Leader(1000))(unread)
    assert (len(answer), bytes(unread)) == (size, request_[:5])
    assert struct.unpack_from(">ii", answer) == (size - 4, 7)


@pytest.mark.parametrize("version", [3, 7, 12, 17])
def test_follower_gets_whole_batches_of_every_partition_in_turn(version: int) -> None:
    follower = Follower(version, KEYS, entry_tags=DIRECTORY_ID if version >= 17 else b"")
    leader = Leader(RESPONSE_MAX_BYTES // 20)
    found = [exchange(follower, leader) for _ in range(3)]
    assert all(one.batches >= 1 for fetched in found for one in fetched.values())
    assert set().union(*found) == set(KEYS)


@pytest.mark.parametrize("version", [3, 12])
def test_first_batch_comes_however_large_and_no_other_beside_it(version: int) -> None:
    leader = Leader(RESPONSE_MAX_BYTES)
    found = [exchange(follower, leader) for follower in [Follower(version, KEYS)] for _ in KEYS]
    assert [list(fetched) for fetched in found] == [[key] for key in KEYS]
    assert all(one.size == RESPONSE_MAX_BYTES for fetched in found for one in fetched.values())


def test_session_tells_nothing_of_those_that_wait_for_room() -> None:
    follower, leader = Follower(12, KEYS), Leader(RESPONSE_MAX_BYTES)
    assert [told(scanned(follower, leader)) for _ in range(3)] == [len(KEYS), 1, 1]


def test_active_partitions_have_a_batch_each_fetch_others_none() -> None:
    follower, leader = Follower(12, KEYS), Leader(behind=(), active=set(KEYS[:2]))
    for _ in range(3):
        found = exchange(follower, leader)
        assert {key: one.size for key, one in found.items()} == dict.fromkeys(KEYS[:2], 1024)


def test_session_lists_what_changed_only_until_a_full_fetch() -> None:
    follower, leader = Follower(12, KEYS, moves=False), Leader(behind=(), active=set(KEYS[:1]))
    sizes, counts = [len(follower.request())], []
    for is_full in (False, False, True, False):
        counts.append(told(scanned(follower, leader, is_full=is_full)))
        sizes.append(len(follower.request()))
    assert counts == [len(KEYS), 1, len(KEYS), 1]
    assert sizes[1] == sizes[2] == sizes[3] == sizes[4] < sizes[0] == len(follower.request(is_full=True))


def test_answer_has_no_more_than_a_follower_takes() -> None:
    found = exchange(Follower(3, keys_of(20, 1)), Leader(1000))
    assert RESPONSE_MAX_BYTES - 1000 < sum(one.size for one in found.values()) <= RESPONSE_MAX_BYTES


def test_batch_is_one_to_a_walker() -> None:
    follower, leader = Follower(3, KEYS[:1]), Leader(10_000)
    (seen,) = exchange(follower, leader).values()
    assert (seen.smallest, seen.largest) == (len(batch_of(10_000)), 10_000)


def test_worst_second_is_a_sliding_one() -> None:
    assert worst_second([(0.0, 1), (0.6, 4), (1.5, 5), (1.7, 1), (9.0, 8)]) == 9
    assert worst_second([]) == 0

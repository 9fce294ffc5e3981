# SPDX-License-Identifier: Apache-2.0
"""Fetch v15 to v18 in the stream of requests: who sent one is known only when the whole of it was stepped through."""

import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocol.fetch_data import NO_TAGS, single_bytes
from tests.protocol.fetch_requests import (
    DIRECTORY_ID,
    HIGH_WATERMARK,
    Asked,
    AskedTopic,
    Tags,
    encode,
    packed,
    requests,
)
from tests.protocol.request_events import cut, events_of, failure, joined, passed
from tests.protocol.wire import compact_string, request, tag_buffer
from weir.protocol import request_topics
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import (
    CONSUMER,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_request,
    replica_id_steps,
    replica_state_tags,
)
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_events import Expect, Pass, ReplicaFetch, RequestEvent, Undecoded, UndecodedReason
from weir.protocol.request_stream import RequestStream
from weir.protocol.steps import at_once

VERSIONS = tuple(version for version, row in FETCH_VERSIONS.items() if row.has_replica_state)
ID = b"0123456789abcdef"
REPLICA_STATE = replica_state_tags(5, 9)


def decodes(replica_id: int, _api_version: int) -> bool:
    return replica_id >= 0


def stream(fetch_size_limit: int = 2**20) -> RequestStream:
    return RequestStream(fetch_size_limit, decodes)


def asked(partition: int, *tags: tuple[int, bytes]) -> Asked:
    return Asked(partition, 3, 100 + partition, 2, 50, 2**20, tags)


def fetch(version: int, correlation_id: int, tags: bytes) -> bytes:
    """A whole frame with two topics, whose own tag buffer is `tags`."""
    topics: list[AskedTopic] = [(ID, [asked(0), asked(1)], ()), (ID[::-1], [asked(0, DIRECTORY_ID), asked(1)], ())]
    header = RequestHeader(FETCH, version, correlation_id, b"c")
    made = FetchRequest(header, 0, 500, 1, 2**20, packed(version, topics), rack_id=b"rack", tags=tags)
    data = encode_fetch_request(made)
    assert data == encode(made, topics)
    return data


def resized(data: bytes) -> bytes:
    """`data` as a whole frame, whatever its size prefix said."""
    return struct.pack(">i", len(data) - 4) + data[4:]


def without_passes(events: list[RequestEvent]) -> list[RequestEvent]:
    return [event for event in events if not isinstance(event, Pass)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replicas_fetch_is_given_out_and_a_consumers_passes(version: int) -> None:
    consumer, replica, other = fetch(version, 1, NO_TAGS), fetch(version, 2, REPLICA_STATE), request(3, 1, 3)
    data = consumer + replica + other + consumer
    for chunks in ([data], single_bytes(data), [data[:50], data[50:]]):
        events = events_of(stream(), *chunks)
        assert passed(events) == data
        assert without_passes(events) == [
            Expect(FETCH, version, 1),
            ReplicaFetch(RequestHeader(FETCH, version, 2, None), replica[4:]),
            Expect(3, 1, 3),
            Expect(FETCH, version, 1),
        ]


def test_consumers_fetches_of_one_chunk_pass_as_one_slice() -> None:
    data = fetch(17, 1, NO_TAGS) + request(3, 1, 2) + fetch(17, 3, NO_TAGS)
    *expected, last = stream().receive(memoryview(data))
    assert [event.correlation_id for event in expected if isinstance(event, Expect)] == [1, 2, 3]
    assert isinstance(last, Pass)
    assert isinstance(last.buffer, memoryview)
    assert last.buffer.obj is data


@pytest.mark.parametrize(
    ("tags", "replica_id"),
    [
        pytest.param(tag_buffer((0, compact_string(b"cluster"))), CONSUMER, id="another tag"),
        pytest.param(tag_buffer((0, b"c" * 200), (1, struct.pack(">iq", 7, 1) + NO_TAGS)), 7, id="behind another"),
        pytest.param(replica_state_tags(0, 1), 0, id="the smallest id"),
        pytest.param(replica_state_tags(-1, -1), -1, id="written although it is the default"),
        pytest.param(replica_state_tags(-2, -1), -2, id="a debugging consumer"),
    ],
)
def test_only_a_replica_state_with_an_id_makes_a_replica(tags: bytes, replica_id: int) -> None:
    data = fetch(18, 1, tags)
    (event, *_) = events_of(stream(), data)
    assert at_once(replica_id_steps(data[4:])) == replica_id
    assert isinstance(event, ReplicaFetch if replica_id >= 0 else Expect)


@pytest.mark.long
@given(st.lists(requests(VERSIONS), min_size=1, max_size=5), st.lists(st.integers(0, 5000), max_size=20))
def test_any_fetches_in_any_chunks_are_told_apart(
    made: list[tuple[FetchRequest, list[AskedTopic]]], cuts: list[int]
) -> None:
    frames = [encode(one, topics) for one, topics in made]
    data = b"".join(frames)
    events = events_of(stream(), *cut(data, cuts))
    assert passed(events) == data
    expected = [
        ReplicaFetch(replace(one.header, client_id=None, tags=b""), frame[4:])
        if one.replica_id >= 0
        else Expect(FETCH, one.header.api_version, one.header.correlation_id)
        for (one, _), frame in zip(made, frames, strict=True)
    ]
    undecoded = [event for event in events if isinstance(event, Undecoded)]
    assert [event for event in without_passes(events) if event not in undecoded] == expected


TAGS = st.sampled_from(((), (DIRECTORY_ID,), (DIRECTORY_ID, HIGH_WATERMARK)))


def run_of_topics(topics: int, partitions: int, tags: Tags, topic_tags: Tags) -> list[AskedTopic]:
    return [(ID, [asked(partition, *tags) for partition in range(partitions)], topic_tags)] * topics


RUNS = st.builds(
    run_of_topics,
    st.integers(1, 40),
    st.integers(0, 10),
    st.sampled_from(((), (DIRECTORY_ID,), (DIRECTORY_ID, HIGH_WATERMARK))),
    st.sampled_from(((), (), ((9, b"?" * 129),))),
)
TOPICS = st.lists(RUNS, max_size=4).map(lambda runs: [topic for run in runs for topic in run])


@pytest.mark.long
@given(
    st.sampled_from(VERSIONS), TOPICS, st.sampled_from((NO_TAGS, REPLICA_STATE)), st.integers(0), st.integers(0, 255)
)
@example(17, run_of_topics(1, 1, (), ()) + run_of_topics(1, 1, (DIRECTORY_ID,), ()), REPLICA_STATE, 0, 0)
def test_stepping_finds_what_decoding_finds(
    version: int, topics: list[AskedTopic], tags: bytes, place: int, value: int
) -> None:
    """In runs of topics that are alike too, and in frames where one byte is another."""
    made = FetchRequest(RequestHeader(FETCH, version, 7, b"c"), 0, 500, 1, 2**20, [], tags=tags)
    frame = encode(made, topics)[4:]
    assert at_once(replica_id_steps(frame)) == (CONSUMER if tags == NO_TAGS else 5)
    changed = bytearray(frame)
    changed[8 + place % (len(frame) - 8)] = value  # behind the API's key and version
    try:
        decoded = decode_fetch_request(bytes(changed))
    except MalformedFrame:
        return
    assert at_once(replica_id_steps(bytes(changed))) == decoded.replica_id


@pytest.mark.parametrize("tags", [NO_TAGS, REPLICA_STATE])
def test_fetch_that_ends_before_its_sender_passes_and_says_so(tags: bytes) -> None:
    """From v15 on the replica id stands in a tag at the request's end."""
    data = fetch(17, 1, tags)
    known_from = len(data) if tags == NO_TAGS else len(data) - 9  # the epoch, and the tags behind it
    for end in range(16, len(data)):
        cut_off = resized(data[:end])
        for chunks in ([cut_off], [cut_off[:15], cut_off[15:]]):
            events = events_of(stream(), *chunks, request(3, 1, 2))
            if end < known_from:
                assert without_passes(events)[0] == Undecoded("fetch_malformed", 17, None)
                assert passed(events) == cut_off + request(3, 1, 2)
            else:
                assert isinstance(events[0], ReplicaFetch)


def test_faults_behind_the_replica_id_do_not_hide_a_replica() -> None:
    """Decoding it refuses the request then."""
    for data in (fetch(17, 1, REPLICA_STATE) + b"rest", fetch(17, 1, b"\x02" + REPLICA_STATE[1:])):
        (event,) = events_of(stream(), resized(data))
        assert isinstance(event, ReplicaFetch)
        with pytest.raises(MalformedFrame):
            decode_fetch_request(event.frame)


def test_a_fetch_above_the_limit_passes_without_being_collected() -> None:
    data = fetch(17, 1, REPLICA_STATE)
    size = len(data) - 4
    assert isinstance(events_of(stream(size), data)[0], ReplicaFetch)
    for chunks in ([data], single_bytes(data)):
        events = joined(events_of(stream(size - 1), *chunks))
        assert events == [Undecoded("fetch_too_large", 17, None), Expect(FETCH, 17, 1), Pass(data)]
    large = stream(size - 1)
    events_of(large, data[:20])
    assert (large.collected, large.passing) == (0, len(data) - 20)


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        pytest.param([(ID, [], ())] * 6, "too_many_topics", id="topics"),
        pytest.param([(ID, [asked(0)] * 11, ())], "too_many_partitions", id="partitions"),
    ],
)
def test_fetch_listing_more_than_is_decoded_passes_and_says_so(
    topics: list[AskedTopic], reason: UndecodedReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_topics, "MOST_TOPICS", 5)
    monkeypatch.setattr(request_topics, "MOST_PARTITIONS", 10)
    header = RequestHeader(FETCH, 17, 1, b"c")
    data = encode(FetchRequest(header, 0, 500, 1, 2**20, [], tags=REPLICA_STATE), topics)
    for chunks in ([data], [data[:50], data[50:]]):
        assert joined(events_of(stream(2**24), *chunks)) == [
            Undecoded(reason, 17, None),
            Expect(FETCH, 17, 1),
            Pass(data),
        ]


def test_a_fetch_is_kept_until_its_last_byte_is_there() -> None:
    data = fetch(17, 1, NO_TAGS)
    collecting = stream()
    assert events_of(collecting, data[:-1]) == []
    assert (collecting.missing, collecting.passing, collecting.collected) == (1, 0, len(data) - 1)
    assert not collecting.skip(1)
    assert events_of(collecting, data[-1:]) == [Expect(FETCH, 17, 1), Pass(data)]
    assert collecting.at_boundary
    assert collecting.collected == 0


def test_replicas_fetch_passes_if_the_caller_does_not_want_it() -> None:
    data = fetch(18, 1, REPLICA_STATE)
    for chunks in ([data], [data[:50], data[50:]]):
        unwanted = RequestStream(decode_fetch=lambda replica_id, api_version: (replica_id, api_version) != (5, 18))
        assert events_of(unwanted, *chunks)[-2:] == [Expect(FETCH, 18, 1), Pass(data)]


def test_caller_that_stops_after_a_fetch_goes_on_with_the_rest() -> None:
    data = fetch(18, 1, NO_TAGS) + fetch(18, 2, REPLICA_STATE) + request(18, 0, 3)
    for first in (0, 70):
        stopped = stream()
        events_of(stopped, data[:first])
        view = memoryview(data)[first:]
        events = stopped.receive(view)
        while not isinstance(next(events), ReplicaFetch):
            pass
        assert view[stopped.consumed :] == request(18, 0, 3)


def test_impossible_size_is_refused_behind_a_passing_fetch() -> None:
    data = fetch(15, 1, NO_TAGS)
    events, _ = failure(stream(), data + struct.pack(">i", 3))
    assert passed(events) == data

# SPDX-License-Identifier: Apache-2.0
"""The stream of requests: what passes, what is expected, what is decoded."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.fetch_data import single_bytes
from tests.protocol.request_events import cut, events_of, failure, joined, passed
from tests.protocol.wire import CONSUMER, fetch, frame, produce, request, string
from weir.protocol.errors import InvalidFrameSize, MalformedFrame, ProtocolError
from weir.protocol.request_events import (
    BecameOpaque,
    Expect,
    Pass,
    ReplicaFetch,
    RequestBegins,
    RequestEvent,
    Undecoded,
)
from weir.protocol.request_stream import RequestStream


def test_requests_of_one_chunk_pass_as_one_slice() -> None:
    data = request(3, 1, 10, b"metadata") + request(18, 0, 11) + produce(12, acks=-1)
    view = memoryview(data)
    events = list(RequestStream().receive(view))
    assert events[:3] == [Expect(3, 1, 10), Expect(18, 0, 11), Expect(0, 2, 12)]
    (last,) = events[3:]
    assert isinstance(last, Pass)
    assert isinstance(last.buffer, memoryview)
    assert last.buffer.obj is data
    assert last.buffer == data


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 13])
@pytest.mark.parametrize(("acks", "expected"), [(0, 0), (1, 1), (-1, 1)])
def test_produce_expects_a_response_unless_acks_is_0(version: int, acks: int, expected: int) -> None:
    data = produce(5, acks, version=version)
    for chunks in ([data], [bytes([byte]) for byte in data]):
        events = events_of(RequestStream(), *chunks)
        assert [event for event in events if isinstance(event, Expect)] == [Expect(0, version, 5)] * expected
        assert passed(events) == data


def test_produce_with_tags_and_long_strings_is_read_to_acks() -> None:
    tags = b"\x02" + b"\x07\x03abc" + b"\x81\x01\x00"
    body = tags + b"\xac\x02" + b"t" * 299 + struct.pack(">h", 0) + b"rest"
    data = request(0, 9, 5, body, client_id=b"c" * 32767)
    assert joined(events_of(RequestStream(), data)) == [Pass(data)]


def test_produce_that_ends_before_acks_is_left_to_the_broker() -> None:
    """Its version is not known here."""
    data = request(0, 99, 5, b"", client_id=None)
    assert events_of(RequestStream(), data) == [Expect(0, 99, 5), Pass(data)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request(0, 2, 5, b"\x00", client_id=None), id="acks cut"),
        pytest.param(request(0, 9, 5, b"\x00\xff\xff\xff\xff\x0f" + b"t" * 9, client_id=None), id="transactional id"),
        pytest.param(request(1, 3, 5, b"\x00\x00", client_id=None), id="replica id cut"),
        pytest.param(frame(struct.pack(">hhih", 1, 3, 5, 300)), id="client id too long"),
        pytest.param(frame(struct.pack(">hhi", 1, 3, 5)), id="no client id"),
        pytest.param(request(0, 9, 5, b"\x00\x81\x80\x0c" + b"t" * 2**18, client_id=None), id="197 KB are held back"),
        pytest.param(request(0, 9, 5, b"\x11" + b"\x00" * 40, client_id=None), id="tags"),
        pytest.param(request(0, 9, 5, b"\xff\xff\xff\xff\xff\x01" + b"\x00" * 40, client_id=None), id="varint"),
    ],
)
def test_fields_that_do_not_fit_into_their_frame_are_malformed(data: bytes) -> None:
    before = request(3, 1, 1)
    events, error = failure(RequestStream(), before + data)
    assert isinstance(error, MalformedFrame)
    assert passed(events) == before


def test_varint_too_long_is_found_where_it_stands_behind_size() -> None:
    _, error = failure(RequestStream(), request(0, 9, 5, b"\xff" * 40, client_id=None))
    assert isinstance(error, MalformedFrame)
    assert error.offset == struct.calcsize(">hhih")


@pytest.mark.parametrize("version", range(7))
def test_a_replicas_fetch_is_collected_and_a_consumers_passes(version: int) -> None:
    consumer, replica = fetch(1, CONSUMER, version=version), fetch(2, 5, version=version)
    events = events_of(RequestStream(), consumer + replica + consumer)
    assert [type(event) for event in events] == [Expect, Pass, ReplicaFetch, Expect, Pass]
    assert events[1] == events[4] == Pass(consumer)
    decoded = events[2]
    assert isinstance(decoded, ReplicaFetch)
    assert (decoded.frame, decoded.header.correlation_id) == (replica[4:], 2)


def test_caller_that_stops_after_a_fetch_goes_on_with_the_rest() -> None:
    data = request(3, 1, 1) + fetch(2, 5) + request(18, 0, 3)
    for first in (b"", data[:30]):  # the fetch begins in this chunk, or began in the one before
        stream = RequestStream()
        events_of(stream, first) if first else None
        view = memoryview(data)[len(first) :]
        events = stream.receive(view)
        while not isinstance(next(events), ReplicaFetch):
            pass
        rest = view[stream.consumed :]
        assert rest == request(18, 0, 3)
        assert events_of(stream, bytes(rest)) == [Expect(18, 0, 3), Pass(bytes(rest))]


def test_a_fetch_in_an_unknown_version_passes_and_says_so() -> None:
    stream = RequestStream()
    assert events_of(stream, fetch(3, CONSUMER, version=11))[0] == Expect(1, 11, 3)
    assert events_of(stream, fetch(4, 5, version=19))[0] == Undecoded("fetch_version", 19, None)


def test_fetch_is_not_collected_if_the_caller_does_not_want_it() -> None:
    stream = RequestStream(decode_fetch=lambda replica_id, api_version: replica_id == 6)
    assert events_of(stream, fetch(1, 5)) == [Expect(1, 3, 1), Pass(fetch(1, 5))]
    assert isinstance(events_of(stream, fetch(1, 6))[0], ReplicaFetch)


@pytest.mark.parametrize("version", [0, 3, 7, 12, 14])
def test_fetch_at_the_limit_is_collected_and_a_larger_passes(version: int) -> None:
    """The larger one passes undecoded, which is told."""
    data = fetch(1, 5, version=version)
    size = len(data) - 4
    assert isinstance(events_of(RequestStream(size), data)[0], ReplicaFetch)
    before = request(3, 1, 1)
    for chunks in ([before + data], [before + data[:24], data[24:]], single_bytes(before + data)):
        events = events_of(RequestStream(size - 1), *chunks)
        assert [event for event in events if not isinstance(event, Pass)] == [
            Expect(3, 1, 1),
            Undecoded("fetch_too_large", version, 5),
            Expect(1, version, 1),
        ]
        assert passed(events) == before + data


def test_unwanted_fetch_above_the_limit_passes_without_a_word() -> None:
    stream = RequestStream(10, decode_fetch=lambda replica_id, api_version: False)
    assert events_of(stream, fetch(1, 5)) == [Expect(1, 3, 1), Pass(fetch(1, 5))]


def test_a_consumers_fetch_and_other_requests_pass_at_any_size() -> None:
    for head in (struct.pack(">hhi", 3, 1, 9), struct.pack(">hhihi", 1, 3, 9, -1, CONSUMER)):
        stream = RequestStream(fetch_size_limit=10)
        data = struct.pack(">i", 2**31 - 1) + head
        assert passed(events_of(stream, data)) == data
        assert stream.passing == 2**31 - 1 + 4 - len(data)
        assert stream.skip(2**20)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7])
@pytest.mark.parametrize("first", [True, False])
def test_impossible_request_size_is_refused_at_its_4th_byte(size: int, first: bool) -> None:
    stream = RequestStream()
    if not first:
        events_of(stream, request(3, 1, 1))
    assert events_of(stream, struct.pack(">i", size)[:3]) == []
    _, error = failure(stream, struct.pack(">i", size)[3:])
    assert isinstance(error, InvalidFrameSize)
    assert error.size == size


def test_an_impossible_size_is_no_opaque_protocol() -> None:
    _, error = failure(RequestStream(), struct.pack(">ihhi", -5, 5000, 1, 2))
    assert isinstance(error, InvalidFrameSize)


def test_the_smallest_request_passes() -> None:
    data = frame(struct.pack(">hhi", 7, 0, 3))
    assert events_of(RequestStream(), data) == [Expect(7, 0, 3), Pass(data)]


def test_unknown_keys_and_versions_pass_and_expect_a_response() -> None:
    data = request(200, 77, 1) + request(3, -5, 2) + request(-9, 1, 3)
    events = events_of(RequestStream(), data)
    assert [event.correlation_id for event in events if isinstance(event, Expect)] == [1, 2, 3]
    assert passed(events) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello", "tls"),
        (b"GET / HTTP/1.1\r\n\r\n", "not_kafka"),
        (frame(struct.pack(">hhi", 201, 0, 0)), "not_kafka"),
        (frame(struct.pack(">hhi", -1, 0, 0)), "not_kafka"),
    ],
)
def test_what_does_not_begin_like_kafka_is_opaque_for_ever(data: bytes, reason: str) -> None:
    for chunks in ([data], [bytes([byte]) for byte in data]):
        stream = RequestStream()
        events = events_of(stream, *chunks, b"\xff\xff\xff\xff")
        assert events[0] == BecameOpaque(reason)  # type: ignore[arg-type]
        assert joined(events[1:]) == [Pass(data + b"\xff\xff\xff\xff")]
        assert stream.skip(10**9)


def test_a_greeting_of_6_bytes_that_is_not_kafka_passes_at_once() -> None:
    for chunks in ([b"hello\n"], [b"hel", b"lo", b"\n"]):
        assert events_of(RequestStream(), *chunks) == [BecameOpaque("not_kafka"), Pass(b"hello\n")]


def test_tls_and_odd_keys_count_only_in_the_first_request() -> None:
    odd = struct.pack(">i", 0x16030001) + struct.pack(">hhi", 5000, 1, 2)
    assert events_of(RequestStream(), request(3, 1, 1), odd)[2] == Expect(5000, 1, 2)


def test_sasl_handshake_v0_makes_its_connection_opaque_behind() -> None:
    handshake, tokens = request(17, 0, 1, string(b"PLAIN")), frame(b"\x00user\x00secret")
    for data in ([handshake + tokens], [handshake, tokens], [bytes([byte]) for byte in handshake + tokens]):
        events = events_of(RequestStream(), *data)
        assert events[:2] == [Expect(17, 0, 1), BecameOpaque("sasl")]
        assert joined(events[2:]) == [Pass(handshake + tokens)]


def test_sasl_handshake_v1_is_a_request_like_any_other() -> None:
    data = request(17, 1, 1, string(b"PLAIN")) + request(36, 0, 2, b"token")
    assert events_of(RequestStream(), data) == [Expect(17, 1, 1), Expect(36, 0, 2), Pass(data)]


def test_missing_and_at_boundary_tell_how_far_a_request_is() -> None:
    stream = RequestStream()
    assert stream.at_boundary
    assert stream.missing == 0
    data = request(3, 1, 1, b"body")
    events_of(stream, data[:3])
    assert not stream.at_boundary
    assert stream.missing == 1
    events_of(stream, data[3:13])
    assert stream.missing == stream.passing == len(data) - 13
    assert stream.skip(len(data) - 13)
    assert stream.at_boundary
    assert not stream.skip(1)
    replica = fetch(2, 5)
    events_of(stream, replica[:-1])
    assert (stream.missing, stream.passing, stream.at_boundary) == (1, 0, False)
    assert not stream.skip(1)


KINDS = st.one_of(
    st.builds(
        lambda key, version, body: (request(key, version, 1, body), True),
        st.integers(2, 200).filter(lambda key: key != 17),
        st.integers(0, 20),
        st.binary(max_size=40),
    ),
    st.builds(
        lambda acks, version, records: (produce(1, acks, version=version, records=records), acks != 0),
        st.sampled_from([0, 1, -1]),
        st.integers(0, 13),
        st.binary(max_size=40),
    ),
    st.builds(
        lambda replica_id, version: (fetch(1, replica_id, version=version), True),
        st.integers(-1, 3),
        st.integers(0, 14),
    ),
)


@pytest.mark.long
@given(st.lists(KINDS, min_size=1, max_size=8), st.lists(st.integers(0, 2000), max_size=30))
def test_any_requests_in_any_chunks_reach_the_broker_whole(requests: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    """However the bytes are cut, all arrive in order, and as many answers are expected as in one piece."""
    data = b"".join(one for one, _ in requests)
    stream = RequestStream()
    events = events_of(stream, *cut(data, cuts))
    assert passed(events) == data
    assert stream.at_boundary
    expected = [event for event in events if isinstance(event, Expect | ReplicaFetch)]
    assert len(expected) == sum(expects for _, expects in requests)
    whole = events_of(RequestStream(), data)
    assert [event for event in events if not isinstance(event, Pass)] == [
        event for event in whole if not isinstance(event, Pass)
    ]


@pytest.mark.long
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_any_bytes_either_pass_or_end_in_a_protocol_error(data: bytes, cuts: list[int]) -> None:
    stream = RequestStream(fetch_size_limit=1000)
    events: list[RequestEvent] = []
    try:
        for chunk in cut(data, cuts):
            events += events_of(stream, chunk)
    except ProtocolError:
        return
    assert data.startswith(passed(events))


def holding(api_key: int = 0) -> RequestStream:
    stream = RequestStream()
    stream.may_hold = lambda head, frame, _: head.api_key == api_key
    return stream


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("first", range(40))
def test_caller_that_stops_at_a_request_goes_on_with_all_of_it(acks: int, first: int) -> None:
    """Nothing of that request has passed before."""
    data = produce(1, 1) + request(3, 1, 2) + produce(3, acks) + request(3, 1, 4)
    stream, passed_on = holding(), bytearray()
    begun: list[int] = []
    for chunk in (data[:first], data[first:]):
        view = memoryview(chunk)
        while True:
            stopped = False
            for event in stream.receive(view):
                if isinstance(event, Pass):
                    passed_on += event.buffer
                elif isinstance(event, RequestBegins):
                    begun.append(event.head.correlation_id)
                    assert passed_on == data[: data.index(produce(begun[-1], acks if begun[-1] == 3 else 1))]
                    assert not stream.skip(1)
                    stopped = True
                    break
            if not stopped:
                break
            view = view[stream.consumed :]
    assert passed_on == data
    assert begun == [1, 3]
    assert stream.at_boundary


def test_a_request_that_is_dropped_is_as_if_it_had_never_come() -> None:
    for size in (5, 20, 40):
        stream = holding()
        events_of(stream, request(3, 1, 2))
        events = stream.receive(memoryview(produce(3, 1))[:size])
        stopped = any(isinstance(event, RequestBegins) for event in events)
        stream.drop()
        assert (stream.at_boundary, stream.missing, stopped) == (True, 0, size > 5)
        assert events_of(stream, request(3, 1, 4)) == [Expect(3, 1, 4), Pass(request(3, 1, 4))]

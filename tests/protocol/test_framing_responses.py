# SPDX-License-Identifier: Apache-2.0
"""The stream of responses: matched with the requests that wait, passed, scanned, and joined by answers of our own."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import VERSIONS, Partition, batch, scanned, with_ids
from tests.protocol.request_events import cut
from tests.protocol.wire import fetch_response, frame, response
from weir.protocol.errors import (
    CorrelationMismatch,
    InvalidFrameSize,
    MalformedFrame,
    ProtocolError,
    UnexpectedResponse,
)
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics, made_up_entries
from weir.protocol.header import FETCH
from weir.protocol.record_counts import RecordCounts, counts_of
from weir.protocol.response_scanner import Buffer, Expected, FetchResponseScanner
from weir.protocol.response_stream import Pending, ResponseStream


def sent(stream: ResponseStream, *chunks: bytes) -> bytes:
    """What goes out for `chunks`; nothing may be read from a chunk later."""
    result = b""
    for chunk in chunks:
        buffer = bytearray(chunk)
        out: list[Buffer] = []
        with memoryview(buffer) as view:
            stream.receive(view, out)
            result += b"".join(out)
            out.clear()
        buffer[:] = b"\xdd" * len(buffer)
    return result


def failure(stream: ResponseStream, data: bytes) -> tuple[bytes, ProtocolError]:
    out: list[Buffer] = []
    with pytest.raises(ProtocolError) as raised:
        stream.receive(memoryview(data), out)
    return b"".join(out), raised.value


def waiting(*pending: Pending) -> ResponseStream:
    stream = ResponseStream()
    for one in pending:
        stream.expect(one)
    return stream


def test_responses_of_one_chunk_pass_as_one_slice() -> None:
    stream = waiting(Pending(1), Pending(2), Pending(3))
    data = response(1, b"one") + response(2) + response(3, b"three")
    out: list[Buffer] = []
    stream.receive(memoryview(data), out)
    (only,) = out
    assert isinstance(only, memoryview)
    assert only.obj is data
    assert only == data
    assert not stream.pending


def test_a_response_waits_in_line_until_its_last_byte_passed() -> None:
    stream = waiting(Pending(1))
    data = response(1, b"body")
    assert sent(stream, data[:-1]) == data[:-1]
    assert len(stream.pending) == 1
    assert not stream.at_boundary
    assert sent(stream, data[-1:]) == data[-1:]
    assert not stream.pending
    assert stream.at_boundary


def test_skip_counts_bytes_in_a_response_but_not_its_end() -> None:
    """The end is left to `receive`."""
    stream = waiting(Pending(1))
    head = struct.pack(">ii", 1000 + 4, 1)
    assert sent(stream, head) == head
    assert stream.passing == 1000
    assert stream.skip(999)
    assert not stream.skip(1)
    assert sent(stream, b"x") == b"x"
    assert stream.at_boundary
    assert not stream.skip(1)


def test_response_nobody_awaits_is_refused_after_earlier_ones() -> None:
    out, error = failure(waiting(Pending(1)), response(1) + response(7, b"surprise"))
    assert out == response(1)
    assert isinstance(error, UnexpectedResponse)
    assert error.correlation_id == 7


def test_response_to_another_request_than_the_first_is_refused() -> None:
    for scanner in (None, FetchResponseScanner(3, 5)):
        out, error = failure(waiting(Pending(1), Pending(5, scanner), Pending(6)), response(1) + response(6))
        assert out == response(1)
        assert isinstance(error, CorrelationMismatch)
        assert (error.expected, error.received) == (5, 6)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3])
def test_impossible_response_size_is_refused_at_its_4th_byte(size: int) -> None:
    for chunks in ([struct.pack(">i", size)], [bytes([byte]) for byte in struct.pack(">i", size)]):
        stream = waiting(Pending(1))
        assert sent(stream, *chunks[:-1]) == b""
        _, error = failure(stream, chunks[-1])
        assert isinstance(error, InvalidFrameSize)
        assert error.size == size


def test_the_largest_size_streams() -> None:
    stream = waiting(Pending(1))
    head = struct.pack(">ii", 2**31 - 1, 1)
    assert sent(stream, head) == head
    assert stream.skip(2**30)


def test_a_scanned_response_is_patched_and_completed() -> None:
    received = fetch_response(2)
    appended = b"\x00\x05extra" + struct.pack(">i", 0)
    scanner = FetchResponseScanner(3, 2, Expected(appended, 1))
    stream = waiting(Pending(1), Pending(2, scanner), Pending(3))
    out = sent(stream, response(1) + received + response(3, b"x"))
    size, correlation_id, throttle_time_ms, topics = struct.unpack_from(">iiii", out, len(response(1)))
    assert (size, correlation_id, throttle_time_ms, topics) == (len(received) - 4 + len(appended), 2, 0, 2)
    assert out.startswith(response(1))
    assert out.endswith(appended + response(3, b"x"))
    assert stream.completed == [scanner]
    assert scanner.topics[0].name == b"orders"
    assert not stream.pending


def test_a_malformed_scanned_response_is_refused() -> None:
    broken = bytearray(fetch_response(2))
    broken[12:16] = struct.pack(">i", 10**6)  # the count of topics
    out, error = failure(waiting(Pending(1), Pending(2, FetchResponseScanner(3, 2))), response(1) + bytes(broken))
    assert out == response(1)
    assert isinstance(error, MalformedFrame)


def test_an_answer_at_the_head_is_ready_only_between_responses() -> None:
    stream = waiting(Pending(9, answer=b"first"))
    assert b"".join(stream.ready_answers()) == b"first"
    assert not stream.pending
    stream.expect(Pending(1))
    data = response(1, b"body")
    sent(stream, data[:3])
    stream.expect(Pending(2, answer=b"second"))
    assert stream.ready_answers() == []
    assert sent(stream, data[3:9]) == data[:9]
    assert stream.ready_answers() == []
    assert sent(stream, data[9:]) == data[9:] + b"second"
    assert stream.ready_answers() == []


def watcher() -> RecordCounts:
    """Who counts an answer."""
    counts = counts_of(FETCH, 3)
    assert counts is not None
    return counts


@pytest.mark.parametrize("how", ["plain", "scanned", "watched"])
def test_answers_go_out_in_the_order_of_their_requests(how: str) -> None:
    passed: list[RecordCounts] = []

    def pending(correlation_id: int) -> Pending:
        if how == "watched":
            counts = watcher()
            counts.on_passed = passed.append
            return Pending(correlation_id, counts)
        return Pending(correlation_id, FetchResponseScanner(3, correlation_id) if how == "scanned" else None)

    first, second = fetch_response(1), fetch_response(3)
    data = first + second
    for chunks in ([data], [bytes([byte]) for byte in data]):
        stream = waiting(
            pending(1), Pending(2, answer=b"two"), Pending(2, answer=b"too"), pending(3), Pending(4, answer=b"four")
        )
        assert stream.ready_answers() == []
        assert sent(stream, *chunks) == first + b"twotoo" + second + b"four"
        assert not stream.pending
        assert [counts.fault for counts in passed] == ([None, None] if how == "watched" else [])
        passed.clear()


def test_a_watched_response_is_under_way_until_its_last_byte() -> None:
    stream, data = waiting(Pending(1, watcher())), fetch_response(1)
    assert sent(stream, data[:-1]) == data[:-1]
    assert not stream.at_boundary
    assert sent(stream, data[-1:]) == data[-1:]
    assert stream.at_boundary


def test_opaque_begins_when_all_responses_due_have_come() -> None:
    stream = waiting(Pending(1), Pending(2))
    stream.become_opaque()
    assert not stream.opaque
    assert sent(stream, response(1) + response(2, b"x") + b"tokens") == response(1) + response(2, b"x") + b"tokens"
    assert stream.opaque
    assert stream.skip(10**9)
    assert sent(stream, b"\xff\xff\xff\xff") == b"\xff\xff\xff\xff"


def test_opaque_begins_at_once_when_nothing_waits() -> None:
    stream = ResponseStream()
    stream.become_opaque()
    assert stream.skip(5)


def test_opaque_begins_behind_an_answer_of_our_own() -> None:
    stream = waiting(Pending(1, answer=b"own"))
    stream.become_opaque()
    assert stream.ready_answers() == [b"own"]
    assert stream.opaque


@given(
    st.lists(st.tuples(st.sampled_from(["plain", "scanned", "answer"]), st.binary(max_size=60)), max_size=10),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_any_responses_in_any_chunks_reach_the_client_whole(kinds: list[tuple[str, bytes]], cuts: list[int]) -> None:
    """Responses and answers come out in request order, byte for byte, however the broker's bytes are cut."""
    stream = ResponseStream()
    received = expected = b""
    scanned = 0
    for correlation_id, (kind, body) in enumerate(kinds):
        if kind == "answer":
            answer = frame(b"answer" + body)
            stream.expect(Pending(correlation_id, answer=answer))
            expected += answer
            continue
        if kind == "scanned":
            data = fetch_response(correlation_id, topics=((b"t", ((0, 1, body), (1, 2, b""))),) * (len(body) % 3))
            stream.expect(Pending(correlation_id, FetchResponseScanner(3, correlation_id)))
            scanned += 1
        else:
            data = response(correlation_id, body)
            stream.expect(Pending(correlation_id))
        received += data
        expected += data
    ready = b"".join(stream.ready_answers())
    assert ready + sent(stream, *cut(received, cuts)) == expected
    assert not stream.pending
    assert len(stream.completed) == scanned


def test_chunk_of_a_large_response_costs_the_same_at_any_size() -> None:
    """No byte is touched: only the count of bytes to come moves."""
    stream = waiting(Pending(1))
    stream.receive(memoryview(struct.pack(">ii", 2**31 - 1, 1)), [])
    chunk = memoryview(bytearray(2**18))
    out: list[Buffer] = []
    stream.receive(chunk, out)
    (only,) = out
    assert isinstance(only, memoryview)
    assert only.obj is chunk.obj


def passed(stream: ResponseStream, *chunks: bytes) -> bytes:
    """What goes out for `chunks` where those that need no change pass at once, as on a link."""
    result = b""
    for chunk in chunks:
        with memoryview(chunk) as view:
            result += chunk if stream.skip(len(view)) or stream.looks(view) else sent(stream, chunk)
    return result


@pytest.mark.parametrize("is_walked", [False, True])
@pytest.mark.parametrize("version", [3, 12])
def test_scanned_response_passes_at_once_amid_its_records(version: int, is_walked: bool) -> None:
    topics = with_ids(version, [(b"t", [Partition(0, 0, 9, batch(40_000) + batch(60_000))])])
    scanner = FetchResponseScanner(version, 1, Expected(walk={b"t"} if is_walked else ()))
    stream = waiting(Pending(1, scanner))
    data = memoryview(fetch_data.response(version, 1, topics))
    sent(stream, bytes(data[:200]))
    for start in range(200, 99_200, 1000):
        view = data[start : start + 1000]
        assert stream.looks(view) if is_walked else stream.skip(len(view))
    assert not stream.skip(len(data) - 99_200)
    assert not stream.looks(data[99_200:]), "the response's end has to be seen"
    sent(stream, bytes(data[99_200:]))
    assert stream.completed == [scanner]
    assert scanner.topics == scanned(topics, {b"t"} if is_walked else (), version)


@pytest.mark.long
@given(
    st.sampled_from(VERSIONS),
    st.lists(st.tuples(fetch_data.topics, st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.lists(st.integers(0, 5000), max_size=30),
)
def test_response_parts_that_pass_at_once_are_seen_and_sent_too(
    version: int, answers: list[tuple[fetch_data.Topics, bool, bool]], cuts: list[int]
) -> None:
    """Whether a topic is appended, whether records are walked, and wherever the broker's bytes are cut."""
    at_once, step_by_step = ResponseStream(), ResponseStream()
    received, expected = b"", []
    for correlation_id, (unnamed, is_walked, is_grown) in enumerate(answers):
        topics = with_ids(version, unnamed)
        walk = {name for name, _ in topics} if is_walked else set[bytes]()
        appended = encode_response_topics(version, [ResponseTopic(b"i" * 16, made_up_entries(version, [(4, 5)]))])
        for stream in (at_once, step_by_step):
            scanner = FetchResponseScanner(version, correlation_id, Expected(appended * is_grown, int(is_grown), walk))
            stream.expect(Pending(correlation_id, scanner))
        expected.append(scanned(topics, walk, version))
        received += fetch_data.response(version, correlation_id, topics)
    assert passed(at_once, *cut(received, cuts)) == sent(step_by_step, received)
    assert not at_once.pending
    for observer, topics_seen in zip(at_once.completed, expected, strict=True):
        assert isinstance(observer, FetchResponseScanner)
        assert observer.topics == topics_seen

# SPDX-License-Identifier: Apache-2.0
"""Who sent a request, from its first bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.wire import CONSUMER, fetch, produce, request, string
from tests.proxy import limited
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import MOST_BEFORE, before_others
from weir.protocol.request_sender import MOST_START, RequestSender
from weir.protocol.request_stream import RequestStream


def session_fetch(version: int, session_id: int, epoch: int) -> bytes:
    """A consumer's Fetch up to its session."""
    body = b"\x00" if version >= 12 else b""
    body += struct.pack(">i", CONSUMER) if version < 15 else b""
    return request(
        1, version, 1, body + struct.pack(">iiibii", 500, 1, 2**20, 0, session_id, epoch) + b"\x01\x01\x01\x00"
    )


def asked(api_key: int) -> bytes:
    return request(api_key, 4, 1, b"")


def sender(frame: bytes) -> RequestSender:
    _, api_key, version = struct.unpack_from(">ihh", frame)
    return RequestSender(api_key, version, frame[:MOST_START])


@pytest.mark.parametrize("version", range(19))
def test_a_fetch_tells_its_session(version: int) -> None:
    if version < 7:
        found, session = sender(fetch(1, CONSUMER, version=version)), (0, -1)
    else:
        found, session = sender(session_fetch(version, 77, 3)), (77, 3)
    assert (found.client_id, found.session, found.is_transactional) == (b"c", session, False)


@pytest.mark.parametrize("version", range(14))
def test_a_produce_tells_whether_it_is_transactional(version: int) -> None:
    found = sender(produce(1, 1, version=version))
    assert (found.client_id, found.session, found.is_transactional) == (b"c", None, version >= 3)
    none = b"\x00\x00" if version >= 9 else string(None)
    assert sender(request(0, version, 1, none + struct.pack(">h", 1))).is_transactional is False


@pytest.mark.parametrize("client_id", [None, b"", b"\xff\xfe", b"x" * 32_767])
def test_any_client_id_is_taken_as_it_is_or_cut_off(client_id: bytes | None) -> None:
    found = sender(request(1, 11, 1, b"x" * 30, client_id)).client_id
    assert found == client_id if client_id is None else client_id.startswith(found or b"")
    assert len(found or b"") <= MOST_START


@given(api_key=st.integers(0, 2), version=st.integers(-1, 30), start=st.binary(max_size=60))
def test_any_bytes_are_read(api_key: int, version: int, start: bytes) -> None:
    found = RequestSender(api_key, version, start)
    assert len(found.client_id or b"") <= len(start)
    assert isinstance(found.is_transactional, bool)
    assert found.session is None or len(found.session) == 2


@pytest.mark.parametrize("cut", [0, 3, 9, 20, 30])
@pytest.mark.parametrize("version", [3, 7, 12, 16, 18])
def test_request_that_begins_says_who_sent_it_however_cut(version: int, cut: int) -> None:
    data = fetch(1, CONSUMER, version=version) if version < 7 else session_fetch(version, 5, 1)
    stream = RequestStream()
    stream.may_hold = lambda head, frame, _: True
    begun = []
    for chunk in (data[:cut], data[cut:]):
        begun += [event for event in stream.receive(memoryview(chunk)) if isinstance(event, RequestBegins)]
    assert [event.sender.client_id for event in begun] == [b"c"]


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_tells_how_long_the_broker_may_wait(version: int) -> None:
    assert sender(limited.fetch(1, version, max_wait_ms=1234)).wait_seconds == 1.234


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional", [None, "t", "x" * 200])
def test_a_produce_tells_its_timeout(version: int, transactional: str | None) -> None:
    frame = limited.produce(1, 1, version, transactional=transactional, timeout_ms=4321)
    assert sender(frame).wait_seconds == 4.321
    assert sender(frame[:20]).wait_seconds is None
    long = limited.produce(1, 1, version, transactional="x" * 2000, timeout_ms=4321)
    assert sender(long).wait_seconds is None


def test_a_timeout_before_transactions_is_read_too() -> None:
    assert sender(request(0, 2, 1, struct.pack(">hi", 1, 7000))).wait_seconds == 7.0


@given(at=st.integers(4, 60), byte=st.integers(0, 255))
def test_a_share_fetch_that_is_not_known_whole_stays_as_it_is(at: int, byte: int) -> None:
    """And any bytes are read."""
    body = b"\x00\x02g\x02m" + struct.pack(">iiiiiib?", 3, 500, 1, 2**20, 500, 500, 0, False) + b"\x01\x01\x00"
    frame = bytearray(request(78, 2, 1, body))
    assert RequestSender(78, 2, bytes(frame[: len(frame) - 1])).asking_for_no_records() is None
    frame[at % len(frame)] = byte
    found = RequestSender(78, 2, bytes(frame)).asking_for_no_records()
    assert found is None or len(found) == len(frame)
    assert RequestSender(78, 1, bytes(frame)).asking_for_no_records() is None


@pytest.mark.parametrize(
    ("requests", "before"),
    [
        (b"", None),
        (asked(1), None),
        (asked(1)[:5], None),
        (asked(12)[:5], None),
        (asked(12)[:6], 0),
        (asked(1) + asked(0) + asked(12), 2),
        (asked(1) + b"\0\0\0\7" + asked(12), None),
        (asked(1) + b"\xff" * 9 + asked(12), None),
        (asked(1) * (MOST_BEFORE - 1) + asked(3), MOST_BEFORE - 1),
        (asked(1) * MOST_BEFORE + asked(3), None),
    ],
)
def test_requests_before_the_first_of_another_api_are_counted(requests: bytes, before: int | None) -> None:
    assert before_others(requests, (0, 1)) == before

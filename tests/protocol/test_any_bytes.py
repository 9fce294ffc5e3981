# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes a peer sends, what reads them gives a result or raises a ProtocolError, and nothing else."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import VERSIONS, Topics, pieces, response, with_ids
from tests.protocol.fetch_requests import AskedTopic, encode, requests
from tests.protocol.wire import frame
from weir.protocol.errors import ProtocolError
from weir.protocol.fetch_request import (
    FetchRequest,
    check_replica_fetch,
    decode_fetch_request,
    encode_fetch_request,
    replica_id_steps,
)
from weir.protocol.header import FETCH
from weir.protocol.metadata import decode_api_versions, decode_cluster
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import Buffer, Expected, FetchResponseScanner
from weir.protocol.response_stream import Pending, ResponseStream
from weir.protocol.steps import at_once

ANY_VERSION = st.one_of(st.integers(-1, 20), st.integers(-(2**15), 2**15 - 1))
INTERESTING = st.sampled_from((0, 1, 2, 0x0F, 0x10, 0x11, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
CUTS = st.lists(st.integers(0, 2000), max_size=8)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(("set", "cut", "add")), INTERESTING), max_size=4)
FEW = settings(max_examples=60)


def edited(data: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    """`data` with bytes changed, added, or cut out, and again and again the same ones set."""
    changed = bytearray(data)
    for place, how, value in edits:
        at = place % (len(changed) + 1)
        if how == "set":
            changed[at : at + 1] = bytes((value,))
        elif how == "cut":
            del changed[at : at + value]
        else:
            changed[at:at] = bytes((value,)) * value
    return bytes(changed)


def request_head(version: int) -> bytes:
    return struct.pack(">hhih", FETCH, version, 7, -1)


def read_request(payload: bytes, cuts: list[int]) -> None:
    """Read a request's frame in every way there is."""
    try:
        decoded = decode_fetch_request(payload)
    except ProtocolError:
        pass
    else:
        decode_fetch_request(encode_fetch_request(decoded)[4:])
        check(decoded)
    with contextlib.suppress(ProtocolError):
        at_once(replica_id_steps(payload))
    for data in (frame(payload), payload):
        stream = RequestStream(fetch_size_limit=5000)
        try:
            for chunk in pieces(data, cuts):
                list(stream.receive(memoryview(chunk)))
                assert stream.missing >= 0
        except ProtocolError:
            pass


def check(request: FetchRequest) -> None:
    try:
        checked = check_replica_fetch(request)
    except ProtocolError:
        assert request.max_bytes < 0
    else:
        assert min(checked.max_wait_ms, checked.min_bytes, checked.max_bytes) >= 0
        encode_fetch_request(checked)


def read_response(version: int, data: bytes, cuts: list[int], most: int | None) -> None:
    """Scan a response, alone and among others."""
    expected = Expected(b"appended", 1, {b"abc"}, most_partitions=most, most_topics=most)
    scanner = FetchResponseScanner(version, 7, expected)
    stream = ResponseStream()
    stream.expect(Pending(7, FetchResponseScanner(version, 7, Expected(most_partitions=most, most_topics=most))))
    out: list[Buffer] = []
    try:
        for chunk in pieces(data, cuts):
            scanner.receive(memoryview(chunk))
    except ProtocolError:
        pass
    try:
        for chunk in pieces(data, cuts):
            stream.receive(memoryview(chunk), out)
    except ProtocolError:
        pass


@FEW
@given(ANY_VERSION, st.binary(max_size=200), CUTS)
def test_any_request_is_read_or_raises_a_protocol_error(version: int, data: bytes, cuts: list[int]) -> None:
    read_request(request_head(version) + data, cuts)
    read_request(data, cuts)


@pytest.mark.long
@settings(max_examples=80)
@given(requests(), EDITS, st.none() | ANY_VERSION, CUTS)
def test_edited_request_is_read_or_raises_a_protocol_error(
    made: tuple[FetchRequest, list[AskedTopic]], edits: list[tuple[int, str, int]], version: int | None, cuts: list[int]
) -> None:
    payload = encode(*made)[4:]
    if version is not None:  # as if it were of another version
        payload = payload[:2] + struct.pack(">h", version) + payload[4:]
    read_request(edited(payload, edits), cuts)


@FEW
@given(st.sampled_from(VERSIONS), st.binary(max_size=200), CUTS, st.sampled_from((None, 0, 3)))
def test_any_response_bytes_scan_or_raise_a_protocol_error(
    version: int, data: bytes, cuts: list[int], most: int | None
) -> None:
    for payload in (data, struct.pack(">i", 7) + data, struct.pack(">i", 7) + bytes(4) + data):
        read_response(version, frame(payload), cuts, most)
    read_response(version, data, cuts, most)


@pytest.mark.long
@settings(max_examples=80)
@given(
    st.sampled_from(VERSIONS), st.sampled_from(VERSIONS), fetch_data.topics, EDITS, CUTS, st.sampled_from((None, 0, 3))
)
def test_edited_response_is_scanned_or_raises_a_protocol_error(
    version: int,
    read_as: int,
    topics: Topics,
    edits: list[tuple[int, str, int]],
    cuts: list[int],
    most: int | None,
) -> None:
    payload = response(version, 7, with_ids(version, topics))[4:]
    read_response(version, frame(payload[:4] + edited(payload[4:], edits)), cuts, most)
    read_response(read_as, frame(payload), cuts, most)


@FEW
@given(
    st.sampled_from((1, 2, 3, 4, 5, 10, 11, 12)),
    st.binary(max_size=200),
    st.lists(st.sampled_from((b"\x00", b"\x01", b"\x02", b"\xff"))),
)
def test_any_metadata_is_read_or_raises_a_protocol_error(version: int, data: bytes, likely: list[bytes]) -> None:
    for payload in (data, struct.pack(">i", 7) + data, struct.pack(">i", 7) + b"".join(likely) + data):
        for topics in ((), (b"", b"a")):
            with contextlib.suppress(ProtocolError):
                list(decode_cluster(payload, version, 7, topics)[1])
        with contextlib.suppress(ProtocolError):
            decode_api_versions(payload, 7)

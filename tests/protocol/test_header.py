# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.fetch_data import int16, int32
from weir.protocol.errors import MalformedFrame
from weir.protocol.header import RequestHeader, decode_request_header, encode_request_header

HEADER = bytes.fromhex("0001 0003 00000007 0002 6362")


def test_header_literal_bytes_decode_and_encode() -> None:
    header = RequestHeader(api_key=1, api_version=3, correlation_id=7, client_id=b"cb")
    assert decode_request_header(HEADER) == (header, 12)
    assert encode_request_header(header) == HEADER


def test_header_null_client_id_stays_null() -> None:
    frame = bytes.fromhex("0001 0003 00000007 ffff")
    header = RequestHeader(1, 3, 7, None)
    assert decode_request_header(frame + b"rest") == (header, 10)
    assert encode_request_header(header) == frame


def test_header_empty_client_id_stays_empty() -> None:
    """Null and empty differ on the wire, and what is forwarded must be what came."""
    frame = bytes.fromhex("0001 0003 00000007 0000")
    assert decode_request_header(frame) == (RequestHeader(1, 3, 7, b""), 10)
    assert encode_request_header(RequestHeader(1, 3, 7, b"")) == frame


@pytest.mark.parametrize("size", range(len(HEADER)))
def test_header_cut_anywhere_is_malformed(size: int) -> None:
    with pytest.raises(MalformedFrame):
        decode_request_header(HEADER[:size])


def test_header_negative_client_id_length_is_malformed() -> None:
    with pytest.raises(MalformedFrame) as error:
        decode_request_header(bytes.fromhex("0001 0003 00000007 fffe"))
    assert error.value.offset == 8


@given(int16, int16, int32, st.none() | st.binary(max_size=300), st.binary(max_size=5))
def test_header_round_trip(
    api_key: int, api_version: int, correlation_id: int, client_id: bytes | None, rest: bytes
) -> None:
    header = RequestHeader(api_key, api_version, correlation_id, client_id)
    encoded = encode_request_header(header)
    assert decode_request_header(encoded + rest) == (header, len(encoded))

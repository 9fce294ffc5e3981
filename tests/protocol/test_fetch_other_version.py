# SPDX-License-Identifier: Apache-2.0
"""What was made of a request of one version is never written into a frame of another: a broker would misread it."""

import pytest

from tests.protocol.fetch_data import NO_TAGS, VERSIONS
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, check_replica_fetch, decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic

NAME = b"0123456789abcdef"


def stride(version: int) -> int:
    return FETCH_VERSIONS[version].partition_size + (version >= 12)


def request(version: int, topics: list[RequestTopic], *, sizes: tuple[int, int, int] = (500, 1, 1)) -> FetchRequest:
    return FetchRequest(RequestHeader(FETCH, version, 1, b"c"), 5, *sizes, topics)


def topic(version: int, name: bytes = NAME) -> RequestTopic:
    return RequestTopic(name, bytes(stride(version)), stride(version), NO_TAGS if version >= 12 else b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_request_with_entries_of_another_version_is_not_encoded(version: int) -> None:
    for other in VERSIONS:
        made = request(version, [topic(version), topic(other)])
        if stride(other) == stride(version):
            decode_fetch_request(encode_fetch_request(made)[4:])
        else:
            with pytest.raises(ValueError, match="cannot stand"):
                encode_fetch_request(made)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("entries", [b"", b"\x00" * 7])
def test_request_with_entries_of_no_version_is_not_encoded(version: int, entries: bytes) -> None:
    """A partition that was first seen below v7 has no entry."""
    for length in {0, len(entries)}:
        with pytest.raises(ValueError, match="cannot stand"):
            encode_fetch_request(request(version, [RequestTopic(NAME, entries, length)]))
    with pytest.raises(ValueError, match="cannot stand"):
        encode_fetch_request(request(version, [RequestTopic(NAME, bytes(stride(version) + 1), stride(version))]))


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 13])
def test_request_with_a_name_where_an_id_belongs_is_not_encoded(version: int) -> None:
    with pytest.raises(ValueError, match="topic id"):
        encode_fetch_request(request(version, [topic(version, b"orders")]))


def test_replica_fetch_with_a_negative_size_is_malformed() -> None:
    """Brokers can read nothing up to such a size, and no replica can be told to ask for it."""
    for max_bytes in (-1, -(2**31)):
        with pytest.raises(MalformedFrame, match=str(max_bytes)):
            check_replica_fetch(request(4, [], sizes=(500, 1, max_bytes)))
    nothing_asked = request(4, [], sizes=(0, 0, 0))
    assert check_replica_fetch(nothing_asked) is nothing_asked


@pytest.mark.parametrize(("wait", "min_bytes"), [(-1, 1), (500, -1), (-(2**31), -(2**31))])
def test_replica_fetch_with_a_negative_wait_asks_for_none(wait: int, min_bytes: int) -> None:
    """Kafka lets both be set below 0, and its brokers then answer at once."""
    taken = check_replica_fetch(request(4, [], sizes=(wait, min_bytes, 7)))
    assert taken == request(4, [], sizes=(max(wait, 0), max(min_bytes, 0), 7))

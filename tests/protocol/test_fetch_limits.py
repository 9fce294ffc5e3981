# SPDX-License-Identifier: Apache-2.0
"""Fetch requests that list more than is decoded: refused by their counts, before anything is made of them."""

import struct
import time
import tracemalloc

import pytest

from tests.protocol.fetch_data import NO_TAGS
from tests.protocol.wire import tag_buffer
from weir.protocol.errors import MalformedFrame, TooMany
from weir.protocol.fetch_request import (
    FetchRequest,
    ForgottenTopic,
    decode_fetch_request,
    encode_fetch_request,
    replica_id_steps,
    replica_state_tags,
)
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import MOST_PARTITIONS, MOST_TOPICS, RequestTopic
from weir.protocol.steps import at_once
from weir.protocol.varint import MOST_TAGS

VERSIONS = (0, 6, 7, 12, 13, 18)  # one of each layout
SESSION_VERSIONS = (7, 12, 18)
FLEXIBLE_VERSIONS = (12, 13, 18)
VERSIONS_WITH_REPLICA_STATE = (15, 18)


def name(version: int, number: int = 0) -> bytes:
    return b"%016d" % number


def stride(version: int) -> int:
    return fetch_version(version).partition_size + (version >= 12)


def topic(version: int, partitions: int, number: int = 0) -> RequestTopic:
    tags = NO_TAGS if version >= 12 else b""
    return RequestTopic(name(version, number), bytes(stride(version) * partitions), stride(version), tags)


def frame(version: int, topics: list[RequestTopic], forgotten: tuple[ForgottenTopic, ...] = ()) -> bytes:
    tags = replica_state_tags(5, 1) if version >= 15 else b""
    header = RequestHeader(FETCH, version, 1, b"c")
    return encode_fetch_request(FetchRequest(header, 5, 500, 1, 1, topics, forgotten=forgotten, tags=tags))[4:]


def refusal(data: bytes, version: int) -> TooMany:
    """What decoding raises, and so does stepping over it for the replica id."""
    with pytest.raises(TooMany) as decoding:
        decode_fetch_request(data)
    if version >= 15:
        with pytest.raises(TooMany) as stepping:
            at_once(replica_id_steps(data))
        assert stepping.value.what == decoding.value.what
    return decoding.value


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_request_of_as_many_topics_as_are_decoded_is_decoded(version: int) -> None:
    data = frame(version, [topic(version, 0)] * MOST_TOPICS)
    assert len(decode_fetch_request(data).topics) == MOST_TOPICS


@pytest.mark.parametrize("version", VERSIONS)
def test_request_of_one_topic_more_is_refused_by_its_count(version: int) -> None:
    """Topics without partitions count: each is an object of its own."""
    error = refusal(frame(version, [topic(version, 0)] * (MOST_TOPICS + 1)), version)
    assert (error.what, error.count, error.limit) == ("topics", MOST_TOPICS + 1, MOST_TOPICS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [1, 1000], ids=["of one topic", "of many"])
def test_request_of_more_partitions_than_are_decoded_is_refused(version: int, topics: int) -> None:
    each = MOST_PARTITIONS // topics
    at_limit = [topic(version, each)] * topics
    decode_fetch_request(frame(version, at_limit))
    error = refusal(frame(version, [*at_limit, topic(version, 1)]), version)
    assert (error.what, error.count) == ("partitions", MOST_PARTITIONS + 1)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS_WITH_REPLICA_STATE)
def test_request_of_many_small_topics_passed_at_once_is_refused(version: int) -> None:
    """The limit holds where several topics are stepped over at once, too."""
    at_limit = [topic(version, 5)] * (MOST_PARTITIONS // 5)
    assert at_once(replica_id_steps(frame(version, at_limit))) == 5
    assert refusal(frame(version, [*at_limit, *[topic(version, 5)] * 8]), version).what == "partitions"


@pytest.mark.long
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_request_that_forgets_more_than_is_decoded_is_refused(version: int) -> None:
    whole = ForgottenTopic(name(version), tuple(range(MOST_PARTITIONS)))
    decode_fetch_request(frame(version, [], (whole,)))
    error = refusal(frame(version, [], (whole, ForgottenTopic(name(version), (1,)))), version)
    assert (error.what, error.count) == ("partitions", MOST_PARTITIONS + 1)
    none = ForgottenTopic(name(version), ())
    decode_fetch_request(frame(version, [], (none,) * MOST_TOPICS))
    assert refusal(frame(version, [], (none,) * (MOST_TOPICS + 1)), version).what == "topics"


@pytest.mark.long
@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
def test_request_of_unlike_tags_counts_its_pieces_as_topics(version: int) -> None:
    """Partitions that differ in their tags are kept in pieces."""
    plain = bytes(stride(version) - 1)
    entries = plain + NO_TAGS + plain + tag_buffer((9, b"?"))
    count = MOST_TOPICS // 2 + 1
    data = bytearray(frame(version, [topic(version, 2 * count)]))
    start = bytes(data).index(bytes(stride(version) * 4))
    data[start : start + stride(version) * 2 * count] = entries * count
    with pytest.raises(TooMany) as error:
        decode_fetch_request(bytes(data))
    assert error.value.what == "topics"


@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
@pytest.mark.parametrize("where", ["header", "partition", "topic", "forgotten", "request"])
def test_request_with_a_buffer_of_many_tags_is_malformed(version: int, where: str) -> None:
    """Each tag takes time, and 2 bytes are enough for one."""

    def made(count: int) -> bytes:
        tags = tag_buffer(*[(number + 2, b"") for number in range(count)])
        here = {where: tags}
        entry = bytes(stride(version) - 1) + here.get("partition", NO_TAGS)
        topics = [RequestTopic(name(version), entry, len(entry), here.get("topic", NO_TAGS))]
        header = RequestHeader(FETCH, version, 1, b"c", here.get("header", b""))
        forgotten = (ForgottenTopic(name(version), (1,), here.get("forgotten", b"")),)
        request = FetchRequest(header, -1, 5, 1, 1, topics, forgotten=forgotten, tags=here.get("request", b""))
        return encode_fetch_request(request)[4:]

    decode_fetch_request(made(MOST_TAGS))
    with pytest.raises(MalformedFrame, match=f"{MOST_TAGS + 1} tags"):
        decode_fetch_request(made(MOST_TAGS + 1))
    if version >= 15:
        assert at_once(replica_id_steps(made(MOST_TAGS))) == -1
        with pytest.raises(MalformedFrame, match=f"{MOST_TAGS + 1} tags"):
            at_once(replica_id_steps(made(MOST_TAGS + 1)))


@pytest.mark.parametrize("version", [3, 12, 18])
def test_request_of_millions_of_topics_costs_no_time_or_memory(version: int) -> None:
    """16 MB of topics without partitions: seconds, and hundreds of MB, if a topic was made of each."""
    one = frame(version, [topic(version, 0)])
    unnamed = b"\x01\x01\x00" if version == 12 else bytes(6) if version < 12 else bytes(18)
    count = 16 * 2**20 // len(unnamed)
    head = one[: one.index(name(version)) - (0 if version >= 13 else 1 if version == 12 else 2)]
    count_bytes = struct.pack(">i", 1) if version < 12 else b"\x02"
    assert head.endswith(count_bytes)
    many = struct.pack(">i", count) if version < 12 else bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80])
    if version >= 12:
        many += bytes([count >> 14 & 0x7F | 0x80, count >> 21])
    data = head[: -len(count_bytes)] + many + unnamed * count
    started = time.process_time()
    tracemalloc.start()
    try:
        refusal(data, version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 0.1
    assert peak < 2**20


def test_request_of_tags_and_many_empty_topics_is_decoded_fast() -> None:
    """Topics are compared with what the last one looked like: that may not cost each of them its tags."""
    version = 18
    tags = tag_buffer(*[(number, b"") for number in range(MOST_TAGS)])
    entry = bytes(stride(version) - 1) + tags
    first = RequestTopic(name(version), entry, len(entry), NO_TAGS)
    alone = frame(version, [topic(version, 0)] * 20_000)
    behind = frame(version, [first, *[topic(version, 0)] * 19_999])

    def seconds(data: bytes) -> float:
        taken = []
        for _ in range(3):
            started = time.process_time()
            decode_fetch_request(data)
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(behind) < 2.5 * seconds(alone)

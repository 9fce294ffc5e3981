# SPDX-License-Identifier: Apache-2.0
"""Fetches that are not decoded, or break a rule: they pass or end their connection, and the throttle is let go."""

from __future__ import annotations

import struct
import time

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol import request_topics
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, encode_fetch_request, replica_state_tags
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, made_up_entries
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.throttle import Throttle

ON_BOTH_LOOPS = True

NAME = b"0123456789abcdef"
MANY = tuple((partition, 7, 1000) for partition in range(50))


def session_fetch(
    version: int,
    correlation_id: int,
    session_id: int,
    epoch: int,
    *,
    topics: int = 1,
    partitions: int = 1,
    max_bytes: int = 2**20,
) -> bytes:
    """A replica's fetch of v7 or above."""
    row_size = {7: 24, 12: 33, 18: 33}[version]
    entries = b"".join(partition.to_bytes(4, "big") + bytes(row_size - 4) for partition in range(partitions))
    tags = b"\x00" if version >= 12 else b""
    return encode_fetch_request(
        FetchRequest(
            RequestHeader(FETCH, version, correlation_id, b"c"),
            *(5, 500, 1, max_bytes),
            [RequestTopic(NAME[:-1] + bytes([number]), entries, row_size, tags) for number in range(topics)],
            session_id=session_id,
            session_epoch=epoch,
            tags=replica_state_tags(5, 1) if version >= 15 else b"",
        )
    )


def session_response(version: int, correlation_id: int, session_id: int, error_code: int = 0) -> bytes:
    return encode_fetch_response(version, correlation_id, 0, [], error_code=error_code, session_id=session_id)


async def passes(client: Peer, broker: Peer, request: bytes, answer: bytes) -> None:
    """Both go through as they are."""
    await client.send(request)
    await broker.expect(request)
    await broker.send(answer)
    await client.expect(answer)


async def test_fetch_above_limit_passes_and_the_next_is_throttled() -> None:
    """Below v7 a fetch lists all its partitions, so the next one stands for itself."""
    large = fetch(2, 5, topics=((b"orders", MANY),))
    async with relaying(fetch_size_limit=len(large) - 5) as relay:
        client, broker = await relay.connect()
        await passes(client, broker, fetch(1, 5), fetch_response(1))
        await passes(client, broker, large, response(2, b"not scanned"))
        await passes(client, broker, large, response(2, b"not scanned"))
        await passes(client, broker, fetch(3, 5), fetch_response(3))
        assert [call[1] for call in relay.throttle.told("plan")] == [1, 3]
        assert len(relay.throttle.told("settle")) == 2
        assert relay.stats.passthrough == {"fetch_too_large": 2}
        assert relay.stats.fetch_requests == {3: 4}
        assert relay.stats.protocol_errors == {}


@pytest.mark.parametrize("version", [7, 12, 18])
async def test_too_large_fetch_leaves_its_session_to_the_leader(version: int) -> None:
    """Else the follower's next one named a session that only the leader knows, was refused, and so on for ever."""
    large = session_fetch(version, 2, 0, 0, partitions=50)
    async with relaying(fetch_size_limit=len(large) - 5) as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()
        await client.send(session_fetch(version, 1, 0, 0))
        await broker.receive_frame()
        await broker.send(session_response(version, 1, 77))
        answer = await client.receive_frame()
        assert answer != session_response(version, 1, 77)  # the session is ours
        await passes(client, broker, large, session_response(version, 2, 88))
        await passes(client, broker, session_fetch(version, 3, 88, 1), session_response(version, 3, 88))
        assert relay.stats.passthrough == {"fetch_too_large": 1}
        assert relay.stats.throttle_errors == 0


@pytest.mark.parametrize("version", [7, 18])
async def test_too_large_incremental_fetch_begins_anew_at_the_leader(version: int) -> None:
    """Its follower is refused, and begins a session with the leader."""
    large = session_fetch(version, 2, 5, 1, partitions=50)
    async with relaying(fetch_size_limit=len(large) - 5) as relay:
        client, broker = await relay.connect()
        await client.send(session_fetch(version, 1, 0, 0))
        await broker.receive_frame()
        await broker.send(session_response(version, 1, 5))
        await client.receive_frame()
        refusal = session_response(version, 2, 0, FETCH_SESSION_ID_NOT_FOUND)
        await passes(client, broker, large, refusal)
        await passes(client, broker, session_fetch(version, 3, 0, 0), session_response(version, 3, 88))
        await passes(client, broker, session_fetch(version, 4, 88, 1), session_response(version, 4, 88))
        assert relay.throttle.calls[-1] == ("close",)
        assert len(relay.throttle.told("plan")) == 1


@pytest.mark.parametrize("version", [7, 12, 18])
@pytest.mark.parametrize(("what", "asked"), [("topics", (2, 1)), ("partitions", (1, 2))])
async def test_fetch_listing_more_than_is_decoded_passes_from_then_on(
    version: int, what: str, asked: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_topics, f"MOST_{what.upper()}", 1)
    async with relaying() as relay:
        client, broker = await relay.connect()
        topics, partitions = asked
        whole = session_fetch(version, 1, 0, 0, topics=topics, partitions=partitions)
        await passes(client, broker, whole, response(1, b"not scanned"))
        await passes(client, broker, session_fetch(version, 2, 9, 1), response(2, b"nor this"))
        assert relay.stats.passthrough == {f"too_many_{what}": 1}
        assert (relay.stats.protocol_errors, relay.stats.throttle_errors) == ({}, 0)
        assert relay.throttle.told("plan") == []


async def refused(relay: Relaying, client: Peer, broker: Peer) -> str:
    """Check that the follower is told by the connection's end, and operators by one line; returns the reason."""
    await client.expect_end()
    await broker.expect_end()
    assert relay.stats.protocol_errors == {"malformed_frame": 1}
    assert (relay.stats.passthrough, relay.stats.throttle_errors) == ({}, 0)
    (line,) = relay.log.of("protocol_error")
    assert line["sent_by"] == "client"
    return str(line["reason"])


async def test_a_replica_fetch_of_a_negative_size_ends_its_connection() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(session_fetch(7, 1, 0, 0, max_bytes=-(2**31)))
        assert "max_bytes of -2147483648" in await refused(relay, client, broker)
        assert relay.throttle.told("plan") == []


@pytest.mark.parametrize("when", ["first plan", "later plan"])
async def test_fetch_the_throttle_finds_malformed_ends_its_connection(
    when: str,
) -> None:
    """The throttle of that connection is closed."""
    async with relaying() as relay:
        client, broker = await relay.connect(request(3, 0, 1))
        if when == "later plan":
            relay.throttle.decisions.append(Hold(time.monotonic()))
        relay.throttle.decisions.append(MalformedFrame("a partition is named twice", 40))
        await client.send(fetch(2, 5))
        assert "named twice" in await refused(relay, client, broker)
        assert relay.throttle.calls[-1] == ("close",)  # the answer to the first was still to come


@pytest.mark.parametrize("version", [3, 6])
async def test_answer_of_more_than_was_asked_ends_its_connection(version: int) -> None:
    """A leader that lies may not fill the sidecar's memory."""
    async with relaying() as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        asked = ((b"orders", MANY[:2]),)
        client, broker = await relay.connect(fetch(1, 5, version=version, topics=asked))
        as_asked = ((b"orders", ((0, 7, b"r"),)), (b"orders", ((1, 7, b""),)))
        await broker.send(fetch_response(1, version=version, topics=as_asked))
        await client.expect(fetch_response(1, version=version, topics=as_asked))
        await client.send(fetch(2, 5, version=version, topics=asked))
        await broker.expect(fetch(2, 5, version=version, topics=asked))
        await broker.send(fetch_response(2, version=version, topics=(*as_asked, (b"orders", ((2, 7, b""),)))))
        await client.expect_end()
        await broker.expect_end()
        assert relay.stats.protocol_errors == {"malformed_frame": 1}
        (line,) = relay.log.of("protocol_error")
        assert line["sent_by"] == "upstream"
        assert "asked for" in str(line["reason"])


@pytest.mark.parametrize("version", [7])
async def test_an_answer_in_a_session_may_have_all_of_it(version: int) -> None:
    """What was asked for once is answered later, by a fetch that names nothing."""
    async with relaying() as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()
        await client.send(session_fetch(version, 1, 0, 0, partitions=3))
        await broker.receive_frame()
        await broker.send(session_response(version, 1, 77))
        session_id = struct.unpack_from(">i", await client.receive_frame(), 14)[0]
        for correlation_id, partitions in ((2, 3), (3, 4)):
            await client.send(session_fetch(version, correlation_id, session_id, correlation_id - 1, topics=0))
            await broker.receive_frame()
            entries = made_up_entries(version, [(partition, 9) for partition in range(partitions)])
            topics = [ResponseTopic(NAME[:-1] + b"\x00", entries)]
            await broker.send(encode_fetch_response(version, correlation_id, 0, topics, session_id=77))
            if partitions == 3:
                await client.receive_frame()
        await client.expect_end()
        assert relay.stats.protocol_errors == {"malformed_frame": 1}


async def test_a_request_of_another_version_s_entries_is_never_sent() -> None:
    """The throttle has a bug: the connection ends, and nothing stays reserved."""

    def with_entries_of_v7(asked: FetchRequest) -> Forward:
        return Forward(asked.with_(topics=[RequestTopic(NAME, bytes(24), 24)]))

    async with relaying() as relay:
        relay.throttle.decisions.append(with_entries_of_v7)
        client, broker = await relay.connect()
        await client.send(fetch(1, 5))
        await client.expect_end()
        await broker.expect_end()
        assert relay.stats.throttle_errors == 1
        assert relay.throttle.calls[-1] == ("close",)

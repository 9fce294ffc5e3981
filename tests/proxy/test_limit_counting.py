# SPDX-License-Identifier: Apache-2.0
"""A limited client's answers pass as they are, and are counted whole, whatever pieces they come in."""

from __future__ import annotations

import struct
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from tests.fakes.clock import MovedClock
from tests.limits.limiters import rule
from tests.protocol.test_batch_counter import NONE, built
from tests.protocol.wire import frame
from tests.proxy.limited import SINK, fetch, fetched, limited
from weir.protocol.header import FETCH
from weir.protocol.record_counts import RecordCounts, counts_of
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import RequestHead, read_request_head
from weir.protocol.request_sender import RequestSender
from weir.protocol.response_scanner import Buffer
from weir.protocol.response_stream import Pending, ResponseStream
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.outcomes import Outcome, PassOn, Waiting

Topic = FetchResponse.FetchableTopicResponse
BATCH = built(2, NONE, [300] * 3)
ON_BOTH_LOOPS = True


def answer(number: int, batches: list[int]) -> bytes:
    """A Fetch v12 answer with so many batches in each partition."""
    return answer_of(number, [BATCH * count for count in batches])


def answer_of(number: int, records: list[bytes]) -> bytes:
    """A Fetch v12 answer with these bytes in each partition."""
    partitions = [Topic.PartitionData(partition_index=index, records=one) for index, one in enumerate(records)]
    told = FetchResponse(throttle_time_ms=0, responses=[Topic(topic="orders", partitions=partitions)], version=12)
    return frame(struct.pack(">i", number) + b"\x00" + told.encode(version=12))


@given(
    answers=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 20_000), max_size=12),
    limit=st.sampled_from([1e9, 1.0]),
)
def test_any_pieces_of_answers_pass_and_are_counted(answers: list[list[int]], cuts: list[int], limit: float) -> None:
    stage = LimitStage(MovedClock(), EventLog())
    stage.configure([rule("*", limit)])
    client = stage.client(SINK.encode())
    assert client is not None
    stream, out = ResponseStream(), list[Buffer]()
    data = b""
    for number, batches in enumerate(answers):
        counts = counts_of(FETCH, 12)
        assert counts is not None
        counts.on_passed = partial(stage.count, client)
        stream.expect(Pending(number, counts))
        data += answer(number, batches)
    for begin, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
        piece = memoryview(data)[begin:end]  # as Link.received has it
        if stream.skip(len(piece)) or stream.looks(piece):
            out.append(piece)
        else:
            stream.receive(piece, out)
    assert b"".join(out) == data
    assert stream.at_boundary
    assert client.rates.records == 3 * sum(sum(batches) for batches in answers)
    assert not stage.not_counted


def test_a_piece_in_the_middle_of_an_answer_is_only_looked_at() -> None:
    stage = LimitStage(MovedClock(), EventLog())
    stage.configure([rule("*", 1e9)])
    client, counts = stage.client(b"c"), counts_of(FETCH, 12)
    assert client is not None
    assert counts is not None
    stream, data = ResponseStream(), answer(1, [8])
    counts.on_passed = partial(stage.count, client)
    stream.expect(Pending(1, counts))
    out: list[Buffer] = []
    assert not stream.looks(memoryview(data)[:1])  # nothing is known of it yet
    stream.receive(memoryview(data)[:500], out)
    middle = memoryview(data)[500:-100]
    assert not stream.skip(len(middle))
    assert stream.looks(middle)
    assert not stream.looks(memoryview(data)[-100:])  # its last byte ends it
    stream.receive(memoryview(data)[-100:], out)
    assert stream.at_boundary
    assert client.rates.records == 24


async def test_unlimited_client_is_asked_about_once_until_a_change() -> None:
    asked: list[bytes | None] = []

    class Asked(LinkGate):
        def arrived(self, request: RequestBegins) -> PassOn | Waiting[Outcome]:
            asked.append(request.sender.client_id)
            return super().arrived(request)

    async with limited(rule(SINK, 1)) as found:
        found.relay.relay.new_gate = lambda link: Asked(found.stage, found.relay.relay, link)
        client, broker = await found.relay.connect()
        for number, client_id in enumerate(["mine", "mine", "other", "other", SINK, "mine", "mine"]):
            data = fetch(number, client_id=client_id)
            await found.passes_with(client, broker, data, fetched(number, 0))
        assert asked == [b"mine", b"other", SINK.encode(), b"mine"]
        found.stage.configure([rule("*", 100)])
        await found.passes_with(client, broker, fetch(10, client_id="mine"), fetched(10, 50))
        await found.is_held(client, broker, fetch(11, client_id="mine"))
        found.stage.configure([])
        await broker.expect(fetch(11, client_id="mine"))


@pytest.mark.parametrize("version", [4, 12, 18])
async def test_known_clients_possible_replica_fetch_is_asked_about(version: int) -> None:
    async with limited(rule(SINK, 1e6)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 1))
        found.clock.move(1)
        (link,) = found.relay.listener.links
        data = fetch(2, version)
        head = read_request_head(data)
        assert isinstance(head, RequestHead)
        assert link.connection.gate is not None
        assert isinstance(link.connection.gate.may_hold(head, data, False), RecordCounts)
        assert link.connection.gate.may_hold(head, data, True) is True


def test_ids_of_unlike_ends_or_lengths_are_told_apart() -> None:
    for client_id, other in (("a", "ab"), ("ab", "a"), ("", "a"), (None, ""), ("x" * 2000, "y" * 2000)):
        fields = []
        for one in (client_id, other):
            request = fetch(1, client_id=one)
            head = read_request_head(request)
            assert isinstance(head, RequestHead)
            fields.append(RequestSender(FETCH, head.api_version, request[:1024]).client_id_field)
            assert request[12 : 12 + len(fields[-1])] == fields[-1]
        assert fields[0] != fields[1]
        assert fetch(1, client_id=other)[12 : 12 + len(fields[0])] != fields[0]


@pytest.mark.parametrize(
    ("size", "fault"), [(-1, "batch"), (0, "batch"), (-(2**31), "batch"), (13, "batch"), (2**31 - 1, None)]
)
async def test_wrong_batch_length_passes_and_costs_a_partitions_count(size: int, fault: str | None) -> None:
    """A length beyond the partition is that of a batch which was cut off."""
    wrong = BATCH[:8] + struct.pack(">i", size) + BATCH[12:]
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        told = answer_of(1, [BATCH + wrong + BATCH, BATCH])
        assert await found.passes_with(client, broker, fetch(1), told) == told
        assert found.stage.not_counted == ({fault: 1} if fault else {})
        (limited_client,) = found.stage.clients
        assert limited_client.rates.records == 3 + 3  # what was before it, and the other partition
        await found.is_held(client, broker, fetch(2))
        await found.move(0.07)
        await broker.expect(fetch(2))

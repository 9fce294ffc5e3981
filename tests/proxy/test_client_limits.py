# SPDX-License-Identifier: Apache-2.0
"""Clients are held to their limits on the wire: what waits, for how long, and what never does."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tests.fakes.relaying import DEADLINE_SECONDS, round_trip
from tests.limits.limiters import Scripted, rule
from tests.protocol.wire import fetch_response, frame, request, response
from tests.proxy.limited import (
    SINK,
    SOURCE,
    Limited,
    fetch,
    fetched,
    limited,
    produce,
    produced,
    read_fetched,
)
from weir.limits.rules import NamedLimiter, Rule

ON_BOTH_LOOPS = True

FETCH_VERSIONS = (4, 7, 11, 12, 13, 15, 18)


def client_of(found: Limited, client_id: str) -> Any:
    client = found.stage.client(client_id.encode())
    assert client is not None
    return client


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_next_fetch_waits_until_records_have_had_their_time(version: int) -> None:
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        answer = fetched(1, 50, version)
        assert await found.passes_with(client, broker, fetch(1, version), answer) == answer
        await found.is_held(client, broker, fetch(2, version, max_wait_ms=2000))
        await found.move(0.4)
        await asyncio.sleep(0)
        assert found.has_held()
        assert broker.has_nothing()
        await found.move(0.11)
        left = 2000 if version >= 7 else 1490
        await broker.expect(fetch(2, version, max_wait_ms=left))
        assert client_of(found, SINK).rates.records == 50
        assert client_of(found, SINK).rates.throttled_seconds == pytest.approx(0.51)


async def test_old_clients_are_limited_by_holds_alone() -> None:
    """Versions that kafka-python no longer speaks: Fetch v2 and Produce v2."""
    async with limited(rule("c", 1)) as found:
        client, broker = await found.relay.connect()
        messages = struct.pack(">qiibbi", 7, 22, 0, 1, 0, 0) + b"x" * 12
        asked = request(1, 2, 1, struct.pack(">iiii", -1, 500, 1, 0))
        answer = fetch_response(1, version=2, topics=((b"orders", ((0, 7, messages),)),))
        assert await found.passes_with(client, broker, asked, answer) == answer
        await found.is_held(client, broker, request(1, 2, 2, struct.pack(">iiii", -1, 500, 1, 0)))
        await found.move(1.1)
        await broker.receive_frame()


@pytest.mark.long
@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("throttle_time_ms", [0, 5000])
async def test_answers_pass_as_they_are(version: int, throttle_time_ms: int) -> None:
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        for number in range(3):
            await found.move(60)
            answer = fetched(number, 5000, version, throttle_time_ms=throttle_time_ms)
            assert await found.passes_with(client, broker, fetch(number, version), answer) == answer


@pytest.mark.long
@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("epoch", [-1, 0, 3])
async def test_fetch_paused_beyond_a_hold_is_answered_without_records(version: int, epoch: int) -> None:
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1, version), fetched(1, 5000, version))
        session = (9, epoch) if version >= 7 and epoch >= 0 else (0, -1)
        for number in range(2, 8):  # 50 s in pieces of 5 s
            await found.is_held(client, broker, fetch(number, version, session=session))
            await found.move(5)
            got = await client.receive_frame()
            assert struct.unpack_from(">i", got, 4) == (number,)
            answer = read_fetched(got, version)
            assert (answer.responses, answer.throttle_time_ms) == ([], 0 if session[1] > 0 else 1)
            if version >= 7:
                assert (answer.error_code, answer.session_id) == (71 if epoch > 0 else 0, 0)
        assert broker.has_nothing()
        await found.move(16)
        await found.is_held(client, broker, fetch(9, version, session=session))
        await found.move(5)
        await broker.expect(fetch(9, version, session=session, max_wait_ms=500 if session[1] > 0 else 0))
        assert found.stage.holds_cut["answered"] == 6


@pytest.mark.long
@pytest.mark.parametrize(("version", "session"), [(4, (0, -1)), (12, (0, -1)), (12, (0, 0))])
@pytest.mark.parametrize(("max_wait_ms", "held"), [(0, 0.11), (500, 0.51), (1000, 1.01), (9000, 9.01)])
async def test_a_fetch_without_a_session_is_answered_after_its_wait(
    version: int, session: tuple[int, int], max_wait_ms: int, held: float
) -> None:
    """kafka-go takes an answer before max_wait, and none long after it, for an error."""
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1, version), fetched(1, 2000, version))
        asked = fetch(2, version, session=session, max_wait_ms=max_wait_ms)
        await found.is_held(client, broker, asked)
        await found.move(held - 0.005)
        await asyncio.sleep(0)
        assert found.has_held()
        await found.move(0.03)
        answer = read_fetched(await client.receive_frame(), version)
        assert (answer.responses, answer.error_code if version >= 7 else 0) == ([], 0)
        assert broker.has_nothing()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_held_fetch_waits_at_the_broker_for_the_rest_alone(version: int) -> None:
    """So that its client has an answer when it expects one, also where the broker has no records for it."""

    def asked(max_wait_ms: int) -> bytes:
        return fetch(2, version, session=(0, -1), max_wait_ms=max_wait_ms, partitions=[0])

    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1, version), fetched(1, 20, version))
        await found.is_held(client, broker, asked(500))
        await found.move(0.21)
        answer = fetched(2, 30, version)
        await broker.expect(asked(290))
        await broker.send(answer)
        assert read_fetched(await client.receive_frame(), version).responses
        assert client_of(found, SINK).rates.records == 50
        await client.send(fetch(3, version, client_id=None))
        await broker.expect(fetch(3, version, client_id=None))


@pytest.mark.parametrize("at_once", [False, True])
async def test_fetch_without_a_session_gives_way_to_what_is_behind_it(at_once: bool) -> None:
    """Or the heartbeats of sarama and KafkaJS, which have one connection for everything, would come too late."""
    heartbeat, asked = request(12, 4, 3, b"", client_id=SINK.encode()), fetch(2, session=(0, -1), max_wait_ms=9000)
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 5000))
        await found.is_held(client, broker, asked + heartbeat if at_once else asked)
        if not at_once:
            await found.move(3)
            await asyncio.sleep(0.01)
            assert found.has_held()
            await client.send(heartbeat)
            await asyncio.sleep(0.01)
        await found.move(0.26)
        assert read_fetched(await client.receive_frame(), 12).responses == []
        await broker.expect(heartbeat)


@pytest.mark.long
@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("count", [1, 300])
async def test_an_answer_without_records_lists_what_was_asked_for(version: int, count: int) -> None:
    """kafka-go and sarama take one that lacks a partition for an error; Java begins a new session."""
    partitions = list(range(count))
    asked = fetch(2, version, session=(0, -1), partitions=partitions)
    assert len(asked) < 16 * 1024
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1, version), fetched(1, 500, version))
        await found.is_held(client, broker, asked)
        await found.move(1.0)
        answer = read_fetched(await client.receive_frame(), version)
    (topic,) = answer.responses
    assert [one.partition_index for one in topic.partitions] == partitions
    for one in topic.partitions:
        assert (one.error_code, one.high_watermark, one.records or b"") == (0, -1, b"")


async def test_a_fetch_that_only_ends_its_session_is_not_held() -> None:
    """Java sends one when it closes, and warns of the throttle time in an answer that lists nothing."""
    async with limited(rule(SINK, 10)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 100))
        await found.passes_with(client, broker, fetch(2, session=(9, -1)), fetched(2, 0))
        await found.is_held(client, broker, fetch(3, session=(9, -1), partitions=[0]))


async def test_fetch_too_long_to_be_listed_is_held_as_in_a_session() -> None:
    asked = fetch(2, session=(0, -1), partitions=range(1000))
    assert len(asked) > 16 * 1024
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 1000))
        await found.is_held(client, broker, asked)
        await found.move(4.9)
        await asyncio.sleep(0)
        assert found.has_held()
        await found.move(0.2)
        assert read_fetched(await client.receive_frame(), 12).responses == []


async def test_requests_sent_one_behind_the_other_are_held_for_less() -> None:
    """The last of five was sent when the first was: its time runs out with the first one's."""
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        for number in range(5):
            await found.passes_with(client, broker, produce(number, 1), produced(number))
            await found.move(2)
        await client.send(b"".join(produce(number, 12) for number in range(10, 20)))
        seconds = []
        for number in range(10, 20):
            begin = found.clock()
            while broker.has_nothing():
                await found.move(0.5)
                await asyncio.sleep(0.002)
            await broker.expect(produce(number, 12))
            seconds.append(found.clock() - begin)
            if number >= 13:
                await broker.send(produced(number - 3))
                await client.receive_frame()
        assert max(sum(seconds[at : at + 5]) for at in range(6)) <= 20 + 5 * 0.5


async def test_first_requests_of_a_connection_time_out_together() -> None:
    """Each of them was sent when the first was, as far as is known."""
    async with limited(rule(SOURCE, 1)) as found:
        client, broker = await found.relay.connect()
        await client.send(b"".join(produce(number, 30) for number in range(3)))
        begin = found.clock()
        for number in range(3):
            while broker.has_nothing():
                await found.move(0.5)
                await asyncio.sleep(0.002)
            await broker.expect(produce(number, 30))
        assert found.clock() - begin <= 20 + 3 * 0.5


async def test_waiting_request_waits_on_when_one_before_is_answered() -> None:
    """Producers send requests one behind the other; sidecars ask for more of a limit while somebody waits."""
    async with limited(rule(SOURCE, 100)) as found:
        client, broker = await found.relay.connect()
        await client.send(b"".join(produce(number, 50) for number in (1, 2, 3)))
        await broker.expect(produce(1, 50))
        for number in (1, 2):
            await found.relay.until(found.has_held)
            await broker.send(produced(number))
            await client.receive_frame()
            (group,) = client_of(found, SOURCE).groups
            assert group.is_waited_for
            await found.move(0.51)
            await broker.expect(produce(number + 1, 50))
            assert client_of(found, SOURCE).rates.throttled_seconds == pytest.approx(0.51 * number)
        await broker.send(produced(3))
        await client.receive_frame()
        assert not group.is_waited_for


async def test_a_limit_that_changes_in_a_pause_counts_at_once() -> None:
    async with limited(rule(SINK, 10)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 30))
        await found.is_held(client, broker, fetch(2))
        await found.move(0.1)
        found.stage.configure([rule(SINK, 1000)])
        await found.move(0.03)
        await broker.expect(fetch(2))
        await broker.send(fetched(2, 500))
        await client.receive_frame()
        await found.is_held(client, broker, fetch(3))
        found.stage.configure([])
        await broker.expect(fetch(3))


async def test_other_requests_pass_and_other_clients_are_unwatched() -> None:
    async with limited(rule(SINK, 1)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 30))
        for number in range(10, 15):  # heartbeats, commits, metadata
            await round_trip(client, broker, number)
        mine, its_broker = await found.relay.connect()
        for number in range(3):
            answer = fetched(number, 30)
            assert await found.passes_with(mine, its_broker, fetch(number, client_id="mine"), answer) == answer
        assert [one.client_id for one in found.stage.clients] == [SINK]


@pytest.mark.parametrize("client_id", [None, b"", b"\xff\xfe\x00", b"x" * 32_767, "é".encode() * 200])
async def test_any_client_id_is_a_client(client_id: bytes | None) -> None:
    async with limited(rule("*", 100)) as found:
        client, broker = await found.relay.connect()
        asked = [
            request(1, 4, number, struct.pack(">iiiib", -1, 0, 0, 0, 0) + bytes(4), client_id) for number in (1, 2)
        ]
        await found.passes_with(client, broker, asked[0], fetched(1, 50, 4))
        await found.is_held(client, broker, asked[1])
        await found.move(0.6)
        await broker.expect(asked[1])
        assert all(len(one.client_id) <= 255 for one in found.stage.clients)


@pytest.mark.parametrize("held", [fetch(2), produce(2, 5)])
async def test_a_client_that_goes_in_a_pause_leaves_nothing(held: bytes) -> None:
    async with limited(rule("connector-*", 1)) as found:
        client, broker = await found.relay.connect()
        await found.passes_with(client, broker, fetch(1), fetched(1, 30))
        await found.passes_with(client, broker, produce(3, 3), produced(3))
        await found.is_held(client, broker, held)
        client.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while found.relay.listener.links:
                await found.move(0)
                await asyncio.sleep(0.001)
        await broker.expect_end()
        assert not any(group.is_waited_for for one in found.stage.clients for group in one.groups)


async def test_tasks_share_their_connectors_limit_over_connections() -> None:
    """Each task has a connection of its own."""
    async with limited(rule("connector-consumer-s3-*", 100, per="connector")) as found:
        ends = [await found.relay.connect() for _ in range(3)]
        ids = [f"connector-consumer-s3-{number}" for number in range(3)]
        await found.passes_with(*ends[0], fetch(1, client_id=ids[0]), fetched(1, 50))
        for (client, broker), client_id in zip(ends, ids, strict=True):
            await found.is_held(client, broker, fetch(2, client_id=client_id))
        await found.move(0.5)
        await ends[0][1].expect(fetch(2, client_id=ids[0]))
        await ends[0][1].send(fetched(2, 50))  # it brings the next pause, and so nobody else goes
        await ends[0][0].receive_frame()
        await found.move(0.1)
        await asyncio.sleep(0.01)
        assert all(broker.has_nothing() for _, broker in ends)
        await found.move(0.4)
        await ends[1][1].expect(fetch(2, client_id=ids[1]))


@pytest.mark.parametrize("answer", [frame(struct.pack(">i", 1) + b"\x00" * 11 + b"\xff" * 300), response(1)])
async def test_an_answer_that_cannot_be_read_passes_and_is_counted(answer: bytes) -> None:
    async with limited(rule(SINK, 100)) as found:
        client, broker = await found.relay.connect()
        assert await found.passes_with(client, broker, fetch(1), answer) == answer
        assert sum(found.stage.not_counted.values()) == 1
        answer = fetched(2, 3)
        assert await found.passes_with(client, broker, fetch(2), answer) == answer


async def test_versions_that_are_not_known_pass_and_are_counted() -> None:
    async with limited(rule("c", 1)) as found:
        client, broker = await found.relay.connect()
        for number in range(3):
            asked = request(1, 19, number, b"x" * 40)
            await found.passes_with(client, broker, asked, response(number, b"x" * 500))
        assert found.stage.not_counted["version"] == 3


@pytest.mark.parametrize(
    "asked",
    [
        request(1, 19, 2, b"x" * 40, client_id=b"broker-2-fetcher-0"),
        request(1, 12, 2, struct.pack(">iiii", 2, 500, 1, 0) + bytes(70_000), client_id=b"broker-2-fetcher-0"),
    ],
    ids=["of a version that is not known", "above the limit of size"],
)
async def test_fetch_that_may_be_a_replicas_is_never_held(asked: bytes) -> None:
    """A pattern may fit brokers' client ids too, and somebody with such an id may owe a pause."""
    async with limited(rule("*", 1)) as found:
        found.relay.relay.fetch_size_limit = 60_000
        client, broker = await found.relay.connect()
        answer = fetched(1, 50)
        await found.passes_with(client, broker, fetch(1, client_id="broker-2-fetcher-0"), answer)
        await found.is_held(client, broker, fetch(3, client_id="broker-2-fetcher-0"))
        other, upstream = await found.relay.connect()
        await found.passes_with(other, upstream, asked, response(2, b"x" * 500))


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("fails_in", ["accumulate", "throttle_time"])
async def test_a_limiter_that_raises_stops_nobody(fails_in: str, error: type[BaseException]) -> None:
    made = Scripted(error(), fails_in)
    async with limited(Rule("*", (NamedLimiter("theirs", lambda: made),))) as found:
        client, broker = await found.relay.connect()
        for number in range(3):
            answer = fetched(number, 30)
            assert await found.passes_with(client, broker, fetch(number), answer) == answer
        (line,) = found.relay.log.of("limiter_disabled")
        assert (line["client"], line["limiter"]) == (SINK, "theirs")
        assert found.stage.clients.disabled == 1

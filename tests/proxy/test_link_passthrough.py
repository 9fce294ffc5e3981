# SPDX-License-Identifier: Apache-2.0
"""What is not a replica's fetch passes byte for byte, both ways."""

import asyncio
import random
import struct

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import CONSUMER, fetch, fetch_response, frame, produce, request, response, string
from weir.proxy.relay.stats import MOST_VERSIONS

ON_BOTH_LOOPS = True


async def send_in_pieces(peer: Peer, data: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 11, 500, 20_000, 300_000))
        await peer.send(data[at : at + size])
        at += size
        if rng.random() < 0.2:
            await asyncio.sleep(0)


def random_requests(rng: random.Random, count: int, *, of_replicas: bool = True) -> tuple[bytes, list[int]]:
    """Requests of every class and many sizes, and the correlation ids of those that are answered."""
    data, answered = [], []
    for correlation_id in range(count):
        body = rng.randbytes(rng.choice((0, 5, 200, 5_000, 100_000)))
        kind = rng.randrange(6)
        if kind == 0:
            data.append(produce(correlation_id, 0, version=rng.choice((2, 7, 9)), records=body))
            continue
        answered.append(correlation_id)
        if kind == 1:
            data.append(produce(correlation_id, -1, version=rng.choice((2, 7, 9)), records=body))
        elif kind == 2:
            data.append(fetch(correlation_id, CONSUMER, version=rng.choice((0, 3, 11, 12))))
        elif kind == 3 and of_replicas:
            data.append(fetch(correlation_id, 2))
        elif kind == 4:
            data.append(fetch(correlation_id, 2, version=19))
        else:
            data.append(request(rng.randrange(2, 17), rng.randrange(12), correlation_id, body))
    return b"".join(data), answered


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_requests_and_responses_in_pieces_arrive_byte_for_byte(seed: int) -> None:
    """Replica fetches among them too: the throttle here changes nothing. Each is answered before what follows."""
    rng = random.Random(seed)
    requests, answered = random_requests(rng, 150)
    async with relaying() as relay:
        client, broker = await relay.connect()

        async def answer() -> bytes:
            received = b""
            while len(received) < len(requests):
                frame = await broker.receive_frame()
                received += frame
                number = int.from_bytes(frame[8:12], "big")
                if number not in answered:
                    continue
                if number in {call[1] for call in relay.throttle.told("plan")}:
                    records = rng.randbytes(rng.choice((0, 90, 70_000)))
                    data = fetch_response(number, topics=((b"t", ((0, 5, records),)),))
                else:
                    data = response(number, rng.randbytes(rng.choice((0, 10, 300_000))))
                sending = asyncio.create_task(send_in_pieces(broker, data, rng))
                await client.expect(data)
                await sending
            return received

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_in_pieces(client, requests, rng))
            at_broker = tasks.create_task(answer())
        assert at_broker.result() == requests
        assert len(relay.throttle.told("settle")) == len(relay.throttle.told("plan")) > 0
        assert relay.pool.lent == []


async def test_large_frames_flow_both_ways_at_once() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        first = request(3, 0, 1)
        await client.send(first)
        await broker.expect(first)
        up, down = request(0, 2, 2, b"\xff" * 4_000_000), response(1, b"y" * 4_000_000)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.send(up))
            tasks.create_task(broker.send(down))
            at_broker = tasks.create_task(broker.receive(len(up)))
            at_client = tasks.create_task(client.receive(len(down)))
        assert at_broker.result() == up
        assert at_client.result() == down


async def test_an_idle_connection_owns_no_buffer() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        for correlation_id in range(3):
            await round_trip(client, broker, correlation_id)
            assert relay.pool.lent == []


async def test_produce_with_acks_0_leaves_no_response_due() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        data = produce(1, 0) + produce(2, 1) + produce(3, 0)
        await client.send(data)
        await broker.expect(data)
        await broker.send(response(2, b"ok"))
        await client.expect(response(2, b"ok"))
        assert relay.stats.protocol_errors == {}


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello", "tls"), (b"GET / HTTP/1.1\r\n\r\n", "not_kafka")],
)
async def test_what_is_not_kafka_passes_both_ways_and_is_counted(data: bytes, reason: str) -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(data)
        await broker.send(b"\x16\x03\x03\xff\xff\xff\xff\xff")
        await client.expect(b"\x16\x03\x03\xff\xff\xff\xff\xff")
        await client.send(fetch(1, 2))
        await broker.expect(fetch(1, 2))
        assert relay.stats.passthrough == {reason: 1}
        assert relay.stats.opaque == {reason: 1}
        (link,) = relay.listener.links
        assert link.from_upstream.large_reads, "what is not understood may be long"
        assert relay.throttle.calls == []
        (line,) = relay.log.of("opaque_connection")
        assert line["reason"] == reason
    assert +relay.stats.opaque == {}


async def test_sasl_handshake_v0_is_answered_and_then_tokens_pass() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        handshake = request(17, 0, 1, string(b"PLAIN"))
        await client.send(handshake)
        await broker.expect(handshake)
        await broker.send(response(1, b"\x00\x00"))
        await client.expect(response(1, b"\x00\x00"))
        await client.send(frame(b"\x00user\x00secret"))
        await broker.expect(frame(b"\x00user\x00secret"))
        await broker.send(frame(b""))
        await client.expect(frame(b""))
        assert relay.stats.passthrough == {"sasl": 1}


async def test_fetch_of_unknown_version_passes_and_is_counted_by_it() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        data = fetch(1, 2, version=19) + fetch(2, CONSUMER, version=11) + fetch(3, 2, version=20)
        await client.send(data)
        await broker.expect(data)
        assert relay.stats.fetch_requests == {19: 1, 20: 1}
        assert relay.stats.passthrough == {"fetch_version": 2}
        assert relay.throttle.calls == []
        assert [line["api_version"] for line in relay.log.of("fetch_not_throttled")] == [19]  # then rate-limited


async def test_made_up_versions_count_together_and_known_ones_apart() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        data = b"".join(fetch(version, 2, version=version) for version in range(19, 1019)) + fetch(1, 2)
        await client.send(data)
        await broker.expect(data)
        assert relay.stats.passthrough == {"fetch_version": 1000}
        assert len(relay.stats.fetch_requests) == MOST_VERSIONS + 1
        assert relay.stats.fetch_requests[3] == 1


async def test_half_close_passes_and_the_other_direction_flows_on() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1))
        client.half_close()
        await broker.expect(request(3, 0, 1))
        await broker.expect_end()
        assert relay.stats.connections == 1
        await broker.send(response(1, b"x" * 100_000))
        await client.expect(response(1, b"x" * 100_000))
        broker.close()
        await client.expect_end()
        await relay.until(lambda: relay.stats.connections == 0)


async def test_a_half_close_of_the_broker_is_passed_on() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        broker.half_close()
        await client.expect_end()
        await client.send(produce(1, 0))
        await broker.expect(produce(1, 0))
        client.close()
        await broker.expect_end()
        await relay.until(lambda: relay.stats.connections == 0)


async def test_half_closed_connection_is_closed_if_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.link.HALF_CLOSED_SECONDS", 0.01)
    async with relaying() as relay:
        client, broker = await relay.connect()
        client.half_close()
        await broker.expect_end()
        await relay.until(lambda: relay.stats.connections == 0)
        await client.expect_end()


async def test_more_requests_than_may_be_pending_wait_at_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.connection.MOST_PENDING", 10)
    async with relaying() as relay:
        client, broker = await relay.connect()
        first = b"".join(request(3, 0, one) for one in range(12))
        await client.send(first)
        await broker.expect(first)
        await client.send(request(3, 0, 12))
        await _turns(relay)
        assert broker.has_nothing()
        await broker.send(response(0))
        await _turns(relay)
        assert broker.has_nothing()  # 11 are pending, 10 may be
        await broker.send(response(1))
        await broker.expect(request(3, 0, 12))
        await client.expect(response(0) + response(1))


async def _turns(relay: Relaying) -> None:
    """Give the relay the time to do what it should not do: a few round trips of another connection."""
    client, broker = await relay.connect()
    for correlation_id in range(5):
        await round_trip(client, broker, correlation_id)
    client.close()
    await broker.expect_end()


async def test_a_frame_of_2_gib_begins_to_pass_at_once() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        head = struct.pack(">ihhi", 2**31 - 1, 3, 0, 1) + b"x" * 1000
        await client.send(head)
        await broker.expect(head)
        down = struct.pack(">ii", 2**31 - 1, 1) + b"y" * 1000
        await broker.send(down)
        await client.expect(down)

"""Any request may be held before its first byte passes, and any response may be observed."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from protocol.request_head import RequestHead
from protocol.response_scanner import Buffer
from protocol.steps import Steps
from proxy.relay.outcomes import Hold, Outcome, Pass
from tests.fakes.relaying import Relaying, no_steps, relaying, round_trip
from tests.protocol.wire import CONSUMER, fetch, produce, request, response
from tests.proxy.test_link_passthrough import random_requests, send_in_pieces

ON_BOTH_LOOPS = True

PRODUCE, FETCH = 0, 1
FAR = float("inf")


class Reader:
    """Sees a response's bytes, and lets them pass."""

    def __init__(self) -> None:
        self.seen = b""
        self.done = self.is_dense = False

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        missing = 4 - len(self.seen)
        size = int.from_bytes((self.seen + bytes(view[: max(missing, 0)]))[:4], "big")
        taken = min(len(view), 4 + size - len(self.seen))
        self.seen += bytes(view[:taken])
        self.done = len(self.seen) == 4 + size
        return [view[:taken]], taken


@dataclass
class Gate:
    """Holds requests of some APIs until the test lets them go."""

    api_keys: tuple[int, ...] = (PRODUCE, FETCH)
    asked: list[tuple[int, int]] = field(default_factory=list)
    holds: Callable[[], bool] = lambda: True
    until: float = FAR
    readers: deque[Reader] = field(default_factory=deque)

    def may_hold(self, head: RequestHead) -> bool:
        return head.api_key in self.api_keys

    def arrived(self, head: RequestHead) -> Pass | Hold:
        self.asked.append((head.api_key, head.correlation_id))
        return Hold(self.until, self.again) if self.holds() else self.passed()

    def again(self) -> Steps[Outcome]:
        return no_steps(self.passed())

    def passed(self) -> Pass:
        return Pass(self.readers.popleft() if self.readers else None)


def release(relay: Relaying) -> None:
    relay.relay.held.wake(list(relay.listener.links))


def has_held(relay: Relaying) -> bool:
    return any(link._requests.held is not None for link in relay.listener.links)


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(produce(2, 1), id="small"),
        pytest.param(produce(2, 0), id="acks=0"),
        pytest.param(produce(2, -1, records=b"r" * 100_000), id="large"),
        pytest.param(fetch(2, CONSUMER, version=12), id="fetch v12"),
        pytest.param(fetch(2, CONSUMER, version=3), id="fetch v3"),
    ],
)
@pytest.mark.parametrize("first", [0, 2, 9, 20])
async def test_a_request_that_streams_is_held_at_its_first_byte(held: bytes, first: int) -> None:
    async with relaying() as relay:
        relay.relay.gate = Gate()
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1) + held[:first])
        await broker.expect(request(3, 0, 1))
        sending = asyncio.create_task(client.send(held[first:] + request(3, 0, 3)))
        await relay.until(lambda: has_held(relay))
        await broker.send(response(1))
        await client.expect(response(1))
        assert broker.has_nothing()
        release(relay)
        await broker.expect(held + request(3, 0, 3))
        await sending
        assert (relay.stats.held, relay.stats.fetches_held) == (0, 0)


async def test_a_held_request_goes_when_its_time_has_come() -> None:
    async with relaying() as relay:
        relay.relay.gate = Gate(until=relay.relay.clock() + 0.01)
        client, broker = await relay.connect()
        await client.send(produce(1, 1) + request(3, 0, 2))
        await broker.expect(produce(1, 1) + request(3, 0, 2))


async def test_other_requests_are_not_asked_about() -> None:
    async with relaying() as relay:
        relay.relay.gate = gate = Gate()
        client, broker = await relay.connect()
        for number in range(3):
            await round_trip(client, broker, number)
        await client.send(fetch(9, 5))  # a replica's is the throttle's business
        await broker.expect(fetch(9, 5))
        assert gate.asked == []


@pytest.mark.parametrize("seed", range(3))
async def test_requests_in_any_pieces_arrive_byte_for_byte_while_some_are_held(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.relay.link_requests.MOST_FETCHES", 1000)
    rng = random.Random(seed)
    requests, _ = random_requests(rng, 100)
    async with relaying() as relay:
        relay.relay.gate = gate = Gate(holds=lambda: rng.random() < 0.5, until=0.0)
        client, broker = await relay.connect()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_in_pieces(client, requests, rng))
            at_broker = tasks.create_task(broker.receive(len(requests)))
        assert at_broker.result() == requests
        asked = [number for _, number in gate.asked]
        assert asked == sorted(set(asked))  # each once, in order
        assert len(asked) > 20


async def test_a_drain_gives_a_held_request_back_to_its_client_unsent() -> None:
    async with relaying() as relay:
        relay.relay.gate = Gate()
        client, broker = await relay.connect()
        await client.send(produce(1, 1)[:5])
        await client.send(produce(1, 1)[5:] + request(3, 0, 2))
        await relay.until(lambda: has_held(relay))
        draining = asyncio.create_task(relay.listener.drain(5.0))
        await broker.expect_end()
        await client.expect_end()
        client.close()
        await draining


async def test_a_client_that_goes_while_its_request_is_held_is_not_forwarded_for() -> None:
    async with relaying() as relay:
        relay.relay.gate = Gate()
        client, broker = await relay.connect()
        await client.send(produce(1, 1))
        await relay.until(lambda: has_held(relay))
        client.close()
        async with asyncio.timeout(5):
            while relay.listener.links:
                release(relay)
                await asyncio.sleep(0.001)
        await broker.expect_end()


async def test_a_response_passes_its_observer() -> None:
    async with relaying() as relay:
        readers = [Reader(), Reader()]
        relay.relay.gate = Gate(holds=lambda: False, readers=deque(readers))
        client, broker = await relay.connect()
        sent = produce(1, 1) + request(3, 0, 2) + produce(3, 0) + produce(4, 1)
        await client.send(sent)
        await broker.expect(sent)
        answers = response(1, b"one") + response(2, b"two") + response(4, b"four")
        for at in range(0, len(answers), 7):
            await broker.send(answers[at : at + 7])
        await client.expect(answers)
        # The one without an answer took the second reader with it.
        assert [reader.seen for reader in readers] == [response(1, b"one"), b""]
        await round_trip(client, broker, 5)

# SPDX-License-Identifier: Apache-2.0
"""Any request may be held before its first byte passes, and any response may be observed."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.fakes.relaying import Relaying, relaying, round_trip
from tests.protocol.wire import CONSUMER, fetch, produce, request, response
from tests.proxy.test_link_passthrough import random_requests, send_in_pieces
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import Head, RequestHead
from weir.protocol.response_scanner import Buffer
from weir.protocol.response_stream import Pending, ResponseObserver
from weir.proxy.relay.outcomes import GateState, Outcome, PassOn, Reply, Wait, Waiting

ON_BOTH_LOOPS = True

PRODUCE, FETCH = 0, 1
FAR = float("inf")


class Reader(ResponseObserver):
    """Sees a response's bytes, and lets them pass."""

    done = is_dense = False
    seen = b""

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
    watchers: deque[Watcher] = field(default_factory=deque)
    answers: deque[bytes] = field(default_factory=deque)
    was_gone: int = 0

    def may_hold(self, head: RequestHead, frame: Head, may_be_replicas: bool, /) -> bool:
        return head.api_key in self.api_keys

    def arrived(self, request: RequestBegins) -> PassOn | Waiting[Outcome]:
        self.asked.append((request.head.api_key, request.head.correlation_id))
        return self.held() if self.holds() else self.passed()

    def held(self) -> Waiting[Outcome]:
        yield Wait(self.until)
        if self.answers:
            answer = self.answers.popleft()
            return Reply(Pending(int.from_bytes(answer[4:8], "big"), answer=answer))
        return self.passed()

    def passed(self) -> PassOn:
        reader = self.readers.popleft() if self.readers else None
        pending = Pending(self.asked[-1][1], reader) if self.asked else None
        return PassOn(pending, self.watchers.popleft() if self.watchers else None)

    def standing(self, *, sends: bool) -> GateState:
        return GateState()

    def go_on_from(self, before: GateState) -> None:
        pass

    def gone(self) -> None:
        self.was_gone += 1


@dataclass
class Watcher:
    """Sees a request's bytes."""

    seen: bytes = b""
    done: bool = False

    def __call__(self, view: memoryview) -> bool:
        self.seen += bytes(view)
        self.done = len(self.seen) == 4 + int.from_bytes(self.seen[:4], "big")
        assert len(self.seen) <= 4 + int.from_bytes(self.seen[:4], "big")
        return self.done


def gated(relay: Relaying, gate: Gate) -> Gate:
    """Have all links ask `gate`."""
    relay.relay.new_gate = lambda link: gate
    return gate


def release(relay: Relaying) -> None:
    relay.relay.held.wake(list(relay.listener.links))


def has_held(relay: Relaying) -> bool:
    return any(link.connection.hold is not None for link in relay.listener.links)


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
        gated(relay, Gate())
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
        assert (len(relay.relay.held), relay.stats.fetches_held) == (0, 0)


async def test_a_held_request_goes_when_its_time_has_come() -> None:
    async with relaying() as relay:
        gated(relay, Gate(until=relay.relay.clock() + 0.01))
        client, broker = await relay.connect()
        await client.send(produce(1, 1) + request(3, 0, 2))
        await broker.expect(produce(1, 1) + request(3, 0, 2))


async def test_other_requests_are_not_asked_about() -> None:
    async with relaying() as relay:
        gate = gated(relay, Gate())
        client, broker = await relay.connect()
        for number in range(3):
            await round_trip(client, broker, number)
        await client.send(fetch(9, 5))  # a replica's is the throttle's business
        await broker.expect(fetch(9, 5))
        assert gate.asked == []


@pytest.mark.parametrize("seed", range(3))
async def test_requests_arrive_byte_for_byte_while_some_are_held(seed: int) -> None:
    """They do however they are cut."""
    rng = random.Random(seed)
    requests, _ = random_requests(rng, 100, of_replicas=False)
    async with relaying() as relay:
        gate = gated(relay, Gate(holds=lambda: rng.random() < 0.5, until=0.0))
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
        gated(relay, Gate())
        client, broker = await relay.connect()
        await client.send(produce(1, 1)[:5])
        await client.send(produce(1, 1)[5:] + request(3, 0, 2))
        await relay.until(lambda: has_held(relay))
        draining = asyncio.create_task(relay.listener.drain(5.0))
        await broker.expect_end()
        await client.expect_end()
        client.close()
        await draining


async def test_a_drain_lets_a_request_that_was_held_until_now_end() -> None:
    """Its bytes wait for a turn of their own. Without them no answer came, and its client waited until it gave up."""
    async with relaying() as relay:
        gated(relay, Gate())
        client, broker = await relay.connect()
        await client.send(produce(1, 1) + request(3, 0, 2))
        await relay.until(lambda: has_held(relay))
        for link in relay.listener.links:
            link.replan()
        relay.listener.drain_links()
        await broker.expect(produce(1, 1))
        await broker.send(response(1))
        await client.expect(response(1))
        await client.expect_end()
        await broker.expect_end()


async def test_nothing_is_forwarded_for_a_client_gone_while_held() -> None:
    async with relaying() as relay:
        gated(relay, Gate())
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
        gated(relay, Gate(holds=lambda: False, readers=deque(readers)))
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


@pytest.mark.parametrize("seed", range(3))
async def test_each_request_is_watched_to_its_last_byte_no_further(seed: int) -> None:
    rng = random.Random(seed)
    sent = [produce(number, 1, records=b"r" * rng.choice((20, 3000, 400_000))) for number in range(1, 9)]
    between = [request(3, 0, 100 + number) for number in range(8)]
    watchers = [Watcher() for _ in sent]
    async with relaying() as relay:
        gated(relay, Gate(holds=lambda: rng.random() < 0.5, until=0.0, watchers=deque(watchers)))
        client, broker = await relay.connect()
        data = b"".join(one for pair in zip(sent, between, strict=True) for one in pair)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_in_pieces(client, data, rng))
            at_broker = tasks.create_task(broker.receive(len(data)))
        assert at_broker.result() == data
        assert [(watcher.seen, watcher.done) for watcher in watchers] == [(one, True) for one in sent]


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(fetch(2, CONSUMER, version=12), id="small"),
        pytest.param(produce(2, 0), id="acks=0"),
        pytest.param(produce(2, -1, records=b"r" * 400_000), id="large"),
    ],
)
async def test_request_answered_here_does_not_reach_the_broker(held: bytes) -> None:
    async with relaying() as relay:
        gate = gated(relay, Gate(answers=deque([response(2, b"mine")])))
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1))
        sending = asyncio.create_task(client.send(held + request(3, 0, 3)))
        await broker.expect(request(3, 0, 1))
        await relay.until(lambda: has_held(relay))
        release(relay)
        await asyncio.sleep(0)
        await broker.send(response(1, b"theirs"))  # which was asked for before
        await client.expect(response(1, b"theirs") + response(2, b"mine"))
        await broker.expect(request(3, 0, 3))
        await sending
        await broker.send(response(3))
        await client.expect(response(3))
        await round_trip(client, broker, 4)
        client.close()
        broker.close()
        await relay.until(lambda: gate.was_gone)


async def test_links_that_are_open_get_a_gate_too() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(produce(1, 1, records=b"r" * 50_000)[:30_000])
        await broker.expect(produce(1, 1, records=b"r" * 50_000)[:30_000])
        gate = gated(relay, Gate(holds=lambda: False))
        for link in relay.listener.links:
            link.use_gate()
            link.use_gate()
        await client.send(produce(1, 1, records=b"r" * 50_000)[30_000:] + produce(2, 1))
        await broker.expect(produce(1, 1, records=b"r" * 50_000)[30_000:] + produce(2, 1))
        assert gate.asked == [(PRODUCE, 2)]

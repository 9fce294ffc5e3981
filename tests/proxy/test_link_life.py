# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a link, it does what its core says, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from tests.fakes.poisoned_pool import PoisonedPool
from tests.fakes.relaying import ScriptedThrottle, logged
from tests.protocol.wire import fetch, fetch_response, produce, request, response
from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.fetches import ReplicaFetches
from weir.proxy.relay.link import Link
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.transport import Transport
from weir.quota.fetch.decisions import Answer, Hold
from weir.quota.throttle import Throttle


class FakeTransport(Transport):
    """A connection in a test's hands: `arriving` is what can be read; it takes `room` bytes."""

    tells_again = True

    def __init__(self) -> None:
        self.arriving = bytearray()
        self.sent = bytearray()
        self.has_ended = self.has_broken = self.is_closed = self.finished = False
        self.room = 0
        self.on_read: Callable[[], None] | None = None
        self.on_send: Callable[[], None] | None = None

    def receive_into(self, buffer: memoryview, /) -> int:
        self._check()
        count = min(len(buffer), len(self.arriving))
        if not count and not self.has_ended:
            raise BlockingIOError
        buffer[:count] = self.arriving[:count]
        del self.arriving[:count]
        return count

    def send(self, data: Buffer, /) -> int:
        self._check()
        count = min(len(data), self.room)
        if not count:
            raise BlockingIOError
        self.room -= count
        self.sent += data[:count]
        return count

    def send_many(self, data: Sequence[Buffer], /) -> int:
        return self.send(b"".join(data))

    def finish(self) -> None:
        self._check()
        self.finished = True

    def unacknowledged(self) -> int:
        return 0

    def keep_unsent(self, most: int) -> bool:
        return False

    def peek(self, most: int) -> bytes:
        return b""

    def is_gone(self) -> bool:
        return self.has_broken or self.has_ended

    def is_broken(self) -> bool:
        return self.has_broken

    def make_room(self, size: int) -> None:
        pass

    def watch_reads(self, callback: Callable[[], None]) -> None:
        assert not self.is_closed
        self.on_read = callback

    def unwatch_reads(self) -> None:
        self.on_read = None

    def watch_sends(self, callback: Callable[[], None]) -> None:
        assert not self.is_closed
        self.on_send = callback

    def unwatch_sends(self) -> None:
        self.on_send = None

    def close(self) -> None:
        assert self.on_read is None
        assert self.on_send is None
        self.is_closed = True

    def be_ready(self) -> None:
        """What an event loop would do."""
        if self.on_send is not None and self.room:
            self.on_send()
        if self.on_read is not None and (self.arriving or self.has_ended or self.has_broken):
            self.on_read()

    def _check(self) -> None:
        assert not self.is_closed
        if self.has_broken:
            raise ConnectionResetError


def reads_nothing(transport: FakeTransport) -> bool:
    """Whether nothing is read of what arrives now: if it is still watched, then only until then."""
    unread = bytes(transport.arriving)
    if transport.on_read is not None:
        transport.on_read()
    return transport.on_read is None and transport.arriving == unread


async def live(rng: random.Random) -> None:
    """Have random things happen to a link; whatever they are, it does what its core says and leaves nothing behind."""
    throttle, pool = ScriptedThrottle(), PoisonedPool()
    closed: list[Link] = []
    with logged() as (log, lines):
        relay = Side(cast(Throttle, throttle), RelayStats("leader"), log, pool)
        client, upstream = FakeTransport(), FakeTransport()
        link = Link(relay, client, upstream, ReplicaFetches(relay, 5), "u", closed.append)
        link.start()
        replica_fetches: dict[int, bool] = {}

        def ask() -> None:
            number = len(replica_fetches)
            is_fetch = replica_fetches[number] = rng.random() < 0.5
            data = fetch(number, 5) if is_fetch else request(3, 0, number)
            client.arriving.extend(data + (produce(9, 0) if rng.random() < 0.2 else b""))
            if rng.random() < 0.3:
                throttle.decisions.append(Hold(rng.choice((0.0, float("inf")))))
            elif rng.random() < 0.3:
                throttle.decisions.append(Answer(response(number)))

        def answer() -> None:
            pending = [one for one in link.connection.responses.pending if one.answer is None]
            if pending and link.connection.responses.at_boundary and not upstream.arriving:
                number = pending[0].correlation_id
                upstream.arriving.extend(fetch_response(number) if pending[0].observer else response(number))

        def give_room() -> None:
            client.room += rng.choice((1, 100, 10_000))
            upstream.room += rng.choice((1, 100, 10_000))

        often: list[Callable[[], object]] = [ask, answer, give_room, client.be_ready, upstream.be_ready] * 8
        rare: list[Callable[[], object]] = [
            lambda: setattr(client, "has_ended", True),
            lambda: setattr(upstream, "has_ended", True),
            lambda: setattr(client, "has_broken", True),
            lambda: upstream.arriving.extend(b"\x00\x00\x00\x09\x00\x00\x03\xe7 lies"),
            lambda: client.arriving.extend(request(3, 0, 9999)[:9]),
            link.drain,
            link.close,
            relay.held.wake_now,
            relay.held.wake_now,
        ]
        for _ in range(rng.choice((20, 200))):
            if link.connection.phase == "closed":
                break
            rng.choice(often if rng.random() < 0.97 else rare)()
            await asyncio.sleep(0)
            core = link.connection
            if core.phase in ("open", "draining"):
                assert core.reads("client") or reads_nothing(client)
                assert core.reads("upstream") or reads_nothing(upstream)
        link.close()
        await asyncio.sleep(0.002)
        assert relay.stats.relay_errors == 0, lines.of("relay_error")
        assert closed == [link]
        assert client.is_closed
        assert upstream.is_closed
        assert (pool.lent, relay.fetch_memory.total, len(relay.held)) == ([], 0, 0)


async def test_what_an_evicted_link_has_to_tell_is_counted() -> None:
    """As in the middle of a large fetch's work, between the request that is told of and the end of the work."""
    with logged() as (log, _):
        relay = Side(cast(Throttle, ScriptedThrottle()), RelayStats("leader"), log)
        ends = FakeTransport(), FakeTransport()
        link = Link(relay, *ends, ReplicaFetches(relay, 5), "u", lambda _: None)
        link.start()
        link.connection.receive("client", memoryview(b"\x16\x03\x01\x02\x00\x01"))
        link.evict("fetch_memory")
        assert relay.stats.passthrough == {"tls": 1}
        assert +relay.stats.opaque == {}


async def test_what_a_tls_client_has_sent_ahead_counts_as_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTransport, "ahead", 2**16)
    with logged() as (log, _):
        relay = Side(cast(Throttle, ScriptedThrottle()), RelayStats("leader"), log)
        link = Link(relay, FakeTransport(), FakeTransport(), ReplicaFetches(relay, 5), "u", lambda _: None)
        link.start()
        assert relay.fetch_memory.total == 2**16
        link.close()
        assert relay.fetch_memory.total == 0


async def test_a_fetch_counts_as_kept_until_the_broker_takes_it() -> None:
    with logged() as (log, _):
        relay = Side(cast(Throttle, ScriptedThrottle()), RelayStats("leader"), log)
        client, upstream = FakeTransport(), FakeTransport()
        link = Link(relay, client, upstream, ReplicaFetches(relay, 5), "u", lambda _: None)
        link.start()
        client.arriving.extend(fetch(1, 5))
        client.be_ready()
        assert relay.fetch_memory.total == len(fetch(1, 5))
        upstream.room = 10_000
        upstream.be_ready()
        assert relay.fetch_memory.total == 0
        link.close()


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_to_a_link_keeps_to_its_core(seed: int) -> None:
    await live(random.Random(seed))

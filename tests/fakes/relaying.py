# SPDX-License-Identifier: Apache-2.0
"""A relay between a client and a broker that are both scripted by the test, over real sockets on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest

from tests.fakes.poisoned_pool import PoisonedPool
from tests.protocol.wire import request, response
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.protocol.steps import Steps, T
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import stand_ins
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.turn_budget import TurnBudget
from weir.proxy.tls.live_keys import TlsClient, TlsServer
from weir.proxy.tls_workers.pool import TlsWorkers
from weir.quota.fetch.decisions import Decision, Forward, Hold
from weir.quota.throttle import Throttle

tls_workers = 0
"""How many processes do TLS, where a test does not say it itself."""

DEADLINE_SECONDS = 5.0
"""What should happen at once must not take longer, however busy the machine."""


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the modules that say ON_BOTH_LOOPS on uvloop too (a conftest imports this hook)."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if isinstance(item, pytest.Function) and getattr(item.module, "ON_BOTH_LOOPS", False):
        with contextlib.suppress(ImportError):
            import uvloop

            factories["uvloop"] = uvloop.new_event_loop
    return factories


def no_steps(result: T) -> Steps[T]:
    """What is known already, for those who expect steps."""
    return result
    yield


class Peer:
    """One end of a connection, non-blocking, in a test's hands."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.connection, data)

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes; fewer when the other end sends no more."""
        received = bytearray()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(received) < size:
                chunk = await asyncio.get_running_loop().sock_recv(self.connection, size - len(received))
                if not chunk:
                    break
                received += chunk
        return bytes(received)

    async def receive_frame(self) -> bytes:
        """Receive one frame, its size in front."""
        head = await self.receive(4)
        return head + await self.receive(struct.unpack(">i", head)[0])

    async def expect(self, data: bytes) -> None:
        """Receive exactly `data`."""
        assert await self.receive(len(data)) == data

    async def expect_end(self) -> None:
        """Receive nothing but the end of the connection, orderly or by reset."""
        with contextlib.suppress(ConnectionResetError):
            assert await self.receive(1) == b""

    def has_nothing(self) -> bool:
        """Whether nothing has arrived, the connection's end included."""
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False

    def half_close(self) -> None:
        """Send no more."""
        self.connection.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def close(self) -> None:
        """Close in an orderly way."""
        self.connection.close()

    async def send_until_blocked(self, data: bytes, limit: int = 2**27) -> int:
        """Send `data` again and again until nothing was taken for 50 turns of the loop; returns how many bytes were.

        Fails at `limit`: then nobody stopped reading.
        """
        sent = idle = 0
        offset = 0
        while idle < 50:
            try:
                count = self.connection.send(memoryview(data)[offset:])
                sent, idle = sent + count, 0
                offset = (offset + count) % len(data)
                assert sent < limit, "The relay reads on although nothing is taken from it."
            except BlockingIOError:
                idle += 1
                await asyncio.sleep(0)
        return sent


async def round_trip(client: Peer, broker: Peer, correlation_id: int) -> None:
    """A request that passes, and the response to it."""
    await client.send(request(3, 0, correlation_id))
    await broker.expect(request(3, 0, correlation_id))
    await broker.send(response(correlation_id))
    await client.expect(response(correlation_id))


AnyPeer = TypeVar("AnyPeer", bound=Peer)

Scripted = Decision | Exception | Callable[[FetchRequest], Decision]


@dataclass(eq=False)
class ScriptedThrottle:
    """Decides as the test says, `Forward` unchanged when it says nothing, and remembers what it was told."""

    decisions: deque[Scripted] = field(default_factory=deque)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    fail_settle: Exception | None = None
    fail_close: Exception | None = None
    client_is_sidecar: bool = False
    is_lent: bool = False

    def link(self, peer: int, *, is_stranger: bool = False) -> ScriptedThrottle:
        """Return one link's part, which is the same but for who it is."""
        self.calls.append(("link", "a stranger" if is_stranger else peer))
        return cast(ScriptedThrottle, ScriptedLink(self))

    def plan(self, request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        """The next scripted decision."""
        self.calls.append(("plan", request.header.correlation_id, held_seconds))
        decision = self.decisions.popleft() if self.decisions else Forward(request)
        if isinstance(decision, Exception):
            raise decision
        return decision(request) if callable(decision) else decision

    def plan_steps(self, request: FetchRequest, held_seconds: float = 0.0) -> Steps[Decision]:
        """In one step."""
        return no_steps(self.plan(request, held_seconds))

    def answer_begins(self, size: int) -> None:
        """Nothing is learned from it."""

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Every quota has room."""
        return most

    def settle_steps(self, topics: Sequence[ScannedTopic], head: ResponseHead) -> Steps[None]:
        """In one step."""
        self.settle(topics, head)
        return no_steps(None)

    def settle(self, topics: Sequence[ScannedTopic], head: ResponseHead) -> None:
        """Remember which topics were seen."""
        self.calls.append(("settle", [topic.name for topic in topics]))
        if self.fail_settle is not None:
            raise self.fail_settle

    def next_in_line(self) -> None:
        """Every held fetch is planned again whenever budget flows back."""

    def drop(self, link: object) -> None:
        """Remember it."""
        self.calls.append(("drop",))

    def free_steps(self) -> Steps[None]:
        """Nothing is kept."""
        return no_steps(None)

    def close(self, came: Sequence[ScannedTopic] = (), *, is_over: bool = False) -> None:
        """Remember it."""
        self.calls.append(("close",))
        if self.fail_close is not None:
            raise self.fail_close

    def told(self, name: str) -> list[tuple[Any, ...]]:
        """The calls of one method."""
        return [call for call in self.calls if call[0] == name]


class ScriptedLink:
    """Does as the throttle of all links does."""

    def __init__(self, throttle: ScriptedThrottle) -> None:
        self._throttle = throttle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._throttle, name)


class AtOnce(TurnBudget):
    """Does work as it comes, without a loop."""

    def add(self, work: Callable[[], None]) -> None:
        """Do it."""
        work()


class LogLines(logging.Handler):
    """Keeps the events that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append({"event": record.msg, **getattr(record, "weir_fields", {})})

    def of(self, event: str) -> list[dict[str, object]]:
        """The lines of one event."""
        return [line for line in self.lines if line["event"] == event]


class Relaying:
    """A listener in front of a scripted broker."""

    def __init__(
        self, relay: Side, pool: PoisonedPool, throttle: ScriptedThrottle, broker: socket.socket, log: LogLines
    ) -> None:
        self.relay = relay
        self.stats = relay.stats
        self.pool = pool
        self.throttle = throttle
        self.log = log
        self.broker = broker
        self.later = 0.0
        """Seconds that the relay's clock is ahead."""
        self.listener: Listener
        self.workers: TlsWorkers
        self._peers: list[Peer] = []

    @property
    def upstream(self) -> Address:
        """Where the broker listens."""
        return Address(*self.broker.getsockname())

    async def client(self) -> Peer:
        """A client's connection to the relay, which the broker has not taken yet."""
        connection = socket.socket()
        peer = self.keep(Peer(connection))
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.listener.address.port))
        return peer

    async def accept(self) -> Peer:
        """The broker's end of the next connection."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            connection, _ = await asyncio.get_running_loop().sock_accept(self.broker)
        return self.keep(Peer(connection))

    async def connect(self, data: bytes = b"") -> tuple[Peer, Peer]:
        """A client and its connection's end at the broker; `data` went from the one to the other."""
        client = await self.client()
        broker = await self.accept()
        await client.send(data)
        await broker.expect(data)
        return client, broker

    async def hold(self, data: bytes) -> tuple[Peer, Peer]:
        """A client, the fetch at whose end is held until something else happens, and its connection's end."""
        self.throttle.decisions.append(Hold(float("inf")))
        client, broker = await self.connect()
        held_before = len(self.relay.held)
        await client.send(data)
        await self.until(lambda: len(self.relay.held) > held_before)
        return client, broker

    async def until(self, condition: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until `condition` holds."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in a kernel or a callback
                await asyncio.sleep(0.001)

    def close_peers(self) -> None:
        """Close every socket of the test."""
        for peer in self._peers:
            peer.close()
        self.broker.close()

    def keep(self, peer: AnyPeer) -> AnyPeer:
        """Close this one, too, at the end."""
        self._peers.append(peer)
        return peer


@contextlib.contextmanager
def logged() -> Iterator[tuple[EventLog, LogLines]]:
    """An event log and what it is told."""
    lines = LogLines()
    logger = logging.getLogger("tests.relaying")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(lines)
    try:
        yield EventLog("tests.relaying"), lines
    finally:
        logger.removeHandler(lines)


async def start_listener(relay: Side, listen: Address, upstream: Address, peer: int | None = None) -> Listener:
    """A Listener that listens. Raises OSError when the address is taken or not this machine's."""
    listener = Listener(relay, listen, Upstream(upstream, peer))
    await listener.start()
    return listener


@contextlib.asynccontextmanager
async def relaying(
    peer: int | None = None,
    *,
    fetch_size_limit: int = 100 * 2**20,
    connect_seconds: float = 5.0,
    tls: TlsServer | None = None,
    upstream_tls: TlsClient | None = None,
    stands_in: bool = False,
    workers: int | None = None,
) -> AsyncIterator[Relaying]:
    """Run a relay; at the end all it borrowed is back, all it counted is closed, and the relay itself had no bug."""
    broker = socket.create_server(("127.0.0.1", 0))
    broker.setblocking(False)
    throttle, pool = ScriptedThrottle(), PoisonedPool()
    with logged() as (log, lines):
        count = tls_workers if workers is None else workers
        ends = TlsWorkers(count, [one.keys for one in (tls, upstream_tls) if one is not None], log)
        await ends.start()
        relay = Side(
            cast(Throttle, throttle),
            RelayStats("leader"),
            log,
            pool,
            fetch_size_limit=fetch_size_limit,
            connect_seconds=connect_seconds,
            clock=lambda: time.monotonic() + running.later,
            open_tls=ends.open,
        )
        running = Relaying(relay, pool, throttle, broker, lines)
        running.workers = ends
        await running.until(lambda: all(worker.is_ready for worker in ends.workers), 30)
        upstream = Upstream(running.upstream, peer, tls=upstream_tls)
        trials = stand_ins(tls, upstream_tls, relay) if stands_in else None
        running.listener = Listener(relay, Address("127.0.0.1", 0), upstream, tls=tls, stand_ins=trials)
        await running.listener.start()
        try:
            yield running
            assert relay.stats.relay_errors == 0, lines.of("relay_error")
        finally:
            running.listener.abort()
            running.close_peers()
            await running.until(lambda: relay.stats.connections == 0)
            await running.until(lambda: not any(worker.handed for worker in ends.workers), 30)
            await ends.close()
        assert (pool.lent, relay.fetch_memory.total) == ([], 0)
        assert len(relay.held) == 0

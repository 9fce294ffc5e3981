"""One client's connection and its own connection to the broker.

Requests become events, responses are matched with them, and replica fetches are decided on by the throttle. All of it
happens in the loop's callbacks; nothing here awaits, so nothing is ever seen half-changed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from protocol.errors import ProtocolError
from protocol.framing import (
    BecameOpaque,
    Expect,
    Pass,
    Pending,
    ReplicaFetch,
    RequestEvent,
    RequestStream,
    ResponseStream,
    Undecoded,
)
from proxy.buffers import SMALL_BUFFER_SIZE
from proxy.fetches import ReplicaFetches
from proxy.log import innermost_frame
from proxy.pump import BLOCKED, CROWDED, DRAINING, ENDED, HELD, STOPPED, Pump
from proxy.relay import Relay

MOST_PENDING: Final = 1024
"""Requests that may wait for responses before no more are read from the client."""

_SMALL_FRAME: Final = 1024  # bytes: reading one costs more than moving it

HALF_CLOSED_SECONDS: Final = 60.0
"""How long a connection may stay half-closed without a byte moving."""

LINGER_SECONDS: Final = 1.0
"""How long a drained client has for closing its end, so that what was sent to it last is not lost to a reset."""


class Link:
    """A client's connection and the upstream's, from the moment that both are there until `close`.

    `peer` is the upstream broker's id where the route says it. `on_close` is called once, when both sockets are closed.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_draining",
        "_fetches",
        "_kept",
        "_lingering",
        "_loop",
        "_on_close",
        "_relay",
        "_requests",
        "_responses",
        "_rest",
        "_timer",
        "_to_client",
        "_to_upstream",
        "_upstream",
        "client_host",
        "upstream_name",
    )

    def __init__(
        self,
        relay: Relay,
        client: socket.socket,
        upstream: socket.socket,
        peer: int | None,
        *,
        client_host: str,
        upstream_name: str,
        on_close: Callable[[Link], None],
    ) -> None:
        self._relay = relay
        self._loop = loop = asyncio.get_running_loop()
        self._client = client
        self._upstream = upstream
        self._on_close = on_close
        self.client_host = client_host
        self.upstream_name = upstream_name
        self._requests = RequestStream(relay.fetch_size_limit)
        self._responses = ResponseStream()
        self._fetches = ReplicaFetches(relay, peer, self)
        self._to_upstream = Pump(self, loop, relay.pool, client, upstream)
        self._to_client = Pump(self, loop, relay.pool, upstream, client)
        self._rest = b""  # what came behind a request that is held
        self._kept = 0  # bytes of fetches, as told to `fetch_memory`
        self._draining = False
        self._lingering = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to move bytes."""
        self._to_upstream.resume(STOPPED)
        self._to_client.resume(STOPPED)

    def close(self) -> None:
        """Close both sockets at once; what is unsent is lost."""
        if self._closed:
            return
        self._closed = True
        self._to_upstream.close()
        self._to_client.close()
        self._loop.remove_reader(self._client)  # a lingering one
        if self._timer is not None:
            self._timer.cancel()
        self._client.close()
        self._upstream.close()
        self._fetches.close(in_flight=any(pending.scanner is not None for pending in self._responses.pending))
        self._relay.fetch_memory.drop(self)
        self._on_close(self)

    def evict(self) -> None:
        """Close for want of memory: of all links this one keeps the most bytes of fetches."""
        stats, log = self._relay.stats, self._relay.log
        stats.protocol_errors["fetch_memory"] += 1
        log.fault("fetch_memory_full", self.client_host, side=stats.side, kept_bytes=self._kept)
        self.close()

    def drain(self) -> None:
        """Take no further request, and close when every response that is due was passed on."""
        self._draining = True
        if not self._requests.opaque:  # else only its peers know what is in flight: it goes on until the limit
            self._take_no_more()
            self._finish_if_idle()

    # What the pumps tell

    def received(self, pump: Pump, view: memoryview) -> None:
        """Take bytes that arrived from the client (for the upstream) or from the upstream."""
        if pump is self._to_client:
            if self._responses.skip(len(view)):
                pump.unsent.append(view)
            else:
                self._take_responses(view)
        elif self._requests.skip(len(view)):
            pump.unsent.append(view)
        else:
            self._take_requests(view)
        if self._draining and not self._requests.opaque:
            self._take_no_more()
            self._loop.call_soon(self._finish_if_idle)  # when what arrived was sent

    def unblocked(self, pump: Pump) -> None:
        """Go on with what waited for a peer to read."""
        if pump is self._to_client:
            self._read_on_if_not_crowded()
        if self._draining:
            self._finish_if_idle()

    def ended(self, pump: Pump) -> None:
        """One end sent its last byte, and the other was told. With both ended, or a fetch held, nothing can follow."""
        other = self._to_upstream if pump is self._to_client else self._to_client
        if other.is_paused(ENDED) or self._fetches.holding or self._draining:
            self.close()
        else:
            self._watch_half_closed()

    def failed(self, pump: Pump, error: Exception) -> None:
        """Close, and say why unless a peer simply went away."""
        if self._closed:
            return
        stats, log = self._relay.stats, self._relay.log
        if isinstance(error, ProtocolError):
            sent_by, name = ("client", self.client_host)
            if pump is self._to_client:
                sent_by, name = ("upstream", self.upstream_name)
            stats.protocol_errors[error.kind] += 1
            log.fault("protocol_error", name, side=stats.side, kind=error.kind, sent_by=sent_by, reason=str(error))
            pump.flush()  # what came before the fault
        elif not isinstance(error, OSError):
            stats.relay_errors += 1
            log.error("relay_error", side=stats.side, error=repr(error), at=innermost_frame(error))
        self.close()

    # Requests

    def _take_requests(self, view: memoryview) -> None:
        requests, pending = self._requests, self._responses.pending
        pending_before = len(pending)
        for event in requests.receive(view):
            self._carry_out(event)
            if self._closed:
                return
            if self._fetches.holding:
                self._to_upstream.pause(HELD)
                self._rest = bytes(view[requests.consumed :])
                break
        self._to_upstream.large_reads = (
            requests.opaque or requests.passing > SMALL_BUFFER_SIZE or _is_bulk(view, len(pending) - pending_before)
        )
        if len(pending) > MOST_PENDING:
            self._to_upstream.pause(CROWDED)
        self._note_kept()

    def _note_kept(self) -> None:
        kept = self._requests.collected + self._fetches.held_bytes + len(self._rest)
        if kept != self._kept:
            self._kept = kept
            self._relay.fetch_memory.keep(self, kept)

    def _carry_out(self, event: RequestEvent) -> None:
        match event:
            case Pass(buffer):
                self._to_upstream.unsent.append(buffer)
            case Expect(_, _, correlation_id):
                self._responses.expect(Pending(correlation_id))
            case ReplicaFetch():
                self._fetches.take(event)
            case Undecoded(reason, api_version, replica_id):
                stats = self._relay.stats
                stats.count_undecoded(api_version, reason)
                if reason != "fetch_version":
                    self._fetches.passed_undecoded(api_version)
                self._relay.log.fault(
                    "fetch_not_throttled",
                    self.client_host,
                    side=stats.side,
                    reason=reason,
                    api_version=api_version,
                    replica_id=replica_id,
                )
            case BecameOpaque(reason):
                self._responses.become_opaque()
                self._to_client.large_reads = True  # nothing tells small frames from large ones any more
                self._relay.stats.passthrough[reason] += 1
                self._relay.log.fault("opaque_connection", self.client_host, side=self._relay.stats.side, reason=reason)

    def forward(self, data: bytes, pending: Pending) -> None:
        """Queue a fetch for the upstream; whoever had it decided flushes."""
        self._responses.expect(pending)
        self._to_upstream.unsent.append(data)

    def answer(self, pending: Pending) -> None:
        """Queue an answer of our own; it is sent at once when no response is due before it."""
        self._responses.expect(pending)
        ready = self._responses.ready_answers()
        if ready:
            self._to_client.unsent += ready
            self._to_client.flush()
        if not ready or self._to_client.is_paused(BLOCKED):
            self._to_upstream.pause(CROWDED)  # or a client that never reads could have answers pile up

    def stop_decoding(self) -> None:
        """Let all further fetches pass."""
        self._requests.decode_fetch = _decodes_nothing

    def replan(self) -> None:
        """Have the fetch that is held planned again; when it goes, go on with what came behind it."""
        if self._client_is_gone():
            self.close()
            return
        try:
            self._fetches.replan()
            if self._closed or self._fetches.holding:
                return
            rest, self._rest = self._rest, b""
            if rest:
                self._take_requests(memoryview(rest))
            self._note_kept()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(self._to_upstream, error)
            return
        self._to_upstream.flush()
        if not self._closed and not self._fetches.holding:
            self._to_upstream.resume(HELD)

    def _client_is_gone(self) -> bool:
        """Whether the client closed its connection while nothing was read from it."""
        try:
            return not self._client.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    # Responses

    def _take_responses(self, view: memoryview) -> None:
        responses = self._responses
        pending_before = len(responses.pending)
        responses.receive(view, self._to_client.unsent)
        if responses.completed:
            completed, responses.completed = responses.completed, []
            self._fetches.settle(completed)
        self._to_client.large_reads = (
            responses.opaque
            or responses.scanning
            or responses.passing > SMALL_BUFFER_SIZE
            or _is_bulk(view, pending_before - len(responses.pending))
        )
        self._read_on_if_not_crowded()

    def _read_on_if_not_crowded(self) -> None:
        if self._to_upstream.is_paused(CROWDED):
            pending = self._responses.pending
            if len(pending) <= MOST_PENDING // 2 and all(one.answer is None for one in pending):
                self._to_upstream.resume(CROWDED)

    # The end

    def _take_no_more(self) -> None:
        """Draining: read up to the end of the request under way and no further; one that is held was not taken."""
        self._fetches.drop_held()
        self._rest = b""
        self._note_kept()
        if self._requests.at_boundary:
            self._to_upstream.pause(DRAINING)
        else:
            self._to_upstream.read_limit = self._requests.missing

    def _finish_if_idle(self) -> None:
        """Draining: when nothing is in flight any more, say goodbye and wait a moment for the client's."""
        waiting = self._responses.pending or self._to_client.unsent or self._to_upstream.unsent
        if self._closed or self._lingering or waiting or not self._requests.at_boundary or self._requests.opaque:
            return
        self._lingering = True
        client_ended = self._to_upstream.is_paused(ENDED)
        self._to_upstream.close()
        self._to_client.close()
        self._upstream.close()
        try:
            self._client.shutdown(socket.SHUT_WR)
        except OSError:
            client_ended = True
        if client_ended:
            self.close()
        else:
            self._loop.add_reader(self._client, self._linger)
            self._set_timer(LINGER_SECONDS, self.close)

    def _linger(self) -> None:
        """Throw away what a drained client still sends."""
        try:
            if self._client.recv(SMALL_BUFFER_SIZE):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.close()

    def _watch_half_closed(self, moved_before: int = -1) -> None:
        moved = self._to_upstream.moved + self._to_client.moved
        if moved == moved_before:
            self.close()
        else:
            self._set_timer(HALF_CLOSED_SECONDS, lambda: self._watch_half_closed(moved))

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, callback)


def _is_bulk(view: memoryview, frames: int) -> bool:
    """Whether a buffer came full, with so few frames that a larger one would not hold up the other connections."""
    return len(view) >= SMALL_BUFFER_SIZE and frames * _SMALL_FRAME < len(view)


def _decodes_nothing(replica_id: int, api_version: int) -> bool:
    return False

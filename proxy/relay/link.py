# SPDX-License-Identifier: Apache-2.0
"""A link: one client's connection together with its own connection to the broker.

What bytes mean, and what becomes of them, is decided by the link's core, `Connection`, which does no I/O. The link has
the sockets and the timers. It gives the core what was read, and carries out what the core asks for.

Everything happens in callbacks of the event loop. Nothing in here awaits, so nobody sees a change half done.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final

from weir.protocol.errors import ProtocolError
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import FetchResponseScanner
from weir.proxy.relay.connection import Connection
from weir.proxy.relay.direction import Direction
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.open_link import HandedOver, Relayed, Sender, Why
from weir.proxy.relay.outcomes import GateState
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.pump import BLOCKED, IN_LINE, UNTAKEN
from weir.proxy.relay.side import Side
from weir.proxy.relay.transport import TcpTransport, Transport
from weir.proxy.relay.unread import MOST_ROOM

HALF_CLOSED_SECONDS: Final = 60.0
"""How long a connection may stay half-closed without a byte moving."""

STUCK_SECONDS: Final = 10.0
"""How long the broker may take nothing of what is left of a client that has sent its last byte."""

LINGER_SECONDS: Final = 1.0
"""How long a drained client has to close its end. It has to be first: a reset could lose the last bytes sent to it."""

FAREWELL_SECONDS: Final = 60.0
"""How long what a producer with acks=0 sent before it closed may still wait for its turn."""

MOST_CARRIED: Final = 2**16
"""Bytes that were read of a client and not taken: with more of them a link is not handed over."""

_USUAL_ROOM: Final = 2**16  # bytes that the kernel takes of a client at the least, if few were read before

_LARGE_FETCH: Final = 2**14  # bytes: a fetch of more waits for its turn while it is received


@dataclass(eq=False, repr=False, slots=True)
class Link:
    """A client's connection and its upstream's, from the moment that both exist until `close`: an OpenLink.

    `on_close` is called once, when both connections are closed.
    """

    _side: Side
    _client: Transport
    _upstream: Transport
    fetches: InitVar[ReplicaFetches]
    upstream_name: str
    on_close: Callable[[Link], None]
    client_host: str = field(init=False)
    connection: Connection = field(init=False)
    from_client: Direction = field(init=False)
    from_upstream: Direction = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    tls_broken: bool = field(init=False, default=False)
    """Whether it ended as TLS failed on one of its ends, after the handshake."""
    _is_clients: bool = field(init=False, default=True)
    """Whether its bytes are understood, and none was a replica's fetch: its bytes count as a client's until then."""
    _passage: Passage = field(init=False)
    _kept: int = field(init=False, default=0)  # bytes as last told; -1 while half a fetch is among them
    _gone_since: float = field(init=False, default=math.inf)  # that its client is, while a request of it was held
    _moved_at_look: int = field(init=False, default=-1)
    _end_timer: asyncio.TimerHandle | None = field(init=False, default=None)
    _give: Callable[[Link, HandedOver], None] | None = field(init=False, default=None)  # while it is handed over
    _unread: bytes = field(init=False, default=b"")  # what was read while it drained, and nobody has taken

    def __post_init__(self, fetches: ReplicaFetches) -> None:
        side, self.client_host = self._side, fetches.host
        self.connection = core = Connection(fetches, RequestStream(side.fetch_size_limit, fetches.decodes))
        self.from_client = Direction(self, core, "client", side, self._client, self._upstream)
        self.from_upstream = Direction(self, core, "upstream", side, self._upstream, self._client)
        self._passage = Passage(self._loop, self._let_pass, self.from_upstream, self._client)
        self.from_upstream.held_back = self._passage.held_back
        self.use_gate()

    def start(self, before: HandedOver | None = None) -> None:
        """Begin to move bytes. `before`: it was another process's until now."""
        if before is not None:
            self.connection.go_on_from(before)
            self.from_client.begin_with(before.unread)
        self.carry_out()

    def use_gate(self) -> None:
        """Have a gate from the next request on, if the side has gates."""
        core, new_gate = self.connection, self._side.new_gate
        if core.gate is None and new_gate is not None:
            core.gate = new_gate(self)
            core.requests.may_hold = core.gate.may_hold

    # What the core asks for

    def carry_out(self) -> None:
        """Do what the core asks for after it has taken bytes, or has decided about a request."""
        core = self.connection
        if self._is_clients:
            self._see_whose()
        if (is_granted := core.is_granted) is not None:
            core.is_granted, throttle = None, core.fetches.throttle
            lent, to_sidecar = (False, False) if throttle is None else (throttle.is_lent, throttle.client_is_sidecar)
            self._passage.begin(is_granted=is_granted, is_lent=lent, is_to_sidecar=to_sidecar)
        if core.to_client:
            self.from_upstream.flush()
        if core.to_upstream:
            self.from_client.flush()
        if core.is_at_end:
            self.close()
            return
        if core.phase == "draining":
            # only the peers know what is in flight on an opaque connection: it goes on until the time is over
            if not core.requests.opaque and not core.is_working:
                self._unread += core.give_up_held()
                if not core.requests.missing:  # else the rest of a request that was held waits for its turn to go
                    self._unread += self.from_client.drop()
                self.from_client.large_reads = False
            self._loop.call_soon(self._finish_if_idle)  # after the bytes that arrived were sent
        self._note_kept()
        if core.is_working:
            self._side.turns.add(self._go_on)
        else:
            if core.hold is not None and core.requests.passing:
                self._make_room(core.requests.passing + _USUAL_ROOM)
            self._side.held.wait(self, core.hold)
        if core.phase != "closed":  # it may just have been evicted
            self.from_client.follow()
            self.from_upstream.follow()
            if core.ended and self._end_timer is None:
                self._watch_half_closed()

    def _go_on(self) -> None:
        """Have more of the core's work done, or the held request decided about again."""
        if self.connection.phase == "closed":
            return
        try:
            self.connection.go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(error, "client")  # the throttle reports its own, so only the client's bytes can be the cause
            return
        self.carry_out()

    def replan(self) -> None:
        """Have the held request decided about again.

        That of a client that is gone is dropped: it would be sent twice. But a producer with acks=0 may close as soon
        as it has sent everything, and nobody sends it again.
        """
        if self.connection.hold is not None and not self._closes_as_gone():
            self._go_on()

    def _closes_as_gone(self) -> bool:
        """Close if the client of a held request is gone and the request is not to be sent. Returns whether it is so."""
        if not self._client.is_gone():
            return False
        now = self._side.clock()
        self._gone_since = min(self._gone_since, now)
        if not self.connection.awaits_answer and now - self._gone_since < FAREWELL_SECONDS:
            return False
        self.close()
        return True

    def look_at_client(self) -> None:
        """See whether the client is gone, if what it sent is left unread.

        A held request is dropped as in `replan`. Otherwise a reset ends the link at once. After a FIN the broker has
        what came before, as far as it takes that: a producer with acks=0 may close as soon as it has sent everything.
        """
        core, reader = self.connection, self.from_client
        if core.phase == "closed" or not reader.is_paused(BLOCKED | UNTAKEN):
            return
        self._side.unread.add(self)
        moved_before, self._moved_at_look = self._moved_at_look, reader.moved + reader.sent
        if moved_before != self._moved_at_look:
            return  # it reads on soon
        self._make_room(MOST_ROOM)
        if core.hold is not None:
            self._closes_as_gone()
        elif self._client.is_broken():
            self.close()
        elif self._end_timer is None and self._client.is_gone():
            self._watch_half_closed()

    def _make_room(self, size: int) -> None:
        """Have the kernel take more of the client than it may have room for, so that its FIN is seen behind that."""
        size = min(size, MOST_ROOM)
        if size > 2 * _USUAL_ROOM and self._side.unread.takes_room(self, size):
            self._client.make_room(size)

    def _let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Tell the throttle what has reached the client. Returns how many bytes more may be sent."""
        fetches = self.connection.fetches
        try:
            return most if fetches.throttle is None else fetches.throttle.let_pass(arrived, on_way, most, waited)
        except Exception as error:  # noqa: BLE001 - it ends this link
            self.failed(fetches.failed(error), "upstream")
            return 0

    def _note_kept(self) -> None:
        """Tell what is kept of requests, and of answers that are held or made here."""
        core, memory = self.connection, self._side.fetch_memory
        half = core.requests.collected
        whole = core.kept_bytes() + len(self.from_client.rest) + self._client.ahead
        if half or whole != self._kept:
            self._kept = -1 if half else whole
            memory.keep(self, half=half, whole=whole, fetch=core.requests.frames)
        if half >= _LARGE_FETCH:
            self.from_client.waits_in_line = True
        if half:
            memory.watch(self._loop)

    def _see_whose(self) -> None:
        core, stats = self.connection, self._side.stats
        is_opaque = core.opaque_reason is not None
        if is_opaque:  # there are no small frames to wait for
            self.from_upstream.large_reads = True
        if is_opaque or core.fetches.is_replicas:
            self._is_clients = False
            self.from_client.counted = self.from_upstream.counted = stats.other_bytes
            stats.not_clients(self.relayed)

    # The end

    def drain(self) -> None:
        """Take no further request, and close as soon as every pending response has passed."""
        if self.connection.phase == "open":
            self.connection.phase = "draining"
            self.carry_out()

    def hand_over(self, give: Callable[[Link, HandedOver], None]) -> None:
        """Take no further request, and call `give` when nothing is in flight. `descriptors` are closed after that.

        A link whose TLS ends here is drained.
        """
        if all(isinstance(end, TcpTransport) for end in (self._client, self._upstream)):
            self._give = give
        self.drain()

    def keep(self) -> None:
        """Give it to nobody after all: it is closed when nothing is in flight."""
        self._give = None

    @property
    def descriptors(self) -> tuple[int, int]:
        """Those of the client's connection and the upstream's, of a link that is handed over."""
        return self._client.connection.fileno(), self._upstream.connection.fileno()

    def failed(self, error: Exception, sender: Sender) -> None:
        """Close, and log the reason unless a peer simply went away."""
        core = self.connection
        if core.phase != "closed":
            is_bug = not isinstance(error, (ProtocolError, OSError, ConnectionEnds))
            if is_bug and sender == "upstream" and isinstance(core.responses.observer, FetchResponseScanner):
                error = core.fetches.failed(error)  # an answer is changed as the throttle has said
            self.tls_broken = self._side.failed(error, sender, self.client_host, self.upstream_name)
            if isinstance(error, ProtocolError):  # what came before the fault is sent
                (self.from_client if sender == "client" else self.from_upstream).flush()
        self.close()

    def evict(self, why: Why, kept_bytes: int = 0) -> None:
        self._side.evicted(why, self.client_host, kept_bytes)
        self.close()

    def close(self) -> None:
        """Close both connections at once. Unsent bytes are lost."""
        core = self.connection
        if core.phase == "closed":
            return
        core.phase = "closed"  # first, as what follows may fail, and close it once more
        if (reason := core.opaque_reason) is not None:
            self._side.stats.opaque[reason] -= 1
        if self._is_clients:
            self._see_whose()
        is_under_way = bool(core.responses.pending)
        is_over = is_under_way and self._upstream.is_gone() and not self.from_upstream.unsent
        self.from_client.close()
        self.from_upstream.close()
        self._passage.end()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._client.close()
        self._upstream.close()
        core.close(is_over=is_over)
        self._side.unread.drop(self)
        self._side.held.wait(self, None)
        self._side.held.wake_soon()
        self._side.fetch_memory.drop(self)
        self.on_close(self)
        self._loop.call_soon(self._let_go)  # not now: a part of the link may have called this

    def _let_go(self) -> None:
        """Drop the parts that refer to the link, which is then freed at once, without the garbage collector."""
        self.connection.free()
        del self.from_client, self.from_upstream, self._passage

    def _finish_if_idle(self) -> None:
        """While draining: when nothing is in flight, close the sending side, and let the client close its own."""
        core = self.connection
        if core.phase != "draining" or not core.is_idle:
            return
        give = self._give if not core.ended and len(self._unread) <= MOST_CARRIED else None
        if give is None and core.requests.opaque:
            return  # only the peers know whether something is in flight
        self.from_client.close()
        self.from_upstream.close()
        if give is not None:
            standing = GateState() if core.gate is None else core.gate.standing(sends=bool(self._unread))
            give(self, HandedOver(self._unread, core.fetches.session_end, core.opaque_reason, standing))
        if give is not None or core.ended:
            self.close()
            return
        core.linger()
        self._upstream.close()
        try:
            self._client.finish()
        except OSError:
            self.close()
            return
        self.from_client.follow()
        self._end_in(LINGER_SECONDS, self.close)

    def _watch_half_closed(self, moved_before: tuple[int, ...] | None = None) -> None:
        moved = (*self.relayed, self.from_client.sent)
        if moved == moved_before:
            self.close()
        else:  # a peer that has read all may think about its answer
            seconds = HALF_CLOSED_SECONDS if self.connection.ended else STUCK_SECONDS
            self._end_in(seconds, partial(self._watch_half_closed, moved))

    def _end_in(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self._loop.call_later(seconds, callback)

    # What others see of it, as OpenLink says

    @property
    def relayed(self) -> Relayed:
        return Relayed(self.from_client.moved, self.from_upstream.moved)

    @property
    def session_end(self) -> float:
        return self.connection.fetches.session_end

    def behind(self, most: int) -> bytes:
        rest, returned = self.from_client.rest, self.connection.requests.returned
        if returned >= most:
            return b""
        return bytes(rest[returned:most]) + self._client.peek(max(0, most - len(rest)))[max(0, returned - len(rest)) :]

    @property
    def is_reading(self) -> bool:
        return self.connection.takes("client") and not self.from_client.is_paused(BLOCKED | UNTAKEN | IN_LINE)

"""A link: one client's connection together with its own connection to the broker.

Bytes from the client become request events, and responses are matched with them. `ReplicaFetches` decides what becomes
of a replica's fetch, and the link carries that out. A `LinkLife` holds the state of the link, and its table says which
events are possible.

Everything happens in callbacks of the event loop. Nothing in here awaits, so nobody sees a change half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from weir.protocol.errors import ProtocolError
from weir.protocol.framing import ResponseStream
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.fetch_memory import Why
from weir.proxy.relay.fetches import ReplicaFetches, ThrottleFailed
from weir.proxy.relay.inflow import Inflow
from weir.proxy.relay.linger import Linger
from weir.proxy.relay.link_life import Client, Event, LinkLife, Phase
from weir.proxy.relay.link_reports import LinkReports
from weir.proxy.relay.link_requests import LinkRequests
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.pump import BLOCKED, IN_LINE, STOPPED, UNTAKEN, Pump
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.sliced_work import SlicedWork
from weir.proxy.relay.stats import Relayed
from weir.proxy.relay.transport import Transport

_LARGE_FETCH: Final = 2**14  # bytes: a fetch of more waits for its turn while it is received

_SMALLEST_REQUEST: Final = 12  # bytes: its size, kind, version and correlation id

HALF_CLOSED_SECONDS: Final = 60.0
"""How long a connection may stay half-closed without a byte moving."""


class Link:
    """A client's connection and its upstream's, from the moment that both exist until `close`.

    `peer` is the upstream broker's id where the route names it. `on_close` is called once, when both connections are
    closed.
    """

    __slots__ = (
        "_client",
        "_fetches",
        "_half_closed",
        "_kept_half",
        "_kept_whole",
        "_linger",
        "_loop",
        "_on_close",
        "_passage",
        "_relay",
        "_replans_later",
        "_reports",
        "_requests",
        "_requests_in",
        "_responses",
        "_responses_in",
        "_to_client",
        "_to_upstream",
        "_upstream",
        "_work",
        "client_host",
        "life",
    )

    def __init__(
        self,
        relay: Side,
        client: Transport,
        upstream: Transport,
        peer: int | None,
        *,
        sources: ReplicaSources | None,
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
        self.life = LinkLife()
        self._fetches = ReplicaFetches(relay, peer, sources, client_host)
        self._reports = reports = LinkReports(relay.stats, relay.log, client_host, upstream_name)
        self._responses = responses = ResponseStream()
        self._to_upstream = Pump(self, loop, relay.pool, client, upstream, relay.turns)
        self._to_client = Pump(self, loop, relay.pool, upstream, client, relay.turns)
        self._passage = passage = Passage(loop, self, self._to_client, client)
        self._requests_in = Inflow(self, self._to_upstream, relay.turns)
        self._responses_in = Inflow(self, self._to_client, relay.turns)
        ends = self._to_upstream, self._to_client
        self._requests = LinkRequests(self, relay, self._fetches, reports, responses, *ends, passage)
        self._work = SlicedWork(self, relay.turns)
        self._replans_later = False
        self._kept_half = self._kept_whole = 0  # bytes of fetches, as last told to `fetch_memory`
        self._half_closed: asyncio.TimerHandle | None = None
        self._linger: Linger | None = None

    # Its life

    def start(self) -> None:
        """Begin to move bytes."""
        self.on(Event.STARTED)

    def close(self) -> None:
        """Close both connections at once. Unsent bytes are lost."""
        if not self.life.is_closed:
            self.on(Event.CLOSE)

    def drain(self) -> None:
        """Take no further request, and close as soon as every pending response has passed."""
        if self.life.phase is not Phase.OPEN:
            return
        self.on(Event.DRAIN)
        self._take_no_more()
        self._finish_if_idle()

    def evict(self, why: Why) -> None:
        """Close because of what the link keeps; `why` says which bound it hit."""
        self._reports.evicted(why, self._kept_half + self._kept_whole)
        self.close()

    def dismiss(self) -> None:
        """Close because no request came."""
        self._reports.dismissed()
        self.close()

    def on(self, event: Event) -> None:
        """Take an event, and start or stop everything as the new state says."""
        life = self.life
        life.on(event)
        self._requests_in.is_open, self._responses_in.is_open = life.takes_requests, life.takes_responses
        if life.phase is Phase.CLOSED:
            self._tear_down()
            return
        for pump, reads in ((self._to_upstream, life.reads_requests), (self._to_client, life.reads_responses)):
            if reads:
                pump.resume(STOPPED)
            else:
                pump.pause(STOPPED)
        self._requests_in.go_on()
        self._responses_in.go_on()

    def _tear_down(self) -> None:
        self._to_upstream.close()
        self._to_client.close()
        self._passage.close()
        self._requests_in.close()
        self._responses_in.close()
        if self._linger is not None:
            self._linger.stop()
        if self._half_closed is not None:
            self._half_closed.cancel()
        self._client.close()
        self._upstream.close()
        self._work.close()
        self._requests.close()
        self._fetches.close()
        self._relay.fetch_memory.drop(self)
        self._on_close(self)
        self._loop.call_soon(self._let_go)  # not now: a part of the link may have called this

    def _let_go(self) -> None:
        """Drop the parts that refer to the link, which is then freed at once. See `proxy/collector.py`."""
        self._requests.stream.drop()
        del self._to_upstream, self._to_client, self._requests_in, self._responses_in, self._requests, self._work
        del self._passage
        self._linger = None

    @property
    def opaque_reason(self) -> str | None:
        """Why its bytes are not understood any more; None while they are."""
        return self._reports.opaque_reason

    @property
    def tls_broken(self) -> bool:
        """Whether it ended as TLS failed on one of its ends."""
        return self._reports.tls_broken

    @property
    def relayed(self) -> Relayed:
        """The bytes that both peers have sent so far."""
        return Relayed(self._to_upstream.moved, self._to_client.moved)

    @property
    def has_sent_request(self) -> bool:
        """Whether the client has sent as much as a request has at least."""
        return self._to_upstream.moved >= _SMALLEST_REQUEST

    @property
    def session_end(self) -> float:
        """Until when a request may be held (clock seconds)."""
        return self._fetches.session_end

    def use_gate(self) -> None:
        """Have a gate from the next request on, as the side has gates now."""
        self._requests.use_gate()

    @property
    def is_reading(self) -> bool:
        """Whether what the client sends is taken: nothing holds it up on this link."""
        return self.life.takes_requests and not self._to_upstream.is_paused(BLOCKED | UNTAKEN | IN_LINE)

    # What the pumps tell

    def received(self, pump: Pump, view: memoryview) -> None:
        """Take bytes that `pump` has read, from the client (for the upstream) or from the upstream."""
        is_requests = pump is self._to_upstream
        stream, inflow = (
            (self._requests.stream, self._requests_in) if is_requests else (self._responses, self._responses_in)
        )
        if stream.skip(len(view)) or (not is_requests and self._responses.looks(view)):
            inflow.skip(len(view))
            if not is_requests or self._requests.passes(view):
                pump.unsent.append(view)
        else:
            is_bulk = inflow.arrived(view)
            self._note_kept()
            if self._kept_half >= _LARGE_FETCH:
                pump.waits_in_line = True
            pump.large_reads = stream.opaque or stream.passing > SMALL_BUFFER_SIZE or is_bulk
            if not is_requests and self._responses.observing:
                pump.large_reads = not self._responses.is_dense
                self._fetches.answer_begins()
        self._go_on_draining()

    def take(self, pump: Pump, view: memoryview) -> int:
        """Take a few requests or responses. Returns how many bytes were taken."""
        if pump is self._to_upstream:
            taken, is_new, work = self._requests.take(view)
            if work is not None:
                self._work.begin(work)
            self._note_kept(is_new=is_new)
            return taken
        responses = self._responses
        responses.receive(view, pump.unsent)
        if responses.completed:
            completed, responses.completed = responses.completed, []
            self._work.begin(self._fetches.settle(completed))
        self._requests.ease()
        return len(view)

    def took(self, pump: Pump) -> None:
        """Go on with what waited until bytes were taken."""
        self._note_kept()
        self._go_on_draining()

    def unblocked(self, pump: Pump) -> None:
        """Go on with what waited until a peer read."""
        if pump is self._to_client:
            self._responses_in.go_on()
            self._requests.ease()
        else:
            self._requests_in.go_on()
        if self.life.is_draining:
            self._finish_if_idle()

    def held_back(self, pump: Pump) -> None:
        """Look how much the client has taken."""
        self._passage.held_back()

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Tell the throttle what has reached the client. Returns how many bytes more may be sent."""
        try:
            return self._fetches.let_pass(arrived, on_way, most, waited)
        except ThrottleFailed as error:
            self.failed(self._to_client, error)
            return 0

    def ended(self, pump: Pump) -> None:
        """Note that one end has sent its last byte, and that the other end was told."""
        self.on(Event.CLIENT_ENDED if pump is self._to_upstream else Event.UPSTREAM_ENDED)
        if not self.life.is_closed:
            self._watch_half_closed()

    def failed(self, pump: Pump, error: Exception) -> None:
        """Close, and log the reason unless a peer simply went away."""
        if self.life.is_closed:
            return
        self._reports.failed(error, by_client=pump is self._to_upstream)
        if isinstance(error, ProtocolError):
            pump.flush()  # what came before the fault
        self.close()

    def replan(self) -> None:
        """Have the held request decided about again."""
        if self.life.is_closed or (held := self._requests.held) is None:
            return
        if self._work.is_under_way:
            self._replans_later = True
            return
        if self._client.is_gone():
            self.close()
            return
        try:
            self._work.begin(self._requests.decide_again(held))
            self._note_kept()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(self._to_upstream, error)

    # Work that takes several turns

    def work_began(self) -> None:
        """Take nothing from either peer until the work is done."""
        if not self.life.is_closed:
            self.on(Event.WORK_BEGAN)

    def work_ended(self) -> None:
        """Go on with what waited for the work."""
        self._note_kept()
        self._to_upstream.flush()
        if self.life.is_closed:
            return
        self.on(Event.WORK_ENDED)
        self._requests.ease()
        if self._replans_later:
            self._replans_later = False
            self._relay.held.wake((self,))
        self._relay.held.wake_soon()
        self._go_on_draining()

    def work_failed(self, error: Exception) -> None:
        """Close.

        Only the client's bytes can be the cause: an error while an answer is settled is caught by the throttle's owner.
        """
        self.failed(self._to_upstream, error)

    def _note_kept(self, *, is_new: bool = False) -> None:
        if self.life.is_closed:
            return
        half = self._requests.stream.collected
        whole = self._requests.whole_bytes + len(self._requests_in.rest)
        if half != self._kept_half or whole != self._kept_whole or (half and is_new):
            self._kept_half, self._kept_whole = half, whole
            memory = self._relay.fetch_memory
            memory.keep(self, half=half, whole=whole, is_new=is_new)
            if half:
                memory.watch(self._loop)

    # The end

    def _go_on_draining(self) -> None:
        if self.life.is_draining:
            self._take_no_more()
            self._loop.call_soon(self._finish_if_idle)  # after the bytes that arrived were sent

    def _take_no_more(self) -> None:
        """While draining: read to the end of the request under way, and no further.

        A held request counts as not taken.
        """
        stream = self._requests.stream
        if stream.opaque or self._work.is_under_way:
            return  # only the peers know what is in flight on an opaque connection: it goes on until the time is over
        self._requests.give_up_held()
        self._requests_in.drop()
        self._note_kept()
        if not stream.at_boundary:
            self._to_upstream.read_limit = stream.missing
        elif self.life.client is Client.FINISHES:
            self.on(Event.LAST_REQUEST_ENDED)

    def _finish_if_idle(self) -> None:
        """While draining: when nothing is in flight, close the sending side, and let the client close its own."""
        waiting = self._responses.pending or self._to_client.unsent or self._to_upstream.unsent
        stream = self._requests.stream
        if not self.life.is_draining or waiting or self._work.is_under_way or not stream.at_boundary or stream.opaque:
            return
        self.on(Event.DELIVERED)
        if self.life.is_closed:
            return
        self._to_upstream.close()
        self._to_client.close()
        self._upstream.close()
        try:
            self._client.finish()
        except OSError:
            self.close()
        else:
            self._linger = Linger(self._client, self.close)

    def _watch_half_closed(self, moved_before: int = -1) -> None:
        moved = self._to_upstream.moved + self._to_client.moved
        if moved == moved_before:
            self.close()
        else:
            watch = partial(self._watch_half_closed, moved)
            self._half_closed = self._loop.call_later(HALF_CLOSED_SECONDS, watch)

"""One client's connection and its own connection to the broker.

Requests become events, and responses are matched with them. `ReplicaFetches` decides what becomes of a replica's fetch,
and the link carries that out. How far its life has come is kept in a `LinkLife`, whose table says what may follow. All
of it happens in the callbacks of the loop; nothing here awaits, so nothing is ever seen half-changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from protocol.errors import ProtocolError
from protocol.framing import (
    BecameOpaque,
    Expect,
    Pass,
    Pending,
    ReplicaFetch,
    RequestBegins,
    RequestEvent,
    RequestStream,
    ResponseObserver,
    ResponseStream,
    Undecoded,
)
from proxy import outcomes
from proxy.buffers import SMALL_BUFFER_SIZE
from proxy.fetch_memory import Why
from proxy.fetches import ReplicaFetches, with_size
from proxy.held_request import HeldRequest, Holdable
from proxy.inflow import Inflow
from proxy.linger import Linger
from proxy.link_life import Client, Event, LinkLife, Phase, Requests
from proxy.link_reports import LinkReports
from proxy.outcomes import Outcome
from proxy.pump import BLOCKED, IN_LINE, STOPPED, UNTAKEN, Pump
from proxy.relay import Relay
from proxy.replica_sources import ReplicaSources
from proxy.transport import Transport

MOST_PENDING: Final = 1024
"""Requests that may wait for responses before no more are read from the client."""

MOST_FETCHES: Final = 8
"""Replica fetches among them: each keeps its plan. Kafka's fetchers have one under way."""

_LARGE_FETCH: Final = 2**14  # bytes: what is received of a larger one has to wait for its turn

HALF_CLOSED_SECONDS: Final = 60.0
"""How long a connection may stay half-closed without a byte moving."""


class Link:
    """A client's connection and the upstream's, from the moment that both are there until `close`.

    `peer` is the upstream broker's id where the route says it. `on_close` is called once, when both connections are
    closed.
    """

    __slots__ = (
        "_client",
        "_fetches",
        "_half_closed",
        "_held",
        "_kept_half",
        "_kept_whole",
        "_life",
        "_linger",
        "_loop",
        "_observer",
        "_on_close",
        "_relay",
        "_reports",
        "_requests",
        "_requests_in",
        "_responses",
        "_responses_in",
        "_to_client",
        "_to_upstream",
        "_upstream",
        "client_host",
    )

    def __init__(
        self,
        relay: Relay,
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
        self._life = LinkLife()
        self._reports = LinkReports(relay.stats, relay.log, client_host, upstream_name)
        self._fetches = ReplicaFetches(relay, peer, sources, client_host)
        self._requests = RequestStream(relay.fetch_size_limit, self._fetches.decodes)
        if relay.gate is not None:
            self._requests.may_hold = relay.gate.may_hold
        self._responses = ResponseStream()
        self._to_upstream = Pump(self, loop, relay.pool, client, upstream, relay.turns)
        self._to_client = Pump(self, loop, relay.pool, upstream, client, relay.turns)
        self._requests_in = Inflow(self, self._to_upstream, relay.turns)
        self._responses_in = Inflow(self, self._to_client, relay.turns)
        self._held: HeldRequest | None = None
        self._observer: ResponseObserver | None = None  # of the next request that passes
        self._kept_half = self._kept_whole = 0  # bytes of fetches, as told to `fetch_memory`
        self._half_closed: asyncio.TimerHandle | None = None
        self._linger: Linger | None = None

    # Its life

    def start(self) -> None:
        """Begin to move bytes."""
        self._on(Event.STARTED)

    def close(self) -> None:
        """Close both connections at once; what is unsent is lost."""
        if not self._life.is_closed:
            self._on(Event.CLOSE)

    def drain(self) -> None:
        """Take no further request, and close when every response that is due was passed on."""
        if self._life.phase is not Phase.OPEN:
            return
        self._give_up_held()
        self._on(Event.DRAIN)
        self._take_no_more()
        self._finish_if_idle()

    def evict(self, why: Why) -> None:
        """Close for want of memory, or because a fetch does not come to its end."""
        self._reports.evicted(why, self._kept_half + self._kept_whole)
        self.close()

    def _on(self, event: Event) -> None:
        """Take what happened, and have everything do what the state that follows allows."""
        life = self._life
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
        self._requests_in.close()
        self._responses_in.close()
        if self._linger is not None:
            self._linger.stop()
        if self._half_closed is not None:
            self._half_closed.cancel()
        self._client.close()
        self._upstream.close()
        self._forget_held()
        self._fetches.close()
        self._relay.fetch_memory.drop(self)
        self._on_close(self)

    @property
    def is_reading(self) -> bool:
        """Whether what the client sends is taken: nothing holds it up here, or behind here."""
        return self._life.takes_requests and not self._to_upstream.is_paused(BLOCKED | UNTAKEN | IN_LINE)

    # What the pumps tell

    def received(self, pump: Pump, view: memoryview) -> None:
        """Take bytes that arrived from the client (for the upstream) or from the upstream."""
        is_requests = pump is self._to_upstream
        stream, inflow = (self._requests, self._requests_in) if is_requests else (self._responses, self._responses_in)
        if stream.skip(len(view)):
            inflow.skip(len(view))
            pump.unsent.append(view)
        else:
            is_bulk = inflow.arrived(view)
            self._note_kept()
            if self._kept_half >= _LARGE_FETCH:
                pump.waits_in_line = True
            pump.large_reads = (
                stream.opaque
                or stream.passing > SMALL_BUFFER_SIZE
                or is_bulk
                or (not is_requests and self._responses.observing)
            )
        self._go_on_draining()

    def take(self, pump: Pump, view: memoryview) -> int:
        """Take a few requests or responses; returns how many bytes of them were taken."""
        if pump is self._to_upstream:
            return self._take_requests(view)
        self._take_responses(view)
        return len(view)

    def took(self, pump: Pump) -> None:
        """Go on with what waited for this."""
        self._note_kept()
        self._go_on_draining()

    def unblocked(self, pump: Pump) -> None:
        """Go on with what waited for a peer to read."""
        if pump is self._to_client:
            self._responses_in.go_on()
            self._ease()
        else:
            self._requests_in.go_on()
        if self._life.is_draining:
            self._finish_if_idle()

    def ended(self, pump: Pump) -> None:
        """One end sent its last byte, and the other was told."""
        self._on(Event.CLIENT_ENDED if pump is self._to_upstream else Event.UPSTREAM_ENDED)
        if not self._life.is_closed:
            self._watch_half_closed()

    def failed(self, pump: Pump, error: Exception) -> None:
        """Close, and say why unless a peer simply went away."""
        if self._life.is_closed:
            return
        self._reports.failed(error, by_client=pump is self._to_upstream)
        if isinstance(error, ProtocolError):
            pump.flush()  # what came before the fault
        self.close()

    # Requests

    def _take_requests(self, view: memoryview) -> int:
        life, requests, pending = self._life, self._requests, self._responses.pending
        taken, is_new = len(view), False
        for event in requests.receive(view):
            is_new = True
            self._take_event(event)
            if life.is_closed:
                return taken
            if len(pending) > MOST_PENDING or self._fetches.in_flight >= MOST_FETCHES:
                self._crowd()
            if self._held is not None or isinstance(event, ReplicaFetch):
                taken = requests.consumed  # each fetch may take long: the others come first
                break
        self._note_kept(is_new=is_new)
        return taken

    def _note_kept(self, *, is_new: bool = False) -> None:
        if self._life.is_closed:
            return
        half, whole = self._requests.collected, len(self._requests_in.rest)
        if self._held is not None:
            whole += self._held.size
        if half != self._kept_half or whole != self._kept_whole or (half and is_new):
            self._kept_half, self._kept_whole = half, whole
            memory = self._relay.fetch_memory
            memory.keep(self, half=half, whole=whole, is_new=is_new)
            if half:
                memory.watch(self._loop)

    def _take_event(self, event: RequestEvent) -> None:
        match event:
            case Pass(buffer):
                self._to_upstream.unsent.append(buffer)
            case Expect(_, _, correlation_id):
                self._responses.expect(Pending(correlation_id, self._observer))
                self._observer = None
            case ReplicaFetch():
                self._carry_out(self._fetches.take(event), event)
            case RequestBegins(head):
                assert self._relay.gate is not None  # noqa: S101 - or no request would be asked about
                self._carry_out(self._relay.gate.arrived(head), event)
            case Undecoded(reason, api_version, _):
                self._reports.undecoded(event)
                if reason != "fetch_version":
                    self._fetches.passed_undecoded(api_version)
            case BecameOpaque():
                self._reports.opaque(event)
                self._responses.become_opaque()
                self._to_client.large_reads = True  # nothing tells small frames from large ones any more

    def _carry_out(self, outcome: Outcome, request: Holdable) -> None:
        """Do with a request what was decided; whoever had it decided flushes."""
        match outcome:
            case outcomes.Forward(data, pending):
                self._responses.expect(pending)
                self._to_upstream.unsent.append(data)
            case outcomes.Answer(pending):
                self._answer(pending)
            case outcomes.Hold():
                self._hold(outcome, request)
            case outcomes.Pass(observer):
                if isinstance(request, ReplicaFetch):
                    self._responses.expect(Pending(request.header.correlation_id, observer))
                    self._to_upstream.unsent.append(with_size(request.frame))
                elif request.head.expects_response:
                    self._observer = observer

    def _answer(self, pending: Pending) -> None:
        """Queue an answer of our own; it is sent at once when no response is due before it."""
        self._responses.expect(pending)
        ready = self._responses.ready_answers()
        if ready:
            self._to_client.unsent += ready
            self._to_client.flush()
        if not ready or self._to_client.is_paused(BLOCKED):
            self._crowd()  # or a client that never reads could have answers pile up

    def _crowd(self) -> None:
        if self._life.requests in (Requests.FREE, Requests.HELD) and not self._life.is_closed:
            self._on(Event.CROWDED)

    def _ease(self) -> None:
        if self._life.requests in (Requests.CROWDED, Requests.HELD_AND_CROWDED):
            pending = self._responses.pending
            if (
                len(pending) <= MOST_PENDING // 2
                and self._fetches.in_flight < MOST_FETCHES
                and all(one.answer is None for one in pending)
            ):
                self._on(Event.EASED)

    # A request that is held

    def _hold(self, hold: outcomes.Hold, request: Holdable) -> None:
        if self._held is None:
            self._held = HeldRequest(self, self._relay, request, hold)
            self._on(Event.HELD)
        else:
            self._held.wait(hold)

    def _forget_held(self) -> None:
        if self._held is not None:
            self._held.end()
            self._held = None

    def replan(self) -> None:
        """Have it decided again on the request that is held; when it goes, go on with what came behind it."""
        held = self._held
        if held is None:
            return
        if self._client.is_gone():
            self.close()
            return
        try:
            outcome = held.again()
            if isinstance(outcome, outcomes.Hold):
                self._hold(outcome, held.request)
                return
            self._forget_held()
            self._carry_out(outcome, held.request)
            if isinstance(held.request, RequestBegins):
                self._take_requests(memoryview(b""))  # what was kept of it
            self._note_kept()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(self._to_upstream, error)
            return
        self._to_upstream.flush()
        if not self._life.is_closed:
            self._on(Event.RELEASED)

    # Responses

    def _take_responses(self, view: memoryview) -> None:
        responses = self._responses
        responses.receive(view, self._to_client.unsent)
        if responses.completed:
            completed, responses.completed = responses.completed, []
            self._fetches.settle(completed)
        self._ease()

    # The end

    def _go_on_draining(self) -> None:
        if self._life.is_draining:
            self._take_no_more()
            self._loop.call_soon(self._finish_if_idle)  # when what arrived was sent

    def _take_no_more(self) -> None:
        """Draining: read up to the end of the request under way and no further; one that is held was not taken."""
        if self._requests.opaque:
            return  # only its peers know what is in flight: it goes on until the limit
        if self._held is not None:
            self._give_up_held()
            self._on(Event.RELEASED)
        self._requests_in.drop()
        self._note_kept()
        if not self._requests.at_boundary:
            self._to_upstream.read_limit = self._requests.missing
        elif self._life.client is Client.FINISHES:
            self._on(Event.LAST_REQUEST_ENDED)

    def _give_up_held(self) -> None:
        if self._held is not None:
            self._forget_held()
            self._requests.drop()

    def _finish_if_idle(self) -> None:
        """Draining: when nothing is in flight any more, say goodbye and wait a moment for the client's."""
        waiting = self._responses.pending or self._to_client.unsent or self._to_upstream.unsent
        if not self._life.is_draining or waiting or not self._requests.at_boundary or self._requests.opaque:
            return
        self._on(Event.DELIVERED)
        if self._life.is_closed:
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

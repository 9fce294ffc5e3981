"""A link: one client's connection together with its own connection to the broker.

What bytes mean is decided elsewhere: `LinkRequests` and `LinkResponses` take them, and say what is to be sent and what
is held. `LinkLife` has the link's state. None of them reads, sends or waits. The link carries out what they say.

Everything happens in callbacks of the event loop. Nothing in here awaits, so nobody sees a change half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from weir.protocol.errors import ProtocolError
from weir.protocol.framing import RequestStream
from weir.protocol.steps import Steps
from weir.proxy.relay.direction import Direction
from weir.proxy.relay.fetches import ReplicaFetches, ThrottleFailed
from weir.proxy.relay.link_life import Client, Event, LinkLife, Phase, Upstream, Work
from weir.proxy.relay.link_reports import LinkReports
from weir.proxy.relay.link_requests import LinkRequests
from weir.proxy.relay.link_responses import LinkResponses
from weir.proxy.relay.open_link import Relayed, Sender, Why
from weir.proxy.relay.outcomes import Hold
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.pump import BLOCKED, IN_LINE, STOPPED, UNTAKEN
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.transport import Transport
from weir.proxy.relay.turn_budget import run_slice

HALF_CLOSED_SECONDS: Final = 60.0
"""How long a connection may stay half-closed without a byte moving."""

LINGER_SECONDS: Final = 1.0
"""How long a drained client has to close its end. It has to be first: a reset could lose the last bytes sent to it."""

FAREWELL_SECONDS: Final = 60.0
"""How long what a producer with acks=0 sent before it closed may still wait for its turn."""

_LARGE_FETCH: Final = 2**14  # bytes: a fetch of more waits for its turn while it is received
_SMALLEST_REQUEST: Final = 12  # bytes: its size, kind, version and correlation id


class Link:
    """A client's connection and its upstream's, from the moment that both exist until `close`: an OpenLink.

    `peer` is the upstream broker's id where the route names it. `on_close` is called once, when both connections are
    closed.
    """

    __slots__ = (
        "_client",
        "_end_timer",
        "_fetches",
        "_gone_since",
        "_hold",
        "_kept",
        "_loop",
        "_on_close",
        "_passage",
        "_relay",
        "_replans_later",
        "_reports",
        "_states",
        "_upstream",
        "_work",
        "client_host",
        "from_client",
        "from_upstream",
        "life",
        "requests",
        "responses",
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
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._upstream = upstream
        self._on_close = on_close
        self.client_host = client_host
        self.life = life = LinkLife()
        self._fetches = fetches = ReplicaFetches(relay, peer, sources, client_host)
        self._reports = reports = LinkReports(relay.stats, relay.log, client_host, upstream_name)
        self.responses = LinkResponses(life, fetches)
        stream = RequestStream(relay.fetch_size_limit, fetches.decodes)
        self.requests = LinkRequests(stream, life, fetches, self.responses, reports)
        self.from_client = Direction(self, self.requests, relay, client, upstream)
        self.from_upstream = Direction(self, self.responses, relay, upstream, client)
        self._passage = Passage(self._loop, self._let_pass, self.from_upstream.pump, client)
        self.from_upstream.pump.held_back = self._passage.held_back
        self._work: Steps[None] | None = None  # the rest of work that takes several turns
        self._replans_later = False
        self._states = life.states  # as last carried out
        self._hold: Hold | None = None  # the same
        self._gone_since: float | None = None  # when a client was found gone while a request of it was held
        self._end_timer: asyncio.TimerHandle | None = None
        self._kept = 0, 0, 0  # as last told to `fetch_memory`: bytes of half a fetch, of whole ones; events until then
        self.use_gate()

    def start(self) -> None:
        """Begin to move bytes."""
        self.life.on(Event.STARTED)
        self._follow_life()

    # What its directions tell

    def carry_out(self) -> None:
        """Do what the requests and the responses ask for that were taken, and what the new state asks for."""
        requests, life = self.requests, self.life
        if life.is_closed:
            self.close()
            return
        if requests.asked is not None:
            self._passage.begin(is_granted=requests.asked)
            requests.asked = None
            if requests.stream.opaque:  # frames are no longer told apart, so there are no small ones to wait for
                self.from_upstream.pump.large_reads = True
        if requests.has_answered:
            self.from_upstream.pump.flush()
        if life.is_crowded:
            requests.ease()
            self.from_client.go_on()
        if life.is_draining:
            self._take_no_more()
            self._loop.call_soon(self._finish_if_idle)  # after the bytes that arrived were sent
        self._note_kept()
        if requests.hold is not self._hold:
            self._hold = requests.hold
            self._relay.held.wait(self, self._hold)
        if life.states is not self._states:
            self._follow_life()

    def _let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Tell the throttle what has reached the client. Returns how many bytes more may be sent."""
        try:
            return self._fetches.let_pass(arrived, on_way, most, waited)
        except ThrottleFailed as error:
            self.failed(error, "upstream")
            return 0

    def failed(self, error: Exception, sender: Sender) -> None:
        """Close, and log the reason unless a peer simply went away."""
        if not self.life.is_closed:
            self._reports.failed(error, sender)
            if isinstance(error, ProtocolError):  # what came before the fault is sent
                (self.from_client if sender == "client" else self.from_upstream).pump.flush()
        self.close()

    # Decisions, and work that takes several turns

    def begin(self, work: Steps[None]) -> None:
        """Run the first slice of work now, and the rest in turns to come. Raises what the first slice raises."""
        try:
            next(work)
        except StopIteration:  # most work is done here
            return
        if not run_slice(work) and not self.life.is_closed:
            self.life.on(Event.WORK_BEGAN)
            self._work = work
            self._relay.turns.add(self._work_on)

    def _work_on(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        try:
            if not run_slice(work):
                self._work = work
                self._relay.turns.add(self._work_on)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(error, "client")  # the throttle reports its own, so only the client's bytes can be the cause
            return
        if not self.life.is_closed:
            self.life.on(Event.WORK_ENDED)
            self.from_client.pump.flush()
        if self._replans_later:
            self._replans_later = False
            self._relay.held.wake((self,))
        self._relay.held.wake_soon()
        self.carry_out()

    def replan(self) -> None:
        """Have the held request decided about again."""
        if self.life.is_closed or self.requests.hold is None:
            return
        if self.life.work is Work.UNDER_WAY:
            self._replans_later = True
            return
        if self._client.is_gone() and self._gives_up():
            self.close()
            return
        try:
            self.begin(self.requests.decide_again())
            self.from_client.pump.flush()
            self.carry_out()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(error, "client")

    def _gives_up(self) -> bool:
        """Return whether the held request of a client that is gone is dropped: it would be sent twice.

        A producer with acks=0 may close as soon as it has sent everything, and nobody sends it again.
        """
        if self._gone_since is None:
            self._gone_since = self._relay.clock()
        return self.requests.awaits_answer or self._relay.clock() - self._gone_since >= FAREWELL_SECONDS

    def use_gate(self) -> None:
        """Have a gate from the next request on, if the side has gates."""
        if self.requests.gate is None and self._relay.new_gate is not None:
            self.requests.use_gate(self._relay.new_gate(self))

    # What follows

    def _note_kept(self) -> None:
        """Tell what is kept of requests, where that has changed."""
        requests, before = self.requests, self._kept
        half = requests.stream.collected
        self._kept = half, requests.whole_bytes + self.from_client.waiting, requests.events if half else 0
        if half >= _LARGE_FETCH:
            self.from_client.pump.waits_in_line = True
        if self._kept != before and not self.life.is_closed:
            memory = self._relay.fetch_memory
            memory.keep(self, half=half, whole=self._kept[1], is_new=self._kept[2] != before[2])
            if half:
                memory.watch(self._loop)

    def _follow_life(self) -> None:
        self._states = self.life.states
        if self.life.is_closed:
            self._tear_down()
        else:
            self.from_client.follow()
            self.from_upstream.follow()
            if self._end_timer is None and (self.life.client is Client.ENDED or self.life.upstream is Upstream.ENDED):
                self._watch_half_closed()

    # The end

    def drain(self) -> None:
        """Take no further request, and close as soon as every pending response has passed."""
        if self.life.phase is Phase.OPEN:
            self.life.on(Event.DRAIN)
            self.carry_out()

    def evict(self, why: Why) -> None:
        """Report why, and close."""
        self._reports.evicted(why, sum(self._kept[:2]))
        self.close()

    def close(self) -> None:
        """Close both connections at once. Unsent bytes are lost."""
        if not self.life.is_closed:
            self.life.on(Event.CLOSE)
        if self._states is not self.life.states:  # the state may have come to that by itself
            self._follow_life()

    def _take_no_more(self) -> None:
        """While draining: read to the end of the request under way, and no further.

        A held request counts as not taken.
        """
        stream = self.requests.stream
        if stream.opaque or self.life.work is Work.UNDER_WAY:
            return  # only the peers know what is in flight on an opaque connection: it goes on until the time is over
        self.requests.give_up_held()
        self.from_client.drop()
        if not stream.at_boundary:
            self.from_client.pump.read_limit = stream.missing
        elif self.life.client is Client.FINISHES:
            self.life.on(Event.LAST_REQUEST_ENDED)

    def _finish_if_idle(self) -> None:
        """While draining: when nothing is in flight, close the sending side, and let the client close its own."""
        stream = self.requests.stream
        waiting = self.responses.stream.pending or self.responses.out or self.requests.out or not stream.at_boundary
        if not self.life.is_draining or waiting or self.life.work is Work.UNDER_WAY or stream.opaque:
            return
        self.life.on(Event.DELIVERED)
        self._follow_life()
        if self.life.is_closed:
            return
        self.from_client.close()
        self.from_upstream.close()
        self._upstream.close()
        try:
            self._client.finish()
        except OSError:
            self.close()
            return
        self.requests.discard_all()
        self.from_client.pump.resume(STOPPED)
        self._end_in(LINGER_SECONDS, self.close)

    def _watch_half_closed(self, moved_before: Relayed | None = None) -> None:
        moved = self.relayed
        if moved == moved_before:
            self.close()
        else:
            self._end_in(HALF_CLOSED_SECONDS, partial(self._watch_half_closed, moved))

    def _end_in(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self._loop.call_later(seconds, callback)

    def _tear_down(self) -> None:
        self.from_client.close()
        self.from_upstream.close()
        self._passage.close()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._client.close()
        self._upstream.close()
        if self._work is not None:
            self._work.close()
            self._work = None
        self.requests.close()
        self._hold = None
        self._relay.held.wait(self, None)
        self._fetches.close()
        self._relay.fetch_memory.drop(self)
        self._on_close(self)
        self._loop.call_soon(self._let_go)  # not now: a part of the link may have called this

    def _let_go(self) -> None:
        """Drop the parts that refer to the link, which is then freed at once. See `proxy/collector.py`."""
        self.requests.stream.drop()
        del self.from_client.pump, self.from_upstream.pump  # each refers to its direction
        del self.from_client, self.from_upstream, self.requests, self._passage

    # What others see of it

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
        return Relayed(self.from_client.pump.moved, self.from_upstream.pump.moved)

    @property
    def has_sent_request(self) -> bool:
        """Whether the client has sent as much as a request has at least."""
        return self.from_client.pump.moved >= _SMALLEST_REQUEST

    @property
    def session_end(self) -> float:
        """Until when a request may be held (clock seconds)."""
        return self._fetches.session_end

    @property
    def has_more(self) -> bool:
        """Whether its client has sent something behind the request that is held."""
        return self.from_client.waiting > self.requests.stream.returned or self._client.has_unread()

    @property
    def is_reading(self) -> bool:
        """Whether what the client sends is taken: nothing holds it up on this link."""
        return self.life.takes_requests and not self.from_client.pump.is_paused(BLOCKED | UNTAKEN | IN_LINE)

"""The requests of one link: which pass, which wait, and which are a replica's fetches and need a decision."""

from __future__ import annotations

from typing import Final, Protocol

from weir.protocol.framing import (
    BecameOpaque,
    Expect,
    PartDecoded,
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
from weir.protocol.header import SASL_AUTHENTICATE
from weir.protocol.sasl_answer import SaslAnswer
from weir.protocol.steps import Steps
from weir.proxy.relay import outcomes
from weir.proxy.relay.fetches import ReplicaFetches, with_size
from weir.proxy.relay.held_request import HeldRequest, Holdable
from weir.proxy.relay.link_life import Event, LinkLife, Requests
from weir.proxy.relay.link_reports import LinkReports
from weir.proxy.relay.outcomes import Outcome, RequestGate, RequestWatcher
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.pump import BLOCKED, Pump
from weir.proxy.relay.side import GatedLink, Side

MOST_PENDING: Final = 1024
"""The most requests that wait for responses. With more, nothing is read from the client."""

MOST_FETCHES: Final = 8
"""The most replica fetches among them, as each keeps its plan. Kafka's fetchers have one under way."""

_NOTHING: Final = memoryview(b"")


class RequestsOwner(GatedLink, Protocol):
    """The link that the requests belong to."""

    life: LinkLife

    def on(self, event: Event) -> None:
        """Take what happened to the link."""


class LinkRequests:
    """Turns what the client sends into what goes to the broker, and into what waits for responses.

    Bytes to send are put into the pumps' `unsent`; the caller flushes `to_upstream`.
    """

    __slots__ = (
        "_deciding_size",
        "_discarded",
        "_fetches",
        "_gate",
        "_link",
        "_observer",
        "_passage",
        "_relay",
        "_reports",
        "_responses",
        "_to_client",
        "_to_upstream",
        "_watcher",
        "held",
        "stream",
    )

    def __init__(
        self,
        link: RequestsOwner,
        relay: Side,
        fetches: ReplicaFetches,
        reports: LinkReports,
        responses: ResponseStream,
        to_upstream: Pump,
        to_client: Pump,
        passage: Passage,
    ) -> None:
        self._link = link
        self._relay = relay
        self._fetches = fetches
        self._reports = reports
        self._responses = responses
        self._to_upstream = to_upstream
        self._to_client = to_client
        self._passage = passage
        self._deciding_size = 0  # bytes of the fetch that is being decided about
        self._observer: ResponseObserver | None = None  # of the next request that passes
        self._watcher: RequestWatcher | None = None  # of the request that passes now
        self._discarded = 0  # bytes still to come of a request that was answered here
        self._gate: RequestGate | None = None
        self.stream = RequestStream(relay.fetch_size_limit, fetches.decodes)
        self.use_gate()
        self.held: HeldRequest | None = None
        """The request that is held; all later ones wait for it."""

    def use_gate(self) -> None:
        """Have a gate from here on, if the side has gates."""
        if self._gate is None and self._relay.new_gate is not None:
            self._gate = self._relay.new_gate(self._link)
            self.stream.may_hold = self._gate.may_hold

    def passes(self, view: memoryview) -> bool:
        """Return whether bytes of the request under way go to the broker, and show them to who watches it."""
        if self._discarded:
            self._discarded -= len(view)
            return False
        if self._watcher is not None:
            self._watcher.receive(view)
            if self._watcher.done:
                self._watcher = None
        return True

    @property
    def whole_bytes(self) -> int:
        """The bytes kept of requests that came whole."""
        return self._deciding_size + (0 if self.held is None else self.held.size)

    def take(self, view: memoryview) -> tuple[int, bool, Steps[None] | None]:
        """Take the next bytes.

        Returns how many were taken, whether a request began or ended in them, and work to be done before the rest.
        """
        life, pending = self._link.life, self._responses.pending
        is_new = False
        for event in self.stream.receive(view):
            is_new = True
            work = self._take_event(event)
            if life.is_closed:
                break
            if len(pending) > MOST_PENDING:
                self._crowd()
            if work is not None or self.held is not None:
                return self.stream.consumed, True, work
        return len(view), is_new, None

    def _take_event(self, event: RequestEvent) -> Steps[None] | None:
        match event:
            case Pass(buffer):
                if self._gate is None or self.passes(memoryview(buffer)):
                    self._to_upstream.unsent.append(buffer)
            case Expect(api_key, api_version, correlation_id) if not self._discarded:
                observer = SaslAnswer(api_version) if api_key == SASL_AUTHENTICATE else self._observer
                self._expect(Pending(correlation_id, observer))
                self._observer = None
            case ReplicaFetch():
                return self._decide(event)
            case PartDecoded():
                return self._go_on_decoding()
            case RequestBegins():
                assert self._gate is not None  # noqa: S101 - or no request would be asked about
                self._carry_out(self._gate.arrived(event), event)
            case Undecoded(reason, api_version, _):
                self._reports.undecoded(event)
                if reason != "fetch_version":
                    self._fetches.passed_undecoded(api_version)
            case BecameOpaque():
                self._reports.opaque(event)
                self._passage.begin(is_granted=False)
                self._responses.become_opaque()
                # frames are no longer told apart, so there are no small ones to wait for
                self._to_client.large_reads = True
        return None

    def _go_on_decoding(self) -> Steps[None]:
        """Decode more of a large fetch, of which a part is decoded."""
        is_decoded = False
        while not is_decoded:
            yield
            is_decoded = True
            for event in self.stream.receive(_NOTHING):
                if isinstance(event, PartDecoded):
                    is_decoded = False
                    break
                if (work := self._take_event(event)) is not None:
                    yield from work
                    return

    def _decide(self, fetch: ReplicaFetch) -> Steps[None]:
        self._deciding_size = len(fetch.frame)
        outcome = yield from self._fetches.take(fetch)
        self._deciding_size = 0
        self._carry_out(outcome, fetch)
        if self._fetches.in_flight >= MOST_FETCHES:
            self._crowd()

    def _carry_out(self, outcome: Outcome, request: Holdable) -> None:
        """Do with a request what was decided."""
        match outcome:
            case outcomes.Forward(data, pending, is_granted):
                self._expect(pending, is_granted=is_granted)
                self._to_upstream.unsent.append(data)
            case outcomes.Answer(pending):
                if isinstance(request, RequestBegins):
                    self._discarded = request.head.frame_size
                self._answer(pending)
            case outcomes.Hold():
                self.held = HeldRequest(self._link, self._relay, request, outcome)
                self._link.on(Event.HELD)
            case outcomes.Pass(observer, watcher):
                if isinstance(request, ReplicaFetch):
                    self._expect(Pending(request.header.correlation_id, observer))
                    self._to_upstream.unsent.append(with_size(request.frame))
                else:
                    self._watcher = watcher
                    if request.head.expects_response:
                        self._observer = observer

    def _expect(self, pending: Pending, *, is_granted: bool = False) -> None:
        # a client may ask before it has read all
        is_alone = not self._responses.pending and not self._to_client.unsent
        self._passage.begin(is_granted=is_granted and is_alone)
        self._responses.expect(pending)

    def _answer(self, pending: Pending) -> None:
        """Queue an answer of the sidecar's own. It is sent at once where no response is due before it."""
        self._expect(pending)
        ready = self._responses.ready_answers()
        if ready:
            self._to_client.unsent += ready
            self._to_client.flush()
        if not ready or self._to_client.is_paused(BLOCKED):
            self._crowd()  # a client that never reads could have answers pile up

    # How much is under way

    def _crowd(self) -> None:
        life = self._link.life
        if life.requests in (Requests.FREE, Requests.HELD) and not life.is_closed:
            self._link.on(Event.CROWDED)

    def ease(self) -> None:
        """Note that responses have passed, so that there may be room for requests again."""
        if self._link.life.requests in (Requests.CROWDED, Requests.HELD_AND_CROWDED):
            pending = self._responses.pending
            if (
                len(pending) <= MOST_PENDING // 2
                and self._fetches.in_flight < MOST_FETCHES
                and all(one.answer is None for one in pending)
            ):
                self._link.on(Event.EASED)

    # A request that is held

    def decide_again(self, held: HeldRequest) -> Steps[None]:
        """Have the held request decided about again. If it goes, later requests may follow."""
        outcome = yield from held.again()
        if isinstance(outcome, outcomes.Hold):
            held.wait(outcome)
            return
        self.forget_held()
        self._carry_out(outcome, held.request)
        if isinstance(held.request, RequestBegins):
            self.take(_NOTHING)  # what was kept of it
        self._to_upstream.flush()
        if not self._link.life.is_closed:
            self._link.on(Event.RELEASED)

    def forget_held(self) -> None:
        """Forget the held request."""
        if self.held is not None:
            self.held.end()
            self.held = None

    def close(self) -> None:
        """End with the link."""
        self.forget_held()
        if self._gate is not None:
            self._gate.gone()

    def give_up_held(self) -> None:
        """Drop the held request as if it had never come: its client will send it elsewhere."""
        if self.held is not None:
            self.forget_held()
            if self._gate is not None:
                self._gate.gone()
            self.stream.drop()
            self._link.on(Event.RELEASED)

"""The requests of one link: which pass, which wait, and which are a replica's fetches and need a decision.

Nothing in here reads, sends or waits. What is to be sent stands in `out`, and what is held in `hold`. The link's state
(`LinkLife`) says what may be taken next. The link carries all of that out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Final

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
    Undecoded,
)
from weir.protocol.header import SASL_AUTHENTICATE
from weir.protocol.response_scanner import Buffer
from weir.protocol.sasl_answer import SaslAnswer
from weir.protocol.steps import Steps
from weir.proxy.relay import outcomes
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.fetches import ReplicaFetches, with_size
from weir.proxy.relay.link_life import Event, LinkLife
from weir.proxy.relay.link_reports import LinkReports
from weir.proxy.relay.link_responses import LinkResponses
from weir.proxy.relay.open_link import Sender
from weir.proxy.relay.outcomes import Outcome, RequestGate, RequestWatcher

MOST_PENDING: Final = 1024
"""The most requests that wait for responses. With more, nothing is read from the client."""

MOST_FETCHES: Final = 8
"""The most replica fetches among them, as each keeps its plan. Kafka's fetchers have one under way."""

_NOTHING: Final = memoryview(b"")


@dataclass(eq=False, slots=True)
class LinkRequests:
    """Turns what the client sends into what goes to the broker, and into what waits for responses."""

    stream: RequestStream
    life: LinkLife
    fetches: ReplicaFetches
    responses: LinkResponses
    reports: LinkReports
    out: list[Buffer] = field(default_factory=list)
    """What goes to the broker, the oldest first. Whoever sends it takes it out."""
    events: int = 0
    """How many events the stream has told: where that stands still, so does the request that is collected."""
    gate: RequestGate | None = None
    hold: outcomes.Hold | None = None
    """What the request waits for that is held; None where none is. All later ones wait for it."""
    has_answered: bool = False
    """Whether an answer of the sidecar's own may be unsent."""
    asked: bool | None = None
    """Whether bytes of a quota may come with the next answer. None: nothing was asked since the link has looked."""
    _held: ReplicaFetch | RequestBegins | None = None
    _deciding_size: int = 0  # bytes of the fetch that is being decided about
    _discarded: float = 0  # bytes still to come that do not go to the broker
    _observer: ResponseObserver | None = None  # of the next request that passes
    _watcher: RequestWatcher | None = None  # of the request that passes now

    sender: ClassVar[Sender] = "client"
    end: ClassVar[Event] = Event.CLIENT_ENDED

    @property
    def is_taken(self) -> bool:
        """Whether `take` may be called."""
        return self.life.takes_requests

    @property
    def is_read(self) -> bool:
        """Whether more is to be read from the client."""
        return self.life.reads_requests

    @property
    def whole_bytes(self) -> int:
        """The bytes kept of requests that came whole. One that is streamed waits in its client's socket."""
        return self._deciding_size + (len(self._held.frame) if isinstance(self._held, ReplicaFetch) else 0)

    def use_gate(self, gate: RequestGate) -> None:
        """Ask `gate` about requests from here on."""
        self.gate = gate
        self.stream.may_hold = gate.may_hold

    # What has come

    def passes(self, view: memoryview) -> bool:
        """Return whether the next bytes need no look, in the middle of a request. If so, they are taken.

        Most bytes take this way.
        """
        if not self.stream.skip(len(view)):
            return False
        if self._goes_on(view):
            self.out.append(view)
        return True

    def take(self, view: memoryview) -> tuple[int, Steps[None] | None]:
        """Take the next bytes. Returns how many were taken, and work to be done before the rest."""
        pending = self.responses.stream.pending
        for event in self.stream.receive(view):
            self.events += 1
            work = self._take_event(event)
            if self.life.is_closed:
                break
            if len(pending) > MOST_PENDING:
                self._crowd()
            if work is not None or self.hold is not None:
                return self.stream.consumed, work
        return len(view), None

    def next_is_large(self, is_bulk: bool) -> bool:
        """Return whether a large buffer is worth it for the next read. `is_bulk`: the last was full of large frames."""
        return self.stream.opaque or self.stream.passing > SMALL_BUFFER_SIZE or is_bulk

    def discard_all(self) -> None:
        """Throw away all that is still to come."""
        self.stream.opaque = True
        self._discarded = math.inf

    def _goes_on(self, view: memoryview) -> bool:
        """Return whether bytes of the request under way go to the broker, and show them to who watches it."""
        if self._discarded:
            self._discarded -= len(view)
            return False
        if self._watcher is not None:
            self._watcher.receive(view)
            if self._watcher.done:
                self._watcher = None
        return True

    def _take_event(self, event: RequestEvent) -> Steps[None] | None:
        match event:
            case Pass(buffer):
                if self.gate is None or self._goes_on(memoryview(buffer)):
                    self.out.append(buffer)
            case Expect(api_key, api_version, correlation_id) if not self._discarded:
                observer = SaslAnswer(api_version) if api_key == SASL_AUTHENTICATE else self._observer
                self._expect(Pending(correlation_id, observer))
                self._observer = None
            case ReplicaFetch():
                return self._decide(event)
            case PartDecoded():
                return self._go_on_decoding()
            case RequestBegins():
                assert self.gate is not None  # noqa: S101 - or no request would be asked about
                self._carry_out(self.gate.arrived(event), event)
            case Undecoded(reason, api_version, _):
                self.reports.undecoded(event)
                if reason != "fetch_version":
                    self.fetches.passed_undecoded(api_version)
            case BecameOpaque():
                self.reports.opaque(event)
                self.asked = False
                self.responses.stream.become_opaque()
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

    # What becomes of it

    def _decide(self, fetch: ReplicaFetch) -> Steps[None]:
        self._deciding_size = len(fetch.frame)
        outcome = yield from self.fetches.take(fetch)
        self._deciding_size = 0
        self._carry_out(outcome, fetch)
        if self.fetches.in_flight >= MOST_FETCHES:
            self._crowd()

    @property
    def awaits_answer(self) -> bool:
        """Whether the client waits for an answer to the held request: not of a Produce with acks=0."""
        return not isinstance(self._held, RequestBegins) or self._held.head.expects_response

    def decide_again(self) -> Steps[None]:
        """Decide about the held request again. If it goes, later ones may follow."""
        held, hold = self._held, self.hold
        assert held is not None and hold is not None  # noqa: S101
        outcome = yield from hold.again()
        if isinstance(outcome, outcomes.Hold):
            self.hold = outcome
            return
        self._held = self.hold = None
        self._carry_out(outcome, held)
        if isinstance(held, RequestBegins):
            self.take(_NOTHING)  # what was kept of it
        if not self.life.is_closed:
            self.life.on(Event.RELEASED)

    def give_up_held(self) -> None:
        """Drop the held request as if it had never come: its client will send it elsewhere."""
        if self.hold is not None:
            self.close()
            self.stream.drop()
            self.life.on(Event.RELEASED)

    def close(self) -> None:
        """Hold nothing any more."""
        self._held = self.hold = None
        if self.gate is not None:
            self.gate.gone()

    def _carry_out(self, outcome: Outcome, request: ReplicaFetch | RequestBegins) -> None:
        """Do with a request what was decided."""
        match outcome:
            case outcomes.Forward(data, pending, is_granted):
                if isinstance(request, RequestBegins):
                    self._discarded = request.head.frame_size
                self._expect(pending, is_granted=is_granted)
                self.out.append(data)
            case outcomes.Answer(pending):
                if isinstance(request, RequestBegins):
                    self._discarded = request.head.frame_size
                self._expect(pending)
                self.responses.out += self.responses.stream.ready_answers()
                self.has_answered = True
                self._crowd()  # a client that never reads could have answers pile up
            case outcomes.Hold():
                self._held, self.hold = request, outcome
                self.life.on(Event.HELD)
            case outcomes.Pass(observer, watcher):
                if isinstance(request, ReplicaFetch):
                    self._expect(Pending(request.header.correlation_id, observer))
                    self.out.append(with_size(request.frame))
                else:
                    self._watcher = watcher
                    if request.head.expects_response:
                        self._observer = observer

    def _expect(self, pending: Pending, *, is_granted: bool = False) -> None:
        # a client may ask before it has read all
        is_alone = not self.responses.stream.pending and not self.responses.out
        self.asked = is_granted and is_alone
        self.responses.stream.expect(pending)

    # How much is under way

    def _crowd(self) -> None:
        if not self.life.is_crowded and not self.life.is_closed:
            self.life.on(Event.CROWDED)

    def ease(self) -> None:
        """Take requests again, if there is room for more. Call it while the link is crowded."""
        pending = self.responses.stream.pending
        self.has_answered = self.has_answered and bool(self.responses.out)
        if (
            len(pending) <= MOST_PENDING // 2
            and self.fetches.in_flight < MOST_FETCHES
            and not self.has_answered
            and all(one.answer is None for one in pending)
        ):
            self.life.on(Event.EASED)

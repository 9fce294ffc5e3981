# SPDX-License-Identifier: Apache-2.0
"""The core of a link: what becomes of its peers' bytes. It reads and sends nothing, and has no loop.

`Connection.receive` takes what the peers have sent, in order. What is to be sent for it stands in `to_upstream` and
`to_client`. Whatever else is to be done stands in attributes, at which `Link` looks after each call.

What takes long, or has to wait, is `work`, one generator: it decides about a request, or settles an answer. Never both:
nothing is taken behind a replica's fetch before its answer has gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from weir.protocol.header import SASL_AUTHENTICATE
from weir.protocol.request_events import (
    BecameOpaque,
    Expect,
    OpaqueReason,
    PartDecoded,
    Pass,
    ReplicaFetch,
    RequestBegins,
    RequestEvent,
    Undecoded,
)
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import Buffer, FetchResponseScanner
from weir.protocol.response_stream import Pending, ResponseStream
from weir.protocol.sasl_answer import SaslAnswer
from weir.protocol.steps import Steps
from weir.proxy.relay.fetches import ReplicaFetches, with_size
from weir.proxy.relay.open_link import HandedOver, Sender
from weir.proxy.relay.outcomes import Outcome, PassOn, RequestGate, RequestWatcher, Send, Wait, Waiting
from weir.proxy.relay.turn_budget import run_slice

MOST_PENDING: Final = 1024
"""The most requests that wait for responses. With more, nothing is read from the client."""

MOST_FRAMES: Final = 16
"""The most frames taken at once. Kafka's clients have at most five requests under way, its replica fetchers one."""

_NOTHING: Final = memoryview(b"")

Phase = Literal["open", "draining", "lingering", "closed"]
"""How far a link's life has come, as the link has said. It never goes back.

- `draining`: no further request is taken. Those that were have their answers.
- `lingering`: the broker's connection is closed. The client has a moment to close its own. What it sends is dropped.
"""


@dataclass(eq=False, slots=True)
class Connection:
    """Both directions of one link: its requests, the responses to them, and the request that is held.

    The next bytes of a peer are received while `takes` it. More of them are read while `reads` it.
    """

    fetches: ReplicaFetches
    requests: RequestStream
    responses: ResponseStream = field(default_factory=ResponseStream)
    phase: Phase = "open"
    ended: set[Sender] = field(default_factory=set)
    """The peers that have sent their last byte."""

    # What the caller has to do
    to_upstream: list[Buffer] = field(default_factory=list)
    """What goes to the broker, the oldest first. Whoever sends it takes it out."""
    to_client: list[Buffer] = field(default_factory=list)
    work: Waiting[None] | Steps[None] | None = None
    """What is begun and not done. Without a `hold`, call `go_on` when others had their turn: until it is done, no byte
    of the link is taken."""
    hold: Wait | None = None
    """What the held request waits for: call `go_on` then. All later requests wait with it, and answers go on."""
    is_granted: bool | None = None
    """Whether bytes of a quota may come with the next answer. None: nothing was asked since the caller has looked."""

    # What it keeps
    opaque_reason: OpaqueReason | None = None
    """Why its bytes are not understood any more; None while they are."""
    gate: RequestGate | None = None
    _undecided: ReplicaFetch | RequestBegins | None = None  # the request that is held or decided about
    _discarded: float = 0  # bytes still to come that do not go to the broker
    _passing: Pending | None = None  # of the next request that passes, where that was decided about
    _watcher: RequestWatcher | None = None  # of the request that passes now

    # What may be done

    def takes(self, sender: Sender) -> bool:
        """Return whether bytes of a peer that were read may be received now."""
        if self.phase == "closed" or self.phase == "lingering" or self.is_working:
            return False
        return sender == "upstream" or (self._may_ask and not self.is_crowded)

    def reads(self, sender: Sender) -> bool:
        """Return whether more is to be read from a peer.

        What cannot be received yet is kept, and nothing more is read: so it is seen where a client goes away.
        """
        if self.phase == "lingering":
            return sender == "client"
        if self.phase == "closed" or sender in self.ended or self.is_working:
            return False
        return sender == "upstream" or self._may_ask

    @property
    def _may_ask(self) -> bool:
        """Whether the client may send more: while draining, the rest of the request under way."""
        requests = self.requests
        return self.work is None and (self.phase == "open" or requests.opaque or requests.missing > 0)

    @property
    def is_working(self) -> bool:
        """Whether there is work that only waits for its turn."""
        return self.work is not None and self.hold is None

    @property
    def is_at_end(self) -> bool:
        """Whether nothing can follow: nobody waits for a held request, or nobody would answer it."""
        if self.hold is not None or self.phase == "lingering":
            return bool(self.ended)
        return self.phase == "closed" or len(self.ended) == 2 or (self.phase == "draining" and "upstream" in self.ended)

    @property
    def is_crowded(self) -> bool:
        """Whether the client has as much under way as it may.

        As at a broker, nothing comes behind a replica's fetch before its answer has gone to the client. Nor does it
        behind an answer of the sidecar's own, or one that the client does not take: these could pile up.
        """
        pending = self.responses.pending
        if not pending:
            return bool(self.to_client)
        last = pending[-1]
        is_own = last.answer is not None or isinstance(last.observer, FetchResponseScanner)
        return is_own or len(pending) > MOST_PENDING

    @property
    def awaits_answer(self) -> bool:
        """Whether the client waits for an answer to the held request: not of a Produce with acks=0."""
        return not isinstance(self._undecided, RequestBegins) or self._undecided.head.expects_response

    def kept_bytes(self) -> int:
        """Return the bytes of a replica's fetch that came whole, and of what was made of it, until they have gone.

        It is kept while it is decided about or held, then the request to the broker, and then the answer that is held
        or made here. Other requests wait in their socket, and other answers in a borrowed buffer.
        """
        if isinstance(self._undecided, ReplicaFetch):
            return len(self._undecided.frame)
        fetches = self.fetches
        if fetches.kept and not self.to_upstream and not self.to_client and not self._holds_answer:
            fetches.kept = 0
        return fetches.kept

    @property
    def _holds_answer(self) -> bool:
        observer = self.responses.observer
        return isinstance(observer, FetchResponseScanner) and observer.is_held

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: what came has gone, and what was asked has its answer, as far as is known."""
        if self.to_client or self.to_upstream or self.work is not None:
            return False
        if self.requests.opaque:
            return self.responses.opaque
        return self.requests.at_boundary and not self.responses.pending

    # What has come

    def passes(self, sender: Sender, view: memoryview) -> bool:
        """Return whether a peer's next bytes need no look, in the middle of a frame. If so, they are taken.

        Most bytes take this way.
        """
        if sender == "client":
            if not self.requests.skip(len(view)):
                return False
            if self._forwards(view):
                self.to_upstream.append(view)
            return True
        if self.responses.skip(len(view)) or self.responses.looks(view):
            self.to_client.append(view)
            return True
        return False

    def receive(self, sender: Sender, view: memoryview, most: int = MOST_FRAMES) -> int:
        """Take a peer's next bytes, and begin at most so many frames. Returns how many bytes were taken.

        Raises ProtocolError where a peer sends what cannot be. What came before that is to be sent.
        """
        if sender == "upstream":
            responses = self.responses
            taken = responses.receive(view, self.to_client, most)
            if isinstance(responses.observer, FetchResponseScanner):
                self.fetches.answer_begins(responses.observer.frame_size)
            if responses.completed:
                completed, responses.completed = responses.completed, []
                for observer in completed:  # at most one is a replica's fetch's, as no other is under way
                    if isinstance(observer, FetchResponseScanner):
                        self._begin(self.fetches.settle(observer))
            return taken
        for event in self.requests.receive(view, most if self.phase == "open" else 0):
            if (work := self._take_event(event)) is not None:
                taken = self.requests.consumed
                self._begin(work)
                return taken
        return self.requests.consumed

    def go_on(self) -> None:
        """Do more of the work, or decide about the held request again. If it goes, later ones may follow."""
        work, self.work, self.hold = self.work, None, None
        if work is not None:
            self._begin(work)

    def _begin(self, work: Waiting[None] | Steps[None]) -> None:
        """Do the first slice of it. Where it is not done then, nothing but `go_on` goes on."""
        said = run_slice(work)
        if said is not True:
            self.work, self.hold = work, said

    # The end

    def go_on_from(self, before: HandedOver) -> None:
        """Begin in the middle of a connection, between two requests. The caller takes what is `unread`."""
        self.fetches.session_end = before.session_end
        if self.gate is not None:
            self.gate.go_on_from(before.standing)
        if before.opaque_reason is not None:
            self.requests.opaque = True
            self._take_event(BecameOpaque(before.opaque_reason))

    def give_up_held(self) -> bytes:
        """Drop the held request as if it had never come: its client will send it elsewhere.

        Returns what is dropped, as it came. What follows it has not been taken.
        """
        if self.hold is None:
            return b""
        held, decided = self.requests.held_head, self._undecided
        self._drop_work()
        self.requests.drop()
        return with_size(decided.frame) if isinstance(decided, ReplicaFetch) else held

    def linger(self) -> None:
        """Throw away all that the client still sends. Call it when a draining link is idle."""
        self.phase = "lingering"
        self.requests.opaque = True
        self._discarded = math.inf

    def close(self, *, is_over: bool = False) -> None:
        """Hold nothing any more, as the link is closed.

        `is_over`: no more can come of what the broker has begun to send.
        """
        self._drop_work()
        observer = self.responses.pending[-1].observer if self.responses.pending else None
        came = observer.so_far() if isinstance(observer, FetchResponseScanner) else ()
        self.fetches.close(came, is_over=is_over)

    def free(self) -> None:
        """Let go of what may refer to the link. Call it after `close`, when no other call is under way."""
        self.requests.drop()
        self.gate = self.requests.may_hold = None

    def _drop_work(self) -> None:
        if self.work is not None:
            self.work.close()
        self.work = self.hold = self._undecided = None
        if self.gate is not None:
            self.gate.gone()

    # Requests, one by one

    def _forwards(self, view: memoryview) -> bool:
        """Return whether bytes of the request under way go to the broker, and show them to who watches it."""
        if self._discarded:
            self._discarded -= len(view)
            return False
        if self._watcher is not None and self._watcher(view):
            self._watcher = None
        return True

    def _take_event(self, event: RequestEvent) -> Waiting[None] | None:
        """Take what a request's bytes tell. Returns what is to be done about it before anything else is taken."""
        match event:
            case Pass(buffer):
                if self.gate is None or self._forwards(memoryview(buffer)):
                    self.to_upstream.append(buffer)
            case Expect(api_key, api_version, correlation_id, observer) if not self._discarded:
                passing, self._passing = self._passing, None
                if api_key == SASL_AUTHENTICATE:
                    observer = SaslAnswer(api_version, self.fetches.session_lasts)
                self._expect(passing or Pending(correlation_id, observer))
            case ReplicaFetch():
                return self._decide(event, self.fetches.take(event))
            case PartDecoded():
                return self._go_on_decoding()
            case RequestBegins():
                assert self.gate is not None  # noqa: S101 - or no request would be asked about
                outcome = self.gate.arrived(event)
                if not isinstance(outcome, PassOn):
                    return self._decide(event, outcome)
                self._do(outcome, event)
            case Undecoded(reason, api_version, _):
                self.fetches.side.not_understood(event, self.fetches.host)
                if reason != "fetch_version":
                    self.fetches.passed_undecoded(api_version)
            case BecameOpaque(reason):
                self.fetches.side.not_understood(event, self.fetches.host)
                self.opaque_reason = reason
                self.is_granted = False
                self.responses.become_opaque()
        return None

    def _go_on_decoding(self) -> Waiting[None]:
        """Decode more of a large fetch, of which a part is decoded."""
        is_decoded = False
        while not is_decoded:
            yield None
            is_decoded = True
            for event in self.requests.receive(_NOTHING):
                if isinstance(event, PartDecoded):
                    is_decoded = False
                    break
                if (work := self._take_event(event)) is not None:
                    yield from work
                    return

    def _decide(self, request: ReplicaFetch | RequestBegins, deciding: Waiting[Outcome]) -> Waiting[None]:
        self._undecided = request
        outcome = yield from deciding
        self._undecided = None
        self._do(outcome, request)
        if isinstance(request, RequestBegins):
            self.receive("client", _NOTHING)  # what was kept of it

    def _do(self, outcome: Outcome, request: ReplicaFetch | RequestBegins) -> None:
        """Do with a request what was decided."""
        if isinstance(outcome, PassOn):
            assert isinstance(request, RequestBegins)  # noqa: S101 - a fetch that was collected is sent anew
            self._watcher, self._passing = outcome.watcher, outcome.pending
            return
        if isinstance(request, RequestBegins):  # one that was collected did not pass anyway
            self._discarded = request.head.frame_size
        if isinstance(outcome, Send):
            self._expect(outcome.pending, is_granted=outcome.is_granted)
            self.to_upstream.append(outcome.data)
        else:
            self._expect(outcome.pending)
            self.to_client += self.responses.ready_answers()

    def _expect(self, pending: Pending, *, is_granted: bool = False) -> None:
        # a client may ask before it has read all
        self.is_granted = is_granted and not self.responses.pending and not self.to_client
        self.responses.expect(pending)

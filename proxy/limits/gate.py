# SPDX-License-Identifier: Apache-2.0
"""Holds the next Fetch, ShareFetch or Produce of a limited client until its pause is over.

A request is never held for so long that its client gives it up, and gives way to others that its client sends behind
it: `weir.limits.holds` says how long, and to which. A Fetch whose pause is longer is then answered without records, so
its client asks again, and keeps its place. A ShareFetch goes to the broker with its acknowledgements, and asks for no
records. Others go to the broker as they are.

A Fetch without a session has its answer after `max_wait_ms`, as from a broker without records: of that, it waits at the
broker for what the hold has left.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from weir.limits.clients import Client
from weir.limits.holds import HOLDS, MOST_OWED_SECONDS, ROUNDED_SECONDS, Kind
from weir.protocol.errors import MalformedFrame, TooMany
from weir.protocol.fetch_request import decode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, made_up_entries
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.record_counts import RecordCounts, counts_of
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import Head, RequestHead, before_others
from weir.protocol.request_sender import CLIENT_ID_AT
from weir.protocol.response_stream import Pending, ResponseObserver
from weir.proxy.limits.produce_answer import ProduceAnswer
from weir.proxy.limits.stage import LimitStage
from weir.proxy.relay.open_link import OpenLink
from weir.proxy.relay.outcomes import GateState, Outcome, PassOn, Reply, Send, Wait, Waiting
from weir.proxy.relay.side import Side

LOOK_SECONDS: Final = 0.2
"""How often it is looked whether a client has sent something behind a held request that gives way to it."""

PATIENT_SECONDS: Final = 0.5
"""For how long a request of another kind is seen to wait behind a Produce before that gives way to it."""

MOST_LOOKED: Final = 2**17
"""How many bytes, from the held request on, are searched for another one that it gives way to."""

MOST_TOLD_PRODUCE_SECONDS: Final = 15.0
"""The most that a producer is told to wait where its pause is longer than a request can be held."""

_LIMITED: Final = (FETCH, PRODUCE, SHARE_FETCH)
_NO_GENERATION: Final = -1  # that the clients ever have
_MOST_IN_FLIGHT: Final = 5  # requests of a producer (max.in.flight.requests.per.connection)
_INVALID_FETCH_SESSION_EPOCH: Final = 71
_UNKNOWN_HIGH_WATERMARK: Final = -1
_THROTTLED_MS: Final = 1  # Java takes an answer that lacks partitions for none to its fetch, where it was throttled


class LinkGate:
    """One link's gate: relay.outcomes.RequestGate, and what waits in the line of a group."""

    def __init__(self, stage: LimitStage, side: Side, link: OpenLink) -> None:
        self._stage = stage
        self._side = side
        self._link = link
        self._client: Client | None = None  # of the request that is held or under way
        self._has_waited = False  # whether that one, or one before it, is known to a line
        self._held: RequestBegins | None = None
        self._known: Client | None = None  # who sent the last request; None: no rule covers it
        self._known_as = b""  # its id as on the wire
        self._known_at = _NO_GENERATION  # generation of the clients
        self._brought: bool | None = None  # whether the last Fetch brought records; None where there was none
        self._behind_since: float | None = None  # when a request of another kind was first seen behind the held one
        self._before_it = 0  # requests between the held one and that
        self._produces = 0  # requests that wait for an answer
        self._answered: deque[float] = deque(maxlen=_MOST_IN_FLIGHT)
        """When the last of them were answered; those before none waited count as answered when the next one came."""
        self._sent_before = 0  # requests at most that were sent behind these to another process
        self._since: float | None = None  # since when the request is held, or was: then the next one is the same

    @property
    def is_idle(self) -> bool:
        """Whether the last Fetch brought nothing."""
        return self._brought is False

    def may_hold(self, head: RequestHead, frame: Head, may_be_replicas: bool, /) -> ResponseObserver | bool:
        """Return whether it is a request that moves records, but of the known client only where that has to wait.

        A fetch that comes while nothing waits passes, and what is returned counts its answer. `arrived` would decide
        the same, and cost much more.
        """
        _, api_key, version, *_ = head
        if api_key not in _LIMITED:
            return False
        known_as = self._known_as
        if (
            self._known_at != self._stage.clients.generation
            or frame[CLIENT_ID_AT : CLIENT_ID_AT + len(known_as)] != known_as
        ):
            return True
        client = self._known
        if client is None:
            return False
        if (
            api_key == PRODUCE
            or may_be_replicas
            or self._behind_since is not None
            or self._since is not None
            or self._client is not None
            or not client.is_free()
        ):
            return True
        counts = counts_of(api_key, version)
        if counts is None:
            return True
        counts.on_passed = partial(self._fetched, client)
        return counts

    def arrived(self, request: RequestBegins) -> PassOn | Waiting[Outcome]:
        """Have a request wait that has come, or let it pass."""
        sender, clients = request.sender, self._stage.clients
        if self._before_it:
            self._before_it -= 1
        else:
            self._behind_since = None
        if self._known_at != clients.generation or not sender.start.startswith(self._known_as, CLIENT_ID_AT):
            self._known = self._stage.client(sender.client_id)
            self._known_as = sender.client_id_field
            self._known_at = clients.generation if self._known_as else _NO_GENERATION
        client = self._known
        if client is None:
            return PassOn()
        if request.may_be_replicas:
            return self._not_counted()
        now = self._stage.clock()
        since, self._since = now if self._since is None else self._since, None
        if request.head.api_key == PRODUCE:
            if self._sent_before:
                self._sent_before -= 1
            elif not self._produces:
                self._answered.extend([now] * _MOST_IN_FLIGHT)
        wait = self._asks(client)
        if wait <= 0:
            return self._goes(request, client)
        if _ends_session(request):
            self.gone()
            return PassOn()
        if request.head.api_key == PRODUCE and self._is_urgent(client, now):
            return self._cut(request, client)
        return self._hold(request, client, wait, since)

    def wake(self) -> None:
        """Have the held request decided about again."""
        self._side.held.wake((self._link,))

    def standing(self, *, sends: bool) -> GateState:
        """Return what the client owes, and when its last requests were answered."""
        owed = () if self._known is None else tuple(self._known.owed())
        return GateState(owed, tuple(self._answered), self._since) if sends else GateState(owed)

    def go_on_from(self, before: GateState) -> None:
        """Owe what was owed there, too. A request that was sent to that process waits no longer than it would have."""
        self._stage.clients.owe(before.owed)
        self._answered.extend(before.answered)
        self._sent_before = len(before.answered)
        self._since = before.since

    def gone(self) -> None:
        """Leave the line in which the link waits: its held request is dropped, or it is closed."""
        client, self._client = self._client, None
        if self._held is not None and not self._held.head.expects_response:
            self._stage.holds_cut["dropped"] += 1  # and its client sends it to nobody else
        self._held = None
        if client is not None and self._has_waited:
            self._has_waited = False
            client.rates.waited(self)
            client.leaves(self)

    def _held_until(self, request: RequestBegins, came_at: float) -> float:
        """Return until when a request that came then may be held (clock seconds).

        A producer may have sent it long ago, behind others that were held: at the earliest when the fifth one before it
        was answered.
        """
        kind, sent_at = _kind(request), came_at
        if kind in ("produce", "transaction"):
            sent_at = self._answered[0]
        rounded = ROUNDED_SECONDS if kind == "fetch" else 0.0
        return min(sent_at + HOLDS[kind].seconds(request.sender.wait_seconds) + rounded, self._link.session_end)

    def _asks(self, client: Client) -> float:
        """Return how many seconds a request has to wait before it asks again; 0 where it goes."""
        if self._client is not client:
            if self._client is not None:
                self.gone()
            self._client = client
        wait = client.asks(self)
        self._has_waited = self._has_waited or wait > 0
        return wait

    def _goes(self, request: RequestBegins, client: Client) -> PassOn:
        self._held = self._since = None
        if self._has_waited:
            client.goes(self)
            client.rates.waited(self)
        return self._passed(request, client)

    def _hold(self, request: RequestBegins, client: Client, wait: float, since: float) -> Waiting[Outcome]:
        """Hold a request until its pause is over, or until it has to go before."""
        now, until = self._stage.clock(), self._held_until(request, since)
        while True:
            self._held, self._since = request, since
            client.rates.waits(self, since)
            yield Wait(min(now + min(wait, LOOK_SECONDS), until))
            now, wait = self._stage.clock(), self._asks(client)
            if wait <= 0:
                return self._shortened(request, self._goes(request, client), now - since)
            if now >= until or self._gives_way(request, client):
                break
        self._held = self._since = None
        client.rates.waited(self)
        head, answer, data = request.head, _empty_answer(request), request.sender.asking_for_no_records()
        if answer is None and data is None:
            return self._cut(request, client)
        client.sent_away(self)
        self._stage.holds_cut["answered"] += 1
        if data is None:
            return Reply(Pending(head.correlation_id, answer=answer))
        if (counts := counts_of(head.api_key, head.api_version)) is not None:
            counts.on_passed = partial(self._stage.count, client)
        return Send(data, Pending(head.correlation_id, counts))

    def _gives_way(self, request: RequestBegins, client: Client) -> bool:
        """Return whether it goes before its time, for what its client has sent behind it."""
        if HOLDS[_kind(request)].gives_way == "to all":
            return _is_free(request) and bool(self._link.behind(MOST_LOOKED))
        own_kind = (request.head.api_key,)
        now, before = self._stage.clock(), before_others(self._link.behind(MOST_LOOKED), own_kind)
        self._before_it = before or 0
        if before is None or self._behind_since is None:
            self._behind_since = now if before is not None else None
        return self._is_urgent(client, now)

    def _is_urgent(self, client: Client, now: float) -> bool:
        """Return whether another kind of request has waited long enough, of a client not far ahead of its limit."""
        since = self._behind_since
        return since is not None and now - since >= PATIENT_SECONDS and client.pause() <= MOST_OWED_SECONDS

    def _cut(self, request: RequestBegins, client: Client) -> PassOn:
        """Let a held request pass before its pause is over."""
        self.gone()
        self._stage.holds_cut["passed"] += 1
        return self._passed(request, client)

    def _passed(self, request: RequestBegins, client: Client) -> PassOn:
        head = request.head
        counts = counts_of(head.api_key, head.api_version)
        if counts is None:
            return self._not_counted()
        if head.api_key != PRODUCE:
            counts.on_passed = partial(self._fetched, client)
            return PassOn(Pending(head.correlation_id, counts))
        counts.on_passed = partial(self._produced, client)
        if not head.expects_response:
            return PassOn(watcher=counts.watch)
        self._produces += 1
        is_transactional, facts = request.sender.is_transactional, HOLDS[_kind(request)]
        most_told = facts.most if is_transactional else MOST_TOLD_PRODUCE_SECONDS
        held = facts.seconds(request.sender.wait_seconds)
        answer = ProduceAnswer(self._stage, client, head.api_version, held, most_told, self._produce_answered)
        return PassOn(Pending(head.correlation_id, answer), counts.watch)

    def _shortened(self, request: RequestBegins, passed: PassOn, held: float) -> Outcome:
        """Take what a Fetch without a session was held for off the time that it waits at the broker."""
        wait = request.sender.wait_seconds
        if not held or not wait or passed.pending is None or _kind(request) != "fetch":
            return passed
        return Send(request.sender.with_wait(round(1000 * max(0.0, wait - held))), passed.pending)

    def _not_counted(self) -> PassOn:
        self._stage.not_counted["version"] += 1
        self.gone()
        return PassOn()

    def _fetched(self, client: Client, counts: RecordCounts) -> None:
        self._brought = self._stage.count(client, counts) > 0
        if self._client is not None or self._sent_before:
            self._all_answered()

    def _produced(self, client: Client, counts: RecordCounts) -> None:
        """Note that a request has passed: what it costs is known, so the next one in line need not wait for more."""
        self._stage.count(client, counts)
        client.answered(self)

    def _produce_answered(self) -> None:
        self._brought = None
        self._produces -= 1
        self._answered.append(self._stage.clock())
        if not self._produces:
            self._all_answered()

    def _all_answered(self) -> None:
        """Note that nothing is under way. Where the client has sent its next request before, that goes on waiting."""
        if self._held is not None and self._client is not None:
            self._client.answered(self)
        else:
            self._sent_before = 0
            self.gone()


def _kind(request: RequestBegins) -> Kind:
    sender = request.sender
    if request.head.api_key == PRODUCE:
        return "transaction" if sender.is_transactional else "produce"
    if request.head.api_key == SHARE_FETCH:
        return "share_fetch"
    has_session = sender.session is None or sender.session[1] > 0
    return "session_fetch" if has_session or not sender.is_whole else "fetch"


def _ends_session(request: RequestBegins) -> bool:
    """Return whether it is a Fetch that only ends its session, as Java sends one when it closes."""
    session = request.sender.session if request.head.api_key == FETCH else None
    is_last = session is not None and session[0] > 0 > session[1]
    return is_last and request.sender.is_whole and not _asked_for(request)


def _is_free(request: RequestBegins) -> bool:
    """Return whether a client loses nothing by an empty answer to its Fetch."""
    session = request.sender.session
    return session is not None and (session[1] > 0 or request.sender.is_whole)


def _empty_answer(request: RequestBegins) -> bytes | None:
    """Return an answer without records to a Fetch; None where its session or its layout is not known.

    The broker does not see this Fetch, so its session would be one epoch behind: the client is told to begin a new one.
    """
    head, session = request.head, request.sender.session
    if head.api_key != FETCH or session is None or head.api_version not in FETCH_VERSIONS:
        return None
    encode = partial(encode_fetch_response, head.api_version, head.correlation_id)
    if session[1] > 0:
        return encode(0, (), error_code=_INVALID_FETCH_SESSION_EPOCH)
    listed = _asked_for(request)
    return encode(0 if listed else _THROTTLED_MS, listed)


def _asked_for(request: RequestBegins) -> list[ResponseTopic]:
    """Return all partitions that a Fetch asks for, without records; none where it is too long to be known whole.

    Clients without a session take an answer that lacks some of them for an error (kafka-go, sarama).
    """
    if not request.sender.is_whole:
        return []
    try:
        asked = decode_fetch_request(request.sender.start[SIZE.size :])
    except (MalformedFrame, TooMany):  # the broker judges it, when its time has come
        return []
    version, row = request.head.api_version, FETCH_VERSIONS[request.head.api_version]
    topics: dict[bytes, list[tuple[int, int]]] = {}
    for name, entries, stride, _ in asked.topics:
        marks = [(partition, _UNKNOWN_HIGH_WATERMARK) for partition, *_ in row.requested(stride).iter_unpack(entries)]
        topics.setdefault(name, []).extend(marks)
    return [ResponseTopic(name, made_up_entries(version, marks)) for name, marks in topics.items()]

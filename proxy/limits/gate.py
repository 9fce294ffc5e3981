"""Holds the next Fetch or Produce of a limited client until its pause is over.

A request is never held for so long that its client gives it up. A Fetch whose pause is longer is then answered without
records, so its client asks again, and keeps its place. A Produce goes to the broker.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from weir.limits.clients import Client
from weir.protocol.errors import MalformedFrame, TooMany
from weir.protocol.fetch_request import decode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, made_up_entries
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.framing import Pending, RequestBegins
from weir.protocol.header import FETCH, PRODUCE, SIZE
from weir.protocol.record_counts import counts_of_answer, counts_of_request
from weir.protocol.request_head import Head, RequestHead
from weir.protocol.request_sender import CLIENT_ID_AT, RequestSender
from weir.protocol.steps import Steps
from weir.proxy.limits.counting import HOLD_SECONDS, FetchAnswer, ProduceAnswer, ProduceCount, told_seconds
from weir.proxy.limits.stage import LimitStage
from weir.proxy.relay.open_link import OpenLink
from weir.proxy.relay.outcomes import Answer, Hold, Outcome, Pass
from weir.proxy.relay.side import Side

FETCH_HOLD_SECONDS: Final = 5.0
"""How long a Fetch in a session is held at most before it is answered here.

Its session ends with that answer, for the broker knows nothing of it, and the client has to begin a new one.
"""

PART_OF_WAIT, PART_OF_WAIT_IDLE = 0.8, 0.25
"""The part of a Fetch's `max_wait_ms` for which one without a session is held. It loses nothing by an empty answer.

Some clients report an error where no answer comes within max_wait (kafka-go: 1.33 x), others keep all requests behind
it waiting (sarama). One that is not known to bring records may wait for all of max_wait at the broker after that.
"""

SHORTEST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 0.1, 1.0
"""The bounds of that: an earlier answer would only be asked for again at once."""

PART_OF_TIMEOUT: Final = 0.5
"""The part of a Produce's `timeout_ms` for which it is held at most. Some clients give up when that is over, and send
the records again, while the request that was held has yet to go (kafka-go)."""

TRANSACTION_SECONDS: Final = 5.0
"""How long a transactional Produce is held at most, and the most that its client is told to wait.

A producer has one connection for everything, and transaction.timeout.ms (60 s) goes on meanwhile.
"""

MOST_TOLD_PRODUCE_SECONDS: Final = 15.0
"""The most that a producer is told to wait where its pause is longer than a request can be held."""

_MOST_IN_FLIGHT: Final = 5  # requests of a producer (max.in.flight.requests.per.connection)
_INVALID_FETCH_SESSION_EPOCH: Final = 71
_UNKNOWN_HIGH_WATERMARK: Final = -1


class LinkGate:
    """One link's gate: relay.outcomes.RequestGate, and what waits in the line of a group."""

    def __init__(self, stage: LimitStage, relay: Side, link: OpenLink) -> None:
        self._stage = stage
        self._relay = relay
        self._link = link
        self._client: Client | None = None  # of the request that is held or under way
        self._holds = False
        self._known: Client | None = None  # the client of `_client_id`
        self._client_id: bytes | None = None
        self._known_at = -1
        self._passing = b""  # the client id of the last request as on the wire, where no rule covers it
        self._brought: bool | None = None  # whether the last Fetch brought records; None where there was none
        self._produces = 0  # requests that wait for an answer
        self._answered: deque[float] = deque(maxlen=_MOST_IN_FLIGHT)  # when the last of them were answered

    @property
    def is_idle(self) -> bool:
        """Whether the last Fetch brought nothing."""
        return self._brought is False

    def may_hold(self, head: RequestHead, frame: Head) -> bool:
        """Return whether it is a request that moves records, and not of the client that was found to have no limit."""
        if head.api_key != FETCH and head.api_key != PRODUCE:
            return False
        passing = self._passing
        if not passing or self._known_at != self._stage.clients.generation:
            return True
        return frame[CLIENT_ID_AT : CLIENT_ID_AT + len(passing)] != passing

    def arrived(self, request: RequestBegins) -> Pass | Hold:
        """Hold or pass a request that has come."""
        client_id = request.sender.client_id
        if client_id != self._client_id or self._known_at != self._stage.clients.generation:
            self._client_id, self._known_at = client_id, self._stage.clients.generation
            self._known = self._stage.client(client_id)
            self._passing = request.sender.client_id_field if self._known is None else b""
        client = self._known
        if client is None:
            return Pass()
        if request.may_be_replicas:
            return self._not_counted()
        now = self._stage.clock()
        outcome = self._decide(request, client, now, now, self._held_until(request, now))
        assert not isinstance(outcome, Answer)  # noqa: S101 - nothing is answered before it was held
        return outcome

    def wake(self) -> None:
        """Have the held request decided about again."""
        self._relay.held.wake((self._link,))

    def gone(self) -> None:
        """Leave the lines."""
        client, self._client = self._client, None
        self._holds = False
        if client is not None:
            client.rates.waited(self)
            client.leaves(self)

    def _held_until(self, request: RequestBegins, now: float) -> float:
        """Return until when a request that comes now may be held (clock seconds).

        A producer may have sent it long ago, behind others that were held: at the earliest when the fifth one before it
        was answered.
        """
        if request.head.api_key == FETCH:
            return min(now + _fetch_hold_seconds(request, brings=bool(self._brought)), self._link.session_end)
        sent_at = self._answered[0] if self._produces and len(self._answered) == _MOST_IN_FLIGHT else now
        return min(sent_at + _produce_hold_seconds(request.sender), self._link.session_end)

    def _again(self, request: RequestBegins, client: Client, since: float, until: float) -> Steps[Outcome]:
        return self._decide(request, client, self._stage.clock(), since, until)
        yield

    def _decide(
        self, request: RequestBegins, client: Client, now: float, since: float, until: float
    ) -> Pass | Hold | Answer:
        if self._client is not client:
            self.gone()
            self._client = client
        wait = client.asks(self)
        if wait <= 0:
            self._holds = False
            client.goes(self)
            client.rates.waited(self)
            return self._passed(request, client)
        if now < until or now == since:
            self._holds = True
            client.rates.waits(self, since)
            return Hold(min(now + wait, until), partial(self._again, request, client, since, until))
        self._holds = False
        client.rates.waited(self)
        if request.head.api_key == FETCH and (answer := _empty_answer(request, wait)) is not None:
            client.sent_away(self)
            self._stage.holds_cut["answered"] += 1
            return Answer(Pending(request.head.correlation_id, answer=answer))
        self.gone()
        self._stage.holds_cut["passed"] += 1
        return self._passed(request, client)

    def _passed(self, request: RequestBegins, client: Client) -> Pass:
        head = request.head
        if head.api_key == FETCH:
            counts = counts_of_answer(FETCH, head.api_version)
            if counts is None:
                return self._not_counted()
            return Pass(FetchAnswer(self._stage, client, counts, head.api_version, self._fetched))
        counts = counts_of_request(PRODUCE, head.api_version)
        if counts is None:
            return self._not_counted()
        watcher = ProduceCount(self._stage, client, counts, head.api_version)
        if not head.expects_response:
            return Pass(watcher=watcher)
        self._produces += 1
        most_told = TRANSACTION_SECONDS if request.sender.is_transactional else MOST_TOLD_PRODUCE_SECONDS
        held = _produce_hold_seconds(request.sender)
        answer = ProduceAnswer(self._stage, client, head.api_version, held, most_told, self._produce_answered)
        return Pass(answer, watcher)

    def _not_counted(self) -> Pass:
        self._stage.not_counted["version"] += 1
        self.gone()
        return Pass()

    def _fetched(self, records: int) -> None:
        self._brought = records > 0
        self._all_answered()

    def _produce_answered(self) -> None:
        self._brought = None
        self._produces -= 1
        self._answered.append(self._stage.clock())
        if not self._produces:
            self._all_answered()

    def _all_answered(self) -> None:
        """Note that nothing is under way. Where the client has sent its next request before, that goes on waiting."""
        if self._holds and self._client is not None:
            self._client.answered(self)
        else:
            self.gone()


def _fetch_hold_seconds(request: RequestBegins, *, brings: bool) -> float:
    session, wait = request.sender.session, request.sender.wait_seconds
    if session is None or wait is None or session[1] > 0 or not _is_whole(request):
        return FETCH_HOLD_SECONDS
    part = PART_OF_WAIT if brings else PART_OF_WAIT_IDLE
    return min(max(part * wait, SHORTEST_HOLD_SECONDS), LONGEST_HOLD_SECONDS)


def _produce_hold_seconds(sender: RequestSender) -> float:
    most, timeout = TRANSACTION_SECONDS if sender.is_transactional else HOLD_SECONDS, sender.wait_seconds
    return most if timeout is None else min(most, PART_OF_TIMEOUT * timeout)


def _empty_answer(request: RequestBegins, pause: float) -> bytes | None:
    """Return an answer without records to a Fetch; None where its session or its layout is not known.

    The broker does not see this Fetch, so its session would be one epoch behind: the client is told to begin a new one.
    """
    head, session = request.head, request.sender.session
    if session is None or head.api_version not in FETCH_VERSIONS:
        return None
    told = max(1, int(1000 * told_seconds(pause)))
    if session[1] > 0:
        error = _INVALID_FETCH_SESSION_EPOCH
        return encode_fetch_response(head.api_version, head.correlation_id, told, (), error_code=error)
    return encode_fetch_response(head.api_version, head.correlation_id, told, _asked_for(request))


def _asked_for(request: RequestBegins) -> list[ResponseTopic]:
    """Return all partitions that a Fetch asks for, without records; none where it is too long to be known whole.

    Clients without a session take an answer that lacks some of them for an error (kafka-go, sarama).
    """
    if not _is_whole(request):
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


def _is_whole(request: RequestBegins) -> bool:
    """Return whether all of a request is known, so that an answer can list what it asks for."""
    return len(request.sender.start) >= request.head.frame_size

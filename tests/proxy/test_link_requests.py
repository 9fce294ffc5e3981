"""What a link's requests and responses ask for: byte for byte, without a socket, a loop or a clock."""

from __future__ import annotations

from tests.fakes.relaying import Scripted, ScriptedThrottle
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol.framing import RequestStream
from weir.protocol.steps import at_once
from weir.proxy.log import EventLog
from weir.proxy.relay.fetches import ReplicaFetches
from weir.proxy.relay.link_life import Event, LinkLife
from weir.proxy.relay.link_reports import LinkReports
from weir.proxy.relay.link_requests import MOST_FETCHES, LinkRequests
from weir.proxy.relay.link_responses import LinkResponses
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.fetch.decisions import Answer, Forward, Hold


class Talk:
    """An open link's requests and responses, and a throttle that decides as the test says."""

    def __init__(self, *decisions: Scripted) -> None:
        self.throttle = ScriptedThrottle()
        self.throttle.decisions.extend(decisions)
        side = Side(self.throttle, RelayStats("leader"), EventLog("tests.requests"))
        self.life = LinkLife()
        self.life.on(Event.STARTED)
        fetches = ReplicaFetches(side, 5)
        self.responses = LinkResponses(self.life, fetches)
        reports = LinkReports(side.stats, side.log, "c", "u")
        self.requests = LinkRequests(RequestStream(2**20, fetches.decodes), self.life, fetches, self.responses, reports)

    def ask(self, data: bytes) -> int:
        """Have bytes of the client taken, and their work done. Returns how many were."""
        return _take(self.requests, memoryview(data))

    def answer(self, data: bytes) -> int:
        """The same of the broker's."""
        return _take(self.responses, memoryview(data))

    def sent(self) -> tuple[bytes, bytes]:
        """What goes to the broker, and to the client: taken out as a link does that sends it."""
        sent = b"".join(self.requests.out), b"".join(self.responses.out)
        self.requests.out.clear()
        self.responses.out.clear()
        return sent


def _take(flow: LinkRequests | LinkResponses, view: memoryview) -> int:
    taken, work = flow.take(view)
    if work is not None:
        at_once(work)
    return taken


def test_what_passes_is_not_copied() -> None:
    talk, data, answered = Talk(), request(3, 0, 1, bytes(1000)), response(1, bytes(1000))
    talk.ask(data[:100])
    rest = memoryview(data)[100:]
    assert talk.requests.passes(rest)
    assert talk.requests.out[-1] is rest
    talk.answer(answered[:100])
    rest = memoryview(answered)[100:-1]
    assert talk.responses.passes(rest)
    assert talk.responses.out[-1] is rest
    talk.answer(answered[-1:])
    assert talk.sent() == (data, answered)


def test_a_held_fetch_keeps_what_follows_until_it_goes() -> None:
    talk = Talk(Hold(7.0), Hold(9.0), Forward)
    first, behind = fetch(1, 5), request(3, 0, 2)
    assert talk.ask(first + behind) == len(first)
    assert talk.requests.hold is not None
    assert (talk.requests.hold.until, talk.requests.is_taken, talk.sent()) == (7.0, False, (b"", b""))
    assert talk.requests.whole_bytes == len(first) - 4
    at_once(talk.requests.decide_again())
    assert (talk.requests.hold.until, talk.sent()) == (9.0, (b"", b""))
    at_once(talk.requests.decide_again())
    assert talk.requests.hold is None
    assert (talk.requests.is_taken, talk.requests.whole_bytes) == (True, 0)
    assert talk.ask(behind) == len(behind)
    assert talk.sent() == (first + behind, b"")


def test_an_own_answer_has_the_next_request_wait_until_it_is_sent() -> None:
    own = response(1, b"own")
    talk = Talk(Answer(own))
    talk.ask(fetch(1, 5))
    assert (talk.requests.is_taken, talk.requests.has_answered) == (False, True)
    talk.requests.ease()
    assert not talk.requests.is_taken
    assert talk.sent() == (b"", own)
    talk.requests.ease()
    assert (talk.requests.is_taken, talk.requests.has_answered) == (True, False)


def test_an_own_answer_waits_for_the_responses_due_before_it() -> None:
    own, due = response(2, b"own"), fetch_response(1)
    talk = Talk(Forward, Answer(own))
    talk.ask(fetch(1, 5))
    talk.ask(fetch(2, 5))
    assert talk.sent() == (fetch(1, 5), b"")
    talk.requests.ease()
    assert not talk.requests.is_taken
    talk.answer(due)
    assert talk.sent() == (b"", due + own)
    talk.requests.ease()
    assert talk.requests.is_taken


def test_more_fetches_than_may_be_under_way_wait() -> None:
    talk = Talk()
    for number in range(MOST_FETCHES):
        assert talk.requests.is_taken
        talk.ask(fetch(number, 5))
    assert not talk.requests.is_taken
    talk.answer(fetch_response(0))
    talk.requests.ease()
    assert talk.requests.is_taken


def test_a_fetch_that_is_held_for_nobody_closes_the_link() -> None:
    talk = Talk(Hold(7.0))
    talk.life.on(Event.CLIENT_ENDED)
    talk.ask(fetch(1, 5) + request(3, 0, 2))
    assert talk.life.is_closed
    assert talk.sent() == (b"", b"")


def test_quota_may_come_only_with_an_answer_that_nothing_is_before() -> None:
    def grant(asked: object) -> Forward:
        return Forward(asked, admit=lambda *_: 0, holds_all=True)  # type: ignore[arg-type]

    talk = Talk(grant, grant)
    assert talk.requests.asked is None
    talk.ask(fetch(1, 5))
    assert talk.requests.asked is True
    talk.ask(fetch(2, 5))
    assert talk.requests.asked is False

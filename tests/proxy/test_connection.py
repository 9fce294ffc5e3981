# SPDX-License-Identifier: Apache-2.0
"""What a link's core asks for: byte for byte, without a socket, a loop or a clock."""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.relaying import AtOnce, Scripted, ScriptedThrottle
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import Expected
from weir.protocol.steps import Steps
from weir.proxy.log import EventLog
from weir.proxy.relay.connection import Connection, Phase
from weir.proxy.relay.fetches import ReplicaFetches
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.throttle import Throttle

Does = Literal["hold", "go", "ask", "answer", "client ends", "upstream ends", "drain", "linger", "work", "rest"]


class Talk:
    """A link's core, and a throttle that decides as the test says."""

    def __init__(self, *decisions: Scripted) -> None:
        self.throttle = ScriptedThrottle()
        self.throttle.decisions.extend(decisions)
        side = Side(cast(Throttle, self.throttle), RelayStats("leader"), EventLog("tests.requests"), turns=AtOnce())
        fetches = ReplicaFetches(side, 5)
        self.core = Connection(fetches, RequestStream(2**20, fetches.decodes))
        self.number = 0

    def ask(self, data: bytes) -> int:
        """Have bytes of the client taken. Returns how many were."""
        return self.core.receive("client", memoryview(data))

    def answer(self, data: bytes) -> int:
        """The same of the broker's."""
        return self.core.receive("upstream", memoryview(data))

    def go_on(self) -> None:
        """Have the held request decided about again, or work done."""
        self.core.go_on()

    def sent(self) -> tuple[bytes, bytes]:
        """What goes to the broker, and to the client: taken out as a link does that sends it."""
        core = self.core
        sent = b"".join(core.to_upstream), b"".join(core.to_client)
        core.to_upstream.clear()
        core.to_client.clear()
        return sent

    def permits(self) -> str:
        """Whether requests are read and taken, and responses read and taken: a letter each."""
        core = self.core
        permitted = core.reads("client"), core.takes("client"), core.reads("upstream"), core.takes("upstream")
        return "".join(letter if is_it else "-" for letter, is_it in zip("rqsp", permitted, strict=True))

    def do(self, what: Does) -> None:
        """Have one thing happen."""
        core = self.core
        self.number += 1
        match what:
            case "hold":
                self.throttle.decisions.append(Hold(math.inf))
                self.ask(fetch(self.number, 5))
            case "go":
                self.throttle.decisions.append(Forward)
                self.go_on()
            case "ask":
                self.ask(request(3, 0, self.number))
            case "answer":
                first = core.responses.pending[0]
                number = first.correlation_id
                self.sent()
                self.answer(fetch_response(number) if first.observer else response(number))
            case "client ends" | "upstream ends":
                core.ended.add("client" if what == "client ends" else "upstream")
            case "drain":
                core.phase = "draining"
                core.give_up_held()
            case "linger":
                core.linger()
            case "work":
                core.work = _one_step()
            case "rest":
                self.go_on()

    def is_possible(self, what: Does) -> bool:
        """Whether a link has this happen to its core now."""
        core = self.core
        if core.is_at_end:
            return False
        match what:
            case "hold" | "ask":
                return core.reads("client") and core.phase == "open"
            case "answer":
                return core.reads("upstream") and bool(core.responses.pending)
            case "go":
                return core.hold is not None
            case "client ends":
                return core.reads("client") or core.phase == "lingering"
            case "upstream ends":
                return core.reads("upstream")
            case "drain":
                return core.phase == "open" and not core.is_working
            case "linger":
                self.sent()
                return core.phase == "draining" and core.is_idle
            case "work":
                return core.work is None and core.phase != "lingering"
        return core.is_working


def _one_step() -> Steps[None]:
    yield


@pytest.mark.parametrize(
    ("happens", "permitted"),
    [
        ([], "rqsp"),
        (["hold"], "--sp"),
        (["hold", "go"], "r-sp"),
        (["hold", "go", "answer"], "r-sp"),
        (["work"], "----"),
        (["work", "rest"], "rqsp"),
        (["client ends"], "-qsp"),
        (["upstream ends"], "rq-p"),
        (["drain"], "--sp"),
        (["hold", "drain"], "--sp"),
        (["drain", "linger"], "r---"),
    ],
)
def test_what_each_state_permits(happens: list[Does], permitted: str) -> None:
    talk = Talk()
    for what in happens:
        talk.do(what)
    assert talk.permits() == permitted


def test_draining_core_reads_the_request_under_way_to_its_end() -> None:
    talk, data = Talk(), request(3, 0, 1, bytes(100))
    talk.ask(data[:50])
    talk.do("drain")
    assert talk.permits() == "rqsp"
    assert talk.ask(data[50:] + request(3, 0, 2)) == len(data) - 50
    assert (talk.permits(), talk.sent()) == ("--sp", (data, b""))
    assert not talk.core.is_idle
    talk.answer(response(1))
    assert talk.sent() == (b"", response(1))
    assert talk.core.is_idle


@pytest.mark.parametrize(
    "happens",
    [
        ["client ends", "upstream ends"],
        ["upstream ends", "client ends"],
        ["hold", "upstream ends"],
        ["hold", "client ends"],
        ["upstream ends", "hold"],
        ["drain", "upstream ends"],
        ["upstream ends", "drain"],
        ["drain", "client ends", "linger"],
        ["client ends", "drain", "linger"],
        ["drain", "linger", "client ends"],
    ],
)
def test_what_closes_a_link(happens: list[Does]) -> None:
    talk = Talk()
    for what in happens:
        assert not talk.core.is_at_end
        talk.do(what)
    assert talk.core.is_at_end


@given(st.lists(st.sampled_from(get_args(Does)), max_size=40))
def test_whatever_happens_a_core_goes_one_way(happens: list[Does]) -> None:
    talk = Talk()
    core, phases = talk.core, get_args(Phase)
    before = phases.index(core.phase)
    for what in happens:
        if not talk.is_possible(what):
            continue
        talk.do(what)
        assert phases.index(core.phase) >= before
        before = phases.index(core.phase)
        for sender in ("client", "upstream"):
            assert core.takes(sender) or not core.reads(sender) or core.phase == "lingering" or core.is_crowded
        assert core.takes("upstream") or not core.takes("client")
        assert core.hold is None or not core.takes("client")
        assert not core.is_working or talk.permits() == "----"
        assert core.hold is None or core.work is not None
    core.phase = "closed"
    core.close()
    assert (core.hold, core.work, talk.permits()) == (None, None, "----")


def test_what_passes_is_not_copied() -> None:
    talk, data, answered = Talk(), request(3, 0, 1, bytes(1000)), response(1, bytes(1000))
    talk.ask(data[:100])
    rest = memoryview(data)[100:]
    assert talk.core.passes("client", rest)
    assert talk.core.to_upstream[-1] is rest
    talk.answer(answered[:100])
    rest = memoryview(answered)[100:-1]
    assert talk.core.passes("upstream", rest)
    assert talk.core.to_client[-1] is rest
    talk.answer(answered[-1:])
    assert talk.sent() == (data, answered)


def test_a_held_fetch_keeps_what_follows_until_it_goes() -> None:
    talk = Talk(Hold(7.0), Hold(9.0), Forward)
    first, behind = fetch(1, 5), request(3, 0, 2)
    assert talk.ask(first + behind) == len(first)
    assert talk.core.hold is not None
    assert (talk.core.hold.until, talk.core.takes("client"), talk.sent()) == (7.0, False, (b"", b""))
    assert talk.core.kept_bytes() == len(first) - 4
    talk.go_on()
    assert (talk.core.hold.until, talk.sent()) == (9.0, (b"", b""))
    talk.go_on()
    assert talk.core.hold is None
    assert talk.core.kept_bytes() == len(first)  # until the broker takes it
    assert talk.sent() == (first, b"")
    assert talk.core.kept_bytes() == 0
    talk.answer(fetch_response(1))
    assert talk.sent() == (b"", fetch_response(1))
    assert talk.ask(behind) == len(behind)
    assert talk.sent() == (behind, b"")


def test_own_answer_holds_the_next_request_until_it_is_sent() -> None:
    own = response(1, b"own")
    talk = Talk(Answer(own))
    talk.ask(fetch(1, 5))
    assert not talk.core.takes("client")
    assert talk.core.kept_bytes() == len(own)
    assert talk.sent() == (b"", own)
    assert talk.core.kept_bytes() == 0
    assert talk.core.takes("client")


def test_an_own_answer_waits_for_the_responses_due_before_it() -> None:
    own, due = response(2, b"own"), response(1)
    talk = Talk(Answer(own))
    talk.ask(request(3, 0, 1))
    talk.ask(fetch(2, 5))
    assert talk.sent() == (request(3, 0, 1), b"")
    assert not talk.core.takes("client")
    talk.answer(due)
    assert talk.sent() == (b"", due + own)
    assert talk.core.takes("client")


def test_nothing_is_taken_behind_a_fetch_before_its_answer() -> None:
    talk = Talk()
    first, behind = fetch(1, 5), fetch(2, 5)
    assert talk.ask(first + behind) == len(first)
    assert talk.permits() == "r-sp"
    talk.answer(fetch_response(1))
    assert not talk.core.takes("client")
    assert talk.sent() == (first, fetch_response(1))
    assert talk.core.takes("client")


def test_a_fetch_that_is_held_for_nobody_closes_the_link() -> None:
    talk = Talk(Hold(7.0))
    talk.core.ended.add("client")
    talk.ask(fetch(1, 5) + request(3, 0, 2))
    assert talk.core.is_at_end
    assert talk.sent() == (b"", b"")


def test_quota_may_come_only_with_an_answer_nothing_precedes() -> None:
    def grant(asked: object) -> Forward:
        return Forward(asked, Expected(admit=lambda *_: 0), is_granted=True)  # type: ignore[arg-type]

    talk = Talk(grant)
    assert talk.core.is_granted is None
    talk.ask(fetch(1, 5))
    assert talk.core.is_granted is True
    talk = Talk(grant)
    talk.ask(request(3, 0, 1) + fetch(2, 5))
    assert talk.core.is_granted is False

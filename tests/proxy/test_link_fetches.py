# SPDX-License-Identifier: Apache-2.0
"""Replica fetches are planned, and what is decided is carried out in request order."""

import asyncio
import time
from collections import deque
from math import inf
from typing import NoReturn, cast

import pytest

from tests.fakes.relaying import AtOnce, Scripted, ScriptedThrottle, relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics, made_up_entries
from weir.protocol.header import RequestHeader
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.response_scanner import Expected
from weir.protocol.response_stream import Pending
from weir.proxy.log import EventLog
from weir.proxy.relay import outcomes
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.open_link import Relayed
from weir.proxy.relay.outcomes import Outcome
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.side import FAILURES, SPARE_SECONDS, Side
from weir.proxy.relay.stats import OTHER_PEERS, RelayStats
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.fetch.intake import TooManyPartitions
from weir.quota.throttle import Throttle

ON_BOTH_LOOPS = True


def answer_to(correlation_id: int) -> bytes:
    return encode_fetch_response(3, correlation_id, 10, [])


@pytest.mark.parametrize("version", [3, 4, 5, 6])
async def test_a_fetch_is_forwarded_as_decided_and_its_response_grows(version: int) -> None:
    left_out = encode_response_topics(version, [ResponseTopic(b"left", made_up_entries(version, [(4, 99)]))])
    async with relaying() as relay:
        relay.throttle.decisions.append(
            lambda asked: Forward(asked.with_(topics=asked.topics[:1]), Expected(left_out, 1)),
        )
        client, broker = await relay.connect()
        asked = ((b"kept", ((0, 7, 10),)), (b"left", ((4, 8, 10),)))
        await client.send(request(3, 0, 1) + fetch(2, 5, version=version, topics=asked) + request(18, 0, 3))
        await broker.expect(request(3, 0, 1) + fetch(2, 5, version=version, topics=asked[:1]))
        kept = ((b"kept", ((0, 9, b"r" * 50),)),)
        grown = (*kept, (b"left", ((4, 99, b""),)))
        await broker.send(response(1) + fetch_response(2, version=version, topics=kept))
        await client.expect(response(1) + fetch_response(2, version=version, topics=grown))
        await broker.expect(request(18, 0, 3))
        await broker.send(response(3))
        await client.expect(response(3))
        assert relay.throttle.calls == [("link", 5), ("plan", 2, 0.0), ("settle", [b"kept"])]
        assert relay.stats.fetch_requests == {version: 1}


@pytest.mark.parametrize("is_sidecar", [True, False])
async def test_the_passage_is_told_whether_its_client_is_a_sidecar(
    is_sidecar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    begin = Passage.begin

    def begin_told(passage: Passage, *, is_granted: bool, is_lent: bool, is_to_sidecar: bool) -> None:
        told.append(is_to_sidecar)
        begin(passage, is_granted=is_granted, is_lent=is_lent, is_to_sidecar=is_to_sidecar)

    monkeypatch.setattr(Passage, "begin", begin_told)
    async with relaying() as relay:
        relay.throttle.client_is_sidecar = is_sidecar
        client, broker = await relay.connect()
        await client.send(fetch(1, 5))
        await broker.expect(fetch(1, 5))
    assert told == [is_sidecar]


async def test_the_peer_of_an_egress_route_is_the_one_configured() -> None:
    async with relaying(peer=9) as relay:
        await relay.connect(fetch(1, 5))
        assert relay.throttle.told("link") == [("link", 9)]


async def test_bytes_of_clients_are_told_from_those_of_replicas() -> None:
    """What a replica asks before its first fetch counts as a client's until then; a closed connection's bytes stay."""
    async with relaying() as relay:
        client, broker = await relay.connect()
        asked, answer = fetch(1, -1), fetch_response(1)
        await client.send(asked)
        await broker.expect(asked)
        await broker.send(answer)
        await client.expect(answer)
        replica, leader = await relay.connect()
        await replica.send(request(18, 0, 1))
        await leader.expect(request(18, 0, 1))
        wanted = Relayed(len(asked), len(answer))
        assert relay.stats.of_clients == (wanted.requests + len(request(18, 0, 1)), wanted.answers)
        await replica.send(fetch(2, 5))
        await leader.expect(fetch(2, 5))
        assert relay.stats.of_clients == wanted
        for link in list(relay.listener.links):
            link.close()
        assert not relay.listener.links
        assert relay.stats.of_clients == wanted


async def test_bytes_of_a_replica_that_is_closed_are_no_clients() -> None:
    """Its fetch is malformed, and closes its connection."""
    async with relaying() as relay:
        client, _ = await relay.connect()
        relay.throttle.decisions.append(MalformedFrame("a partition is named twice", 40))
        await client.send(fetch(1, 5))
        await client.expect_end()
        assert relay.stats.relayed.requests > 0
        assert relay.stats.of_clients == Relayed()


async def test_bytes_that_are_not_understood_are_no_clients() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await client.send(b"\x16\x03\x01" + bytes(20))
        await broker.expect(b"\x16\x03\x01" + bytes(20))
        assert relay.stats.relayed.requests == 23
        assert relay.stats.of_clients == Relayed()


async def test_answer_is_sent_at_once_when_nothing_is_due_before_it() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.append(Answer(answer_to(1)))
        client, broker = await relay.connect()
        await client.send(fetch(1, 5) + request(3, 0, 2))
        await client.expect(answer_to(1))
        await broker.expect(request(3, 0, 2))
        assert relay.stats.fetches_answered == 1


async def test_answers_wait_for_the_responses_due_before_them() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Answer(answer_to(2)), Hold(inf), Answer(answer_to(4))])
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1) + fetch(2, 5) + request(3, 0, 3) + fetch(4, 5))
        await broker.expect(request(3, 0, 1))
        first = response(1, b"x" * 1000)
        await broker.send(first[:500])
        await client.expect(first[:500])
        assert client.has_nothing()
        await broker.send(first[500:])
        await client.expect(first[500:] + answer_to(2))
        await broker.expect(request(3, 0, 3))
        await relay.until(lambda: len(relay.relay.held))
        relay.relay.held.wake_now()
        assert client.has_nothing()
        await broker.send(response(3))
        await client.expect(response(3) + answer_to(4))


async def test_answers_do_not_pile_up_for_a_client_that_reads_nothing() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend(
            [Answer(encode_fetch_response(3, 1, 0, [ResponseTopic(b"t" * 30_000, b"")]))] * 9999
        )
        client, _ = await relay.connect()
        await client.send_until_blocked(fetch(1, 5))
        answered = relay.stats.fetches_answered
        assert 0 < answered < 1000
        assert len(relay.throttle.told("plan")) == answered
        await client.receive(answered * 20_000)
        await relay.until(lambda: relay.stats.fetches_answered > answered)


async def test_no_more_is_read_while_an_answer_waits_for_its_turn() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.append(Answer(answer_to(2)))
        client, broker = await relay.connect()
        await client.send(request(3, 0, 0) + request(3, 0, 1) + fetch(2, 5))
        await broker.expect(request(3, 0, 0) + request(3, 0, 1))
        await client.send_until_blocked(request(0, 2, 3, b"\xff" * 10_000))
        (link,) = relay.listener.links
        moved = link.from_client.moved
        await broker.send(response(0))
        await client.expect(response(0))
        await asyncio.sleep(0)
        assert link.from_client.moved == moved
        assert broker.has_nothing()
        await broker.send(response(1))
        await client.expect(response(1) + answer_to(2))
        await broker.expect(request(0, 2, 3, b"\xff" * 10_000))


@pytest.mark.parametrize("when", ["link", "first plan", "later plan", "what it decided"])
async def test_raising_throttle_ends_the_connection_passing_nothing(when: str) -> None:
    """A bug may not lift a quota. The client comes back, and other connections go on."""
    async with relaying() as relay:
        new_link = relay.throttle.link
        other, other_broker = await relay.connect(fetch(1, 5))
        if when == "link":
            relay.throttle.link = None  # type: ignore[assignment]
        elif when == "later plan":
            relay.throttle.decisions.extend([Hold(time.monotonic()), RuntimeError("bug")])
        elif when == "first plan":
            relay.throttle.decisions.append(RuntimeError("bug"))
        else:
            relay.throttle.decisions.append(lambda asked: Forward(asked.with_(max_bytes=2**40)))
        client, broker = await relay.connect()
        await client.send(fetch(1, 5) + fetch(2, 5))
        await client.expect_end()
        await broker.expect_end()
        assert (relay.stats.throttle_errors, relay.stats.passthrough, relay.stats.relay_errors) == (1, {}, 0)
        (line,) = relay.log.of("throttle_error")
        assert "rror" in str(line["error"])
        assert ".py:" in str(line["at"])
        await other_broker.send(fetch_response(1))
        await other.expect(fetch_response(1))
        relay.throttle.link = new_link  # type: ignore[method-assign]
        await relay.connect(fetch(1, 5))


def bug(*_: object) -> NoReturn:
    raise RuntimeError("bug")


@pytest.mark.parametrize(
    "broken",
    [
        RuntimeError("bug"),
        lambda asked: Forward(asked, Expected(head_patch=bug)),
        lambda asked: Forward(asked, Expected(admit=bug)),
    ],
    ids=["plan", "head", "admit"],
)
async def test_often_failing_throttle_leaves_the_link_to_a_spare(broken: Scripted) -> None:
    """After a while the throttle plans again."""
    async with relaying() as relay:
        for _ in range(FAILURES):
            relay.throttle.decisions.append(broken)
            client, broker = await relay.connect()
            await client.send(fetch(1, 5))
            if not isinstance(broken, RuntimeError):
                await broker.expect(fetch(1, 5))
                await broker.send(fetch_response(1, topics=((b"t", ((0, 9, b"r" * 50),)),)))
            await client.expect_end()
            await broker.expect_end()
        plans = len(relay.throttle.told("plan"))
        client, broker = await relay.connect()
        for number in (1, 2):  # nothing is behind: the answer has no entries
            await client.send(fetch(number, 5))
            asked = decode_fetch_request((await broker.receive_frame())[4:])
            assert asked.header.correlation_id == number
            await broker.send(fetch_response(number))
            assert (await client.receive_frame())[4:8] == number.to_bytes(4)
        assert len(relay.throttle.told("plan")) == plans
        relay.later += SPARE_SECONDS
        await client.send(fetch(3, 5))
        await broker.expect(fetch(3, 5))
        assert len(relay.throttle.told("plan")) == plans + 1
        await relay.connect(fetch(1, 6))  # another follower
        assert relay.stats.throttle_errors == FAILURES


async def test_follower_of_too_many_partitions_passes_from_then_on() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.append(TooManyPartitions(300_000))
        client, broker = await relay.connect(fetch(1, 5) + fetch(2, 5))
        await broker.send(response(1, b"not scanned") + response(2, b"nor this"))
        await client.expect(response(1, b"not scanned") + response(2, b"nor this"))
        assert relay.stats.throttle_errors == 0
        assert relay.stats.passthrough == {"too_many_partitions": 1}
        (line,) = relay.log.of("too_many_partitions")
        assert "300000" in str(line["reason"])


async def test_throttle_raising_when_it_settles_ends_the_connection() -> None:
    async with relaying() as relay:
        relay.throttle.fail_settle = RuntimeError("bug")
        relay.throttle.fail_close = RuntimeError("another")
        client, broker = await relay.connect(fetch(1, 5))
        await broker.send(fetch_response(1))
        await broker.expect_end()
        assert len(await client.receive(2**20)) in (0, len(fetch_response(1)))
        assert len(relay.throttle.told("settle")) == 1
        assert (relay.stats.throttle_errors, relay.stats.passthrough) == (2, {})


async def test_throttle_raising_when_it_is_closed_disturbs_no_one() -> None:
    async with relaying() as relay:
        relay.throttle.fail_close = RuntimeError("bug")
        client, broker = await relay.connect(fetch(1, 5))
        client.close()
        await broker.expect_end()
        broker.close()
        await relay.until(lambda: relay.stats.connections == 0)
        assert relay.stats.throttle_errors == 1


async def test_throttle_raising_when_a_link_tells_its_end_disturbs_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: float) -> float:
        raise RuntimeError("bug")

    async with relaying() as relay:
        client, broker = await relay.connect(fetch(1, 5))
        (link,) = relay.listener.links
        link._passage.begin(is_granted=True)
        monkeypatch.setattr(relay.throttle, "let_pass", fail)
        client.close()
        broker.close()
        await relay.until(lambda: relay.stats.connections == 0)
        assert relay.stats.throttle_errors in (1, 2)  # perhaps it was told before, as the link has looked


class Detached:
    """One connection's replica fetches without a connection: the throttle is scripted."""

    def __init__(self, *decisions: Scripted) -> None:
        self.throttle = ScriptedThrottle(deque(decisions))
        self.relay = Side(
            cast(Throttle, self.throttle), RelayStats("leader"), EventLog("tests"), clock=lambda: 5.0, turns=AtOnce()
        )
        self.fetches = ReplicaFetches(self.relay, None)

    def deciding(self, frame: bytes) -> outcomes.Waiting[Outcome]:
        return self.fetches.take(ReplicaFetch(RequestHeader(1, 3, 1, None), frame[4:]))

    def take(self, frame: bytes) -> Outcome:
        deciding = self.deciding(frame)
        with pytest.raises(StopIteration) as stop:
            next(deciding)
        decided: Outcome = stop.value.value
        return decided


def test_request_passes_as_it_came_and_a_malformed_is_refused() -> None:
    link = Detached()
    outcome = link.take(fetch(1, 5))
    assert isinstance(outcome, outcomes.Send)
    assert outcome.data == fetch(1, 5)
    with pytest.raises(MalformedFrame):
        link.take(fetch(1, 5)[:-1])


def test_what_is_decided_is_a_value() -> None:
    link = Detached(Answer(b"own"), Hold(7.0), Answer(b"late"), RuntimeError("bug"))
    assert link.take(fetch(1, 5)) == outcomes.Reply(Pending(1, answer=b"own"))
    held = link.deciding(fetch(1, 5))
    assert next(held) == outcomes.Wait(7.0, link.fetches.throttle)
    with pytest.raises(StopIteration) as decided:
        next(held)
    assert decided.value.value == outcomes.Reply(Pending(1, answer=b"late"))
    with pytest.raises(ConnectionEnds):
        link.take(fetch(1, 5))


def test_first_plan_is_told_apart_from_one_that_follows_at_once() -> None:
    """The throttle takes a request in when held_seconds is 0: that must be once."""
    link = Detached(Hold(inf))
    held = link.deciding(fetch(1, 5))
    assert next(held) == outcomes.Wait(inf, link.fetches.throttle)
    with pytest.raises(StopIteration):
        next(held)
    assert [call[2] > 0 for call in link.throttle.told("plan")] == [False, True]


def test_replica_ids_beyond_the_first_thousand_are_one_peer() -> None:
    link = Detached()
    for replica_id in (*range(2000), 5):
        event = ReplicaFetch(RequestHeader(1, 3, 1, None), fetch(1, replica_id)[4:])
        with pytest.raises(StopIteration):
            next(ReplicaFetches(link.relay, None).take(event))
    peers = [call[1] for call in link.throttle.told("link")]
    assert peers == [*range(1000), *[OTHER_PEERS] * 1000, 5]
    assert link.relay.stats.links_of_other_peers == 1000


@pytest.mark.parametrize(("wait_ms", "wanted"), [(2**31 - 1, 30_000), (30_001, 30_000), (29_999, 29_999), (-1, 0)])
def test_a_fetch_may_wait_for_half_a_minute_at_most(wait_ms: int, wanted: int) -> None:
    seen: list[int] = []

    def decide(asked: FetchRequest) -> Forward:
        seen.append(asked.max_wait_ms)
        return Forward(asked)

    outcome = Detached(decide).take(frame := fetch(1, 5, max_wait_ms=wait_ms))
    assert seen == [wanted]
    assert isinstance(outcome, outcomes.Send)
    assert outcome.data == frame  # what passes as it came is the broker's to answer


def test_a_decision_is_given_the_request_decoded() -> None:
    seen: list[FetchRequest] = []

    def decide(asked: FetchRequest) -> Forward:
        seen.append(asked)
        return Forward(asked)

    Detached(decide).take(fetch(8, 5))
    assert (seen[0].header, seen[0].replica_id) == (RequestHeader(1, 3, 8, b"c"), 5)

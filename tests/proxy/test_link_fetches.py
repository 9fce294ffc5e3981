"""Replica fetches are planned, and what is decided is carried out in request order."""

import asyncio
import socket
import time
from collections import deque
from functools import partial
from typing import NoReturn, cast

import pytest

from tests.fakes.links import FakeLink, waits_for_budget
from tests.fakes.relaying import AtOnce, Scripted, ScriptedThrottle, relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics, made_up_entries
from weir.protocol.header import RequestHeader
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.response_scanner import Expected
from weir.protocol.response_stream import Pending
from weir.protocol.take_out import Passing
from weir.proxy.log import EventLog
from weir.proxy.relay import outcomes
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.open_link import Relayed
from weir.proxy.relay.outcomes import Outcome
from weir.proxy.relay.passage import Passage
from weir.proxy.relay.side import FAILURES, SPARE_SECONDS, HeldFetches, Side
from weir.proxy.relay.stats import OTHER_PEERS, RelayStats
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.fetch.intake import TooManyPartitions
from weir.quota.throttle import Throttle

ON_BOTH_LOOPS = True

FAR = float("inf")
"""Held until something else happens."""


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


async def test_fetch_is_held_until_its_time_and_planned_with_its_hold() -> None:
    """Each plan is told for how long the fetch was held."""
    async with relaying() as relay:
        for _ in range(2):
            relay.throttle.decisions.append(lambda _: Hold(time.monotonic() + 0.01))
        await relay.connect(fetch(1, 5))
        held_seconds = [call[2] for call in relay.throttle.told("plan")]
        assert held_seconds[0] == 0
        assert held_seconds[1] >= 0.009
        assert held_seconds[2] >= 0.019
        assert (relay.stats.fetches_held, len(relay.relay.held)) == (1, 0)


async def test_requests_before_a_held_fetch_pass_those_behind_wait() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(FAR), Hold(FAR)])
        client, broker = await relay.connect()
        await client.send(request(3, 0, 1) + fetch(2, 5) + request(18, 0, 3) + fetch(4, 5) + request(18, 0, 5))
        await broker.expect(request(3, 0, 1))
        assert len(relay.relay.held) == 1
        assert relay.pool.lent == []
        await broker.send(response(1, b"the other direction flows on"))
        await client.expect(response(1, b"the other direction flows on"))
        relay.relay.held.wake_now()
        assert broker.has_nothing()
        relay.relay.held.wake_now()
        await broker.expect(fetch(2, 5))
        await broker.send(fetch_response(2))
        await broker.expect(request(18, 0, 3) + fetch(4, 5))
        await client.send(request(18, 0, 6))
        await broker.send(response(3) + fetch_response(4))
        await broker.expect(request(18, 0, 5) + request(18, 0, 6))
        await client.expect(fetch_response(2) + response(3) + fetch_response(4))


async def test_second_held_fetch_keeps_what_follows_back_too() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5) + fetch(2, 5) + request(18, 0, 3))
        relay.throttle.decisions.extend([lambda asked: Forward(asked), Hold(FAR)])
        relay.relay.held.wake_now()
        await broker.expect(fetch(1, 5))
        await client.send(request(18, 0, 4))
        await broker.send(fetch_response(1)[:30])  # several turns of the loop
        await client.expect(fetch_response(1)[:30])
        assert broker.has_nothing()
        await broker.send(fetch_response(1)[30:])
        await client.expect(fetch_response(1)[30:])
        await relay.until(lambda: len(relay.relay.held))
        assert broker.has_nothing()
        relay.relay.held.wake_now()
        await broker.expect(fetch(2, 5))
        await broker.send(fetch_response(2))
        await broker.expect(request(18, 0, 3) + request(18, 0, 4))
        assert relay.stats.fetches_held == 2


async def test_a_held_fetch_stops_the_reading_of_its_client() -> None:
    async with relaying() as relay:
        client, _ = await relay.hold(fetch(1, 5))
        await client.send_until_blocked(request(0, 2, 2, b"\xff" * 10_000))
        assert relay.pool.lent == []


async def test_a_settled_response_wakes_the_fetches_of_other_links() -> None:
    async with relaying() as relay:
        _, broker = await relay.connect(fetch(1, 5))
        _, its_broker = await relay.hold(fetch(7, 6))
        await broker.send(fetch_response(1))
        await its_broker.expect(fetch(7, 6))


async def test_a_closed_link_wakes_the_fetches_of_other_links() -> None:
    async with relaying() as relay:
        client, _ = await relay.connect(fetch(1, 5))
        _, its_broker = await relay.hold(fetch(7, 6))
        client.reset()
        await its_broker.expect(fetch(7, 6))
        assert len(relay.throttle.told("close")) == 1


async def test_held_fetches_are_planned_again_in_their_order() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(FAR)] * 6)
        for correlation_id in (3, 1, 2):
            client, _ = await relay.connect()
            await client.send(fetch(correlation_id, 5))
            await relay.until(lambda: correlation_id in [call[1] for call in relay.throttle.told("plan")])  # noqa: B023
        relay.relay.held.wake_now()
        assert [call[1] for call in relay.throttle.told("plan")] == [3, 1, 2] * 2


async def test_client_that_left_while_held_is_not_forwarded_for() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5))
        client.close()

        def replanned() -> bool:
            relay.relay.held.wake_now()
            return not len(relay.relay.held)

        await relay.until(replanned)
        await broker.expect_end()
        assert len(relay.throttle.told("plan")) == 1


async def test_broker_going_away_ends_a_held_fetchs_connection() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(fetch(1, 5))
        broker.close()
        await client.expect_end()
        await relay.until(lambda: not len(relay.relay.held))


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
        relay.throttle.decisions.extend([Answer(answer_to(2)), Hold(FAR), Answer(answer_to(4))])
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
    assert next(held) == outcomes.Wait(7.0, link.throttle)
    with pytest.raises(StopIteration) as decided:
        next(held)
    assert decided.value.value == outcomes.Reply(Pending(1, answer=b"late"))
    with pytest.raises(ConnectionEnds):
        link.take(fetch(1, 5))


async def test_a_hold_in_the_past_does_not_spin() -> None:
    async with relaying() as relay:
        relay.throttle.decisions.extend([Hold(0.0)] * 10_000)
        client, _ = await relay.connect()
        await client.send(fetch(1, 5))
        await relay.until(lambda: len(relay.relay.held))
        await asyncio.sleep(0.02)
        assert 1 < len(relay.throttle.told("plan")) < 60


async def test_a_hold_without_an_end_sets_no_timer() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        relay.throttle.decisions.extend([Hold(time.monotonic() + 0.05), Hold(FAR)])
        await client.send(fetch(1, 5))
        await relay.until(lambda: len(relay.relay.held))
        relay.relay.held.wake_now()
        await asyncio.sleep(0.1)
        assert len(relay.throttle.told("plan")) == 2  # not even by the timer of the hold before
        assert broker.has_nothing()


class Carrier(FakeLink):
    """A link that holds a request."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def replan(self) -> None:
        self.told.append("replan")


async def test_many_wakes_in_a_moment_are_one_and_the_next_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plans every held fetch again: with hundreds of links that may not happen for every response."""
    held, carrier, loop = HeldFetches(), Carrier(), asyncio.get_running_loop()
    moment = loop.time()
    monkeypatch.setattr(loop, "time", lambda: moment)  # it stands still, however busy the machine is
    held.wake_soon()
    waits_for_budget(held, carrier)
    for _ in range(3):
        held.wake_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert carrier.told == ["replan"]
    for _ in range(3):
        held.wake_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert carrier.told == ["replan"]
    held.wake_now()
    assert carrier.told == ["replan"] * 2
    monkeypatch.undo()
    await asyncio.sleep(0.02)
    assert carrier.told == ["replan"] * 2  # the wake that was due came already


async def test_budget_that_flows_back_wakes_one_in_line_after_another() -> None:
    """It wakes the next in line, and when that one went the one after it."""
    line = ["b", "c"]
    held = HeldFetches(next_in_line=lambda: [*line[:1], "not held"])
    carriers = [Carrier() for _ in range(3)]
    for carrier, throttle in zip(carriers, "abc", strict=True):
        waits_for_budget(held, carrier, throttle)

    def go() -> None:
        held.wait(carriers[1], None)
        line.remove("b")

    carriers[1].replan = go  # type: ignore[method-assign]
    held.wake_soon()
    await asyncio.sleep(0.03)
    assert [carrier.told for carrier in carriers] == [[], [], ["replan"]]


async def test_link_that_waits_for_no_budget_wakes_nobody() -> None:
    """A request held for a client's limit is looked at five times a second: that frees nothing for replicas."""
    held, waits, looked_at = HeldFetches(), Carrier(), Carrier()
    waits_for_budget(held, waits)
    held.wake([looked_at])
    await asyncio.sleep(0.03)
    assert (looked_at.told, waits.told) == (["replan"], [])


def test_first_plan_is_told_apart_from_one_that_follows_at_once() -> None:
    """The throttle takes a request in when held_seconds is 0: that must be once."""
    link = Detached(Hold(FAR))
    held = link.deciding(fetch(1, 5))
    assert next(held) == outcomes.Wait(FAR, link.throttle)
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


async def test_held_fetch_is_decided_when_the_answer_before_has_gone() -> None:
    """Its client has not read that, and has more on its way with each fetch that it sends ahead."""
    asked = fetch(1, 5, topics=((b"t", ((0, 7, 10),)),))
    answer = fetch_response(1, topics=((b"t", ((0, 9, bytes(400_000)),)),))
    async with relaying() as relay:
        granted = partial(Forward, expected=Expected(admit=lambda *_: Passing.ALL, holds_all=True))
        relay.throttle.decisions += [granted, Forward]
        client, broker = await relay.connect(asked)
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
        await client.send(fetch(2, 5))
        await broker.send(answer)
        await relay.until(lambda: relay.throttle.told("settle"))
        await asyncio.sleep(0.05)
        assert len(relay.throttle.told("plan")) == 1
        await client.expect(answer)
        await broker.expect(fetch(2, 5))
        assert [call[1] for call in relay.throttle.told("plan")] == [1, 2]

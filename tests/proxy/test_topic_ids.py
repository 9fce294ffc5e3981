"""Learning the names of topic ids, from brokers that answer well, badly or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from protocol.metadata import NO_ID
from proxy import topic_ids
from proxy.address import Address
from proxy.config import parse_config
from proxy.log import EventLog
from proxy.topic_ids import FIRST_RETRY_SECONDS, TopicIdResolver, metadata_servers
from quota.topic_names import TopicNames
from tests.proxy.metadata_broker import MetadataBroker, Question, metadata_broker
from tests.quota.clock import ManualClock

ORDERS, ORDERS_AGAIN, PAYMENTS, STRANGER = (bytes([number]) * 16 for number in (1, 2, 3, 0xFF))
DEADLINE_SECONDS = 5.0


class Harness:
    """A resolver for throttled topic `orders`; its clock stands still unless it is moved."""

    def __init__(self, *servers: Address) -> None:
        self.clock = ManualClock()
        self.names = TopicNames(self.clock)
        self.throttled = {"orders"}
        self.changes = 0
        self.changed = asyncio.Event()
        self.resolver = TopicIdResolver(
            self.names, servers, lambda: self.throttled, self.on_change, EventLog(clock=self.clock), clock=self.clock
        )

    def on_change(self) -> None:
        self.changes += 1
        self.changed.set()

    async def asked_at(self, seconds: float) -> None:
        self.clock.now = seconds
        await self.resolver.resolve()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.resolver.run())
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what is waited for is a broker's list, or a connection
                await asyncio.sleep(0.001)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[MetadataBroker]:
    async with metadata_broker(topics={"orders": ORDERS, "payments": PAYMENTS}) as broker:
        yield broker


@pytest_asyncio.fixture
async def harness(broker: MetadataBroker) -> AsyncIterator[Harness]:
    harness = Harness(broker.address)
    yield harness
    harness.resolver._disconnect()


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if record.name == "weir"]


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    found: dict[str, object] = next(r for r in caplog.records if r.msg == event).__dict__["weir_fields"]
    return found


async def test_resolver_names_throttled_topics_before_they_are_fetched(
    broker: MetadataBroker, harness: Harness
) -> None:
    harness.throttled = {"orders", "not-there"}
    await harness.asked_at(0)
    assert broker.asked == [Question(["not-there", "orders"], [], may_create=False, version=12)]
    assert harness.names.name_of(ORDERS) == b"orders"
    assert harness.changes == 1


async def test_resolver_polls_throttled_topics_and_sees_one_created_again(
    broker: MetadataBroker, harness: Harness
) -> None:
    await harness.asked_at(0)
    await harness.asked_at(4.9)
    assert len(broker.asked) == 1
    await harness.asked_at(5)
    assert (len(broker.asked), harness.changes) == (2, 1)
    broker.topics["orders"] = ORDERS_AGAIN
    await harness.asked_at(10)
    assert harness.changes == 2
    assert harness.names.name_of(ORDERS_AGAIN) == b"orders"
    assert broker.connections == 1


async def test_resolver_learns_nothing_of_topics_without_an_id_or_with_an_error(
    broker: MetadataBroker, harness: Harness
) -> None:
    harness.throttled = {"orders", "payments"}
    broker.topics["orders"] = NO_ID  # a broker in ZooKeeper mode, at an older level than itself
    broker.errors["payments"] = 29  # TOPIC_AUTHORIZATION_FAILED
    await harness.asked_at(0)
    assert harness.changes == 0
    assert harness.names.name_of(NO_ID) is None
    assert harness.names.name_of(PAYMENTS) is None


async def test_resolver_without_a_throttle_asks_nothing_until_an_id_is_wanted(
    broker: MetadataBroker, harness: Harness
) -> None:
    harness.throttled = set()
    await harness.asked_at(0)
    assert broker.connections == 0
    harness.names.name_of(PAYMENTS)
    await harness.asked_at(0)
    assert broker.asked == [Question([], [PAYMENTS], may_create=False, version=12)]
    assert harness.names.name_of(PAYMENTS) == b"payments"


async def test_resolver_asks_one_question_for_several_misses_at_once(broker: MetadataBroker, harness: Harness) -> None:
    async with harness.running():
        await harness.until(lambda: len(broker.asked) == 1)
        harness.changed.clear()
        harness.names.name_of(PAYMENTS)
        harness.names.name_of(ORDERS_AGAIN)
        await harness.until(harness.changed.is_set)
        assert broker.asked[1:] == [Question([], [PAYMENTS, ORDERS_AGAIN], may_create=False, version=12)]
        assert harness.names.name_of(PAYMENTS) == b"payments"


async def test_resolver_asks_again_for_what_is_missed_while_a_slow_broker_answers(
    broker: MetadataBroker, harness: Harness
) -> None:
    harness.throttled = set()
    broker.released = asyncio.Event()
    async with harness.running():
        harness.names.name_of(ORDERS)
        await harness.until(lambda: len(broker.asked) == 1)
        harness.names.name_of(PAYMENTS)
        broker.released.set()
        await harness.until(lambda: harness.changes == 2)
        assert [question.topic_ids for question in broker.asked] == [[ORDERS], [PAYMENTS]]


async def test_resolver_asks_at_once_when_other_topics_are_throttled(broker: MetadataBroker, harness: Harness) -> None:
    async with harness.running():
        await harness.until(lambda: harness.changes == 1)
        harness.throttled = {"payments"}
        harness.resolver.wake()
        await harness.until(lambda: harness.changes == 2)  # the clock stands still: no poll is due
        assert [question.names for question in broker.asked] == [["orders"], ["payments"]]


async def test_resolver_woken_while_it_asks_asks_again(broker: MetadataBroker, harness: Harness) -> None:
    broker.released = asyncio.Event()
    async with harness.running():
        await harness.until(lambda: len(broker.asked) == 1)
        harness.throttled = {"payments"}
        harness.resolver.wake()
        broker.released.set()
        await harness.until(lambda: harness.changes == 2)


async def test_resolver_reports_an_id_that_the_cluster_does_not_know_and_asks_later_again(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.throttled = set()
    assert harness.names.name_of(STRANGER) is None
    for seconds in (0, 0.9, 1, 2.9, 3):
        await harness.asked_at(seconds)
    assert [question.topic_ids for question in broker.asked] == [[STRANGER]] * 3
    assert harness.names.unknown_count == 1
    assert events(caplog) == ["topic_id_unknown"]
    shown = fields(caplog, "topic_id_unknown")
    assert (shown["ids"], shown["count"]) == ("_____________________w", 1)  # as Kafka's Uuid writes it
    broker.topics["late"] = STRANGER
    await harness.asked_at(7)
    assert harness.names.name_of(STRANGER) == b"late"
    assert harness.names.unknown_count == 0


async def test_resolver_asks_again_for_an_unknown_id_without_another_miss(
    broker: MetadataBroker, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "_CHECK_SECONDS", 0.01)
    harness.names.name_of(STRANGER)
    async with harness.running():
        await harness.until(lambda: harness.changes == 1)
        broker.topics["late"] = STRANGER
        harness.clock.now = 1
        await harness.until(lambda: harness.changes == 2)
    assert harness.names.name_of(STRANGER) == b"late"


async def test_resolver_asks_in_questions_of_bounded_size(
    broker: MetadataBroker, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "TOPICS_PER_QUESTION", 2)
    harness.throttled = {"orders", "payments"}
    wanted = [bytes([number]) * 16 for number in (7, 8, 9)]
    for topic_id in wanted:
        harness.names.name_of(topic_id)
    await harness.asked_at(0)
    assert [(question.topic_ids, question.names) for question in broker.asked] == [
        (wanted[:2], []),
        (wanted[2:], ["orders"]),
        ([], ["payments"]),
    ]
    assert harness.names.name_of(ORDERS) == b"orders"
    assert harness.names.name_of(PAYMENTS) == b"payments"


@pytest.mark.parametrize("version", [10, 11])
async def test_resolver_of_a_broker_that_cannot_be_asked_by_id_asks_for_all(
    broker: MetadataBroker, harness: Harness, version: int
) -> None:
    broker.newest_metadata = version
    broker.topics["other"] = STRANGER
    await harness.asked_at(0)
    harness.names.name_of(PAYMENTS)
    await harness.asked_at(1)
    assert broker.asked == [
        Question(["orders"], [], may_create=False, version=version),
        Question(None, [], may_create=False, version=version),
    ]
    assert harness.names.name_of(PAYMENTS) == b"payments"
    assert harness.names.name_of(STRANGER) is None  # not wanted: a cluster may have more topics than are kept


async def test_resolver_of_a_broker_without_ids_asks_nothing_until_an_id_is_seen(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    broker.newest_metadata = 9
    await harness.asked_at(0)
    await harness.asked_at(5)
    assert (broker.asked, broker.connections) == ([], 1)
    assert events(caplog) == []
    harness.names.name_of(PAYMENTS)
    await harness.asked_at(5)
    assert broker.connections == 2
    assert fields(caplog, "topic_id_unknown")["reason"] == "the broker is older than topic ids"
    broker.newest_metadata = 12  # upgraded
    harness.clock.now = 6
    async with harness.running():
        await harness.until(lambda: harness.changes == 2)  # of payments, then at once of the throttled topic
    assert harness.names.name_of(PAYMENTS) == b"payments"
    assert harness.names.name_of(ORDERS) == b"orders"


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "larger than the limit of 33554432 bytes"),
        (bytes.fromhex("15030300020228"), "larger than the limit of 33554432 bytes"),  # a TLS alert
        (bytes.fromhex("ffffffff"), "a size of -1 bytes"),
        (bytes.fromhex("0000000a 00000063 0000 00000000"), "correlation id 99 where 0 was due"),
        (bytes.fromhex("0000000a 00000000 0000 00000001"), "1 elements cannot stand in 0 bytes"),
    ],
)
async def test_resolver_of_a_broker_that_answers_garbage_goes_on_and_recovers(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture, garbage: bytes, said: str
) -> None:
    broker.garbage = garbage
    await harness.asked_at(0)
    assert events(caplog) == ["topic_ids_not_asked"]
    assert said in str(fields(caplog, "topic_ids_not_asked")["error"])
    broker.garbage = None
    await harness.asked_at(0)
    assert harness.names.name_of(ORDERS) == b"orders"
    assert events(caplog) == ["topic_ids_not_asked", "topic_ids_recovered"]
    assert broker.connections == 2


async def test_resolver_gives_a_broker_that_does_not_answer_up_and_keeps_what_it_knows(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "QUESTION_TIMEOUT_SECONDS", 0.05)
    await harness.asked_at(0)
    broker.silent = True
    harness.names.name_of(PAYMENTS)
    await harness.asked_at(1)
    assert fields(caplog, "topic_ids_not_asked")["error"].args == (  # type: ignore[attr-defined]
        f"{broker.address}: no answer within 0.05 s",
    )
    assert harness.names.name_of(ORDERS) == b"orders"
    assert harness.names.wanted() == [PAYMENTS]  # nobody said that it is unknown
    broker.silent = False
    await harness.asked_at(1)
    assert harness.names.name_of(PAYMENTS) == b"payments"
    assert broker.connections == 2  # on the first an answer might come late, to another question


async def test_resolver_uses_a_new_connection_after_the_broker_closed_the_first(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.asked_at(0)
    broker.disconnect()
    connection = harness.resolver._connection
    assert connection is not None
    await harness.until(lambda: connection.closed)
    await harness.asked_at(5)
    assert (broker.connections, len(broker.asked)) == (2, 2)
    assert events(caplog) == []


async def test_resolver_asks_the_next_server_when_one_fails_and_stays_with_it(
    broker: MetadataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with metadata_broker(hangs_up=True) as bad:
        harness = Harness(bad.address, broker.address)
        await harness.asked_at(0)
        await harness.asked_at(5)
        harness.resolver._disconnect()
        assert (bad.connections, broker.connections, len(broker.asked)) == (1, 1, 2)
        assert events(caplog) == []


async def test_resolver_with_no_server_there_names_them_all_and_backs_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await pause(0)

    async with metadata_broker() as broker:
        gone = broker.address
    async with metadata_broker(hangs_up=True) as closes:
        harness = Harness(gone, closes.address)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            async with harness.running(), asyncio.timeout(DEADLINE_SECONDS):
                while len(waits) < 7:
                    harness.names.name_of(bytes([len(waits)]) * 16)  # a miss does not shorten the wait
                    await pause(0.001)
    assert waits[:7] == [FIRST_RETRY_SECONDS * factor for factor in (1, 2, 4, 8, 16, 20, 20)]
    assert str(fields(caplog, "topic_ids_not_asked")["error"]) == (
        f"{gone}: Connection refused; {closes.address}: closed the connection without an answer"
    )
    assert events(caplog) == ["topic_ids_not_asked"]


async def test_resolver_survives_a_bug_in_what_it_calls(
    broker: MetadataBroker, harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "FIRST_RETRY_SECONDS", 0.001)
    seen = []

    def changed() -> None:
        seen.append(harness.names.name_of(ORDERS))
        raise RuntimeError("a bug")

    harness.resolver._changed = changed
    async with harness.running():
        await harness.until(lambda: len(seen) == 1)
        harness.names.name_of(PAYMENTS)
        await harness.until(lambda: len(seen) == 2)
    assert "topic_ids_failed" in events(caplog)


ROUTES = """
broker_id = 1
{ingress}
[[egress]]
peer = 2
listen = "127.0.0.1:9092"
upstream = "127.0.0.1:9202"
[[egress]]
peer = 3
listen = "127.0.0.1:9093"
upstream = "127.0.0.1:9203"
{cluster}
"""
INGRESS = '[[ingress]]\nlisten = "127.0.0.1:9501"\nupstream = "127.0.0.1:9201"\n'
CLUSTER = '[cluster]\nbootstrap_servers = "127.0.0.1:9101,127.0.0.1:9102"\n'


@pytest.mark.parametrize(
    ("ingress", "cluster", "ports"),
    [
        (INGRESS, CLUSTER, [9101, 9102]),
        (INGRESS, "", [9201]),
        ("", "", [9202, 9203]),
    ],
)
def test_servers_are_the_bootstrap_servers_else_the_own_broker_else_the_peers(
    ingress: str, cluster: str, ports: list[int]
) -> None:
    config = parse_config(ROUTES.format(ingress=ingress, cluster=cluster))
    assert metadata_servers(config) == tuple(Address("127.0.0.1", port) for port in ports)

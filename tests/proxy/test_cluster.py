# SPDX-License-Identifier: Apache-2.0
"""The ISR poll, against a broker made of aiokafka's own codec."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.protocol.metadata import MetadataResponse_v5

from tests.fakes.servers import serving
from tests.proxy.answered import Answered
from tests.proxy.cluster_broker import Broker
from tests.proxy.loop_gaps import longest_gaps
from tests.proxy.watched import Watched, until
from weir.proxy.cluster import channel, topics
from weir.proxy.cluster.metadata import describe
from weir.proxy.cluster.topics import MIN_ISR_RETRY_SECONDS, MIN_ISR_SECONDS, in_sync_of
from weir.proxy.cluster.view import InSyncReplicas
from weir.proxy.config.address import Address


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    async with serving(broker.serve) as (broker.server, broker.port):
        yield broker


@pytest_asyncio.fixture
async def watched(broker: Broker) -> AsyncIterator[Watched]:
    watched = Watched(Address("127.0.0.1", broker.port), cluster="", poll_seconds=5.0)
    yield watched
    await watched.close()


ORDERS_IN_SYNC = {(b"orders", 0): frozenset({1, 2}), (b"orders", 1): frozenset({1})}


async def test_cluster_poll_publishes_the_isr_of_throttled_topics(broker: Broker, watched: Watched) -> None:
    await watched.poll()
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC]
    assert watched.polls("topics") == (1, 0)


@pytest.mark.parametrize("newest", [1, 5])
async def test_cluster_poll_publishes_the_brokers_hosts(newest: int, broker: Broker, watched: Watched) -> None:
    broker.newest_metadata = newest
    await watched.poll()
    assert [broker.host for broker in watched.view.brokers.values()] == ["127.0.0.1"]
    assert watched.told_of("in_sync")[-1]


async def test_cluster_poll_names_throttled_topics_and_creates_none(broker: Broker, watched: Watched) -> None:
    """It names no other topics, and one that is missing is not created."""
    watched.throttled = {"orders", "gone"}
    await watched.poll()
    assert broker.asked == [["gone", "orders"]]
    assert broker.may_create[-1] is False
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC]


async def test_cluster_poll_of_an_old_broker_names_no_topic(broker: Broker, watched: Watched) -> None:
    """Before Metadata v4 a name that is not there is created."""
    broker.newest_metadata = 1
    await watched.poll()
    assert broker.asked == [None]
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC]


async def test_cluster_poll_again_uses_the_same_connection(broker: Broker, watched: Watched) -> None:
    await watched.poll()
    await watched.poll()
    assert broker.asked == [["orders"], ["orders"]]


async def test_cluster_poll_without_throttled_topics_asks_nothing(broker: Broker, watched: Watched) -> None:
    watched.throttled = set()
    await watched.poll()
    assert broker.asked == []
    assert watched.told == []


async def test_cluster_partition_with_an_error_is_not_known(broker: Broker, watched: Watched) -> None:
    await watched.poll()
    broker.partition_error = 5
    await watched.poll()
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC, {}]


@pytest.mark.long
@pytest.mark.parametrize("topic_count", [1, 200])
async def test_cluster_of_20000_partitions_never_holds_the_loop(topic_count: int) -> None:
    """The longest step is a small part of all the work."""
    count = 20_000 // topic_count
    topics: list[tuple[Any, ...]] = [
        (0, f"topic-{number}", False, [(0, partition, 1, [1, 2, 3], [1, 2], []) for partition in range(count)])
        for number in range(topic_count)
    ]
    channel = Answered(MetadataResponse_v5(0, [(1, "127.0.0.1", 9092, None)], "cluster", 1, topics).encode())
    names = [name.encode() for _, name, *_ in topics]

    async def polled() -> InSyncReplicas:
        return await in_sync_of((await describe(channel, names, names)).topics, names, {})

    found = [await longest_gaps(polled()) for _ in range(3)]
    assert [len(known) for known, _ in found] == [20_000] * 3
    # About 140 ms of work; of all of it, as a slow machine takes longer for each. The best of three runs.
    assert min(gaps[0] / sum(gaps) for _, gaps in found) < 1 / 25


async def test_failing_cluster_publishes_nothing_and_is_asked_again(
    broker: Broker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is known then, rather than what was known before."""
    caplog.set_level(logging.INFO, "weir")
    await watched.poll()
    broker.broken = True
    await watched.poll()
    await watched.poll()
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC, {}]
    assert watched.polls("topics") == (1, 2)
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["cluster_poll_failed"]
    broker.broken = False
    await watched.poll()
    assert watched.told_of("in_sync")[-1] == ORDERS_IN_SYNC
    assert caplog.records[-1].msg == "cluster_poll_recovered"


@pytest.mark.long
async def test_silent_cluster_is_asked_again_on_a_new_connection(
    broker: Broker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the old one the answer might come late, to another question."""
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.5)
    await watched.poll()
    broker.silent = True
    await watched.poll()
    assert watched.polls("topics") == (1, 1)
    broker.silent = False
    await watched.poll()
    assert watched.polls("topics") == (2, 1)
    assert broker.connections == 2


async def test_cluster_with_no_server_there_fails_and_says_which(
    broker: Broker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    assert broker.server is not None
    broker.server.close()
    await broker.server.wait_closed()
    await watched.poll()
    assert watched.polls("topics") == (0, 1)
    failure = next(record for record in caplog.records if record.msg == "cluster_poll_failed")
    assert f"127.0.0.1:{broker.port}" in str(failure.__dict__["weir_fields"]["error"])


ONE_IN_SYNC = frozenset({(b"orders", 1)})


async def test_cluster_poll_publishes_partitions_under_min_isr(
    broker: Broker, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.throttled = {"orders", "payments", "gone"}
    await watched.poll()
    assert broker.configs_asked == [["gone", "orders", "payments"]]
    assert watched.told_of("under_min_isr") == [ONE_IN_SYNC]
    broker.min_isr["orders"] = "3"
    watched.throttled = {"orders"}  # other topics are throttled: asked for at once
    await watched.poll()
    assert watched.told_of("under_min_isr")[-1] == {(b"orders", 0), (b"orders", 1)}
    assert caplog.records == []  # that a throttled topic is not there is no fault


async def test_cluster_min_isr_is_asked_for_again_after_a_while(broker: Broker, watched: Watched) -> None:
    for seconds in (0, MIN_ISR_SECONDS - 1, MIN_ISR_SECONDS, 2 * MIN_ISR_SECONDS - 1):
        watched.clock.now = seconds
        await watched.poll()
        broker.min_isr["orders"] = "1"
    assert len(broker.configs_asked) == 2
    assert watched.told_of("under_min_isr") == [ONE_IN_SYNC, frozenset()]


async def test_cluster_min_isr_of_many_topics_takes_several_questions(
    broker: Broker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MIN_ISR_TOPICS_PER_QUESTION", 2)
    watched.throttled = {"a", "b", "orders", "payments", "z"}
    broker.min_isr["payments"] = "3"
    await watched.poll()
    assert broker.configs_asked == [["a", "b"], ["orders", "payments"], ["z"]]
    assert watched.told_of("under_min_isr") == [ONE_IN_SYNC | {(b"payments", 0)}]


@pytest.mark.parametrize(
    ("refusing", "said"),
    [
        ({"config_error": 29}, "TopicAuthorizationFailedError for 1 of 1 topics, as orders"),
        ({"newest_configs": 0}, "the broker has no version of DescribeConfigs that is known here"),
    ],
)
async def test_cluster_refusing_min_isr_tells_the_isr_and_warns_once(
    broker: Broker, watched: Watched, caplog: pytest.LogCaptureFixture, refusing: dict[str, Any], said: str
) -> None:
    for name, value in refusing.items():
        setattr(broker, name, value)
    for seconds in (0, 5, MIN_ISR_SECONDS):
        watched.clock.now = seconds
        await watched.poll()
    assert watched.told_of("in_sync") == [ORDERS_IN_SYNC]
    assert watched.view.under_min_isr == frozenset()
    assert watched.polls("topics") == (3, 0)
    assert broker.connections == 1
    (warned,) = (record for record in caplog.records if record.name == "weir")
    assert (warned.msg, str(warned.__dict__["weir_fields"]["error"])) == ("min_isr_refused", said)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["configs_silent", "configs_garbage"])
async def test_cluster_silent_on_min_isr_tells_isr_and_keeps_the_last(
    broker: Broker,
    watched: Watched,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """The partitions that were known to be under their min ISR stay so."""
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.5)
    await watched.poll()
    setattr(broker, fault, True)
    for seconds in (MIN_ISR_SECONDS, MIN_ISR_SECONDS + MIN_ISR_RETRY_SECONDS - 1):
        watched.clock.now = seconds
        await watched.poll()
    assert watched.view.in_sync == ORDERS_IN_SYNC
    assert watched.view.under_min_isr == ONE_IN_SYNC
    assert len(broker.configs_asked) == 2
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["min_isr_not_answered"]
    setattr(broker, fault, False)
    broker.min_isr["orders"] = "1"
    watched.clock.now = MIN_ISR_SECONDS + MIN_ISR_RETRY_SECONDS
    await watched.poll()
    assert watched.told_of("under_min_isr")[-1] == frozenset()


async def test_cluster_that_fails_leaves_no_partition_under_min_isr(broker: Broker, watched: Watched) -> None:
    await watched.poll()
    broker.broken = True
    await watched.poll()
    assert watched.told_of("under_min_isr") == [ONE_IN_SYNC, frozenset()]


async def test_cluster_run_goes_on_when_what_takes_the_isr_raises(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    taken = asyncio.Event()

    def take(name: str, value: object) -> None:
        if not caplog.records:
            raise RuntimeError("a bug")
        if name == "in_sync":
            taken.set()

    watched.take = take  # type: ignore[method-assign]
    async with watched.running(), asyncio.timeout(2):
        await until(lambda: bool(caplog.records))
        watched.client.ask_now()
        await taken.wait()
    assert caplog.records[0].msg == "cluster_poll_not_taken"


async def test_cluster_run_polls_at_once_when_woken(watched: Watched) -> None:
    async with watched.running():
        await until(lambda: bool(watched.view.in_sync))
        watched.throttled = {"payments"}
        watched.client.ask_now()  # the clock stands still: the next one by itself is never due
        await until(lambda: watched.told_of("in_sync")[-1] == {(b"payments", 0): frozenset({1, 3})})


@pytest.mark.parametrize("newest_metadata", [1, 5])
async def test_lagging_replicas_are_asked_for_too_without_topic_ids(
    broker: Broker, watched: Watched, newest_metadata: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 2 follows `orders`, broker 9 nothing; `deleted` is not there any more."""
    caplog.set_level(logging.INFO, "weir")
    broker.newest_metadata = newest_metadata
    watched.throttled = {"payments"}
    throttle = watched.throttle
    throttle.brokers.learn([2, 9])
    asker = throttle.lag.asker()
    asker.fetched(0.0)
    for replica, topic in ((2, b"orders"), (9, b"orders"), (2, b"deleted")):
        asker.topic(replica, topic).update(0, 10, 10, 0.0)
    asker.close()
    for _ in range(6):
        watched.clock.move(5.0)
        await watched.poll()
    assert [(row.replica, row.topic, row.lag_seconds) for row in throttle.lag.rows()] == [(2, b"orders", 0)]
    assert watched.told_of("in_sync")[-1] == {(b"payments", 0): frozenset({1, 3})}
    assert broker.asked[-1] == (["orders", "payments"] if newest_metadata == 5 else None)
    assert [record.msg for record in caplog.records if record.name == "weir"] == ["replicas_not_assigned"]

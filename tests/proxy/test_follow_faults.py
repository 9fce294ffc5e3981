# SPDX-License-Identifier: Apache-2.0
"""Following Kafka's own throttle while the cluster, a part of it, or what it tells is broken."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from tests.fakes.throttle_cluster import (
    CONFIGS,
    METADATA,
    MOVES,
    ThrottleCluster,
)
from tests.proxy.watched import DEADLINE_SECONDS, LISTS, Following, events, fields, listed, until
from weir.proxy.cluster import channel
from weir.proxy.cluster.follow import LISTS_PER_ROUND, TOPICS_SECONDS, ThrottlePoll
from weir.proxy.throttle.followed import RATE_KEPT_SECONDS
from weir.quota.settings import LEADER_RATE


async def test_cluster_away_at_the_start_is_followed_when_it_comes(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    for broker in cluster.brokers.values():
        await broker.stop()
    assert await following.round() == {}
    assert following.stats.throttle_read_at is None
    assert following.told == []
    assert events(caplog) == ["kafka_throttle_not_read"]
    assert str(fields(caplog, "kafka_throttle_not_read")["error"]).count("127.0.0.1:") == 2
    for broker in cluster.brokers.values():
        await broker.start()
    assert (await following.round())[LEADER_RATE] == 1000
    assert following.polls(ThrottlePoll.what) == (1, 1)
    assert events(caplog) == ["kafka_throttle_not_read", "kafka_throttle_read_again"]


async def test_cluster_that_goes_away_leaves_the_last_read_in_force(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    before = await following.round()
    read_at = following.stats.throttle_read_at
    for broker in cluster.brokers.values():
        await broker.stop()
    cluster.rates, cluster.moves = {1: {LEADER_RATE: "7"}}, {}
    for _ in range(20):
        assert await following.round() == before
    assert following.stats.throttle_read_at == read_at  # its age grows
    assert events(caplog) == ["kafka_throttle_not_read"] * 2
    assert fields(caplog, "kafka_throttle_not_read")["effect"] == "the throttle that was read last stays in force"
    told = sorted(name for name, _ in following.told if name != "brokers")
    assert told == ["moves", "racks", "throttle", "told_lists"]
    for broker in cluster.brokers.values():
        await broker.start()
    assert (await following.round())[LEADER_RATE] == 7
    assert [told.moves for told in following.told_of("moves")[1:]] == [{}]
    assert following.stats.throttle_read_at == following.clock()
    assert events(caplog)[2:] == ["kafka_throttle_read_again"]


async def test_broker_that_closes_between_rounds_is_connected_anew(
    cluster: ThrottleCluster, following: Following
) -> None:
    sizes = [0]
    for rate in range(1, 6):
        cluster.rates = {1: {LEADER_RATE: str(rate)}}
        for _ in range(5):
            await following.round()
            sizes.append(following.stats.bytes[ThrottlePoll.what])
        await cluster.brokers[1].stop()
        await cluster.brokers[1].start()
        await asyncio.sleep(0.01)
    assert following.in_force == {LEADER_RATE: 5, **listed("orders")}
    assert following.polls(ThrottlePoll.what) == (25, 0)
    assert all(later > earlier for earlier, later in pairwise(sizes))  # a counter never falls


@pytest.mark.parametrize("fault", ["away", "silent", "not the controller"])
async def test_failing_controller_leaves_no_rate_or_list_unfollowed(
    fault: str, cluster: ThrottleCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.1)
    cluster.only_controller_tells_moves = True
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    following = Following(cluster, servers=cluster.addresses(1, 2))
    await following.round()
    if fault == "away":
        await cluster.brokers[2].stop()
    elif fault == "silent":
        cluster.brokers[2].silent = {MOVES}
    else:
        cluster.controller = 1  # broker 2 says that it is it no more
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    cluster.lists["payments"] = dict(LISTS)
    assert await following.round() == {LEADER_RATE: 1000, **listed("orders"), **listed("payments")}
    assert following.polls(ThrottlePoll.what) == (1, 1)
    assert events(caplog) == ["kafka_throttle_not_read"]
    assert len(following.told_of("moves")) == 1  # what moves stays as it was told
    cluster.controller, cluster.moves = 1, {}
    await following.round()
    assert following.polls(ThrottlePoll.what) == (2, 1)
    assert [told.moves for told in following.told_of("moves")[1:]] == [{}]
    await following.close()


async def test_change_seen_before_a_fault_has_all_lists_read_after_it(
    cluster: ThrottleCluster, following: Following
) -> None:
    """More topics than one round's turn: a rate alone throttles nothing."""
    cluster.lists = {f"topic-{number:04}": {} for number in range(3 * LISTS_PER_ROUND)}
    await following.round()
    cluster.lists["topic-1499"] = dict(LISTS)
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    for broker in cluster.brokers.values():
        broker.garbage = {METADATA}  # it is asked for topics after the rates
    await following.round()
    assert following.polls(ThrottlePoll.what) == (1, 1)
    for broker in cluster.brokers.values():
        broker.garbage = set()
    assert await following.round() == {LEADER_RATE: 1000, **listed("topic-1499")}


async def test_brokers_that_list_no_moves_are_followed_and_told_once(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    for broker in cluster.brokers.values():
        del broker.versions[MOVES]
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    for _ in range(3):
        assert await following.round() == {LEADER_RATE: 1000, **listed("orders")}
    assert following.polls(ThrottlePoll.what) == (3, 0)
    assert events(caplog) == ["reassignments_not_listed"]


@pytest.mark.parametrize("versions", [None, (5, 9)])
async def test_broker_without_a_known_describe_configs_is_told_of(
    versions: tuple[int, int] | None,
    cluster: ThrottleCluster,
    following: Following,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before Kafka 0.11, or in a future one."""
    del cluster.brokers[1].versions[CONFIGS]
    if versions is not None:
        cluster.brokers[1].versions[CONFIGS] = versions
    assert await following.round() == {}
    assert fields(caplog, "kafka_throttle_not_read")["error"] == (
        "the broker has no version of DescribeConfigs that is known here"
    )
    assert following.polls(ThrottlePoll.what) == (0, 1)
    await following.round()
    assert cluster.brokers[1].connections == 1


async def test_broker_that_the_cluster_does_not_name_is_waited_for(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.unnamed = {1}
    cluster.racks = {2: "b"}
    assert await following.round() == {}
    assert fields(caplog, "kafka_throttle_not_read")["error"] == (
        "broker 1 is not among the brokers that the cluster names"
    )
    assert following.told_of("racks") == [{2: "b"}]
    cluster.unnamed = set()
    assert await following.round() == listed("orders")


async def test_broker_that_refuses_to_tell_its_rates_changes_nothing(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    before = await following.round()
    cluster.errors["1"] = 31
    assert await following.round(RATE_KEPT_SECONDS + 1) == before
    assert fields(caplog, "kafka_throttle_not_read")["error"] == "broker 1: ClusterAuthorizationFailedError"


@pytest.mark.parametrize("hanging", [CONFIGS, METADATA, MOVES])
async def test_hanging_broker_is_given_up(
    hanging: int, cluster: ThrottleCluster, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert channel.QUESTION_TIMEOUT_SECONDS == 5.0
    before = await following.round()
    monkeypatch.setattr(channel, "SOON_SECONDS", 0.02)
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.05)
    for broker in cluster.brokers.values():
        broker.silent = {hanging}
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await following.round(TOPICS_SECONDS) == before
    assert following.polls(ThrottlePoll.what) == (1, 1)
    monkeypatch.undo()  # what answers has the time that it takes
    for broker in cluster.brokers.values():
        broker.silent = set()
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    assert (await following.round())[LEADER_RATE] == 1000


async def test_server_that_hangs_is_asked_last_from_then_on(
    cluster: ThrottleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SOON_SECONDS", 0.05)
    cluster.controller = 1
    cluster.brokers[2].silent = {METADATA}
    following = Following(cluster)
    for _ in range(3):
        assert await following.round(TOPICS_SECONDS) == listed("orders")
    assert following.polls(ThrottlePoll.what) == (3, 0)
    assert cluster.brokers[2].asked.count(METADATA) == 1
    await following.close()


async def test_bug_in_one_receiver_keeps_nothing_from_others(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """The one with the bug is told again."""

    def broken(name: str, value: object) -> None:
        if name == "moves":
            raise RuntimeError("a bug")
        following.told.append((name, value))

    following.take = broken  # type: ignore[method-assign]
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    assert await following.round() == listed("orders")
    assert len(following.told_of("racks")) == len(following.told_of("throttle")) == 1
    assert fields(caplog, "cluster_poll_not_taken")["error"] == "RuntimeError('a bug')"
    del following.take
    await following.round()
    assert len(following.told_of("moves")) == 1


async def test_rate_that_is_no_number_changes_and_ends_nothing(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    before = await following.round()
    cluster.rates = {1: {LEADER_RATE: "fast"}}
    assert await following.round() == before
    assert "ValueError" in str(fields(caplog, "kafka_throttle_not_read")["error"])
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    assert (await following.round())[LEADER_RATE] == 1000


@pytest.mark.parametrize("state", ["never started", "nothing wanted", "connecting", "asking", "between two rounds"])
async def test_following_ends_in_every_state(state: str, cluster: ThrottleCluster) -> None:
    following = Following(cluster, None if state == "nothing wanted" else 1.0)
    if state == "connecting":
        cluster.brokers[2].silent = {18}
    elif state == "asking":
        cluster.brokers[1].silent = {CONFIGS}
    if state != "never started":
        following.client.start()
        await asyncio.sleep(0)
    if state == "connecting":
        await until(lambda: cluster.brokers[2].connections == 1)
    elif state == "asking":
        await until(lambda: CONFIGS in cluster.brokers[1].asked)
    elif state == "between two rounds":
        await until(lambda: following.polls(ThrottlePoll.what)[0] == 1)
    told = len(following.told_of("throttle"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await following.client.close()
        await following.client.close()
    assert len(following.told_of("throttle")) == told  # what is in force stays
    await until(lambda: not any(broker.writers for broker in cluster.brokers.values()))

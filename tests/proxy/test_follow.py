# SPDX-License-Identifier: Apache-2.0
"""How Kafka's own throttle, reassignments and racks are followed, against a made-up cluster."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fakes.throttle_cluster import (
    CONFIGS,
    METADATA,
    UNKNOWN_TOPIC,
    ThrottleCluster,
    throttle_cluster_aside,
)
from tests.proxy.loop_gaps import longest_gaps
from tests.proxy.watched import LISTS, Following, events, fields, listed, until
from weir.proxy.cluster import follow
from weir.proxy.cluster.follow import IDLE_LISTS_PER_ROUND, LISTS_PER_ROUND, TOPICS_SECONDS, ThrottlePoll
from weir.proxy.log import FAULT_INTERVAL_SECONDS
from weir.proxy.throttle.followed import LISTS_KEPT_SECONDS, NO_RATE, RATE_KEPT_SECONDS, Move
from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS


async def test_first_round_tells_the_throttle_racks_and_moves(cluster: ThrottleCluster, following: Following) -> None:
    cluster.rates = {1: {LEADER_RATE: "1000"}, 2: {LEADER_RATE: "7"}}
    cluster.racks = {1: "a"}
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    assert await following.round() == {LEADER_RATE: 1000, **listed("orders")}
    assert following.told_of("racks") == [{1: "a", 2: None}]
    moves = {"orders": {0: Move(frozenset({1, 2}), frozenset({2}))}}
    assert following.told_of("moves") == [(moves, following.clock())]
    assert following.stats.throttle_read_at == following.clock()
    assert following.polls(ThrottlePoll.what) == (1, 0)
    await following.round()
    told = sorted(name for name, _ in following.told if name != "brokers")
    assert told == ["moves", "moves", "racks", "throttle", "told_lists"]
    assert following.told_of("moves")[1] == (moves, following.clock())  # with each answer: when it was asked for
    cluster.moves = {}
    cluster.racks = {1: "b"}
    await following.round()
    assert following.told_of("moves")[2:] == [({}, following.clock())]
    assert following.told_of("racks")[1:] == [{1: "b", 2: None}]


@pytest.mark.parametrize("newest_configs", [1, 4])
async def test_own_rate_goes_before_the_clusters_default(
    newest_configs: int, cluster: ThrottleCluster, following: Following
) -> None:
    cluster.brokers[1].versions[CONFIGS] = (0, newest_configs)
    cluster.rates = {0: {LEADER_RATE: "5", FOLLOWER_RATE: "6"}, 1: {LEADER_RATE: "1000"}}
    assert await following.round() == {LEADER_RATE: 1000, FOLLOWER_RATE: 6, **listed("orders")}
    cluster.rates = {0: {LEADER_RATE: "5"}}
    assert (await following.round())[LEADER_RATE] == 5


@pytest.mark.parametrize("newest_configs", [0, 4])
async def test_rate_that_kafka_ignores_is_not_followed(
    newest_configs: int, cluster: ThrottleCluster, following: Following
) -> None:
    """One in server.properties (KAFKA-15204). Version 0 does not tell where a rate stands."""
    cluster.brokers[1].versions[CONFIGS] = (0, newest_configs)
    cluster.brokers[1].static = {LEADER_RATE}
    cluster.rates = {1: {LEADER_RATE: "5", FOLLOWER_RATE: "6"}}
    assert await following.round() == {**({FOLLOWER_RATE: 6} if newest_configs else {}), **listed("orders")}


async def test_largest_number_is_no_rate_and_keeps_the_default_off(
    cluster: ThrottleCluster, following: Following
) -> None:
    """As a broker's own rate it keeps the cluster's default from that broker."""
    cluster.rates = {0: {LEADER_RATE: "5", FOLLOWER_RATE: str(NO_RATE)}, 1: {LEADER_RATE: str(NO_RATE)}}
    assert await following.round() == listed("orders")


async def test_removed_rate_stays_for_five_seconds(cluster: ThrottleCluster, following: Following) -> None:
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    await following.round()
    cluster.rates = {}
    await following.round()
    assert (await following.round(RATE_KEPT_SECONDS - 0.1))[LEADER_RATE] == 1000
    assert await following.round(0.1) == listed("orders")


async def test_rate_removed_in_a_long_pause_stays_for_five_seconds(
    cluster: ThrottleCluster, following: Following
) -> None:
    """The process was stopped meanwhile. A tool may be between two batches of a move."""
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    await following.round()
    cluster.rates, cluster.moves = {}, {}
    assert (await following.round(3600.0))[LEADER_RATE] == 1000
    assert (await following.round(RATE_KEPT_SECONDS - 0.1))[LEADER_RATE] == 1000
    assert await following.round(0.1) == listed("orders")


@pytest.mark.parametrize("wrong", ["0:", "a:1", "0:1;1:1", "0:1:2"])
async def test_malformed_list_leaves_the_old_ones_and_is_logged_once(
    wrong: str, cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    cluster.lists["payments"] = {LEADER_REPLICAS: "1:1"}
    before = await following.round()
    cluster.lists["orders"] = {LEADER_REPLICAS: wrong}
    cluster.lists["payments"] = {LEADER_REPLICAS: "*"}
    assert await following.round() == {**before, f"payments.{LEADER_REPLICAS}": "*"}
    for _ in range(3):
        await following.round(FAULT_INTERVAL_SECONDS)
    assert events(caplog) == ["kafka_throttle_list_refused"]
    assert fields(caplog, "kafka_throttle_list_refused")["peer"] == "orders"
    assert following.polls(ThrottlePoll.what) == (5, 0)
    cluster.lists["orders"] = {}
    assert await following.round() == {f"payments.{LEADER_REPLICAS}": "*"}
    cluster.lists["orders"] = {LEADER_REPLICAS: wrong}
    await following.round(FAULT_INTERVAL_SECONDS)
    assert events(caplog) == ["kafka_throttle_list_refused"] * 2


async def test_malformed_list_among_many_topics_is_logged_once(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not logged again when its turn comes again."""
    cluster.lists = {f"topic-{number:04}": {} for number in range(2 * LISTS_PER_ROUND)}
    cluster.lists["topic-0003"] = {LEADER_REPLICAS: "wrong"}
    for _ in range(6):
        await following.round(FAULT_INTERVAL_SECONDS)
    assert events(caplog) == ["kafka_throttle_list_refused"]


async def test_malformed_list_of_a_topic_made_anew_is_logged_again(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    for exists in (True, False, True):
        cluster.lists = {"orders": {LEADER_REPLICAS: "wrong"}} if exists else {}
        await following.round(TOPICS_SECONDS)
    assert events(caplog) == ["kafka_throttle_list_refused"] * 2


@pytest.mark.parametrize("text", [None, "", "[]"])
async def test_list_that_is_empty_is_none(text: str | None, cluster: ThrottleCluster, following: Following) -> None:
    cluster.lists["orders"] = {LEADER_REPLICAS: text, FOLLOWER_REPLICAS: ""}
    assert await following.round() == {}


async def test_deleted_topics_lists_go_and_those_of_a_hidden_one_stay(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """A hidden topic is one that may not be seen."""
    cluster.lists["payments"] = dict(LISTS)
    await following.round()
    del cluster.lists["orders"]
    cluster.errors["payments"] = 29
    assert await following.round(TOPICS_SECONDS) == {**listed("orders"), **listed("payments")}
    assert await following.round(LISTS_KEPT_SECONDS) == listed("payments")
    assert fields(caplog, "kafka_throttle_list_refused")["error"] == "TopicAuthorizationFailedError"
    assert UNKNOWN_TOPIC not in cluster.errors.values()


async def test_topic_whose_lists_were_never_told_counts_as_listed(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a restart in mid-move: else the move would pass whole."""
    cluster.lists["payments"] = {}
    cluster.rates, cluster.errors = {1: {LEADER_RATE: "1000"}}, {"orders": 7}
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    assert await following.round() == {LEADER_RATE: 1000}
    assert following.view.told_lists == frozenset({b"payments"})
    assert "count as listed" in str(fields(caplog, "kafka_throttle_list_refused")["effect"])
    del cluster.errors["orders"]
    await following.round()
    assert following.view.told_lists == frozenset({b"payments", b"orders"})


async def test_topic_unknown_for_a_moment_keeps_its_lists(
    cluster: ThrottleCluster, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has just started knows no topic. The move would pass whole until it does."""
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    before = await following.round()
    lists = cluster.lists.pop("orders")
    cluster.lists["payments"] = {}
    for _ in range(4):
        assert await following.round(TOPICS_SECONDS) == before
    assert not events(caplog)
    cluster.lists["orders"] = lists
    assert await following.round(TOPICS_SECONDS) == before


async def test_rates_are_not_in_force_before_any_topic_is_known(cluster: ThrottleCluster, following: Following) -> None:
    """The server may have just started; until then nothing that is behind passes."""
    cluster.rates, lists = {1: {LEADER_RATE: "1000"}}, dict(cluster.lists)
    cluster.lists.clear()
    await following.round()
    assert following.told_of("throttle") == []
    cluster.lists |= lists
    assert await following.round() == {LEADER_RATE: 1000, **listed("orders")}


async def test_lists_of_many_topics_are_read_in_turns_or_all_at_once(
    cluster: ThrottleCluster, following: Following
) -> None:
    """Some are read in each round, and all when a rate changes."""
    topics = [f"topic-{number:04}" for number in range(2 * LISTS_PER_ROUND + 100)]
    cluster.lists = {topic: {} for topic in topics}
    cluster.lists[topics[7]] = dict(LISTS)

    async def asked() -> list[str]:
        cluster.forget_asked()
        await following.round()
        return [topic for some in cluster.brokers[1].lists_asked for topic in some]

    idle = IDLE_LISTS_PER_ROUND
    assert await asked() == topics[:idle]
    assert await asked() == [topics[7], *topics[idle : 2 * idle]]  # that one at each round
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    assert await asked() == topics
    assert max(len(some) for some in cluster.brokers[1].lists_asked) == follow.LISTS_PER_QUESTION
    assert len(await asked()) == LISTS_PER_ROUND
    cluster.moves = {topics[-1]: {0: ([1, 2], [2])}}
    assert await asked() == topics
    assert {topics[7], topics[-1]} <= set(await asked())  # what moves is read at each round


@pytest.mark.long
async def test_list_of_a_topic_behind_is_read_each_round_under_a_rate(
    cluster: ThrottleCluster, following: Following
) -> None:
    """A topic is behind while one of its replicas is."""
    topics = [f"topic-{number:04}" for number in range(3 * LISTS_PER_ROUND)]
    cluster.lists = {topic: {} for topic in topics}
    following.behind = frozenset({topics[-1], "new"})

    async def is_asked() -> bool:
        cluster.forget_asked()
        await following.round()
        asked = {topic for some in cluster.brokers[1].lists_asked for topic in some}
        return {topics[-1], "new"} <= asked

    assert not await is_asked()
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    assert [await is_asked() for _ in range(3)] == [True] * 3
    cluster.lists[topics[-1]] = dict(LISTS)
    assert await following.round() == {LEADER_RATE: 1000, **listed(topics[-1])}
    del cluster.lists[topics[-1]]


async def test_servers_are_asked_between_the_questions_for_many_lists(
    cluster: ThrottleCluster, following: Following
) -> None:
    """A fetch may wait for the name of its topic."""
    cluster.lists = {f"topic-{number:04}": {} for number in range(3 * follow.LISTS_PER_QUESTION)}
    await following.round()
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    cluster.forget_asked()
    following.throttled = {"orders"}
    following.client.ask_now()
    await following.round()
    asked = [*cluster.brokers[2].asked, *cluster.brokers[1].asked]
    assert asked.count(METADATA) == 2  # for all topics, as the rate has changed, and for the throttled one
    assert following.polls("topics") == (1, 0)


@pytest.mark.long
async def test_reading_many_lists_does_not_hold_the_event_loop() -> None:
    topics: dict[str, dict[str, str | None]] = {f"topic-{number:05}": {} for number in range(10_000)}
    topics |= {f"topic-{number:05}": dict(LISTS) for number in range(0, 10_000, 100)}
    longest = []
    with throttle_cluster_aside(lists=topics) as cluster:
        following = Following(cluster)
        for rate in range(1, 4):
            cluster.rates = {1: {LEADER_RATE: str(rate)}}  # all lists are read
            _, gaps = await longest_gaps(following.round())
            longest.append(gaps[0])
            assert len(following.in_force) == 201
        await following.close()
    assert min(longest) < 0.02  # the best of three, for a machine that does other work too


@pytest.mark.parametrize("part", [None, 1.0])
async def test_nothing_is_asked_as_long_as_nobody_wants_it(part: float | None, cluster: ThrottleCluster) -> None:
    following = Following(cluster, part)
    following.client.start()
    if part is None:
        for _ in range(20):
            await asyncio.sleep(0)
        following.client.ask_now()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [broker.connections for broker in cluster.brokers.values()] == [0, 0]
        following.wants_moves = True
        following.client.ask_now()
    await until(lambda: following.polls(ThrottlePoll.what)[0] == 1)
    assert (ThrottlePoll.what, "failed") in following.stats.polls or part is None
    await following.close()


async def test_standing_rates_alone_ask_only_for_moves_and_racks(cluster: ThrottleCluster) -> None:
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    cluster.racks = {1: "a", 2: "b"}
    cluster.moves = {"orders": {0: ([1, 2], [2])}}
    following = Following(cluster, None)
    assert await following.round() == {}
    assert following.told_of("racks") == [{1: "a", 2: "b"}]
    assert following.told_of("moves") == [({"orders": {0: Move(frozenset({1, 2}), frozenset({2}))}}, following.clock())]
    assert CONFIGS not in {*cluster.brokers[1].asked, *cluster.brokers[2].asked}
    assert following.stats.throttle_read_at is None  # Kafka's throttle is not followed
    await following.close()

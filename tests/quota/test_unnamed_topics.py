# SPDX-License-Identifier: Apache-2.0
"""What cannot be told yet, as of topic ids without names: throttled as far as it may be covered."""

from dataclasses import replace

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import mean_rate, worst_second
from tests.quota.sessions import BATCH, MB, TOPIC_ID, Cluster, cluster
from weir.protocol.metadata import NO_ID
from weir.quota.scopes import Ends, Matching, Reassigned, Recovering, Scope
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas
from weir.quota.topic_names import CLUSTER_METADATA_ID

ANSWER_SECONDS = 0.02  # until the metadata tells the name
EVERY = frozenset(range(10))
UNBOUNDED = 3 * MB  # bytes: less than the partitions of one cluster here return in one answer
THROTTLING_T = ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS})


def unnamed(rate: int, settings: ThrottleSettings | None = None, topic_id: bytes = TOPIC_ID) -> Cluster:
    """20 partitions behind of a topic that was made a moment ago."""
    made = cluster(rate, version=13, in_sync=0, settings=settings)
    made.throttles[0].topic_names._names.clear()
    if topic_id != TOPIC_ID:
        for _, partition in list(made.follower.offsets):
            made.leader.leader.logs[topic_id, partition] = made.leader.leader.logs.pop((TOPIC_ID, partition))
            made.follower.offsets[topic_id, partition] = made.follower.offsets.pop((TOPIC_ID, partition))
    return made


def learn(made: Cluster, name: bytes) -> None:
    made.throttles[0].topic_names.learn({TOPIC_ID: name})
    made.throttles[0].classify_anew()


def received_in(made: Cluster, seconds: float) -> int:
    made.follower.received.clear()
    made.follower.run(seconds)
    return sum(size for _, size in made.follower.received)


def test_topic_just_made_is_throttled_from_its_first_fetch() -> None:
    made = unnamed(MB)
    throttle, start = made.throttles[0], made.clock.now
    made.follower.run(ANSWER_SECONDS / 2)
    throttle.classify_anew()  # the name of another topic came
    made.follower.run(ANSWER_SECONDS / 2)
    (link,) = throttle.links
    assert TOPIC_ID in link.partitions  # its batches are told apart: none is cut
    learn(made, b"t")
    made.follower.run(5.0)
    assert worst_second(made.follower.received) <= 1.05 * MB + BATCH
    assert 0.95 <= mean_rate(made.follower.received, start, made.clock.now) / MB <= 1.02
    made.check()


@pytest.mark.parametrize("version", [7, 12, 13])
def test_topic_of_untold_lists_is_throttled_until_told(version: int) -> None:
    """A server that has just started does not know it yet, and its move would pass whole."""
    made = cluster(MB, version=version, in_sync=0, settings=ThrottleSettings(rate=MB))
    rules, start = made.throttles[0].rules, made.clock.now
    rules.set_told_lists(frozenset({b"other"}))
    made.follower.run(5.0)
    assert worst_second(made.follower.received) <= 1.05 * MB + BATCH
    assert 0.95 <= mean_rate(made.follower.received, start, made.clock.now) / MB <= 1.02
    rules.set_told_lists(frozenset({b"other", b"t"}))
    assert received_in(made, ANSWER_SECONDS) > UNBOUNDED
    made.check()


def test_unthrottled_topic_is_let_go_with_its_name() -> None:
    made = unnamed(MB)
    received_in(made, ANSWER_SECONDS)
    learn(made, b"other")
    assert received_in(made, ANSWER_SECONDS) > UNBOUNDED
    made.check()


@pytest.mark.parametrize("rate", [0, MB])
@pytest.mark.parametrize("has_its_name", [False, True], ids=["nobody answers", "at last"])
def test_an_id_is_throttled_for_as_long_as_it_has_no_name(rate: int, has_its_name: bool) -> None:
    """No server answers for a minute, say, while its sidecar has just started: a backlog would pass whole."""
    made = unnamed(rate)
    made.follower.run(10.0)
    assert worst_second(made.follower.received) <= 1.05 * rate + BATCH
    assert sum(size for _, size in made.follower.received) >= 0.9 * 10.0 * rate
    made.hops[0].link.close()
    made.hops[0].link = made.throttles[0].link(2)
    made.follower.epoch = 0
    assert received_in(made, 1.0) <= 1.05 * rate + 2 * BATCH  # on another connection: its name was asked for long ago
    if has_its_name:
        learn(made, b"other")
        assert received_in(made, 0.1) > UNBOUNDED
    made.check()


def test_what_is_in_sync_of_an_unnamed_id_is_not_held_back() -> None:
    """Who is in sync is told by offsets, not by names."""
    made = cluster(0, version=13, in_sync=4)
    names = made.throttles[0].topic_names
    names._names.clear()
    made.follower.run(5.0)
    written = made.clock.now
    for partition in range(4):
        made.leader.leader.logs[TOPIC_ID[::-1], partition].append(BATCH)
    made.follower.received.clear()
    made.follower.run(0.5)
    assert sum(size for at, size in made.follower.received if at < written + 0.2) == 4 * BATCH
    made.check()


LISTED = {"t": ThrottledReplicas.parse("0:1,3:1,5:2"), "u": ThrottledReplicas.parse("4:1")}
FOR_1 = frozenset({0, 3, 4})
OTHERS = QuotaSettings("topics", MB, Matching(topics=("t*",)))


@pytest.mark.parametrize(
    ("settings", "covered"),
    [
        (ThrottleSettings(rate=MB, replicas=LISTED), FOR_1),
        (ThrottleSettings(rate=MB, replicas={**LISTED, "v": ALL_REPLICAS}), EVERY),
        (ThrottleSettings(rate=None, replicas=LISTED), frozenset()),
        (ThrottleSettings(quotas=(OTHERS,)), EVERY),
        (ThrottleSettings(quotas=(replace(OTHERS, scope=Matching(frozenset({3}), topics=("t*",))),)), frozenset()),
        (ThrottleSettings(quotas=(replace(OTHERS, scope=Matching(frozenset({2}), topics=("t*",))),)), EVERY),
        (ThrottleSettings(quotas=(replace(OTHERS, scope=Matching(racks=frozenset({"b"}))),)), frozenset()),
        (ThrottleSettings(quotas=(QuotaSettings("reassignment", MB, Reassigned()),)), frozenset({7, 8})),
        (ThrottleSettings(quotas=(QuotaSettings("recovery", MB, Recovering()),)), EVERY),
    ],
    ids=["lists", "all of one", "no rate", "pattern", "other peer", "peer", "other rack", "reassignment", "recovery"],
)
def test_unnamed_id_is_throttled_as_far_as_any_list_may_cover(
    settings: ThrottleSettings, covered: frozenset[int]
) -> None:
    """A pattern of a quota may cover it as well."""
    throttle = Throttle("leader", 1, MovedClock(), settings)
    throttle.rules.set_racks({2: "a"})
    throttle.rules.set_adding_replicas({b"x": {7: frozenset({2}), 9: frozenset({3})}, b"y": {8: frozenset({2, 4})}})
    throttled = throttle.rules.throttled_partitions(throttle.rules.coverage(None, TOPIC_ID, Ends(2, 2)))
    assert {partition for partition in EVERY if partition in throttled} == covered


@pytest.mark.parametrize(
    ("scope", "told"),
    [(Reassigned(), "adding"), (Matching(racks=frozenset({"b"})), "racks")],
    ids=["reassignment", "racks"],
)
def test_what_the_cluster_has_not_told_counts_as_covered(scope: Scope, told: str) -> None:
    throttle = Throttle("leader", 1, MovedClock(), ThrottleSettings(quotas=(QuotaSettings("one", MB, scope),)))
    ends = Ends(2, 2)
    assert 0 in throttle.rules.throttled_partitions(throttle.rules.coverage(b"t", NO_ID, ends))
    assert [what for what, is_lacking in throttle.rules.untold().items() if is_lacking] == [
        {"adding": "reassignments", "racks": "racks"}[told]
    ]
    throttle.set_under_min_isr(frozenset({(b"t", 0)}))
    assert (0 in throttle.rules.throttled_partitions(throttle.rules.coverage(b"t", NO_ID, ends))) == (told == "racks")
    if told == "adding":
        throttle.rules.set_adding_replicas({})
    else:
        throttle.rules.set_racks({3: "a"})  # broker 2 has just come
        assert 0 in throttle.rules.throttled_partitions(throttle.rules.coverage(b"t", NO_ID, ends))
        throttle.rules.set_racks({2: None, 3: "a"})
    assert 1 not in throttle.rules.throttled_partitions(throttle.rules.coverage(b"t", NO_ID, ends))
    assert not any(throttle.rules.untold().values())


@pytest.mark.parametrize(
    ("settings", "topic_id"),
    [
        (ThrottleSettings(rate=MB), TOPIC_ID),
        (ThrottleSettings(replicas={"t": ALL_REPLICAS}), TOPIC_ID),
        (THROTTLING_T, CLUSTER_METADATA_ID),
        (ThrottleSettings(quotas=(QuotaSettings("recovery", 0, Recovering()),)), CLUSTER_METADATA_ID),
        (ThrottleSettings(quotas=(QuotaSettings("links", 0, Matching(peers=frozenset({2}))),)), CLUSTER_METADATA_ID),
    ],
    ids=["no topics", "no rate", "cluster metadata", "cluster metadata, recovery", "cluster metadata, links"],
)
def test_id_is_free_where_all_is_and_so_is_the_clusters_own(settings: ThrottleSettings, topic_id: bytes) -> None:
    """An id is not throttled where nothing else is, nor is that of the cluster's metadata log."""
    made = unnamed(MB, settings, topic_id)
    assert received_in(made, ANSWER_SECONDS) > UNBOUNDED
    assert set(made.throttles[0].stats.replication_bytes) == {(2, False)}


def test_what_is_behind_of_an_id_is_shown_by_id_then_by_name() -> None:
    """Else what the id was behind would be shown until it expires, long after its replica is in sync."""
    made = unnamed(MB)
    throttle = made.throttles[0]
    made.follower.run(0.05)
    behind = throttle.lag.sum_messages()
    assert behind > 0
    assert {row.topic for row in throttle.lag.rows()} == {b"AAECAwQFBgcICQoLDA0ODw"}  # as kafka-topics prints it
    learn(made, b"t")
    made.follower.fetch()
    assert {row.topic for row in throttle.lag.rows()} == {b"t"}
    assert 0 < throttle.lag.sum_messages() <= behind

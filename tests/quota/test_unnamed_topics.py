"""Topic ids whose names are not known: throttled while the name is on its way, and not a moment longer."""

import pytest

from tests.fakes.conversation import mean_rate, worst_second
from tests.quota.test_fetch_sessions import BATCH, MB, TOPIC_ID, Cluster, cluster
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.scopes import Ends, Matching, Recovering
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS
from weir.quota.topic_names import CLUSTER_METADATA_ID

ANSWER_SECONDS = 0.02  # until the metadata tells the name
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
    made.throttles[0].topic_names_changed()


def received_in(made: Cluster, seconds: float) -> int:
    made.follower.received.clear()
    made.follower.run(seconds)
    return sum(size for _, size in made.follower.received)


def test_a_topic_that_was_made_a_moment_ago_is_throttled_from_its_first_fetch_on() -> None:
    made = unnamed(MB)
    throttle, start = made.throttles[0], made.clock.now
    made.follower.run(ANSWER_SECONDS / 2)
    throttle.topic_names_changed()  # the name of another topic came
    made.follower.run(ANSWER_SECONDS / 2)
    assert TOPIC_ID in throttle.walked_topics(Ends(2, 2), by_id=True)  # its batches are told apart, so that none is cut
    learn(made, b"t")
    made.follower.run(5.0)
    assert worst_second(made.follower.received) <= 1.05 * MB + BATCH
    assert 0.95 <= mean_rate(made.follower.received, start, made.clock.now) / MB <= 1.02
    made.check()


def test_a_topic_that_turns_out_not_to_be_throttled_is_let_go_with_its_name() -> None:
    made = unnamed(MB)
    received_in(made, ANSWER_SECONDS)
    learn(made, b"other")
    assert received_in(made, ANSWER_SECONDS) > UNBOUNDED
    made.check()


@pytest.mark.parametrize("rate", [0, MB])
def test_an_id_that_gets_no_name_is_throttled_for_no_more_than_a_second(rate: int) -> None:
    made = unnamed(rate)
    start = made.clock.now
    made.follower.run(1.02)
    assert sum(size for at, size in made.follower.received if at < start + 1) <= 1.05 * rate + BATCH
    assert received_in(made, 0.05) > UNBOUNDED
    made.hops[0].link.close()
    made.hops[0].link = made.throttles[0].link(2)
    made.follower.epoch = 0
    assert received_in(made, 0.01) > UNBOUNDED  # on another connection: its name was asked for long ago
    made.check()


def test_a_fetch_of_unnamed_ids_alone_is_held_for_no_more_than_a_second() -> None:
    """Though its follower would wait for longer."""
    made = unnamed(0)
    link, start = made.hops[0].link, made.clock.now
    made.follower.fetch()
    request = made.follower.request().with_(max_wait_ms=10_000)
    decision = link.plan(request)
    while isinstance(decision, Hold):
        made.clock.now = decision.until
        decision = link.plan(request, made.clock.now - start)
    assert made.clock.now == pytest.approx(start + 1.0)
    assert isinstance(decision, Forward)
    assert len(decision.request.topics[0].entries) // decision.request.topics[0].stride == len(made.follower.offsets)


def test_a_fetch_does_not_wait_for_a_name_that_only_a_quota_which_observes_needs() -> None:
    limiting = QuotaSettings("recovery", 0, Recovering())
    observing = QuotaSettings("topics", MB, Matching(topics=("*",)), is_observed=True)
    until: list[float] = []
    for quotas in ((limiting,), (limiting, observing)):
        made = unnamed(0, ThrottleSettings(quotas=quotas))
        made.follower.fetch()  # the offset probe of the connection
        decision = made.hops[0].link.plan(made.follower.request().with_(max_wait_ms=5_000))
        assert isinstance(decision, Hold)
        until.append(decision.until - made.clock.now)
    assert until[1] == pytest.approx(until[0])


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
def test_an_id_is_not_throttled_where_nothing_else_is_nor_that_of_the_cluster(
    settings: ThrottleSettings, topic_id: bytes
) -> None:
    made = unnamed(MB, settings, topic_id)
    assert received_in(made, ANSWER_SECONDS) > UNBOUNDED
    assert set(made.throttles[0].stats.replication_bytes) == {(2, False)}


def test_what_is_behind_of_an_id_is_shown_under_the_id_and_then_under_its_name() -> None:
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

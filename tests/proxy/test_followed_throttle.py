# SPDX-License-Identifier: Apache-2.0
"""Kafka's own throttle, followed: what is in force of it, also where tools remove it too early."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from weir.proxy.layers import Layer, Path, Value
from weir.proxy.throttle.followed import LISTS_KEPT_SECONDS, NO_RATE, RATE_KEPT_SECONDS, FollowedThrottle, Move, Moves
from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas

MOVES: Moves = {"orders": {0: Move(frozenset({1, 2, 4}), frozenset({4}))}}


def listed(text: str) -> ThrottledReplicas:
    return ThrottledReplicas.parse(text)


def in_force(followed: FollowedThrottle) -> dict[Path, Value | None]:
    return {path: entry.value for path, entry in followed.layer().entries.items()}


def test_rates_and_lists_of_kafka_are_in_force() -> None:
    followed = FollowedThrottle()
    assert followed.take_rates({LEADER_RATE: 1000, FOLLOWER_RATE: NO_RATE}, 0.0)
    followed.take_lists({"orders": {LEADER_REPLICAS: listed("0:1")}, "payments": {}})
    assert in_force(followed) == {(LEADER_RATE,): 1000, ("topics", "orders", LEADER_REPLICAS): listed("0:1")}
    assert not followed.take_rates({LEADER_RATE: 1000}, 1.0)
    assert followed.take_rates({LEADER_RATE: 10}, 2.0)


def test_layer_is_the_same_object_until_it_says_something_else() -> None:
    followed = FollowedThrottle()
    followed.take_lists({"orders": {LEADER_REPLICAS: listed("0:1")}})
    layer = followed.layer()
    followed.take_moves(MOVES, 0.0)
    assert followed.layer() is layer
    followed.take_lists({"orders": {}})
    assert followed.layer() is layer  # it moves
    followed.take_moves({}, 1.0)
    assert followed.layer() is not layer


def test_part_of_a_rate_is_kept_to_and_0_stays_0() -> None:
    followed = FollowedThrottle(0.95)
    followed.take_rates({LEADER_RATE: 1000, FOLLOWER_RATE: 0}, 0.0)
    assert in_force(followed) == {(LEADER_RATE,): 950, (FOLLOWER_RATE,): 0}


def test_list_deleted_in_mid_move_keeps_that_moves_replicas() -> None:
    """As an operator does that reconciles topics: strimzi-kafka-operator #9972."""
    followed = FollowedThrottle()
    followed.take_lists({"orders": {LEADER_REPLICAS: listed("0:1,0:2,1:1"), FOLLOWER_REPLICAS: listed("0:4,1:4")}})
    followed.take_moves(MOVES, 0.0)
    followed.take_lists({"orders": {}})
    assert in_force(followed) == {
        ("topics", "orders", LEADER_REPLICAS): listed("0:1,0:2"),
        ("topics", "orders", FOLLOWER_REPLICAS): listed("0:4"),
    }
    followed.take_moves({}, 1.0)
    assert in_force(followed) == {}


def test_list_of_all_deleted_in_mid_move_keeps_all_of_the_move() -> None:
    """A list of every replica (`*`) keeps all replicas of that move."""
    followed = FollowedThrottle()
    followed.take_moves(MOVES, 0.0)
    followed.take_lists({"orders": {LEADER_REPLICAS: ALL_REPLICAS}})
    assert in_force(followed) == {("topics", "orders", LEADER_REPLICAS): ALL_REPLICAS}
    followed.take_lists({"orders": {}})
    assert in_force(followed) == {("topics", "orders", LEADER_REPLICAS): listed("0:1,0:2,0:4")}


def test_move_that_never_had_a_list_is_not_throttled() -> None:
    followed = FollowedThrottle()
    followed.take_moves(MOVES, 0.0)
    followed.take_lists({"orders": {}})
    assert in_force(followed) == {}


def test_removed_rate_stays_until_nothing_moved_for_5_seconds() -> None:
    followed = FollowedThrottle()
    followed.take_rates({LEADER_RATE: 1000}, 0.0)
    followed.take_moves(MOVES, 10.0)
    followed.take_rates({}, 11.0)
    followed.take_moves(MOVES, 60.0)
    assert in_force(followed) == {(LEADER_RATE,): 1000}
    followed.take_moves({}, 61.0)
    followed.take_rates({}, 60.0 + RATE_KEPT_SECONDS - 0.1)
    assert in_force(followed) == {(LEADER_RATE,): 1000}
    followed.take_rates({}, 60.0 + RATE_KEPT_SECONDS)
    assert in_force(followed) == {}


def test_rate_removed_between_batches_of_a_move_is_never_lost() -> None:
    followed = FollowedThrottle()
    followed.take_rates({LEADER_RATE: 1000}, 0.0)
    for batch in range(3):
        at = batch * 10.0
        followed.take_moves(MOVES, at)
        followed.take_rates({}, at + 5.0)
        followed.take_moves({}, at + 6.0)
        assert in_force(followed) == {(LEADER_RATE,): 1000}
        followed.take_rates({LEADER_RATE: 1000}, at + 9.0)


def test_rate_lowered_in_mid_move_is_in_force_at_once() -> None:
    followed = FollowedThrottle()
    followed.take_rates({LEADER_RATE: 1000}, 0.0)
    followed.take_moves(MOVES, 0.0)
    followed.take_rates({LEADER_RATE: 10}, 1.0)
    assert in_force(followed) == {(LEADER_RATE,): 10}


def test_what_is_in_force_is_made_anew_only_after_a_change() -> None:
    """It is asked for each second, and may hold the lists of thousands of topics."""
    followed = FollowedThrottle()

    def told(rate: int, text: str, moves: Moves, now: float) -> Layer:
        followed.take_rates({LEADER_RATE: rate}, now)
        followed.take_moves(moves, now)
        followed.take_lists({"orders": {LEADER_REPLICAS: listed(text)}})
        return followed.layer()

    first = told(1000, "0:1", {}, 0.0)
    assert told(1000, "0:1", {}, 1.0) is first
    second = told(1000, "0:1,0:2", MOVES, 2.0)
    assert told(1000, "0:1,0:2", MOVES, 3.0) is second is not first
    third = told(2000, "0:1,0:2", MOVES, 4.0)
    assert third != second
    followed.forget_topics(set(), 5.0)
    followed.forget_topics(set(), 5.0 + LISTS_KEPT_SECONDS)
    followed.take_moves({}, 5.0)
    assert in_force(followed) == {(LEADER_RATE,): 2000}
    followed.take_rates({}, 6.0)
    followed.take_rates({}, 6.0 + RATE_KEPT_SECONDS)
    assert in_force(followed) == {}


def test_deleted_topics_have_no_list() -> None:
    followed = FollowedThrottle()
    followed.take_lists({"orders": {LEADER_REPLICAS: ALL_REPLICAS}})
    followed.forget_topics({"payments"}, 5.0)
    assert followed.told == {b"orders"}
    followed.forget_topics({"payments"}, 5.0 + LISTS_KEPT_SECONDS)
    assert in_force(followed) == {}
    assert not followed.told


TOPICS = ("a", "b")
REPLICAS = st.sampled_from([listed(text) for text in ("", "0:1", "0:1,0:4,1:2", "1:4", "*")])


@dataclass(frozen=True)
class Rate:
    value: int | None


@dataclass(frozen=True)
class Told:
    topic: str
    replicas: ThrottledReplicas


@dataclass(frozen=True)
class Moving:
    keys: frozenset[tuple[str, int]]


STEPS = st.lists(
    st.one_of(
        st.builds(Rate, st.sampled_from([None, 5, 7])),
        st.builds(Told, st.sampled_from(TOPICS), REPLICAS),
        st.builds(Moving, st.frozensets(st.tuples(st.sampled_from(TOPICS), st.sampled_from([0, 1])))),
        st.sampled_from([0.5, 3.0, 6.0]),  # seconds that pass
    ),
    max_size=30,
)


def drawn_moves(keys: frozenset[tuple[str, int]]) -> dict[str, dict[int, Move]]:
    moves: dict[str, dict[int, Move]] = {}
    for topic, partition in keys:
        moves.setdefault(topic, {})[partition] = Move(frozenset({1, 2, 4}), frozenset({4}))
    return moves


@given(STEPS)
def test_what_is_told_holds_and_what_moves_keeps_what_it_had(
    steps: list[Rate | Told | Moving | float],
) -> None:
    """The oracle keeps every pair that was listed while its partition moved, and drops it when the move ends."""
    followed, now = FollowedThrottle(), 0.0
    told: dict[str, ThrottledReplicas] = {}
    kept: set[tuple[str, int, int]] = set()
    moving: frozenset[tuple[str, int]] = frozenset()
    rate: int | None = None
    in_kafka, removed_at, moved_at = False, -100.0, -100.0
    for step in steps:
        if isinstance(step, float):
            now += step
        elif isinstance(step, Rate):
            if step.value is None and in_kafka:
                removed_at = now
            rate, in_kafka = (rate, False) if step.value is None else (step.value, True)
        elif isinstance(step, Told):
            told[step.topic] = step.replicas
            followed.take_lists({step.topic: {LEADER_REPLICAS: step.replicas}})
        else:
            moving = step.keys
            moved_at = now if moving else moved_at
            followed.take_moves(drawn_moves(moving), now)
        pairs = [(topic, partition, broker) for topic in TOPICS for partition in (0, 1) for broker in (1, 2, 4)]
        listed_now = {pair for pair in pairs if covers(told.get(pair[0]), *pair[1:])}
        kept = {pair for pair in kept | listed_now if pair[:2] in moving}
        followed.take_rates({LEADER_RATE: rate} if in_kafka and rate is not None else {}, now)
        if not in_kafka and now >= max(removed_at, moved_at) + RATE_KEPT_SECONDS:
            rate = None
        found = in_force(followed)
        assert found.get((LEADER_RATE,)) == rate
        for topic, partition, broker in pairs:
            replicas = found.get(("topics", topic, LEADER_REPLICAS))
            assert replicas is None or isinstance(replicas, ThrottledReplicas)
            expected = (topic, partition, broker) in listed_now | kept
            assert covers(replicas, partition, broker) == expected


def covers(replicas: ThrottledReplicas | None, partition: int, broker: int) -> bool:
    partitions: Container[int] | None = frozenset() if replicas is None else replicas.partitions_of(broker)
    return partitions is None or partition in partitions

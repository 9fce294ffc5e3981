# SPDX-License-Identifier: Apache-2.0
"""What is set for a move and put back after it, on settings that others change meanwhile."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.move_cluster import make
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.planning.assignment import Partition, PartitionMove, Reassignment, planned_moves
from weir.planning.move_throttle import (
    DISK_RATE,
    Claims,
    ConfigChange,
    RateClaim,
    Standing,
    Wanted,
    changes_to_set,
    claims_by_the_plan,
    claims_for,
    emptied_lists,
    put_back,
    rated_anew,
    wanted_throttle,
)

FOO_0, FOO_1 = Partition("foo", 0), Partition("foo", 1)


class Settings:
    """The settings of a cluster."""

    def __init__(self, brokers: tuple[int, ...] = (0, 1, 2, 3), topics: tuple[str, ...] = ("foo", "bar")) -> None:
        self.rates: dict[int, dict[str, str]] = {broker: {} for broker in brokers}
        self.lists: dict[str, dict[str, str]] = {topic: {} for topic in topics}

    @property
    def standing(self) -> Standing:
        return Standing(
            {broker: dict(rates) for broker, rates in self.rates.items()},
            {topic: dict(lists) for topic, lists in self.lists.items()},
        )

    def change(self, *changes: ConfigChange) -> None:
        for change in changes:
            make(change, self.rates[int(change.name)] if change.kind == "broker" else self.lists[change.name])

    def begin(self, moves: Mapping[Partition, PartitionMove], rate: int, earlier: Claims | None = None) -> Claims:
        claims = claims_for(wanted_throttle(moves, rate), self.standing, earlier or Claims())
        self.change(*changes_to_set(claims, self.standing))
        return claims

    def end(self, claims: Claims, under_way: Mapping[Partition, Reassignment] | None = None) -> tuple[Any, ...]:
        found = put_back(claims, self.standing, under_way=under_way)
        self.change(*found.changes)
        self.change(*emptied_lists(claims, self.standing))
        return found.left


def move(sources: set[int], destinations: set[int]) -> PartitionMove:
    return PartitionMove(frozenset(sources), frozenset(destinations))


def test_throttled_are_old_replicas_as_leaders_new_as_followers() -> None:
    """ReassignPartitionsUnitTest.testMoveMap: some move already, to the same, other, fewer or more brokers."""
    under_way = {
        Partition("foo", 0): Reassignment((1, 2, 3, 4), (4,), (3,)),
        Partition("foo", 1): Reassignment((4, 5, 6, 7, 8), (7, 8), (4, 5)),
        **{Partition("foo", number): Reassignment((1, 2, 3, 4), (3, 4), (1, 2)) for number in (2, 3, 4, 5)},
    }
    current = {partition: reassignment.replicas for partition, reassignment in under_way.items()}
    current |= {Partition("bar", 0): (2, 3, 4), Partition("baz", 0): (1, 2, 3)}
    proposed = {
        Partition("foo", 0): (1, 2, 5),
        Partition("foo", 2): (3, 4),
        Partition("foo", 3): (5, 6),
        Partition("foo", 4): (3,),
        Partition("foo", 5): (3, 4, 5, 6),
        Partition("bar", 0): (1, 2, 3),
    }
    moves = planned_moves(proposed, current, under_way)
    assert moves[Partition("foo", 0)] == move({1, 2, 3}, {5})
    assert moves[Partition("foo", 2)] == move({1, 2}, {3, 4})
    assert moves[Partition("foo", 3)] == move({1, 2}, {5, 6})
    assert moves[Partition("foo", 4)] == move({1, 2}, {3})
    assert moves[Partition("foo", 5)] == move({1, 2}, {3, 4, 5, 6})
    assert moves[Partition("bar", 0)] == move({2, 3, 4}, {1})
    wanted = wanted_throttle(moves, 1000)
    assert wanted.lists["bar", LEADER_REPLICAS] == {"0:2", "0:3", "0:4"}
    assert wanted.lists["bar", FOLLOWER_REPLICAS] == {"0:1"}
    followers = "0:5 2:3 2:4 3:5 3:6 4:3 5:3 5:4 5:5 5:6"
    assert wanted.lists["foo", FOLLOWER_REPLICAS] == set(followers.split())
    leaders = "0:1 0:2 0:3 2:1 2:2 3:1 3:2 4:1 4:2 5:1 5:2"
    assert wanted.lists["foo", LEADER_REPLICAS] == set(leaders.split())
    assert {broker for broker, _ in wanted.rates} == {1, 2, 3, 4, 5, 6}
    assert under_way[Partition("foo", 1)].target == (6, 7, 8)


def test_partition_that_only_loses_a_replica_is_not_throttled() -> None:
    assert wanted_throttle({FOO_0: move({1, 2}, set())}, 1000) == Wanted({}, {})


def test_throttle_of_log_directories_is_of_their_brokers_alone() -> None:
    """ReassignPartitionsUnitTest.testModifyLogDirThrottle."""
    assert wanted_throttle({FOO_0: move({1}, {2})}, None, [3], 2000) == Wanted({(3, DISK_RATE): 2000}, {})


def test_throttle_is_set_where_none_stood_and_none_is_left() -> None:
    """ReplicationThrottleHelperTest.testAddingThrottlesWithNoPreExistingThrottles."""
    settings = Settings()
    claims = settings.begin({FOO_0: move({0, 1}, {2})}, 100)
    assert settings.rates == {
        **{broker: {LEADER_RATE: "100", FOLLOWER_RATE: "100"} for broker in (0, 1, 2)},
        3: {},  # takes no part
    }
    assert settings.lists == {"foo": {LEADER_REPLICAS: "0:0,0:1", FOLLOWER_REPLICAS: "0:2"}, "bar": {}}
    assert settings.end(claims) == ()
    assert settings.standing == Settings().standing


def test_entries_are_merged_and_what_stood_before_comes_back() -> None:
    """ReplicationThrottleHelperTest.testAddingThrottlesWithPreExistingThrottles; there the rates are lost."""
    settings = Settings()
    settings.rates[0] = {LEADER_RATE: "200", FOLLOWER_RATE: "100"}
    settings.lists["foo"] = {LEADER_REPLICAS: "1:0,1:1", FOLLOWER_REPLICAS: "1:0,1:1"}
    settings.lists["bar"] = {LEADER_REPLICAS: "1:1"}
    before = settings.standing
    claims = settings.begin({FOO_0: move({0, 1}, {2})}, 100)
    assert settings.rates[0] == {LEADER_RATE: "100", FOLLOWER_RATE: "100"}
    assert settings.lists["foo"] == {LEADER_REPLICAS: "1:0,1:1,0:0,0:1", FOLLOWER_REPLICAS: "1:0,1:1,0:2"}
    assert settings.end(claims) == ()
    assert settings.standing == before


def test_part_of_a_move_that_goes_on_keeps_entries_and_rates() -> None:
    """ReplicationThrottleHelperTest.testRemovingThrottlesOnlyOnBrokersWithoutRemainingMoves, and a cancel of a part."""
    settings = Settings()
    claims = settings.begin({FOO_0: move({0, 1}, {2}), FOO_1: move({0}, {3})}, 100)
    settings.change(*put_back(claims, settings.standing, {FOO_1}).changes)
    assert settings.lists["foo"] == {LEADER_REPLICAS: "1:0", FOLLOWER_REPLICAS: "1:3"}
    assert settings.rates[3] == {LEADER_RATE: "100", FOLLOWER_RATE: "100"}
    assert settings.end(claims) == ()
    assert settings.standing == Settings().standing


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_moves_that_share_a_list_leave_none(first_ends_first: bool) -> None:
    settings = Settings()
    first = settings.begin({FOO_0: move({0}, {1})}, 100)
    second = settings.begin({FOO_1: move({0}, {2})}, 100)
    for claims in (first, second) if first_ends_first else (second, first):
        settings.end(claims)
    assert settings.lists == Settings().lists


def test_list_that_was_empty_before_is_empty_afterwards() -> None:
    settings = Settings()
    settings.lists["foo"] = {LEADER_REPLICAS: ""}
    settings.end(settings.begin({FOO_0: move({0}, {1})}, 100))
    assert settings.lists["foo"] == {LEADER_REPLICAS: ""}


def test_list_of_all_replicas_is_left_as_it_is() -> None:
    """ReplicationThrottleHelperTest.testDoNotModifyExistingWildcardReplicaThrottles."""
    settings = Settings()
    settings.lists["foo"] = dict.fromkeys((LEADER_REPLICAS, FOLLOWER_REPLICAS), "*")
    before = settings.standing
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    assert settings.lists["foo"] == before.lists["foo"]
    assert settings.end(claims) == ()
    assert settings.standing == before


def test_topic_that_is_deleted_meanwhile_is_no_hindrance() -> None:
    """ReplicationThrottleHelperTest.testClearThrottleOnNonExistentTopic."""
    settings = Settings()
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    del settings.lists["foo"]
    assert settings.end(claims) == ()
    assert settings.rates == Settings().rates


def test_broker_that_gives_no_answer_keeps_its_rate_and_is_told() -> None:
    settings = Settings()
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    gone = settings.rates.pop(1)
    left = settings.end(claims)
    assert {(rate.claim.broker, rate.standing) for rate in left} == {(1, None)}
    settings.rates[1] = gone
    assert settings.end(claims) == ()
    assert settings.standing == Settings().standing


def test_new_rate_of_a_move_keeps_what_stood_before_the_first() -> None:
    """`--additional` with another rate; ReassignPartitionsCommandTest goes from 1 B/s to 300 kB/s so."""
    settings = Settings()
    settings.rates[0] = {LEADER_RATE: "7"}
    before = settings.standing
    moves = {FOO_0: move({0}, {1})}
    claims = settings.begin(moves, 200, earlier=settings.begin(moves, 100))
    assert settings.rates[0] == {LEADER_RATE: "200", FOLLOWER_RATE: "200"}
    settings.end(claims)
    assert settings.standing == before


def test_rate_set_by_hand_goes_with_the_move_if_it_is_alone() -> None:
    """It was set meanwhile, and nobody else is throttled there."""
    settings = Settings()
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    settings.rates[0][LEADER_RATE] = "999"
    assert settings.end(claims) == ()
    assert settings.standing == Settings().standing


def test_rate_removed_by_another_tool_is_put_back_as_it_stood() -> None:
    """kafka-reassign-partitions --verify deletes every rate."""
    settings = Settings()
    settings.rates[0] = {LEADER_RATE: "7"}
    before = settings.standing
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    settings.rates = {broker: {} for broker in settings.rates}
    settings.end(claims)
    assert settings.standing == before


@pytest.mark.parametrize("first", ["older", "newer"])
def test_two_moves_of_one_rate_leave_nothing_in_either_order(first: str) -> None:
    """The newer one found the older one's rate, which is gone when the newer one ends last."""
    settings = Settings()
    older = settings.begin({FOO_0: move({0}, {1})}, 100)
    newer = settings.begin({FOO_1: move({0}, {2})}, 100)
    for claims in (older, newer) if first == "older" else (newer, older):
        assert settings.end(claims) == ()
    assert not any(settings.rates.values())


@pytest.mark.parametrize("listed", ["as it is", "*"])
def test_rate_stays_while_another_move_of_the_same_rate_goes_on(listed: str) -> None:
    """The newer one found the rate as it wants it, so the older one's end would leave it without."""
    settings = Settings()
    older = settings.begin({FOO_0: move({0}, {1})}, 100)
    newer = settings.begin({FOO_1: move({0}, {2})}, 100)
    if listed == "*":
        settings.lists["foo"][LEADER_REPLICAS] = "*"
    left = settings.end(older, {FOO_1: Reassignment((0, 2), (2,), (0,))})
    kept = {(rate.claim.broker, rate.claim.setting, rate.needed_by) for rate in left}
    assert kept == {(0, LEADER_RATE, FOO_1), (0, FOLLOWER_RATE, FOO_1)}
    assert settings.rates[0] == {LEADER_RATE: "100", FOLLOWER_RATE: "100"}
    assert settings.rates[1] == {}
    assert settings.end(newer) == ()
    assert settings.end(older) == ()
    assert not any(settings.rates.values())


def test_rate_goes_where_others_replicas_do_not_need_it() -> None:
    """Others' replicas are listed or move there, but none that moves is throttled on the same broker."""
    settings = Settings()
    settings.lists["bar"] = {LEADER_REPLICAS: "0:0,0:3"}
    claims = settings.begin({FOO_0: move({0}, {1})}, 100)
    others = {
        Partition("bar", 0): Reassignment((2, 3), (2,), (3,)),  # throttled, on other brokers
        Partition("bar", 1): Reassignment((0, 1), (1,), (0,)),  # on the same brokers, not throttled
    }
    assert settings.end(claims, others) == ()
    assert not any(settings.rates.values())


@pytest.mark.parametrize("first", ["older", "newer"])
def test_two_moves_at_once_leave_nothing_whichever_ends_first(first: str) -> None:
    settings = Settings()
    older = settings.begin({FOO_0: move({0}, {1})}, 100)
    newer = settings.begin({FOO_1: move({0}, {2})}, 200)
    if first == "older":
        left = settings.end(older)
        # Broker 0 has the newer one's rate, and is throttled for it; the older one is to be verified once more.
        assert {(rate.claim.broker, rate.standing) for rate in left} == {(0, "200")}
        assert settings.rates[0] == {LEADER_RATE: "200", FOLLOWER_RATE: "200"}
    assert settings.end(newer) == ()
    assert settings.rates[0] == {LEADER_RATE: "100", FOLLOWER_RATE: "100"}
    assert settings.end(older) == ()
    assert settings.standing == Settings().standing


def test_without_a_journal_a_plans_entries_tell_what_to_remove() -> None:
    settings = Settings()
    settings.lists["bar"] = {LEADER_REPLICAS: "0:3"}
    settings.rates[3] = {LEADER_RATE: "7"}
    settings.begin({FOO_0: move({0, 1}, {2}), FOO_1: move({3}, {2})}, 100)
    found = claims_by_the_plan({FOO_0: (1, 2), FOO_1: (2,)}, {}, settings.standing)
    settings.change(*put_back(found, settings.standing).changes)
    settings.change(*emptied_lists(found, settings.standing))
    assert settings.lists == {"foo": {}, "bar": {LEADER_REPLICAS: "0:3"}}
    # Broker 3 is throttled by somebody else too, so its rates stay; what stood before is lost.
    assert settings.rates == {0: {}, 1: {}, 2: {}, 3: {LEADER_RATE: "100", FOLLOWER_RATE: "100"}}


def test_without_a_journal_the_rollback_tells_what_stays() -> None:
    """Other entries of the same partition stay, as the rollback names its old replicas."""
    standing = Standing({}, {"foo": {LEADER_REPLICAS: "0:0,0:5,1:0", FOLLOWER_REPLICAS: "0:2,0:5"}})
    found = claims_by_the_plan({FOO_0: (2,)}, {FOO_0: (0,)}, standing)
    assert [claim.entries for claim in found.lists] == [("0:0",), ("0:2",)]


def test_other_rate_is_given_only_where_the_moves_own_stands() -> None:
    claims = Claims(
        (
            RateClaim(1, LEADER_RATE, "7", ("100",)),
            RateClaim(1, FOLLOWER_RATE, None, ("100",)),
            RateClaim(1, DISK_RATE, None, ("100",)),
            RateClaim(2, LEADER_RATE, None, ("100",)),
            RateClaim(3, LEADER_RATE, None, ("100",)),
        )
    )
    rates = {1: {LEADER_RATE: "100", FOLLOWER_RATE: "55", DISK_RATE: "100"}, 2: {}}
    changed, changes = rated_anew(claims, Standing(rates, {}), 200)
    assert changes == (ConfigChange("broker", "1", LEADER_RATE, "set", "200"),)
    assert changed.rates == (RateClaim(1, LEADER_RATE, "7", ("100", "200")), *claims.rates[1:])

# SPDX-License-Identifier: Apache-2.0
"""Moves of any number, of several tools at once, in any order: no throttle of theirs is left."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.planning.test_move_throttle import FOO_0, FOO_1, Settings, move
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.planning.move_throttle import (
    Claims,
    ConfigChange,
    RateClaim,
    changes_to_set,
    claims_for,
    put_back,
    wanted_throttle,
)

RATES = st.sampled_from(["1", "2", "3"])


BROKERS = st.integers(0, 3)


SETTINGS = st.sampled_from([LEADER_REPLICAS, FOLLOWER_REPLICAS])


MOVES = {FOO_0: move({0, 1}, {2}), FOO_1: move({1}, {0})}


class OthersMeanwhile(RuleBasedStateMachine):
    """A move begins and is begun again at any points, while others change entries and rates that are not its own.

    `others` is a cluster in which the move never was: what stands after the move is what stands there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.others = Settings()
        self.claims = Claims()

    @precondition(lambda self: not self.claims)
    @rule(broker=BROKERS, setting=st.sampled_from([LEADER_RATE, FOLLOWER_RATE]), rate=RATES)
    def a_rate_is_set_before(self, broker: int, setting: str, rate: str) -> None:
        self._both(ConfigChange("broker", str(broker), setting, "set", rate))

    @rule(rate=RATES)
    def a_rate_is_set_for_a_broker_that_takes_no_part(self, rate: str) -> None:
        self._both(ConfigChange("broker", "3", LEADER_RATE, "set", rate))

    @rule(broker=BROKERS, setting=SETTINGS, topic=st.sampled_from(["foo", "bar"]))
    def others_throttle_a_replica(self, broker: int, setting: str, topic: str) -> None:
        self._both(ConfigChange("topic", topic, setting, "append", f"5:{broker}"))

    @rule(broker=BROKERS, setting=SETTINGS, topic=st.sampled_from(["foo", "bar"]))
    def others_throttle_it_no_more(self, broker: int, setting: str, topic: str) -> None:
        if setting in self.others.lists[topic]:
            self._both(ConfigChange("topic", topic, setting, "subtract", f"5:{broker}"))

    @precondition(lambda self: not self.claims)
    @rule()
    def a_replica_of_the_move_is_throttled_before(self) -> None:
        self._both(ConfigChange("topic", "foo", LEADER_REPLICAS, "append", "0:0"))

    @rule(rate=st.integers(10, 12))
    def the_move_begins(self, rate: int) -> None:
        self.claims = self.settings.begin(MOVES, rate, self.claims)

    @rule(rate=st.integers(10, 12), done=st.integers(0, 8))
    def the_move_is_killed_while_it_begins(self, rate: int, done: int) -> None:
        wanted = wanted_throttle(MOVES, rate)
        self.claims = claims_for(wanted, self.settings.standing, self.claims)
        self.settings.change(*changes_to_set(self.claims, self.settings.standing)[:done])

    @rule(done=st.integers(0, 8))
    def the_move_is_killed_while_it_ends(self, done: int) -> None:
        self.settings.change(*put_back(self.claims, self.settings.standing).changes[:done])

    @rule()
    def the_move_ends(self) -> None:
        assert self.settings.end(self.claims) == ()
        self.claims = Claims()
        assert self._set(self.settings) == self._set(self.others)

    @invariant()
    def what_others_throttle_stays(self) -> None:
        for topic, lists in self.others.lists.items():
            for setting, text in lists.items():
                assert set(text.split(",")) <= {*self.settings.lists[topic].get(setting, "").split(","), ""}

    def _both(self, change: ConfigChange) -> None:
        self.settings.change(change)
        self.others.change(change)

    @staticmethod
    def _set(settings: Settings) -> tuple[Any, Any]:
        """Whatever throttles: a list that is empty does not, and the order of entries does not count."""
        lists = {
            (topic, setting): set(text.split(","))
            for topic, held in settings.lists.items()
            for setting, text in held.items()
            if text
        }
        return settings.rates, lists


TestOthersMeanwhile = pytest.mark.long(OthersMeanwhile.TestCase)


@given(st.sets(BROKERS, min_size=1), st.sets(BROKERS), st.sampled_from([None, "1", "100"]))
def test_claim_on_a_rate_that_stood_is_kept_when_it_is_the_same(
    sources: set[int], destinations: set[int], before: str | None
) -> None:
    """A rate that was right already: nothing is changed, and nothing is removed afterwards."""
    settings = Settings()
    if before is not None:
        settings.rates = {broker: {LEADER_RATE: before, FOLLOWER_RATE: before} for broker in settings.rates}
    standing = settings.standing
    claims = settings.begin({FOO_0: move(sources, destinations - sources)}, 100)
    assert all(claim == RateClaim(claim.broker, claim.setting, before, ("100",)) for claim in claims.rates)
    settings.end(claims)
    assert settings.standing == standing

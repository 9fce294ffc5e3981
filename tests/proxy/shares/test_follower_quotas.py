# SPDX-License-Identifier: Apache-2.0
"""Followers' quotas on the leader's side: what is shared with whom, what is wanted, and what is in force."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy.shares.follower_quotas import FollowerQuotas
from weir.quota.scopes import Ends, Matching
from weir.quota.settings import LEAST_SHARE, QuotaSettings, ThrottleSettings
from weir.quota.shares.share import Terms
from weir.quota.throttle import Throttle

RATE = 900
OWN = 1
NAME = "into/3"


def quota_for(follower: int, rate: int = RATE) -> QuotaSettings:
    return QuotaSettings(f"into/{follower}", rate, Matching(frozenset({follower})), shared_for=follower)


class Kept:
    """One leader's sidecar with a quota for broker 3; `brokers` is what the cluster tells."""

    def __init__(self, *quotas: QuotaSettings) -> None:
        self.clock = MovedClock()
        self.throttle = Throttle("leader", OWN, self.clock, ThrottleSettings(quotas=quotas or (quota_for(3),)))
        self.brokers = [1, 2, 3]
        self.changes = 0
        self.quotas = FollowerQuotas(self.throttle, lambda: self.brokers, self._changed, self.clock)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def rate(self) -> int | None:
        return self.throttle.quotas[1].rate


def test_rate_is_shared_with_all_brokers_but_the_follower() -> None:
    kept = Kept(quota_for(3), quota_for(2, 5))
    assert kept.quotas.shared() == {
        "into/3": Terms(RATE, frozenset({1, 2})),
        "into/2": Terms(5, frozenset({1, 3})),
    }


def test_nothing_is_used_while_it_is_not_known_who_shares() -> None:
    kept = Kept()
    kept.brokers = []
    assert kept.quotas.shared() == {}
    assert kept.rate == LEAST_SHARE


def test_share_is_in_force_and_stays_when_settings_change() -> None:
    kept = Kept()
    kept.quotas.use({NAME: 300.7})
    assert kept.rate == 300
    kept.throttle.configure(ThrottleSettings(quotas=(quota_for(3, 2 * RATE),)))
    assert kept.rate == 300
    kept.quotas.use({NAME: 0.0})
    assert kept.rate == LEAST_SHARE
    kept.throttle.configure(ThrottleSettings(quotas=(QuotaSettings(NAME, RATE, Matching()),)))
    assert kept.rate == RATE


def test_quota_covers_links_with_its_follower_alone() -> None:
    kept = Kept(quota_for(3), quota_for(2))
    for follower in (2, 3):
        covering = kept.throttle.rules.coverage(b"t", bytes(16), Ends(follower, follower))
        assert [quota.name for quota, _ in covering] == [f"into/{follower}"]
        assert 0 in kept.throttle.rules.throttled_partitions(covering)
    assert 0 not in kept.throttle.rules.throttled_partitions(kept.throttle.rules.coverage(b"t", bytes(16), Ends(4, 4)))


def test_debt_outlives_a_change_of_the_share() -> None:
    kept = Kept()
    kept.quotas.use({NAME: RATE})
    ledger = kept.throttle.quotas[1].ledger
    ledger.book(500)
    ledger.book(2 * RATE - 500)
    for share in (0, RATE):
        kept.quotas.use({NAME: share})
    assert ledger.credit() == pytest.approx(-2 * RATE, abs=1)


def test_what_waits_wants_all_and_what_passes_a_little_more() -> None:
    """What waits wants all of the rate, and what passes wants a little more than it has."""
    kept = Kept()
    kept.quotas.shared()
    quota = kept.throttle.quotas[1]
    assert kept.quotas.demand(NAME, 300) == 0
    for _ in range(4):
        kept.throttle.record(quota, 25)
        kept.clock.move(0.25)
        kept.quotas.demand(NAME, 300)
    assert kept.quotas.demand(NAME, 300) == pytest.approx(106)


def test_followers_are_learnt_and_not_forgotten() -> None:
    kept = Kept()
    kept.quotas.shared()
    assert (sorted(kept.quotas.followers), kept.changes) == ([2, 3], 1)
    kept.brokers = [1, 3]
    kept.quotas.shared()
    assert (sorted(kept.quotas.followers), kept.changes) == ([2, 3], 1)
    kept.brokers = list(range(2000))
    kept.quotas.shared()
    kept.quotas.shared()
    assert (len(kept.quotas.followers), kept.changes) == (1000, 2)

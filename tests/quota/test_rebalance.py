# SPDX-License-Identifier: Apache-2.0
"""A whole cluster that is rebalanced, with quotas on both sides of all brokers."""

from __future__ import annotations

import pytest

from tests.quota.model.rebalance import MB, Rebalance, play
from weir.quota.figures import SHARE_SECONDS, WINDOW_SLACK

pytestmark = pytest.mark.long

TEN_MB = (10 * MB,)

LITTLE, MUCH = (16_000,), (200_000,)
MOST = (900_000,)
EXACT = 0.97
"""Of a rate, at least."""


@pytest.mark.parametrize(
    "rebalance",
    [
        Rebalance(),
        Rebalance(batches=MOST, seconds=90.0),
        Rebalance(fetchers=1),
        Rebalance(fetchers=8),
        Rebalance(version=3),
        Rebalance(leader_rates=TEN_MB, follower_rates=TEN_MB, seconds=10.0),
        Rebalance(batches=MUCH),
        Rebalance(batches=(*LITTLE, 50_000, *MUCH), seconds=27.0, warm_up=15.0),
        Rebalance(brokers=5, seconds=10.0),
        Rebalance(brokers=5, has_ingress=(True, False), seconds=15.0),
        Rebalance(batches=MOST, leader_rates=TEN_MB, follower_rates=TEN_MB),
        Rebalance(brokers=5, batches=MUCH, seconds=25.0, warm_up=10.0),
    ],
    ids=str,
)
def test_every_broker_receives_its_rate_and_no_more(rebalance: Rebalance) -> None:
    figures, rate = play(rebalance), rebalance.follower_rates[0]
    assert rate is not None
    batch = max(size for size in rebalance.batches if isinstance(size, int)) / rate
    at_once = SHARE_SECONDS + (rebalance.brokers - 1) * rebalance.fetchers * batch  # seconds of quota
    for one in figures.received.values():
        assert one.mean >= EXACT
        assert one.whole <= 1 + at_once / rebalance.seconds
        assert one.worst_second <= 1 + WINDOW_SLACK + at_once
    for one in figures.sent.values():
        assert one.worst_second <= 1 + WINDOW_SLACK + 3 * batch  # what offset probes bring is among it


@pytest.mark.parametrize(
    ("leaders", "followers"),
    [((10, 20, 50), (30, 10, 20)), ((50, 100, 15), (50, 100, 15))],
    ids=str,
)
def test_no_link_waits_while_both_its_ends_have_budget(leaders: tuple[int, ...], followers: tuple[int, ...]) -> None:
    """The rates are unlike, so some brokers cannot have all of theirs: the other end of each of their links does."""
    leader_rates, follower_rates = ([tenths * MB // 10 for tenths in rates] for rates in (leaders, followers))
    figures = play(Rebalance(leader_rates=(*leader_rates,), follower_rates=(*follower_rates,), seconds=20.0))
    assert figures.least_used() >= EXACT


def test_a_slow_leader_leaves_the_follower_to_a_fast_one() -> None:
    """What a follower asks of a leader of 1.5 MB/s stays there for long. It may not be all that it can ask for."""
    rates = (5 * MB, 10 * MB, 3 * MB // 2)
    unlike = Rebalance(fetchers=1, leader_rates=rates, follower_rates=(*rates[1:], rates[0]), latency=0.01, seconds=20)
    assert play(unlike).least_used() >= 0.95


@pytest.mark.parametrize("has_ingress", [True, False])
@pytest.mark.parametrize("sizes", [(12_000, 16_000, 20_000), (100_000, 150_000, 200_000)])
def test_distant_follower_of_unlike_batches_uses_its_quota(sizes: tuple[int, ...], has_ingress: bool) -> None:
    """An answer with a single batch each 0.08 s, which wastes nothing, would have 0.3 to 0.7 of it."""
    figures = play(
        Rebalance(
            brokers=2,
            fetchers=1,
            partitions=1,
            batches=(sizes,),
            leader_rates=(5 * MB if has_ingress else None,),
            follower_rates=(5 * MB,),
            has_ingress=(has_ingress,),
            latency=0.02,
            seconds=15.0,
        )
    )
    for one in figures.received.values():
        assert one.mean >= 0.9
        assert one.worst_second <= 1 + WINDOW_SLACK


@pytest.mark.parametrize("batch", [16_000, 200_000])
def test_leaders_waiting_for_nobody_are_asked_within_the_quota(batch: int) -> None:
    """Nothing holds them up, so all that is asked for is set aside."""
    figures = play(Rebalance(batches=(batch,), leader_rates=TEN_MB))
    for one in figures.received.values():
        assert one.mean >= 0.97
        assert one.worst_second <= 1 + WINDOW_SLACK + batch / MB

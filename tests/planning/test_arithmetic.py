# SPDX-License-Identifier: Apache-2.0
"""KIP-73's arithmetic, with the KIP's own numbers, and what must hold for any others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.planning.arithmetic import (
    Move,
    NoQuota,
    QuotaBounds,
    QuotaTooHigh,
    QuotaTooLow,
    TooSlow,
    TooSoon,
    bytes_in_weights,
    bytes_to_move,
    fastest,
    growth_ratio,
    move_ratio,
    move_seconds,
    quota_bounds,
    quota_for,
    quota_within,
    response_max_bytes_bound,
    time_under,
    time_under_within,
)

MB = 1_000_000
TB = 1_000_000 * MB
HOUR = 3600

# KIP-73's own numbers


def test_response_max_bytes_where_leaders_throttle_dominates() -> None:
    """Q&A 5: 5 nodes, a leader quota of 1 MB/s, a window of 10 s, GbE: 1MB/s * 10s = 10MB, whatever the brokers."""
    assert response_max_bytes_bound(1 * MB, 10, brokers=5, network=100 * MB) == 10 * MB
    assert response_max_bytes_bound(1 * MB, 10) == 10 * MB
    assert response_max_bytes_bound(1 * MB, 10, brokers=100, network=100 * MB) == 10 * MB


def test_response_max_bytes_if_500_brokers_network_dominates() -> None:
    """Q&A 5: 10s * 100MB/s / 500 = 2MB."""
    assert response_max_bytes_bound(1 * MB, 10, brokers=500, network=100 * MB) == 2 * MB


def test_response_max_bytes_default_suits_quotas_above_1_mb() -> None:
    """The Throttle Mechanism: "the default value of 10MB is small enough to support leader quotas over 1MB/s"."""
    assert response_max_bytes_bound(1 * MB, 11 * 1) > 10 * MB
    assert response_max_bytes_bound(0.9 * MB, 11 * 1) < 10 * MB


def test_move_ratio_is_the_share_of_the_partitions() -> None:
    """Script: MoveRatio = #partitions-to-be-moved / #total-partition-count; the system tests have p=100."""
    assert move_ratio(10, 100) == 0.1


def test_move_time_is_the_kips_formula() -> None:
    """Q&A 1, in numbers that can be followed by hand: 0.1 x 2 TB x 10 / (50 MB/s - 20 MB/s) = 66,667 s."""
    move = Move(to_move=bytes_to_move(0.1, 2 * TB, 10), bytes_in=20 * MB)
    assert move.to_move == 2 * TB
    assert move_seconds(move, 50 * MB) == pytest.approx(2 * TB / (30 * MB))
    assert quota_for(move, 2 * TB / (30 * MB)) == pytest.approx(50 * MB)


def test_move_that_makes_no_progress_is_impossible() -> None:
    """Q&A 1: "you will never make progress ... as (replication-quota - max(BytesInPerSec)) -> 0"."""
    move = Move(to_move=TB, bytes_in=20 * MB)
    assert move_seconds(move, 20 * MB + 1) == TB
    with pytest.raises(QuotaTooLow) as raised:
        move_seconds(move, 20 * MB)
    assert raised.value.above == 20 * MB


def test_bounds_are_in_and_n_less_in_by_r() -> None:
    """Q&A 4: IN < T < N - IN/R."""
    move = Move(to_move=TB, bytes_in=30 * MB, network=100 * MB, replication_factor=3)
    assert quota_bounds(move) == QuotaBounds(30 * MB, 90 * MB)
    assert quota_bounds(replace(move, network=None)) == QuotaBounds(30 * MB, None)
    assert quota_bounds(replace(move, replication_factor=1)) == QuotaBounds(30 * MB, 70 * MB)


# What the past adds


def test_past_accuracy_slows_the_move_and_narrows_the_bounds() -> None:
    """A throttle that delivers 0.8 of its quota, and 1.5 of it in its worst second."""
    move = Move(to_move=TB, bytes_in=20 * MB, network=125 * MB, replication_factor=4, delivered=0.8, worst_second=1.5)
    assert move_seconds(move, 50 * MB) == TB / (0.8 * 50 * MB - 20 * MB)
    assert quota_bounds(move) == QuotaBounds(25 * MB, 80 * MB)


@pytest.mark.parametrize(
    ("sides", "weights"),
    [
        ({"leader", "follower"}, {"leader": 0.5, "follower": 1.0}),
        ({"leader"}, {"leader": 1.5, "follower": 0.0}),
        ({"follower"}, {"leader": 0.0, "follower": 1.5}),
    ],
)
def test_bytes_in_are_told_from_the_sides_that_were_measured(sides: set[str], weights: dict[str, float]) -> None:
    """R = 3, each broker leads for 10 MB/s of writes: 20 go out to followers, 20 come in from leaders, IN is 30."""
    assert bytes_in_weights(sides, 3) == weights
    assert sum(weights[side] * 20 for side in sides) == 30


def test_bytes_in_cannot_be_told_without_replicas() -> None:
    with pytest.raises(ValueError, match="Without replicas"):
        bytes_in_weights({"leader"}, 1)


def test_growth_is_that_of_the_same_brokers() -> None:
    """Broker 3 came in between, and broker 4 went."""
    assert growth_ratio({1: 10, 2: 30, 4: 99}, {1: 20, 2: 40, 3: 99}) == 1.5


@pytest.mark.parametrize(("earlier", "later"), [({}, {}), ({1: 1.0}, {2: 1.0}), ({1: 0.0}, {1: 1.0})])
def test_growth_is_not_known_of_other_brokers_or_after_nothing(
    earlier: dict[int, float], later: dict[int, float]
) -> None:
    assert growth_ratio(earlier, later) is None


# What would do when it cannot be done


def test_quota_outside_the_bounds_says_the_bound() -> None:
    move = Move(to_move=TB, bytes_in=30 * MB, network=100 * MB)
    with pytest.raises(QuotaTooLow) as low:
        time_under(move, 30 * MB)
    assert low.value.above == 30 * MB
    with pytest.raises(QuotaTooHigh) as high:
        time_under(move, 90 * MB)
    assert high.value.below == 90 * MB
    assert time_under(move, 90 * MB - 1).seconds > time_under(replace(move, network=None), 90 * MB).seconds


def test_quota_too_slow_for_the_time_says_which_would_do() -> None:
    move = Move(to_move=3600 * MB, bytes_in=20 * MB, network=100 * MB)
    with pytest.raises(TooSlow) as raised:
        time_under_within(move, 21 * MB, HOUR - 1)
    assert (raised.value.seconds, raised.value.needed) == (HOUR, 21_000_278)
    assert time_under_within(move, 21_000_278, HOUR - 1).seconds <= HOUR - 1


@pytest.mark.parametrize(("quota", "wrong"), [(20 * MB, QuotaTooLow), (95 * MB, QuotaTooHigh)])
def test_quota_out_of_bounds_for_the_time_says_which_would_do(
    quota: int, wrong: type[QuotaTooLow] | type[QuotaTooHigh]
) -> None:
    move = Move(to_move=3600 * MB, bytes_in=20 * MB, network=100 * MB)
    with pytest.raises(wrong) as raised:
        time_under_within(move, quota, HOUR)
    assert raised.value.args[1] == 21 * MB
    assert time_under_within(move, 21 * MB, HOUR).seconds == HOUR
    with pytest.raises(TooSoon):
        time_under_within(move, quota, 1)


def test_next_to_nothing_to_move_still_takes_more_than_bytes_in() -> None:
    """1e-9 bytes/s more than 20 MB/s is 20 MB/s to a float."""
    assert quota_within(Move(to_move=1, bytes_in=20 * MB), 1e9).quota == 20 * MB + 1


def test_time_too_short_says_how_long_and_how_much_would_do() -> None:
    """The largest quota is 1 byte/s below N - IN/R = 90 MB/s: 60 MB/s of progress."""
    move = Move(to_move=600 * MB, bytes_in=30 * MB, network=100 * MB)
    with pytest.raises(TooSoon) as raised:
        quota_within(move, 5)
    assert (raised.value.needed, raised.value.quota, raised.value.seconds) == (150 * MB, 90 * MB - 1, 11)
    assert raised.value.movable == 5 * (60 * MB - 1)


def test_network_too_small_for_any_quota_says_which_would_do() -> None:
    """IN < T < N - IN/R has no T up to N = IN + IN/R, 40 MB/s, and no whole one up to a byte/s more."""
    move = Move(to_move=TB, bytes_in=30 * MB, network=40 * MB)
    with pytest.raises(NoQuota) as raised:
        fastest(move)
    assert raised.value.network == 40 * MB + 1
    with pytest.raises(NoQuota):
        time_under(move, 35 * MB)
    with pytest.raises(NoQuota):
        quota_within(move, HOUR)
    assert fastest(replace(move, network=40 * MB + 2)) is not None


# Whatever the numbers

moves = st.builds(
    Move,
    to_move=st.floats(1, 1e18),
    bytes_in=st.floats(0, 1e10),
    network=st.floats(0, 1e11) | st.none(),
    replication_factor=st.integers(1, 7),
    delivered=st.floats(0.1, 1),
    worst_second=st.floats(1, 3),
)
times = st.floats(1, 1e9)


@given(moves, times)
def test_quota_from_time_and_time_from_quota_are_inverses(move: Move, seconds: float) -> None:
    quota = quota_for(move, seconds)
    progress = move.delivered * quota - move.bytes_in
    if progress > 1e-6 * quota:  # else nothing is left of the difference but rounding
        assert move_seconds(move, quota) == pytest.approx(seconds, rel=1e-6)


@given(moves, times)
def test_quota_within_a_time_is_the_least_within_the_bounds(move: Move, seconds: float) -> None:
    """It is enough for the time, and a byte a second less is not."""
    try:
        found = quota_within(move, seconds)
    except (NoQuota, TooSoon):
        return
    bounds = quota_bounds(move)
    assert found.quota >= bounds.above * (1 - 1e-12)
    assert bounds.below is None or found.quota < bounds.below
    assert time_under_within(move, found.quota, seconds) == found
    if found.quota > 1 + bounds.above:
        with pytest.raises((TooSlow, QuotaTooLow)):
            time_under_within(move, found.quota - 1, seconds)


@given(moves, times)
def test_what_would_do_does(move: Move, seconds: float) -> None:
    try:
        quota_within(move, seconds)
    except NoQuota as error:
        assert fastest(replace(move, network=error.network * (1 + 1e-9))) is not None
        with pytest.raises(NoQuota):
            fastest(replace(move, network=error.network * (1 - 1e-9)))
    except TooSoon as error:
        assert error.seconds > seconds
        assert quota_within(move, error.seconds).quota <= error.quota
        assert quota_within(replace(move, to_move=error.movable * (1 - 1e-9)), seconds).quota <= error.quota


@given(moves)
def test_fastest_quota_is_the_last_that_is_possible(move: Move) -> None:
    try:
        found = fastest(move)
    except NoQuota:
        return
    if found is None:
        assert move.network is None
        return
    assert time_under(move, found.quota) == found
    with pytest.raises(QuotaTooHigh):
        time_under(move, found.quota + 1)


@given(
    st.floats(1, 1e10),
    st.floats(0.1, 1000),
    st.integers(1, 1000),
    st.floats(1, 1e12),
)
def test_first_responses_at_the_bound_take_the_whole_window(
    leader_quota: float, window: float, brokers: int, network: float
) -> None:
    """#brokers x replica.fetch.response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed) < total-window-size."""
    bound = response_max_bytes_bound(leader_quota, window, brokers, network)
    assert math.isclose(brokers * bound / min(leader_quota * brokers, network), window)

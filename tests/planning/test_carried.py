# SPDX-License-Identifier: Apache-2.0
"""What is learned of a link from what arrives, and what is not."""

import pytest

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.planning.assignment import Partition
from weir.planning.carried import (
    LEAST_CALM,
    LEAST_JUDGED,
    MOST_CALM,
    MOST_FALL,
    SHORT,
    STEP,
    Arrived,
    Carried,
    are_short,
    arrived,
    carried_next,
)
from weir.planning.finish_by import Moving

MB = 1_000_000
OUT, IN, IN_3 = (1, LEADER_RATE), (2, FOLLOWER_RATE), (3, FOLLOWER_RATE)
P0 = Partition("orders", 0)
RATES = {OUT: 10 * MB, IN: 10 * MB}
MUCH = 1e9


def short_of(
    came: dict[tuple[int, str], float], left: float = MUCH, last: int = 10 * MB, seconds: float = 5.0
) -> set[str]:
    """The rates of a move from 1 to 2 of which too little came."""
    found = {OUT: Arrived(came[OUT], left, frozenset([IN])), IN: Arrived(came[IN], left, frozenset([OUT]))}
    return {setting for _, setting in are_short(found, RATES, dict.fromkeys(RATES, last), seconds)}


def test_what_came_is_told_by_the_logs() -> None:
    """A new replica on 2, another on 3 that has all; 4 and 5 are in sync, and receive what producers write."""
    before = {P0: Moving(1, 1000, 4, {2: 600, 3: 100})}
    now = {P0: Moving(1, 1100, 4, {2: 300, 3: 0})}
    assert arrived(before, now, 10.0) == {
        OUT: Arrived(20 + 40 + 20, 300, frozenset([IN])),
        IN: Arrived(40.0, 300, frozenset([OUT])),
        IN_3: Arrived(20.0, 0, frozenset()),
    }


def test_partition_that_was_not_seen_before_tells_nothing() -> None:
    now = {P0: Moving(1, 1100, 1, {2: 300})}
    assert arrived({}, now, 10.0) == arrived({P0: Moving(1, 0, 1, {2: 0})}, now, 10.0) == {}


def test_less_than_both_ends_allow_is_the_links_doing() -> None:
    assert short_of({OUT: 7 * MB, IN: 7 * MB}) == {LEADER_RATE, FOLLOWER_RATE}
    assert short_of({OUT: SHORT * 10 * MB, IN: SHORT * 10 * MB}) == set()


@pytest.mark.parametrize(
    ("came", "why"),
    [
        ({OUT: 7 * MB, IN: 10 * MB}, "the follower has what it may receive, of this leader and of others"),
        ({OUT: 10 * MB, IN: 7 * MB}, "the leader sends what it may, to this follower and to others"),
        ({OUT: 0.0, IN: 0.0}, "nothing comes at all: a broker is down"),
    ],
)
def test_less_than_a_rate_allows_has_other_reasons(came: dict[tuple[int, str], float], why: str) -> None:
    assert short_of(came) == set(), why


def test_end_of_a_move_tells_nothing() -> None:
    assert short_of({OUT: 7 * MB, IN: 7 * MB}, left=49 * MB) == set()


def test_rate_just_risen_was_not_in_force_all_interval_long() -> None:
    assert short_of({OUT: 5.4 * MB, IN: 5.4 * MB}, last=4 * MB) == set()
    assert short_of({OUT: 5 * MB, IN: 5 * MB}, last=4 * MB) == {LEADER_RATE, FOLLOWER_RATE}


def test_low_rate_tells_nothing_as_it_comes_in_bursts() -> None:
    came = {OUT: Arrived(1.0, MUCH, frozenset())}
    assert are_short(came, {OUT: LEAST_JUDGED}, {OUT: LEAST_JUDGED}, 5.0) == {OUT}
    assert are_short(came, {OUT: LEAST_JUDGED - 1}, {OUT: LEAST_JUDGED}, 5.0) == frozenset()


def test_full_link_carries_what_passed_and_not_far_below_rate() -> None:
    assert carried_next(None, True, 6 * MB, 9 * MB, 2 * MB, 10 * MB) == Carried(8 * MB)
    assert carried_next(None, True, 1.0, 8 * MB, 1 * MB, 10 * MB) == Carried(MOST_FALL * 8 * MB + 1 * MB)
    assert carried_next(None, False, 9 * MB, 9 * MB, 0.0, 10 * MB) is None


def test_figure_rises_after_a_while_in_steps() -> None:
    now: Carried | None = Carried(1 * MB)
    figures = []
    for _ in range(3 * LEAST_CALM):
        now = carried_next(now, False, 1 * MB, 1 * MB, 0.0, 10 * MB)
        assert now is not None
        figures.append(now.capacity / MB)
    assert figures[LEAST_CALM - 2 :: LEAST_CALM] == pytest.approx([(1 + STEP) ** number for number in range(3)])
    assert figures[LEAST_CALM - 1 :: LEAST_CALM] == pytest.approx([(1 + STEP) ** number for number in (1, 2, 3)])


def test_step_that_fills_the_link_again_doubles_the_next_wait() -> None:
    now: Carried | None = Carried(1 * MB)
    waits = []
    for _ in range(6):
        waited = 0
        while now is not None and now.capacity <= 1 * MB:
            now = carried_next(now, False, 1 * MB, 1 * MB, 0.0, 10 * MB)
            waited += 1
        waits.append(waited)
        now = carried_next(now, True, 1 * MB, 1 * MB, 0.0, 10 * MB)
    assert waits == [6, 12, 24, 48, 96, MOST_CALM]


def test_link_that_carries_what_is_stated_for_long_is_forgotten() -> None:
    now: Carried | None = Carried(9.9 * MB)
    for _ in range(2 * LEAST_CALM):
        assert now is not None
        now = carried_next(now, False, 1 * MB, 1 * MB, 0.0, 10 * MB)
    assert now is None

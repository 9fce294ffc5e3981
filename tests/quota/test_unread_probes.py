"""Followers that never read what their offset probes bring: further probes wait until the batches are paid for."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.budget.offset_probes import PROBE_SECONDS, UNREAD_SECONDS, URGENT_SECONDS, OffsetProbes

RATE = 100_000
BATCH = 9 * RATE  # takes 9 s to be paid for
REPLICA, OTHER = 2, 3


def probed() -> tuple[MovedClock, OffsetProbes]:
    """Link `first` of the replica has had a batch with its probe."""
    clock = MovedClock()
    probes = OffsetProbes(clock)
    probes.asked("first", REPLICA)
    probes.answered("first", REPLICA, BATCH, RATE)
    return clock, probes


def waits(probes: OffsetProbes, clock: MovedClock, link: str, replica: int = REPLICA) -> float:
    return probes.ready_at(link, replica, clock.now, is_urgent=True) - clock.now


def test_urgent_probe_waits_a_second_after_one_whose_answer_was_read() -> None:
    clock, probes = probed()
    clock.move(URGENT_SECONDS)
    probes.read("first", REPLICA)
    assert waits(probes, clock, "second") == 0


@pytest.mark.parametrize("is_closed", [True, False])
def test_probe_of_a_follower_that_reads_nothing_waits_until_the_last_batch_is_paid_for(is_closed: bool) -> None:
    clock, probes = probed()
    clock.move(UNREAD_SECONDS)
    if is_closed:
        probes.drop("first")
    assert waits(probes, clock, "second") >= BATCH / RATE - UNREAD_SECONDS
    assert waits(probes, clock, "another's", OTHER) == 0


def test_follower_that_reads_again_has_urgent_probes_again() -> None:
    clock, probes = probed()
    clock.move(UNREAD_SECONDS)
    probes.read("first", REPLICA)
    assert waits(probes, clock, "second") == 0


def test_link_that_was_left_unread_counts_against_its_replica_for_as_long_as_a_probe_may_wait() -> None:
    clock, probes = probed()
    probes.drop("first")
    clock.move(PROBE_SECONDS)
    probes.asked("another's", OTHER)
    probes.answered("another's", OTHER, BATCH, RATE)
    probes.read("another's", OTHER)
    clock.move(URGENT_SECONDS)
    assert waits(probes, clock, "second") == 0


def test_hundreds_of_links_that_wait_for_a_probe_look_again_seldom_and_keep_their_places() -> None:
    clock = MovedClock()
    probes = OffsetProbes(clock)
    probes.asked("first", 1)
    again = [probes.ready_at(number, 100 + number, clock.now, is_urgent=True) - clock.now for number in range(1000)]
    assert again[10] < 0.05
    assert 2.0 < again[-1] < 10.0  # 200 plans or so in a second, of all together
    probes.answered("first", 1, 0, 1000)
    clock.move(again[-1])
    assert probes.first() in range(990, 1000)  # the places of those that look again now have not lapsed

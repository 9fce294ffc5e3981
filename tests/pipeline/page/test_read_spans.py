# SPDX-License-Identifier: Apache-2.0
"""Quotas, moves and replicas out of sync, and how spans are put together again that days have cut."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.pipeline.page.past import Past, absence, lag, minutes, move, quota
from tests.pipeline.parquet import START, broker_rate
from weir.pipeline.page.contents import Move, Moves, QuotaAccuracy, SlowReplica
from weir.pipeline.page.read import read_page
from weir.pipeline.page.read_spans import MOST_MOVES_OF_A_REPLICA
from weir.pipeline.page.replica import Replica
from weir.pipeline.tables import ABSENCES, BROKER_RATES, MOVES, REPLICA_LAG, THROTTLE_ACCURACY, WINDOW_SECONDS

pytestmark = pytest.mark.long

DAY = timedelta(days=1)
LATE = START + timedelta(hours=23)


def _moves(past: Past, top: int = 9, days: int = 1, since: datetime = START) -> Moves:
    end = START + days * DAY - timedelta(seconds=WINDOW_SECONDS["minute"])
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, end))
    return read_page(past.write(), since, START + days * DAY, top).moves


def test_move_is_shown_with_its_figures(past: Past) -> None:
    past.put(MOVES, move(7, START, START + minutes(1)))
    assert _moves(past) == Moves(
        1,
        1,
        0,
        (
            Move(
                Replica("orders", 7, 3), START, START + minutes(1), START + minutes(1), 6000, 6000, 100, 1_000_000, 1.5
            ),
        ),
    )


def test_move_that_both_sides_tell_of_is_shown_once(past: Past) -> None:
    end = START + minutes(1)
    past.put(MOVES, move(7, START, end, 5000), move(7, START, end, 6000, side="leader", broker_id=1))
    past.put(MOVES, move(8, START, end, 7000, side="leader", broker_id=1))
    assert [(found.replica.partition, found.size) for found in _moves(past).shown] == [(7, 5000), (8, 7000)]


def test_move_of_a_restarted_sidecar_is_shown_by_the_other_side(past: Past) -> None:
    """The follower's sidecar lost the larger half of one move.

    Of a second move the follower's alone tells, and of a third the leader's saw a part.
    """
    ends = [START + minutes(number) for number in range(60)]
    past.put(MOVES, move(7, START, None, 100_000), move(7, ends[8], ends[10], 80_000))
    past.put(MOVES, move(7, START, ends[10], 360_000, side="leader", broker_id=1))
    past.put(MOVES, move(7, ends[20], ends[30], 50_000))
    past.put(
        MOVES, move(7, ends[40], ends[50], 70_000), move(7, ends[45], ends[50], 35_000, side="leader", broker_id=1)
    )
    assert [(found.start, found.end, found.size) for found in _moves(past).shown] == [
        (START, ends[10], 360_000),
        (ends[20], ends[30], 50_000),
        (ends[40], ends[50], 70_000),
    ]


def test_move_that_a_leaders_quota_held_has_that_quota(past: Past) -> None:
    end = START + minutes(1)
    own = {**move(7, START, end), "quota_bytes_per_second": None}
    past.put(MOVES, own, move(7, START, end, side="leader", broker_id=1), {**own, "partition": 8})
    assert [(found.replica.partition, found.quota) for found in _moves(past).shown] == [(7, 1_000_000), (8, None)]


def test_move_has_the_bytes_of_the_days_that_are_shown(past: Past) -> None:
    """A range of the second day of three; all of them tell when it began."""
    end = START + 2 * DAY + minutes(5)
    for number, row in enumerate([move(7, LATE, None, 1000), move(7, LATE, None, 2000), move(7, LATE, end, 4000)]):
        past.put(MOVES, row, day=START + number * DAY)
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, START + 3 * DAY))
    (found,) = read_page(past.write(), START + DAY, START + 2 * DAY, 9).moves.shown
    assert (found.start, found.size, found.throttled_size) == (LATE, 2000, 2000)


def test_move_over_midnight_is_one(past: Past) -> None:
    """Three days tell of it; its start is told alike on each, or a little off."""
    end = START + 2 * DAY + minutes(5)
    past.put(MOVES, move(7, LATE, None, 1000))
    past.put(MOVES, move(7, LATE + timedelta(microseconds=9), None, 2000), day=START + DAY)
    past.put(MOVES, move(7, LATE, end, 3000), day=START + 2 * DAY)
    (found,) = _moves(past, days=3).shown
    assert (found.start, found.end, found.seen_until, found.size, found.rate) == (LATE, end, end, 6000, 100)


def test_day_without_bytes_counts_for_the_rate_of_a_move(past: Past) -> None:
    """An hour at 100 bytes/s, a day of nothing, and an hour at 100 bytes/s."""
    end = START + 2 * DAY + minutes(60)
    past.put(MOVES, move(7, LATE, None, 360_000))
    past.put(MOVES, {**move(7, LATE, None, 0), "mean_bytes_per_second": 0.0}, day=START + DAY)
    past.put(MOVES, move(7, LATE, end, 360_000), day=START + 2 * DAY)
    (found,) = _moves(past, days=3).shown
    assert (found.size, found.rate) == (720_000, 720_000 / 93_600)


def test_move_that_began_after_midnight_is_another(past: Past) -> None:
    second = START + DAY + minutes(1)
    past.put(MOVES, move(7, LATE, None))
    past.put(MOVES, move(7, second, None), day=START + DAY)
    moves = _moves(past, days=2)
    assert [(found.start, found.end, found.seen_until) for found in moves.shown] == [
        (LATE, None, START + DAY),
        (second, None, START + 2 * DAY),
    ]
    assert (moves.replicas, moves.count, moves.unfinished) == (1, 2, 2)


def test_open_move_was_seen_until_the_next_or_until_samples_end(past: Past) -> None:
    """Sidecars that were started anew tell of it again."""
    past.put(MOVES, move(7, START, None), move(7, START + minutes(3), None))
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, START + minutes(9)))
    moves = read_page(past.write(), START, None, 9).moves
    assert [found.seen_until for found in moves.shown] == [START + minutes(3), START + minutes(10)]


def test_moves_of_the_busiest_replicas_are_shown_as_they_began(past: Past) -> None:
    for partition, begin, size in ((0, 5, 10), (1, 4, 30), (2, 6, 15), (2, 3, 16)):
        past.put(MOVES, move(partition, START + minutes(begin), START + minutes(begin + 1), size))
    moves = _moves(past, top=2)
    assert [(found.replica.partition, found.size) for found in moves.shown] == [(2, 16), (2, 15), (1, 30)]
    assert (moves.replicas, moves.count) == (3, 4)


def test_replica_with_very_many_moves_has_its_largest(past: Past) -> None:
    ends = [START + minutes(number) for number in range(1, MOST_MOVES_OF_A_REPLICA + 3)]
    past.put(MOVES, *(move(0, end - minutes(1), end, number) for number, end in enumerate(ends)))
    moves = _moves(past)
    assert [found.size for found in moves.shown] == list(range(2, MOST_MOVES_OF_A_REPLICA + 2))
    assert (moves.replicas, moves.count) == (1, MOST_MOVES_OF_A_REPLICA + 2)


def test_moves_outside_the_range_are_not_shown(past: Past) -> None:
    """One ends before it, one begins behind it, one lies around it."""
    past.put(MOVES, move(0, START, START + minutes(5)), move(1, START, START + DAY), move(2, START + DAY, None))
    moves = _moves(past, since=START + minutes(6))
    assert [found.replica.partition for found in moves.shown] == [1]


def test_quota_is_one_row_for_all_its_spans(past: Past) -> None:
    """The mean is weighted by time; the worst of all spans is the worst."""
    end = START + minutes(4)
    past.put(
        THROTTLE_ACCURACY,
        quota(START, START + minutes(1), mean=0.9, worst_1s_over_quota=1.5),
        quota(START + minutes(1), end, mean=0.5, worst_10s_over_quota=1.1),
        quota(START, end, 2000, policy="kip73"),
        quota(START, end, 0, mean=None),
    )
    accuracy = read_page(past.write(), START, None, 2).accuracy
    assert accuracy.shown[0] == QuotaAccuracy(
        1,
        "leader",
        "leader.replication.throttled.rate",
        1000,
        "strict",
        2,
        START,
        end,
        240.0,
        1.5,
        1.1,
        4.0,
        60.0,
        6000,
    )
    assert accuracy.shown[0].mean_left_out == 0.9
    assert accuracy.shown[1].policy == "kip73"
    assert (accuracy.count, accuracy.worst_1s) == (3, 1.5)


def test_quota_of_nothing_has_no_ratios(past: Past) -> None:
    past.put(THROTTLE_ACCURACY, quota(START, START + minutes(1), 0, mean=None))
    (found,) = read_page(past.write(), START, None, 9).accuracy.shown
    assert (found.mean_left_out, found.worst_1s, found.worst_10s) == (None, None, None)


def test_slowest_replicas_come_first(past: Past) -> None:
    past.put(
        REPLICA_LAG,
        lag(0, START, START + minutes(2)),
        lag(1, START, None, stuck=(40, 50)),
        lag(2, START, START + minutes(9)),
    )
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, START + minutes(19)))
    slow = read_page(past.write(), START, None, 2).slow
    assert slow.shown == (
        SlowReplica(Replica("orders", 1, 3), START, None, START + minutes(20), 1234, 2, 90.0),
        SlowReplica(Replica("orders", 2, 3), START, START + minutes(9), START + minutes(9), 1234, 0, 0.0),
    )
    assert [found.seconds for found in slow.shown] == [1200, 540]
    assert (slow.count, slow.most_stuck_seconds) == (3, 90.0)


def test_broker_its_leader_forgot_is_away_until_seen_again(past: Past) -> None:
    """Each is forgotten after an hour. Broker 2 stays away, 3 fetches again, and another sidecar sees 4 come back."""
    for replica in (2, 3, 4):
        past.put(ABSENCES, absence(replica, START, None, 60))
    back = START + minutes(90)
    past.put(ABSENCES, absence(4, START + minutes(1), back, 90, broker_id=5))
    past.put(BROKER_RATES, broker_rate(3, "follower", 1, back), broker_rate(1, "leader", 1, START + minutes(200)))
    folder = past.write()
    away = read_page(folder, START + minutes(120), START + minutes(180), 9).away
    assert [(of.broker_id, of.end) for of in away] == [(2, None)]
    away = read_page(folder, START + minutes(70), START + minutes(80), 9).away
    assert [of.broker_id for of in away] == [4, 2, 3]


def test_broker_that_stays_away_is_told_of_on_the_days_after(past: Past) -> None:
    """Broker 2 stays away. Broker 3 came back on the second day, 4 on the third, and 5 has no sidecar."""
    past.put(BROKER_RATES, *(broker_rate(replica, "follower", 1) for replica in (2, 3, 4)))
    for replica in (2, 3, 4, 5):
        past.put(ABSENCES, absence(replica, START + minutes(1), None, 60))
    past.put(BROKER_RATES, broker_rate(3, "follower", 1, START + DAY), day=START + DAY)
    back = START + 2 * DAY
    past.put(ABSENCES, absence(4, START + minutes(1), back, 2880, broker_id=6), day=back)
    for number in range(2, 10):
        past.put(BROKER_RATES, broker_rate(1, "leader", 1, START + number * DAY), day=START + number * DAY)
    folder = past.write()

    def away(number: int) -> list[int]:
        since = START + number * DAY + minutes(1)
        return [of.broker_id for of in read_page(folder, since, since + minutes(60), 9).away]

    assert [away(number) for number in (0, 1, 2, 3, 7, 8)] == [[2, 3, 4, 5], [2, 4], [2], [2], [2], []]

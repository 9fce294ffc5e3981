# SPDX-License-Identifier: Apache-2.0
"""Moves that are followed to their end or cancelled, against a cluster in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.moving import NOTHING, P0, P1, P2, execute, journal_in, plan, three
from tests.fakes.move_cluster import FakeCluster
from tests.throttle_names import FOLLOWER_REPLICAS, LEADER_REPLICAS
from weir.control.errors import ControlError
from weir.control.move_admin import ReplicaLog
from weir.control.move_execution import Orders
from weir.control.move_following import Following, Tick, cancel, verify
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Partition, Replica
from weir.planning.reassignment_json import ReassignmentPlan


def ticks(cluster: FakeCluster, what: ReassignmentPlan, at_once: int | None = None) -> Iterator[Tick]:
    return Following(cluster.connect, what, {}, cluster.clock, cluster.sleep, at_once).ticks()


def test_steps_keep_as_many_moving_as_wanted(file: JournalFile) -> None:
    """KIP-1335: the next begins when one has ended."""
    cluster, what = three(), plan(p0=(2,), p1=(2,), p2=(2,))
    assert execute(cluster, what, file, Orders(throttle=100, at_once=2)) == [P0, P1]
    following = ticks(cluster, what, at_once=2)
    next(following)
    cluster.end_moves(P0)
    next(following)
    assert set(cluster.moving) == {P1, P2}
    cluster.end_moves()
    assert [tick.seen is not None for tick in following] == [True]


def test_directories_of_later_steps_wait_for_their_step(file: JournalFile) -> None:
    """A replica that is not there yet cannot be told: the first step would wait for the others in vain."""
    cluster = three()
    cluster.makes_replicas_at_once = True
    wanted = [Replica(*partition, 2) for partition in (P0, P1, P2)]
    what = ReassignmentPlan(dict.fromkeys((P0, P1, P2), (1, 2)), dict.fromkeys(wanted, "/other"))
    orders = Orders(throttle=100, replica_alter_log_dirs_throttle=5, at_once=1)
    assert execute(cluster, what, file, orders) == [P0]
    assert set(cluster.log_dirs) == {wanted[0]}
    told = []
    for _ in ticks(cluster, what, at_once=1):
        told.append(len(cluster.log_dirs))
        cluster.end_moves()
        cluster.log_dirs = {one: [ReplicaLog("/other", 1, False)] for one in cluster.log_dirs}
    assert (told[0], told[-1]) == (1, 3)
    verdict = verify(cluster, what, file)
    assert verdict.is_done
    assert set(verdict.seen.log_states.values()) == {"done"}
    assert cluster.throttles == NOTHING


def test_progress_tells_rate_time_left_and_who_holds_it_up() -> None:
    cluster, what = FakeCluster({P0: (1,), P1: (1,)}), plan(p0=(2,), p1=(3,))
    cluster.try_to_reassign({P0: (2,), P1: (3,)})
    following = ticks(cluster, what)
    next(following)
    cluster.copied = {Replica(*P0, 2): 200, Replica(*P1, 3): 100}
    progress = next(following).progress
    assert progress is not None and progress.slowest is not None
    assert (progress.copied, progress.total, progress.left, progress.rate) == (300, 2000, 1700, 300)
    assert (progress.slowest.broker, progress.slowest.rate, progress.seconds_left) == (3, 100, 9)


def test_following_outlasts_an_outage_of_up_to_ten_minutes() -> None:
    """A controller that fails, and a cluster that is away. It is asked again over a new connection."""
    cluster, what = three(), plan(p0=(2,))
    cluster.try_to_reassign({P0: (2,)})

    def away(name: str) -> None:
        raise ControlError("Listing moves", "nobody there")

    following = ticks(cluster, what)
    assert next(following).seen is not None
    cluster.before_each = away
    assert next(following).away == "nobody there"
    cluster.before_each = lambda name: None
    assert next(following).seen is not None
    assert cluster.connections == 2
    cluster.before_each = away
    with pytest.raises(ControlError, match="nobody there"):
        list(following)
    assert cluster.clock() > 600


def test_move_broken_off_between_steps_is_told_and_unthrottled(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    execute(cluster, what, file, Orders(throttle=100, at_once=1))
    cluster.end_moves()
    verdict = verify(cluster, what, file)
    assert not verdict.is_done
    assert verdict.seen.waiting == [P1]
    assert cluster.throttles == NOTHING
    assert execute(cluster, what, file) == [P1]  # given again, it goes on


def test_topic_that_is_deleted_in_mid_move_is_no_hindrance(file: JournalFile) -> None:
    cluster, what = FakeCluster({P0: (1,), Partition("live", 0): (1,)}), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.delete_topic("orders")
    verdict = verify(cluster, what, file)
    assert verdict.is_done
    assert [status.state for status in verdict.seen.statuses.values()] == ["gone"]
    assert cluster.throttles == NOTHING


def test_cancel_ends_additions_and_leaves_what_moves_elsewhere(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(1, 2), p1=(2,))
    execute(cluster, what, file)
    cluster.try_to_reassign({P1: (3,)})
    done = cancel(cluster, what, file)
    assert (done.partitions, done.skipped) == ([P0], [P1])
    assert list(cluster.moving) == [P1]
    assert cluster.throttles.lists == {"orders": {LEADER_REPLICAS: "1:1", FOLLOWER_REPLICAS: "1:2"}}
    assert cluster.throttles.rates
    cluster.end_moves()
    verify(cluster, what, file)
    assert cluster.throttles == NOTHING


def test_cancel_leaves_what_the_earlier_plan_in_the_file_set(tmp_path: Path) -> None:
    cluster, first, second = three(), plan(p0=(2,)), plan(p1=(3,))
    execute(cluster, first, journal_in(tmp_path, plan_id="first"))
    set_ = cluster.throttles
    file = journal_in(tmp_path, plan_id="second")
    execute(cluster, second, file, Orders(throttle=100, additional=True))
    assert cancel(cluster, second, file).partitions == [P1]
    assert cluster.throttles == set_

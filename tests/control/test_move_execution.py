# SPDX-License-Identifier: Apache-2.0
"""Moves that begin, against a cluster in memory: what is refused, and what is started."""

import pytest

from tests.control.moving import NOTHING, P0, P1, P2, execute, plan, three
from tests.fakes.move_cluster import FakeCluster
from weir.control.errors import MoveError
from weir.control.move_execution import Orders
from weir.control.move_following import cancel, verify
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Partition, Replica
from weir.planning.reassignment_json import ReassignmentPlan


def test_move_in_sync_after_an_election_ends_when_ordered_again(file: JournalFile) -> None:
    """The old broker is down, and the new one was elected although it was not in sync (KAFKA-14424)."""
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    assert execute(cluster, what, file) == []
    cluster.replicas[P0] = (2,)  # in sync
    assert execute(cluster, what, file) == [P0]
    assert cluster.moving == {}


def test_directory_a_broker_lacks_is_refused_before_any_move(file: JournalFile) -> None:
    """One with a slash at its end is another one for the brokers."""
    cluster, what = three(), ReassignmentPlan({P0: (1, 2)}, {Replica(*P0, 2): "/other/"})
    said = "broker 2 has no log directory /other/, where orders-0 is to go: it has /data, /other"
    with pytest.raises(MoveError, match=said):
        execute(cluster, what, file)
    assert (cluster.moving, cluster.throttles) == ({}, NOTHING)


def test_dead_source_does_not_hold_up_a_move(file: JournalFile) -> None:
    cluster = FakeCluster({P0: (1, 3)})
    cluster.alive.remove(3)
    assert execute(cluster, plan(p0=(1, 2)), file) == [P0]
    assert set(cluster.throttles.rates) == {1, 2}


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (ReassignmentPlan({Partition("none", 0): (1,)}, {}), "there is no topic none"),
        (plan(p7=(1,)), "there is no partition orders-7"),
        (plan(p0=(1, 9)), "there is no broker 9, or it is down: nothing can be moved there"),
    ],
)
def test_what_does_not_exist_is_refused_even_by_force(what: ReassignmentPlan, sentence: str, file: JournalFile) -> None:
    with pytest.raises(MoveError, match=sentence):
        execute(three(), what, file, Orders(throttle=100, force=True))


def test_plan_that_loses_replicas_is_refused_unless_forced(file: JournalFile) -> None:
    cluster = FakeCluster({P0: (1, 2), P1: (1,)})
    with pytest.raises(MoveError, match=r"takes replicas away from orders-0 \(from 2 to 1\): give --force"):
        execute(cluster, plan(p0=(3,), p1=(2,)), file)
    assert "alter_configs" not in cluster.requests
    execute(cluster, plan(p0=(3,), p1=(2,)), file, Orders(force=True))


def test_throttle_below_the_inflow_is_refused_with_the_figure(file: JournalFile) -> None:
    cluster = FakeCluster({P0: (1, 3)}, size=10**6)
    cluster.grown_per_look = 3_000  # in 3 s; broker 1 sends it to two followers
    with pytest.raises(MoveError, match=r"a throttle of 2 kB/s is not above the 2 kB/s that producers' records take"):
        execute(cluster, plan(p0=(1, 2)), file, Orders(throttle=2000))
    assert cluster.throttles == NOTHING
    execute(cluster, plan(p0=(1, 2)), file, Orders(throttle=2001))


def test_move_beside_another_needs_additional(file: JournalFile) -> None:
    cluster = three()
    cluster.try_to_reassign({P2: (3,)})
    with pytest.raises(MoveError, match="orders-2 is being moved already: wait for that, or give --additional"):
        execute(cluster, plan(p0=(2,)), file)
    assert execute(cluster, plan(p0=(2,)), file, Orders(additional=True)) == [P0]


def test_partition_moving_elsewhere_is_turned_with_additional(file: JournalFile) -> None:
    cluster = three()
    cluster.try_to_reassign({P0: (3,)})
    with pytest.raises(MoveError, match="give --additional"):
        execute(cluster, plan(p0=(2,)), file)
    assert execute(cluster, plan(p0=(2,)), file, Orders(additional=True)) == [P0]
    assert cluster.moving[P0].target == (2,)


def test_logs_move_where_their_replica_is_and_else_it_is_told(file: JournalFile) -> None:
    replica = Replica(*P0, 2)
    what = ReassignmentPlan({P0: (1, 2)}, {replica: "/other", Replica(*P0, 1): "/other"})
    cluster = FakeCluster({P0: (1,)})
    with pytest.raises(MoveError, match="orders-0 on broker 2 could not be set within 10 s"):
        execute(cluster, what, file, Orders(replica_alter_log_dirs_throttle=5))
    cluster.end_moves()
    execute(cluster, what, file, Orders(replica_alter_log_dirs_throttle=5, additional=True))
    verdict = verify(cluster, what, file)
    assert set(verdict.seen.log_states.values()) == {"moving"}
    assert cluster.throttles.rates
    done = cancel(cluster, what, file)
    assert len(done.replicas) == 2
    assert cluster.throttles == NOTHING

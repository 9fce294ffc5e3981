"""Moves against a cluster in memory: what is refused, what is set, and what is left after any failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.move_cluster import FakeCluster
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.control.errors import ControlError, MoveError
from weir.control.move_admin import ReplicaLog
from weir.control.move_execution import Execution, Orders
from weir.control.move_following import Following, Tick, Verified, cancel, verify
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Brokers, Partition, Replica
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import ReassignmentPlan

P0, P1, P2 = (Partition("orders", number) for number in range(3))
NOTHING = Standing()


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return journal_in(tmp_path)


def journal_in(folder: Path, name: str = "plan.json", plan_id: str = "plan0001") -> JournalFile:
    (folder / name).write_text("the plan")
    return JournalFile(folder / name, plan_id)


def plan(**brokers: Brokers) -> ReassignmentPlan:
    return ReassignmentPlan({Partition("orders", int(name[1:])): replicas for name, replicas in brokers.items()}, {})


def three() -> FakeCluster:
    return FakeCluster({P0: (1,), P1: (1,), P2: (1,)})


def execution(cluster: FakeCluster, what: ReassignmentPlan, file: JournalFile, orders: Orders) -> Execution:
    return Execution(cluster, what, file, orders)


def execute(
    cluster: FakeCluster, what: ReassignmentPlan, file: JournalFile, orders: Orders | None = None
) -> list[Partition]:
    run = execution(cluster, what, file, orders or Orders(throttle=100))
    run.check()
    run.throttle()
    begun = run.start()
    run.move_logs(begun)
    return begun


def ended(cluster: FakeCluster, what: ReassignmentPlan, file: JournalFile) -> Verified:
    return verify(cluster, what, file)


def test_throttle_stays_while_partitions_move_and_goes_after(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(1, 3))
    assert execute(cluster, what, file) == [P0, P1]
    set_ = cluster.throttles
    assert set_.lists == {"orders": {LEADER_REPLICAS: "0:1,1:1", FOLLOWER_REPLICAS: "0:2,1:3"}}
    cluster.end_moves(P0)
    verdict = ended(cluster, what, file)
    assert (verdict.is_done, verdict.put_back) == (False, None)
    assert cluster.throttles == set_
    cluster.end_moves()
    assert ended(cluster, what, file).is_done
    assert cluster.throttles == NOTHING


def test_throttles_are_preserved_where_that_is_wanted(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.end_moves()
    assert verify(cluster, what, file, preserve_throttles=True).is_done
    assert cluster.throttles != NOTHING


def test_earlier_plan_in_a_file_is_throttled_while_it_moves(tmp_path: Path) -> None:
    """A script writes one plan after the other into one file, and moves beside what still moves (kafka-kit #346)."""
    cluster, first, second = three(), plan(p0=(2,)), plan(p1=(3,))
    execute(cluster, first, journal_in(tmp_path, plan_id="first"))
    set_ = cluster.throttles
    file = journal_in(tmp_path, plan_id="second")
    execute(cluster, second, file, Orders(throttle=100, additional=True))
    cluster.end_moves(P1)
    verdict = ended(cluster, second, file)
    assert (verdict.is_done, verdict.earlier) == (True, (P0,))
    assert cluster.throttles.lists == set_.lists
    assert cluster.throttles.rates[2] == set_.rates[2]
    cluster.end_moves()
    verdict = ended(cluster, second, file)
    assert (verdict.is_done, verdict.earlier) == (True, ())
    assert cluster.throttles == NOTHING
    assert [one.ended for other in file.earlier(cluster.cluster_id()) if (one := other.read(cluster.cluster_id()))] == [
        True
    ]


def test_cancel_leaves_what_the_earlier_plan_in_the_file_set(tmp_path: Path) -> None:
    cluster, first, second = three(), plan(p0=(2,)), plan(p1=(3,))
    execute(cluster, first, journal_in(tmp_path, plan_id="first"))
    set_ = cluster.throttles
    file = journal_in(tmp_path, plan_id="second")
    execute(cluster, second, file, Orders(throttle=100, additional=True))
    assert cancel(cluster, second, file).partitions == [P1]
    assert cluster.throttles == set_


def test_way_back_of_a_plan_outlives_the_next_in_the_same_file(tmp_path: Path) -> None:
    first, second = journal_in(tmp_path, plan_id="first"), journal_in(tmp_path, plan_id="second")
    first.write_rollback({P0: (1,)})
    second.write_rollback({P1: (1,)})
    second.write_rollback({P1: (1,)})
    assert (first.read_rollback(), second.read_rollback()) == ({P0: (1,)}, {P1: (1,)})
    assert second.rollback_path.name == "plan.second.rollback.json"


def test_journal_of_a_piped_plan_is_in_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = JournalFile(Path("/dev/stdin"), "plan0001")
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    file.write_rollback({P0: (1,)})
    assert {path.parent for path in (file.path, file.rollback_path)} == {tmp_path / "weir"}
    with file.locked() as mine, JournalFile(Path("/dev/stdin"), "plan0001").locked() as again:
        assert (mine, again) == (True, False)
    cluster.end_moves()
    assert ended(cluster, what, file).is_done
    assert cluster.throttles == NOTHING


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


@pytest.mark.long
def test_list_too_long_for_brokers_is_refused_before_any_change(file: JournalFile) -> None:
    partitions = [Partition("orders", number) for number in range(5_000)]
    cluster = FakeCluster(dict.fromkeys(partitions, (1,)))
    what = ReassignmentPlan(dict.fromkeys(partitions, (2,)), {})
    with pytest.raises(
        MoveError, match=r"would have 33,889 characters, and brokers take 32,767: make plans with which at most"
    ):
        execute(cluster, what, file)
    assert (cluster.moving, cluster.throttles) == ({}, NOTHING)
    assert execute(cluster, what, file, Orders())


def test_topics_outside_the_plan_need_not_be_readable(file: JournalFile) -> None:
    """The user has rights on the plan's topics only (strimzi #7482)."""
    cluster, what = FakeCluster({P0: (1,), Partition("secret", 0): (1,)}), plan(p0=(2,))
    cluster.hidden = {"secret"}
    execute(cluster, what, file)
    cluster.end_moves()
    assert ended(cluster, what, file).is_done
    assert cluster.throttles == NOTHING
    cluster.hidden = {"orders"}
    with pytest.raises(ControlError, match="orders: nothing came back"):
        execute(cluster, plan(p0=(3,)), file)


def test_plan_behind_stdin_has_its_journal_beside_its_file(tmp_path: Path) -> None:
    """`--reassignment-json-file /dev/stdin < plan.json`: nothing is written to /dev."""
    (tmp_path / "plan.json").write_text("the plan")
    with (tmp_path / "plan.json").open() as plan_file:
        file = JournalFile(Path(f"/dev/fd/{plan_file.fileno()}"), "plan0001")
        assert {file.path.parent, file.rollback_path.parent, file.lock_path.parent} == {tmp_path}


def test_journals_at_work_or_of_other_clusters_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans that came through a pipe have theirs in one folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here, there = three(), three()
    there._id = "another"
    first, second, third = (JournalFile(Path("/dev/stdin"), name) for name in ("first", "second", "third"))
    execute(there, plan(p0=(2,)), first)
    execute(here, plan(p1=(2,)), second)
    execute(here, plan(p2=(3,)), third, Orders(throttle=100, additional=True))
    here.end_moves()
    with second.locked() as mine:
        assert mine
        assert ended(here, plan(p2=(3,)), third).is_done
        assert here.throttles.rates[2]
    ended(here, plan(p2=(3,)), third)
    assert here.throttles == NOTHING
    assert there.throttles != NOTHING


def test_verify_leaves_the_throttle_to_a_command_at_work(file: JournalFile) -> None:
    """Between two steps of a move nothing moves; its throttle is not to go then."""
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    with file.locked() as mine:
        assert mine
        execute(cluster, what, file, Orders(throttle=100, at_once=1))
        cluster.end_moves()
        verdict = ended(cluster, what, file)
        assert verdict.busy
        assert verdict.put_back is None
    assert cluster.throttles != NOTHING


@pytest.mark.parametrize("between_steps", [False, True])
def test_verify_leaves_the_rate_to_another_move_of_that_rate(
    file: JournalFile, tmp_path: Path, between_steps: bool
) -> None:
    """Also to one that moves step by step, and has nothing under way at this moment."""
    cluster, older, newer = three(), plan(p0=(2,)), plan(p1=(3,))
    execute(cluster, older, file)
    other = journal_in(tmp_path, "other.json")
    execute(cluster, newer, other, Orders(throttle=100, additional=True))
    cluster.end_moves(P0)
    move = cluster.moving.pop(P1) if between_steps else None

    def begin_next_step(name: str) -> None:
        if move is not None and cluster.clock() >= 3:
            cluster.moving[P1] = move

    cluster.before_each = begin_next_step
    verdict = ended(cluster, older, file)
    assert verdict.put_back is not None
    assert {(rate.claim.broker, rate.needed_by) for rate in verdict.put_back.left} == {(1, P1)}
    assert cluster.rates == {1: {LEADER_RATE: "100", FOLLOWER_RATE: "100"}, 2: {}, 3: cluster.rates[1]}
    cluster.before_each = lambda name: None
    cluster.end_moves()
    for what, its_file in ((newer, other), (older, file)):
        ended(cluster, what, its_file)
    assert cluster.throttles == NOTHING


def test_verify_gives_somebody_elsewhere_time_for_the_next_step(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    execute(cluster, what, file, Orders(throttle=100, at_once=1))
    cluster.end_moves()
    since = cluster.clock()

    def begin(name: str) -> None:
        if name == "reassignments" and cluster.clock() - since >= 3 and not cluster.moving:
            cluster.try_to_reassign({P1: (2,)})

    cluster.before_each = begin
    assert ended(cluster, what, file).put_back is None
    assert cluster.throttles != NOTHING


def test_move_broken_off_between_steps_is_told_and_unthrottled(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    execute(cluster, what, file, Orders(throttle=100, at_once=1))
    cluster.end_moves()
    verdict = ended(cluster, what, file)
    assert not verdict.is_done
    assert verdict.seen.waiting == [P1]
    assert cluster.throttles == NOTHING
    assert execute(cluster, what, file) == [P1]  # given again, it goes on


def test_topic_that_is_deleted_in_mid_move_is_no_hindrance(file: JournalFile) -> None:
    cluster, what = FakeCluster({P0: (1,), Partition("live", 0): (1,)}), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.delete_topic("orders")
    verdict = ended(cluster, what, file)
    assert verdict.is_done
    assert [status.state for status in verdict.seen.statuses.values()] == ["gone"]
    assert cluster.throttles == NOTHING


def test_broker_that_is_down_keeps_its_rate_until_it_is_back(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.end_moves()
    cluster.alive.remove(1)
    verdict = ended(cluster, what, file)
    assert verdict.put_back is not None
    assert {(left.claim.broker, left.standing) for left in verdict.put_back.left} == {(1, None)}
    assert set(cluster.throttles.rates) == {1}
    cluster.alive.add(1)
    ended(cluster, what, file)
    assert cluster.throttles == NOTHING


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


def test_throttle_goes_where_the_whole_plan_is_refused(file: JournalFile) -> None:
    cluster = three()
    cluster.refuses = {P0: "no", P1: "no"}
    with pytest.raises(MoveError, match="refuses to move orders-0: no; orders-1: no; nothing has begun"):
        execute(cluster, plan(p0=(2,), p1=(2,)), file)
    assert cluster.throttles == NOTHING


def test_throttle_stays_if_a_part_is_refused_and_goes_with_rest(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    cluster.refuses = {P1: "no"}
    with pytest.raises(MoveError, match="refuses to move orders-1: no; 1 others have begun"):
        execute(cluster, what, file)
    assert cluster.throttles != NOTHING
    cluster.end_moves()
    ended(cluster, what, file)
    assert cluster.throttles == NOTHING


def test_reading_back_that_fails_is_no_success(file: JournalFile) -> None:
    """Cruise Control takes an exception while it reads its throttle back for a throttle that is there."""
    cluster = three()
    changed: list[str] = []

    def fail(name: str) -> None:
        if name == "alter_configs":
            changed.append(name)
        elif name == "describe_configs" and changed and "failed" not in changed:
            changed.append("failed")
            raise ControlError("Describing configs", "gone")

    cluster.before_each = fail
    with pytest.raises(ControlError, match="gone"):
        execute(cluster, plan(p0=(2,)), file)
    assert cluster.moving == {}
    assert cluster.throttles == NOTHING


def test_throttle_that_does_not_show_is_no_success(file: JournalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = three()
    monkeypatch.setattr(cluster, "change_configs", lambda changes: {})
    with pytest.raises(MoveError, match="the cluster does not show what was set"):
        execute(cluster, plan(p0=(2,)), file)
    assert cluster.moving == {}


def test_throttle_that_shows_late_is_waited_for(file: JournalFile) -> None:
    """Brokers make a large topic, and apply what the controller has accepted after that (beside KAFKA-17993)."""
    cluster, what = three(), plan(p0=(2,))
    cluster.shows_late_seconds = 20.0
    assert execute(cluster, what, file) == [P0]
    assert cluster.throttles.rates
    cluster.end_moves()
    cluster.sleep(60)
    ended(cluster, what, file)
    assert cluster.throttles == NOTHING


@pytest.mark.parametrize("late", [31.0, 45.0])
def test_throttle_that_shows_too_late_is_taken_back_unseen(file: JournalFile, late: float) -> None:
    cluster = three()
    cluster.shows_late_seconds = late
    with pytest.raises(MoveError, match="the cluster does not show what was set"):
        execute(cluster, plan(p0=(2,)), file)
    assert cluster.moving == {}
    assert not cluster.throttles.rates
    cluster.sleep(100)
    ended(cluster, plan(p0=(2,)), file)
    assert cluster.throttles == NOTHING


def test_what_cannot_be_taken_back_is_said_and_verify_does_it(file: JournalFile) -> None:
    cluster = three()
    cluster.shows_late_seconds = 1_000.0
    with pytest.raises(MoveError, match="what was set of it is there still: `weir move verify` removes it"):
        execute(cluster, plan(p0=(2,)), file)
    cluster.shows_late_seconds = 0.0
    ended(cluster, plan(p0=(2,)), file)
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
    ended(cluster, what, file)
    assert cluster.throttles == NOTHING


def test_logs_move_where_their_replica_is_and_else_it_is_told(file: JournalFile) -> None:
    replica = Replica(*P0, 2)
    what = ReassignmentPlan({P0: (1, 2)}, {replica: "/other", Replica(*P0, 1): "/other"})
    cluster = FakeCluster({P0: (1,)})
    with pytest.raises(MoveError, match="orders-0 on broker 2 could not be set within 10 s"):
        execute(cluster, what, file, Orders(replica_alter_log_dirs_throttle=5))
    cluster.end_moves()
    execute(cluster, what, file, Orders(replica_alter_log_dirs_throttle=5, additional=True))
    verdict = ended(cluster, what, file)
    assert set(verdict.seen.log_states.values()) == {"moving"}
    assert cluster.throttles.rates
    done = cancel(cluster, what, file)
    assert len(done.replicas) == 2
    assert cluster.throttles == NOTHING


def ticks(cluster: FakeCluster, what: ReassignmentPlan, at_once: int | None = None) -> Iterator[Tick]:
    return Following(lambda: cluster, what, {}, cluster.clock, cluster.sleep, at_once).ticks()


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
    verdict = ended(cluster, what, file)
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
    """A controller that fails, and a cluster that is away."""
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
    cluster.before_each = away
    with pytest.raises(ControlError, match="nobody there"):
        list(following)
    assert cluster.clock() > 600


def test_journal_of_another_cluster_is_refused(file: JournalFile) -> None:
    cluster = three()
    execute(cluster, plan(p0=(2,)), file)
    cluster.end_moves()
    cluster._id = "other"
    with pytest.raises(MoveError, match="belongs to a move in the cluster cluster, and this is the cluster other"):
        ended(cluster, plan(p0=(2,)), file)


def test_damaged_journal_is_told(file: JournalFile) -> None:
    file.path.write_text("{")
    with pytest.raises(MoveError, match=r"is damaged .* remove it, and verify goes by the plan alone"):
        execute(three(), plan(p0=(2,)), file)


def test_unwritable_journal_stops_a_move_before_it_begins(file: JournalFile) -> None:
    file.path.mkdir()
    cluster = three()
    with pytest.raises(MoveError, match="cannot be read"):
        execute(cluster, plan(p0=(2,)), file)
    assert cluster.throttles == NOTHING


def test_lost_journal_leaves_nothing_of_the_move(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    file.path.unlink()
    cluster.end_moves()
    verdict = ended(cluster, what, file)
    assert verdict.put_back is not None and verdict.put_back.by_plan
    assert cluster.throttles == NOTHING


def test_second_verify_leaves_alone_what_has_the_same_names(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    cluster.lists["orders"] = {FOLLOWER_REPLICAS: "0:2"}
    execute(cluster, what, file)
    cluster.end_moves()
    ended(cluster, what, file)
    ended(cluster, what, file)
    assert cluster.throttles == Standing({}, {"orders": {FOLLOWER_REPLICAS: "0:2"}})


@pytest.mark.long
@given(
    kills=st.lists(st.integers(1, 40), max_size=4),
    throttles=st.lists(st.sampled_from([50, 100]), min_size=5, max_size=5),
    before=st.sampled_from([{}, {LEADER_RATE: "7", FOLLOWER_RATE: "100"}]),
    ends=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_kill_at_any_request_leaves_nothing_after_one_verify(
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[int],
    throttles: list[int],
    before: dict[str, str],
    ends: list[bool],
) -> None:
    """`execute` and `verify` are killed at any request, and given again; then one `verify` runs to its end."""
    file = journal_in(tmp_path_factory.mktemp("move"))
    cluster, what = three(), plan(p0=(2,), p1=(1, 3))
    cluster.rates[1] = dict(before)
    cluster.lists["orders"] = {LEADER_REPLICAS: "2:1"}
    standing = cluster.throttles
    for kill, throttle, verifies in zip(kills, throttles, ends, strict=False):
        left = [kill]

        def die(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        cluster.before_each = die
        try:
            if verifies:
                cluster.end_moves()
                ended(cluster, what, file)
            else:
                execute(cluster, what, file, Orders(throttle=throttle))
        except Killed:
            pass
    cluster.before_each = lambda name: None
    cluster.end_moves()
    ended(cluster, what, file)
    assert cluster.throttles == standing

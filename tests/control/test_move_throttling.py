# SPDX-License-Identifier: Apache-2.0
"""The throttle of moves against a cluster in memory: what is set, and what is left after any failure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.moving import NOTHING, P0, P1, execute, journal_in, plan, three
from tests.fakes.move_cluster import FakeCluster
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.control.errors import ControlError, MoveError
from weir.control.move_execution import Orders
from weir.control.move_following import verify
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Partition
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import ReassignmentPlan


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def test_throttle_stays_while_partitions_move_and_goes_after(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,), p1=(1, 3))
    assert execute(cluster, what, file) == [P0, P1]
    set_ = cluster.throttles
    assert set_.lists == {"orders": {LEADER_REPLICAS: "0:1,1:1", FOLLOWER_REPLICAS: "0:2,1:3"}}
    cluster.end_moves(P0)
    verdict = verify(cluster, what, file)
    assert (verdict.is_done, verdict.put_back) == (False, None)
    assert cluster.throttles == set_
    cluster.end_moves()
    assert verify(cluster, what, file).is_done
    assert cluster.throttles == NOTHING


def test_throttles_are_preserved_where_that_is_wanted(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.end_moves()
    assert verify(cluster, what, file, preserve_throttles=True).is_done
    assert cluster.throttles != NOTHING


@pytest.mark.long
def test_list_too_long_for_brokers_is_refused_before_any_change(file: JournalFile) -> None:
    *fitting, one_more = [Partition("orders", number) for number in (*range(10_000, 14_096), 100_000)]
    cluster = FakeCluster(dict.fromkeys((*fitting, one_more), (1,)))
    what = ReassignmentPlan(dict.fromkeys((*fitting[1:], one_more), (2,)), {})
    with pytest.raises(
        MoveError, match=r"would have 32,768 characters, and brokers take 32,767: make plans with which at most"
    ):
        execute(cluster, what, file)
    assert (cluster.moving, cluster.throttles) == ({}, NOTHING)
    assert execute(cluster, what, file, Orders())
    cluster.end_moves()
    assert execute(cluster, ReassignmentPlan(dict.fromkeys(fitting, (3,)), {}), file)


def test_topics_outside_the_plan_need_not_be_readable(file: JournalFile) -> None:
    """The user has rights on the plan's topics only (strimzi #7482)."""
    cluster, what = FakeCluster({P0: (1,), Partition("secret", 0): (1,)}), plan(p0=(2,))
    cluster.hidden = {"secret"}
    execute(cluster, what, file)
    cluster.end_moves()
    assert verify(cluster, what, file).is_done
    assert cluster.throttles == NOTHING
    cluster.hidden = {"orders"}
    with pytest.raises(ControlError, match="orders: nothing came back"):
        execute(cluster, plan(p0=(3,)), file)


def test_verify_leaves_the_throttle_to_a_command_at_work(file: JournalFile) -> None:
    """Between two steps of a move nothing moves; its throttle is not to go then."""
    cluster, what = three(), plan(p0=(2,), p1=(2,))
    with file.locked() as mine:
        assert mine
        execute(cluster, what, file, Orders(throttle=100, at_once=1))
        cluster.end_moves()
        verdict = verify(cluster, what, file)
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
    verdict = verify(cluster, older, file)
    assert verdict.put_back is not None
    assert {(rate.claim.broker, rate.needed_by) for rate in verdict.put_back.left} == {(1, P1)}
    assert cluster.rates == {1: {LEADER_RATE: "100", FOLLOWER_RATE: "100"}, 2: {}, 3: cluster.rates[1]}
    cluster.before_each = lambda name: None
    cluster.end_moves()
    for what, its_file in ((newer, other), (older, file)):
        verify(cluster, what, its_file)
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
    assert verify(cluster, what, file).put_back is None
    assert cluster.throttles != NOTHING


def test_broker_that_is_down_keeps_its_rate_until_it_is_back(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    execute(cluster, what, file)
    cluster.end_moves()
    cluster.alive.remove(1)
    verdict = verify(cluster, what, file)
    assert verdict.put_back is not None
    assert {(left.claim.broker, left.standing) for left in verdict.put_back.left} == {(1, None)}
    assert set(cluster.throttles.rates) == {1}
    cluster.alive.add(1)
    verify(cluster, what, file)
    assert cluster.throttles == NOTHING


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
    verify(cluster, what, file)
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
    verify(cluster, what, file)
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
    verify(cluster, plan(p0=(2,)), file)
    assert cluster.throttles == NOTHING


def test_what_cannot_be_taken_back_is_said_and_verify_does_it(file: JournalFile) -> None:
    cluster = three()
    cluster.shows_late_seconds = 1_000.0
    with pytest.raises(MoveError, match="what was set of it is there still: `weir move verify` removes it"):
        execute(cluster, plan(p0=(2,)), file)
    cluster.shows_late_seconds = 0.0
    verify(cluster, plan(p0=(2,)), file)
    assert cluster.throttles == NOTHING


def test_second_verify_leaves_alone_what_has_the_same_names(file: JournalFile) -> None:
    cluster, what = three(), plan(p0=(2,))
    cluster.lists["orders"] = {FOLLOWER_REPLICAS: "0:2"}
    execute(cluster, what, file)
    cluster.end_moves()
    verify(cluster, what, file)
    verify(cluster, what, file)
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
                verify(cluster, what, file)
            else:
                execute(cluster, what, file, Orders(throttle=throttle))
        except Killed:
            pass
    cluster.before_each = lambda name: None
    cluster.end_moves()
    verify(cluster, what, file)
    assert cluster.throttles == standing

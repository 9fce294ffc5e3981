# SPDX-License-Identifier: Apache-2.0
"""What is kept beside a move's plan: where it is, whose it is, and what is done without it."""

from pathlib import Path

import pytest

from tests.control.moving import NOTHING, P0, P1, execute, journal_in, plan, three
from weir.control.errors import MoveError
from weir.control.move_execution import Orders
from weir.control.move_following import verify
from weir.control.move_journal import JournalFile


def test_earlier_plan_in_a_file_is_throttled_while_it_moves(tmp_path: Path) -> None:
    """A script writes one plan after the other into one file, and moves beside what still moves (kafka-kit #346)."""
    cluster, first, second = three(), plan(p0=(2,)), plan(p1=(3,))
    execute(cluster, first, journal_in(tmp_path, plan_id="first"))
    set_ = cluster.throttles
    file = journal_in(tmp_path, plan_id="second")
    execute(cluster, second, file, Orders(throttle=100, additional=True))
    cluster.end_moves(P1)
    verdict = verify(cluster, second, file)
    assert (verdict.is_done, verdict.earlier) == (True, (P0,))
    assert cluster.throttles.lists == set_.lists
    assert cluster.throttles.rates[2] == set_.rates[2]
    cluster.end_moves()
    verdict = verify(cluster, second, file)
    assert (verdict.is_done, verdict.earlier) == (True, ())
    assert cluster.throttles == NOTHING
    assert [one.ended for other in file.earlier(cluster.cluster_id()) if (one := other.read(cluster.cluster_id()))] == [
        True
    ]


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
    assert verify(cluster, what, file).is_done
    assert cluster.throttles == NOTHING


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
        assert verify(here, plan(p2=(3,)), third).is_done
        assert here.throttles.rates[2]
    verify(here, plan(p2=(3,)), third)
    assert here.throttles == NOTHING
    assert there.throttles != NOTHING


def test_journal_of_another_cluster_is_refused(file: JournalFile) -> None:
    cluster = three()
    execute(cluster, plan(p0=(2,)), file)
    cluster.end_moves()
    cluster._id = "other"
    with pytest.raises(MoveError, match="belongs to a move in the cluster cluster, and this is the cluster other"):
        verify(cluster, plan(p0=(2,)), file)


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
    verdict = verify(cluster, what, file)
    assert verdict.put_back is not None and verdict.put_back.by_plan
    assert cluster.throttles == NOTHING

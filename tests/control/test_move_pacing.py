# SPDX-License-Identifier: Apache-2.0
"""A move that is kept to a deadline, against a cluster in memory."""

import pytest

from tests.fakes.move_cluster import FakeCluster
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.control.errors import ControlError, MoveError
from weir.control.move_execution import Execution, Orders
from weir.control.move_following import Following, Tick, verify
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_pacing import DeadlinePacer
from weir.planning.assignment import Partition, Replica
from weir.planning.finish_by import Pace
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import ReassignmentPlan

P0 = Partition("orders", 0)
SIZE = 1_000_000
PLAN = ReassignmentPlan({P0: (2,)}, {})


class Moved(FakeCluster):
    """A cluster that copies as fast as the follower's rate allows, or, where it has none, not at all."""

    def __init__(self) -> None:
        super().__init__({P0: (1,)}, size=SIZE)
        self.part = 1.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if P0 in self.moving:
            replica = Replica(*P0, 2)
            arrived = int(int(self.rates[2].get(FOLLOWER_RATE, "0")) * self.part * seconds)
            self.copied[replica] = self.copied.get(replica, 0) + arrived
            if self.copied[replica] >= self.size:
                self.end_moves()


def pacer_to(at: float, file: JournalFile, lowest: int = 1, highest: int | None = None) -> DeadlinePacer:
    return DeadlinePacer(file, Pacing(finish_by=at, lowest=lowest, highest=highest), at)


def begun(cluster: Moved, pacer: DeadlinePacer, file: JournalFile, *, force: bool = False) -> DeadlinePacer:
    run = Execution(cluster, PLAN, file, Orders(force=force))
    run.check()
    run.choose_rates(pacer)
    run.throttle()
    run.start()
    return pacer


def followed(cluster: Moved, pacer: DeadlinePacer) -> list[Tick]:
    return list(Following(lambda: cluster, PLAN, {P0: (1,)}, cluster.clock, cluster.sleep, pacer=pacer).ticks())


@pytest.mark.parametrize("part", [0.8, 1.0])
def test_move_ends_at_its_deadline_and_leaves_nothing(file: JournalFile, part: float) -> None:
    cluster = Moved()
    cluster.part = part
    pacer = begun(cluster, pacer_to(100.0, file), file)
    cluster.requests.clear()
    ticks = followed(cluster, pacer)
    assert cluster.clock() == pytest.approx(100.0, abs=3.0)
    rates = [tick.pace.rate for tick in ticks if isinstance(tick.pace, Pace)]
    assert (len(set(rates)) > 1) == (part < 1)
    assert cluster.requests.count("describe_configs") <= 6 * (len(set(rates)) - 1)  # only where the rate changes
    verify(cluster, PLAN, file)
    assert cluster.throttles == Standing()


def test_killed_move_is_taken_up_at_the_rate_that_stayed(file: JournalFile) -> None:
    cluster = Moved()
    begun(cluster, pacer_to(100.0, file), file)
    cluster.sleep(30.0)
    stayed = int(cluster.rates[2][FOLLOWER_RATE])
    pacer = pacer_to(60.0, file)
    ticks = followed(cluster, pacer)
    assert isinstance(ticks[0].pace, Pace) and ticks[0].pace.rate == stayed
    assert cluster.clock() == pytest.approx(60.0, abs=3.0)


def test_move_taken_up_past_its_deadline_goes_as_fast_as_it_may(file: JournalFile) -> None:
    cluster = Moved()
    cluster.part = 0.0  # nothing arrives while nobody keeps the rate
    begun(cluster, pacer_to(100.0, file, 1, 500_000), file)
    cluster.sleep(3700.0)
    cluster.part = 1.0
    pacer = pacer_to(100.0, file, 1, 500_000)
    ticks = followed(cluster, pacer)
    paces = [tick.pace for tick in ticks if isinstance(tick.pace, Pace)]
    assert paces[-1].rate == 500_000
    assert paces[-1].late
    verify(cluster, PLAN, file)
    assert cluster.throttles == Standing()


def test_rate_that_somebody_changed_stays_and_others_follow(file: JournalFile) -> None:
    cluster = Moved()
    cluster.part = 0.8
    pacer = begun(cluster, pacer_to(100.0, file), file)
    cluster.rates[1][LEADER_RATE] = "123"
    before = cluster.rates[2][FOLLOWER_RATE]
    followed(cluster, pacer)
    assert cluster.rates[1][LEADER_RATE] == "123"
    assert cluster.rates[2][FOLLOWER_RATE] != before


def test_kill_while_a_rate_changes_leaves_what_verify_puts_back(file: JournalFile) -> None:
    cluster = Moved()
    cluster.part = 0.8
    pacer = begun(cluster, pacer_to(100.0, file), file)

    class Killed(BaseException):
        """Stands for SIGKILL: nothing catches it."""

    def kill(name: str) -> None:
        if name == "alter_configs":
            raise Killed

    cluster.before_each = kill
    with pytest.raises(Killed):
        followed(cluster, pacer)
    cluster.before_each = lambda name: None
    cluster.end_moves()
    verify(cluster, PLAN, file)
    assert cluster.throttles == Standing()


def test_rate_that_could_not_be_set_is_set_at_the_next_look(file: JournalFile) -> None:
    cluster = Moved()
    cluster.part = 0.8
    pacer = begun(cluster, pacer_to(100.0, file), file)
    failures = iter((True,))

    def fail(name: str) -> None:
        if name == "alter_configs" and next(failures, False):
            raise ControlError("Changing configs", "no answer")

    cluster.before_each = fail
    ticks = followed(cluster, pacer)
    assert [tick.away for tick in ticks if tick.away] == ["no answer"]
    assert cluster.clock() == pytest.approx(100.0, abs=3.0)


def test_limit_too_low_to_ever_end_is_refused_unless_forced(file: JournalFile) -> None:
    cluster = Moved()
    cluster.grown_per_look = 3000  # within the three seconds that are watched: 1,000 bytes/s
    with pytest.raises(MoveError, match="would never end beside what producers write"):
        begun(cluster, pacer_to(100.0, file, 1, 900), file)
    assert cluster.throttles == Standing()
    begun(cluster, pacer_to(100.0, file, 1, 900), file, force=True)
    assert cluster.rates[2][FOLLOWER_RATE] == "900"


def test_move_without_a_throttle_of_its_own_cannot_be_taken_up(file: JournalFile) -> None:
    cluster = Moved()
    with pytest.raises(MoveError, match="there is none to change"):
        followed(cluster, pacer_to(60.0, file))

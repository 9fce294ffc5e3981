# SPDX-License-Identifier: Apache-2.0
"""A move that is kept at what is free of links, taken up again, and watched, against a cluster in memory."""

from collections.abc import Mapping

import pytest

from tests.fakes.move_cluster import FakeCluster
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.control.errors import MoveError
from weir.control.move_execution import Execution, Orders
from weir.control.move_following import Following, Tick, verify
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_pacing import DeadlinePacer, LinkPacer
from weir.control.move_stuck import StuckWatch
from weir.control.move_throttling import MoveThrottling
from weir.planning.assignment import Partition, Replica
from weir.planning.finish_by import RateBounds
from weir.planning.headroom import PART, Allowance, Passed
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import ReassignmentPlan

P0, LIVE = Partition("orders", 0), Partition("live", 0)
PLAN = ReassignmentPlan({P0: (2,)}, {})
MB = 1_000_000


class Linked(FakeCluster):
    """A cluster that copies as the lower of both rates allows, while clients move `clients` bytes/s by each broker."""

    def __init__(self, size: int = 500 * MB) -> None:
        super().__init__({P0: (1,), LIVE: (3, 1)}, size=size)
        self.clients = 0.0
        self.counted = 0.0
        self.tells = True

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.counted += self.clients * seconds
        if P0 in self.moving:
            rates = (self.rates[1].get(LEADER_RATE, "0"), self.rates[2].get(FOLLOWER_RATE, "0"))
            replica = Replica(*P0, 2)
            self.copied[replica] = self.copied.get(replica, 0) + int(min(map(int, rates)) * seconds)
            if self.copied[replica] >= self.size:
                self.end_moves()

    def passed(self, topics: frozenset[str]) -> Mapping[int, Passed]:
        return {1: Passed(0.0, self.counted)} if self.tells else {}


def pacer_of(cluster: Linked, file: JournalFile, limits: RateBounds | None = None) -> LinkPacer:
    limits = limits or RateBounds()
    pacing = Pacing(link_capacity=10 * MB, lowest=limits.lowest, highest=limits.highest)
    return LinkPacer(file, pacing, cluster.passed)


def begun(cluster: Linked, file: JournalFile, limits: RateBounds | None = None, *, force: bool = False) -> LinkPacer:
    run = Execution(cluster, PLAN, file, Orders(force=force))
    pacer = pacer_of(cluster, file, limits)
    run.choose_rates(pacer)
    run.throttle()
    run.start()
    return pacer


def follower(cluster: Linked, pacer: LinkPacer | DeadlinePacer | None, watch: StuckWatch | None = None) -> Following:
    return Following(
        lambda: cluster, PLAN, {P0: (1,)}, cluster.clock, cluster.sleep, pacer=pacer, watch=watch or StuckWatch()
    )


def ticks_for(cluster: Linked, seconds: float, following: Following) -> list[Tick]:
    end = cluster.clock() + seconds
    ticks = []
    for tick in following.ticks():
        ticks.append(tick)
        if cluster.clock() >= end:
            break
    return ticks


def test_each_rate_is_what_its_link_has_free_beside_clients(file: JournalFile) -> None:
    """It follows what clients take."""
    cluster = Linked()
    cluster.clients = 4 * MB
    pacer = begun(cluster, file)
    assert cluster.rates[1][LEADER_RATE] == str(int(PART * 6 * MB))
    assert cluster.rates[2][FOLLOWER_RATE] == str(int(PART * 10 * MB))
    cluster.clients = 8 * MB
    following = follower(cluster, pacer)
    ticks_for(cluster, 25, following)
    assert int(cluster.rates[1][LEADER_RATE]) == pytest.approx(PART * 2 * MB, rel=0.01)
    cluster.clients = 0.0
    ticks_for(cluster, 60, following)
    assert int(cluster.rates[1][LEADER_RATE]) == pytest.approx(PART * 10 * MB, rel=0.05)
    assert cluster.rates[2][FOLLOWER_RATE] == str(int(PART * 10 * MB))
    cluster.end_moves()
    verify(cluster, PLAN, file)
    assert cluster.throttles == Standing()


def test_rates_keep_to_the_limits(file: JournalFile) -> None:
    cluster = Linked()
    cluster.clients = 9.9 * MB
    begun(cluster, file, RateBounds(2 * MB, 3 * MB))
    assert (cluster.rates[1][LEADER_RATE], cluster.rates[2][FOLLOWER_RATE]) == ("2000000", "3000000")


def test_highest_rate_not_above_what_producers_write_is_refused(file: JournalFile) -> None:
    """It is taken where it is forced."""
    cluster = Linked()
    cluster.grown_per_look = MB
    with pytest.raises(MoveError, match=f"{FOLLOWER_RATE} of broker 2 may be 100 kB/s at most"):
        begun(cluster, file, RateBounds(1, 100_000))
    assert cluster.throttles == Standing()
    begun(cluster, file, RateBounds(1, 100_000), force=True)


def test_move_is_taken_up_by_what_is_written_down(file: JournalFile) -> None:
    cluster = Linked()
    cluster.clients = 4 * MB
    begun(cluster, file, RateBounds(1, 9 * MB))
    journal = file.read("cluster")
    assert journal is not None
    assert journal.pacing == Pacing(link_capacity=10 * MB, highest=9 * MB)
    cluster.clients = 8 * MB
    pacer = pacer_of(cluster, file, RateBounds(1, 9 * MB))
    ticks = ticks_for(cluster, 30, follower(cluster, pacer))
    assert isinstance(ticks[0].pace, Allowance)
    assert ticks[0].pace.rates[1, LEADER_RATE] == int(PART * 6 * MB)
    assert int(cluster.rates[1][LEADER_RATE]) == pytest.approx(PART * 2 * MB, rel=0.01)
    journal = file.read("cluster")
    assert journal is not None and journal.pacing is not None


@pytest.mark.long
def test_sidecar_that_is_away_leaves_the_rates_as_they_are(file: JournalFile) -> None:
    cluster = Linked(size=100_000 * MB)
    cluster.clients = 4 * MB
    following = follower(cluster, begun(cluster, file))
    ticks_for(cluster, 20, following)
    cluster.tells, cluster.clients = False, 0.0
    ticks_for(cluster, 3600, following)
    assert cluster.rates[1][LEADER_RATE] == str(int(PART * 6 * MB))


def test_deadline_is_written_down_also_of_who_takes_it_up(file: JournalFile) -> None:
    cluster = Linked()
    run = Execution(cluster, PLAN, file, Orders())
    run.choose_rates(DeadlinePacer(file, Pacing(finish_by=1e9), 100.0))
    run.throttle()
    run.start()
    journal = file.read("cluster")
    assert journal is not None
    assert journal.pacing == Pacing(finish_by=1e9)
    later = Pacing(finish_by=1e9 + 60, lowest=7)
    pacer = DeadlinePacer(file, later, 160.0)
    ticks_for(cluster, 1, follower(cluster, pacer))
    journal = file.read("cluster")
    assert journal is not None
    assert (journal.pacing, bool(journal.claims)) == (later, True)


def test_change_of_rates_keeps_what_is_written_of_their_keeping(file: JournalFile) -> None:
    cluster = Linked()
    begun(cluster, file)
    throttling = MoveThrottling(cluster, file)
    throttling.change_rates({(1, LEADER_RATE): 123})
    assert (cluster.rates[1][LEADER_RATE], cluster.rates[2][FOLLOWER_RATE]) == ("123", str(int(PART * 10 * MB)))
    journal = file.read("cluster")
    assert journal is not None and journal.pacing == Pacing(link_capacity=10 * MB)


def test_move_at_anothers_rate_of_0_is_reported_after_a_minute(file: JournalFile) -> None:
    cluster = Linked()
    pacer = begun(cluster, file)
    cluster.rates[1][LEADER_RATE] = "0"
    ticks = ticks_for(cluster, 70, follower(cluster, pacer, StuckWatch(file)))
    assert [one.why for one in ticks[-1].stuck] == [
        f"{LEADER_RATE} of broker 1 is 0 B/s, which is not what this move has set"
    ]
    assert next(tick.stuck for tick in ticks if tick.stuck) == ticks[-1].stuck
    assert not ticks[50].stuck
    cluster.rates[1][LEADER_RATE] = str(MB)
    assert not ticks_for(cluster, 5, follower(cluster, pacer, StuckWatch(file)))[-1].stuck


def test_move_below_what_producers_write_gets_a_higher_rate(file: JournalFile) -> None:
    """Producers begin when the move runs at its lowest, as clients leave nothing."""
    cluster = Linked()
    cluster.clients = 10 * MB
    following = follower(cluster, begun(cluster, file, RateBounds(1000, 5 * MB)), StuckWatch(file))
    assert cluster.rates[1][LEADER_RATE] == "1000"
    cluster.grown_per_look = 50_000  # looked at more than once a second
    ticks = ticks_for(cluster, 20, following)
    assert int(cluster.rates[1][LEADER_RATE]) > 50_000
    assert not any(tick.stuck for tick in ticks)


@pytest.mark.parametrize(("broker", "why"), [(2, "broker 2 is down"), (1, "orders-0 has no leader that is up")])
def test_dead_broker_is_named(broker: int, why: str, file: JournalFile) -> None:
    cluster = Linked()
    pacer = begun(cluster, file)
    watch = StuckWatch(file)
    following = follower(cluster, pacer, watch)
    ticks_for(cluster, 3, following)
    cluster.alive.discard(broker)
    cluster.rates[1][LEADER_RATE] = "0"  # so that the fake copies no more
    ticks = ticks_for(cluster, 70, following)
    assert [one.why for one in ticks[-1].stuck] == [why]

"""Begins a move: checks the plan against the cluster, sets the throttle, and starts partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from weir.control.errors import ControlError, MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_look import copies_of, growth, look, moves_of
from weir.control.move_pacing import Deadline, Link, moving_of, read_links
from weir.control.move_throttling import MoveThrottling
from weir.planning.assignment import Brokers, Partition, Replica
from weir.planning.carried import Key
from weir.planning.finish_by import Pace, first_pace
from weir.planning.headroom import Allowance, first_allowance
from weir.planning.move_status import needed_rates, next_to_move
from weir.planning.move_throttle import wanted_throttle
from weir.planning.reassignment_json import ReassignmentPlan
from weir.planning.units import show_rate

INFLOW_SECONDS = 3.0
"""How long is watched what producers write, to compare a throttle with it."""

_LOG_DIR_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """How a plan is to be executed, by kafka-reassign-partitions' names. Rates are bytes/s, None for none.

    `at_once` partitions move at the same time, 0: all. `force` leaves out the checks that only warn of harm.
    """

    throttle: int | None = None
    replica_alter_log_dirs_throttle: int | None = None
    additional: bool = False
    force: bool = False
    at_once: int = 0
    timeout_seconds: float = 10.0


class Execution:
    """One run of a plan. Every method blocks, and raises MoveError or ControlError."""

    def __init__(
        self,
        admin: MoveAdmin,
        plan: ReassignmentPlan,
        file: JournalFile,
        orders: Orders,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._admin = admin
        self._plan = plan
        self._orders = orders
        self._clock = clock
        self._sleep = sleep
        self._throttling = MoveThrottling(admin, file, sleep)
        self._seen = look(admin, plan)
        self._rate = orders.throttle
        self._rates: Mapping[Key, int] = {}
        self._pacing: Pacing | None = None

    @property
    def before(self) -> dict[Partition, Brokers]:
        """The replicas of the plan's partitions before it, for the way back."""
        current = {partition: self._seen.states[partition].replicas for partition in self._plan.brokers}
        return {
            partition: tuple(broker for broker in brokers if broker not in self._adding(partition))
            for partition, brokers in current.items()
        }

    @property
    def is_resumed(self) -> bool:
        """Whether the plan was begun before, and is not over: then the cluster does not tell where all of it was."""
        journal = self._throttling.journal
        return bool(self._seen.moving) or (journal is not None and not journal.ended)

    def check(self) -> None:
        """Refuse what cannot be done, and, unless forced, what would hurt."""
        self._check_that_all_exist()
        others = [p for p in self._seen.under_way if p not in self._plan.brokers] + [
            partition for partition, status in self._seen.statuses.items() if status.state == "elsewhere"
        ]
        if others and not self._orders.additional:
            raise MoveError(
                f"{_some(others)} {'is' if len(others) == 1 else 'are'} being moved already: wait for that, or give"
                " --additional to move beside it"
            )
        if not self._orders.force:
            self._check_that_none_is_lost()
            self._check_inflow()

    def plan_pace(self, deadline: Deadline) -> Pace:
        """Choose the throttle that ends the move by a deadline. Watches for INFLOW_SECONDS what producers write.

        One that would never let it end is refused, unless forced.
        """
        moves = moves_of(self._plan.brokers, self._seen)
        moving = {partition: self._seen.states[partition] for partition, move in moves.items() if move.destinations}
        grown = growth(self._admin, moving, INFLOW_SECONDS, self._clock, self._sleep) if moving else {}
        now = self._clock()
        seen = moving_of(self._seen, copies_of(self._admin, self._plan.brokers, self.before, self._seen))
        pace = first_pace(now, deadline.at - now, seen, grown, deadline.limits)
        if pace.late is None and not self._orders.force:
            raise MoveError(
                f"under {show_rate(pace.rate)}, the most that is allowed, the move would never end beside what"
                " producers write: allow more, or --force"
            )
        self._rate, self._pacing = pace.rate, deadline.pacing
        return pace

    def plan_allowance(self, link: Link) -> Allowance:
        """Choose the rates that others leave free of each broker's link. Watches for INFLOW_SECONDS what passes.

        Rates that would never let the move end are refused, unless forced.
        """
        moves = moves_of(self._plan.brokers, self._seen)
        keys = wanted_throttle(moves, 1).rates.keys()
        brokers = frozenset(broker for broker, _ in keys)
        copies = copies_of(self._admin, self._plan.brokers, self.before, self._seen)
        begun = self._clock()
        before = read_links(self._admin, self._seen, copies, brokers, link.passed(frozenset()))
        if keys:
            self._sleep(INFLOW_SECONDS)
        copies = copies_of(self._admin, self._plan.brokers, self.before, self._seen)
        seen = read_links(self._admin, self._seen, copies, brokers, link.passed(frozenset()))
        now = self._clock()
        allowance = first_allowance(keys, before, now, seen, max(now - begun, 1e-3), link.capacity, link.limits)
        if allowance.too_low and not self._orders.force:
            broker, setting = min(allowance.too_low)
            raise MoveError(
                f"{setting} of broker {broker} may be {show_rate(allowance.rates[broker, setting])} at most, and beside"
                " what producers write the move would then never end: allow more, or --force"
            )
        self._rate, self._rates = max(allowance.rates.values(), default=None), allowance.rates
        self._pacing = link.pacing
        # Until the sidecars follow this throttle, they count the move with all else.
        return replace(allowance, seen=replace(seen, passed={}))

    def throttle(self) -> None:
        """Set the throttle that was ordered or chosen; where none was, write down that none is this move's."""
        disk_brokers = {replica.broker for replica in self._plan.log_dirs}
        orders = self._orders
        self._throttling.begin(
            wanted_throttle(
                moves_of(self._plan.brokers, self._seen),
                self._rate,
                disk_brokers,
                orders.replica_alter_log_dirs_throttle,
                self._rates,
            ),
            self._pacing,
            undo=self._seen.is_quiet,
        )

    def start(self) -> list[Partition]:
        """Start the partitions, or the first of them. Where none can be started, what was set is put back.

        What moves elsewhere is turned here: that is what `--additional` allows.
        """
        elsewhere = [partition for partition, status in self._seen.statuses.items() if status.state == "elsewhere"]
        beginning = next_to_move(self._seen.statuses, self._orders.at_once)
        return start(self._admin, self._plan, [*beginning, *elsewhere], self._undo)

    def move_logs(self) -> None:
        """Start the moves between log directories.

        A replica can be told its directory only when it is there, so this tries until the timeout.
        """
        left: Mapping[Replica, str] = {
            replica: path for replica, path in self._plan.log_dirs.items() if self._seen.log_states[replica] != "done"
        }
        begun = self._clock()
        while left:
            missing = self._admin.move_log_dirs(left)
            left = {replica: path for replica, path in left.items() if replica in missing}
            if left and self._clock() - begun >= self._orders.timeout_seconds:
                raise MoveError(
                    f"the log directories of {_some(sorted(left))} could not be set within"
                    f" {self._orders.timeout_seconds:g} s, as these replicas are not there yet; execute the plan again"
                    " with --additional, or give a longer --timeout"
                )
            if left:
                self._sleep(_LOG_DIR_RETRY_SECONDS)

    def _undo(self) -> None:
        journal = self._throttling.journal
        if journal is not None and self._seen.is_quiet:
            self._throttling.end(journal.claims)

    def _adding(self, partition: Partition) -> Brokers:
        move = self._seen.under_way.get(partition)
        return move.adding_replicas if move is not None else ()

    def _check_that_all_exist(self) -> None:
        unknown = [partition for partition in self._plan.brokers if partition not in self._seen.states]
        topics = {partition.topic for partition in self._seen.states}
        if gone := sorted({partition.topic for partition in unknown} - topics):
            raise MoveError(f"there is no topic {_some(gone)}")
        if unknown:
            raise MoveError(f"there is no partition {_some(sorted(unknown))}")
        alive = set(self._admin.brokers())
        added = {broker for move in moves_of(self._plan.brokers, self._seen).values() for broker in move.destinations}
        if missing := sorted(added - alive):
            raise MoveError(f"there is no broker {_some(missing)}, or it is down: nothing can be moved there")

    def _check_that_none_is_lost(self) -> None:
        fewer = [
            f"{partition} (from {len(brokers)} to {len(self._plan.brokers[partition])})"
            for partition, brokers in sorted(self.before.items())
            if len(self._plan.brokers[partition]) < len(brokers)
        ]
        if fewer:
            raise MoveError(f"the plan takes replicas away from {_some(fewer)}: give --force if that is what is wanted")

    def _check_inflow(self) -> None:
        rate = self._orders.throttle
        moves = moves_of(self._plan.brokers, self._seen)
        moving = {partition: self._seen.states[partition] for partition, move in moves.items() if move.destinations}
        if rate is None or not moving:
            return
        leaders = {partition: state.leader for partition, state in moving.items()}
        grown = growth(self._admin, moving, INFLOW_SECONDS, self._clock, self._sleep)
        needed = needed_rates(moves, leaders, grown)
        if not needed:
            return
        (broker, setting), most = max(needed.items(), key=lambda item: item[1])
        if rate <= most:
            raise MoveError(
                f"a throttle of {show_rate(rate)} is not above the {show_rate(most)} that producers' records take of"
                f" {setting} on broker {broker}, so the move would never end: give more, or --force"
            )


def start(
    admin: MoveAdmin, plan: ReassignmentPlan, partitions: Iterable[Partition], undo: Callable[[], None] = lambda: None
) -> list[Partition]:
    """Start to move partitions as a plan says. `undo` is called where not one could be started.

    MoveError names those that were refused; others have begun.
    """
    wanted = {partition: plan.brokers[partition] for partition in partitions}
    if not wanted:
        return []
    try:
        refused = admin.try_to_reassign(wanted)
    except ControlError:
        # Nobody knows whether they have begun, so the throttle stays; `verify` removes it when nothing moves.
        raise
    if refused:
        if len(refused) == len(wanted):
            undo()
        reasons = "; ".join(f"{partition}: {reason}" for partition, reason in sorted(refused.items())[:3])
        more = f" ({len(refused)} in all)" if len(refused) > 3 else ""
        begun = (
            "nothing has begun" if len(refused) == len(wanted) else f"{len(wanted) - len(refused)} others have begun"
        )
        raise MoveError(f"the cluster refuses to move {reasons}{more}; {begun}")
    return sorted(wanted)


def _some(names: Iterable[object]) -> str:
    listed = [str(name) for name in names]
    more = len(listed) - 3
    return ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")

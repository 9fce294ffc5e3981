# SPDX-License-Identifier: Apache-2.0
"""Begins a move: checks the plan against the cluster, sets the throttle, and starts partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weir.control.errors import MoveError, NothingBegunError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_pacing import Pacer
from weir.control.move_throttling import MoveThrottling
from weir.control.plan_state import INFLOW_SECONDS, growth, read_plan_state
from weir.planning.assignment import Brokers, Partition, Replica
from weir.planning.move_status import needed_rates, next_to_move
from weir.planning.move_throttle import Rates, wanted_throttle
from weir.planning.reassignment_json import ReassignmentPlan
from weir.planning.units import show_rate

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

    def __init__(self, admin: MoveAdmin, plan: ReassignmentPlan, file: JournalFile, orders: Orders) -> None:
        self._admin = admin
        self._plan = plan
        self._file = file
        self._orders = orders
        self._throttling = MoveThrottling(admin, file)
        self._seen = read_plan_state(admin, plan)
        self._rates: Rates | None = orders.throttle
        self._pacing: Pacing | None = None

    @property
    def rate(self) -> int | None:
        """The throttle that was ordered, or the highest that was chosen."""
        return max(self._rates.values(), default=None) if isinstance(self._rates, Mapping) else self._rates

    @property
    def moving(self) -> int:
        """How many partitions of the plan were moving already."""
        return len(self._seen.partitions("moving"))

    @property
    def is_throttled(self) -> bool:
        """Whether the move has set anything that is to be put back."""
        return bool(self._throttling.claims)

    def check(self) -> None:
        """Refuse what cannot be done, and, unless forced, what would hurt."""
        self._check_that_all_exist()
        others = [p for p in self._seen.under_way if p not in self._plan.brokers] + self._seen.partitions("elsewhere")
        if others and not self._orders.additional:
            raise MoveError(
                f"{_some(others)} {'is' if len(others) == 1 else 'are'} being moved already: wait for that, or give"
                " --additional to move beside it"
            )
        self._check_log_dirs()
        fewer = [
            f"{partition} (from {len(brokers)} to {len(self._plan.brokers[partition])})"
            for partition, brokers in sorted(self._seen.before.items())
            if len(self._plan.brokers[partition]) < len(brokers)
        ]
        if fewer:
            self._warn(f"the plan takes replicas away from {_some(fewer)}: give --force if that is what is wanted")
        if self._orders.throttle is not None and not self._orders.force:
            self._check_inflow(self._orders.throttle)

    def choose_rates(self, pacer: Pacer) -> None:
        """Let a pacer choose the throttle. Rates that would never let the move end are refused, unless forced."""
        chosen = pacer.begin(self._admin, self._seen)
        if chosen.never is not None:
            self._warn(chosen.never)
        self._rates, self._pacing = chosen.rates, pacer.pacing

    def write_rollback(self) -> dict[Partition, Brokers]:
        """Write down the way back, and return it.

        Of a plan that was begun before, and is not over, the cluster does not tell where all of it was.
        """
        before = self._seen.before
        if self._seen.partitions("moving") or self._throttling.journal is not None:
            before |= self._file.read_rollback()
        self._file.write_rollback(before)
        return before

    def throttle(self) -> None:
        """Set the throttle that was ordered or chosen; where none was, write down that none is this move's."""
        disk_brokers = {replica.broker for replica in self._plan.log_dirs}
        disk_rate = self._orders.replica_alter_log_dirs_throttle
        wanted = wanted_throttle(self._seen.moves, self._rates, disk_brokers, disk_rate)
        self._throttling.begin(wanted, self._pacing, undo=self._seen.is_quiet)

    def start(self) -> list[Partition]:
        """Start the partitions, or the first of them. Where none can be started, what was set is put back.

        What moves elsewhere is turned here: that is what `--additional` allows. What only waits for the controller to
        look is ordered again.
        """
        beginning = next_to_move(self._seen.statuses, self._orders.at_once)
        again = self._seen.partitions("elsewhere") + self._seen.arrived
        try:
            return start(self._admin, self._plan, [*beginning, *again])
        except NothingBegunError:
            if self._seen.is_quiet:
                self._throttling.undo()
            raise

    def move_logs(self, begun: Collection[Partition]) -> None:
        """Start the moves between log directories, of partitions that have `begun` or are where they are to be.

        A replica can be told its directory only when it is there, so this tries until the timeout.
        """
        left: Mapping[Replica, str] = self._seen.log_dirs_to_tell(begun)
        since = self._admin.clock()
        while left:
            missing = self._admin.move_log_dirs(left)
            left = {replica: path for replica, path in left.items() if replica in missing}
            if left and self._admin.clock() - since >= self._orders.timeout_seconds:
                raise MoveError(
                    f"the log directories of {_some(sorted(left))} could not be set within"
                    f" {self._orders.timeout_seconds:g} s, as these replicas are not there yet; execute the plan again"
                    " with --additional, or give a longer --timeout"
                )
            if left:
                self._admin.sleep(_LOG_DIR_RETRY_SECONDS)

    def _warn(self, harm: str) -> None:
        """Refuse what would do harm, unless it is forced."""
        if not self._orders.force:
            raise MoveError(harm)

    def _check_that_all_exist(self) -> None:
        unknown = [partition for partition in self._plan.brokers if partition not in self._seen.states]
        topics = {partition.topic for partition in self._seen.states}
        if gone := sorted({partition.topic for partition in unknown} - topics):
            raise MoveError(f"there is no topic {_some(gone)}")
        if unknown:
            raise MoveError(f"there is no partition {_some(sorted(unknown))}")
        added = {broker for move in self._seen.moves.values() for broker in move.destinations}
        if missing := sorted(added - set(self._admin.brokers())):
            raise MoveError(f"there is no broker {_some(missing)}, or it is down: nothing can be moved there")

    def _check_log_dirs(self) -> None:
        """Refuse a directory that its broker does not have: it would be told only when partitions move already."""
        wanted = self._plan.log_dirs
        there = (
            self._admin.directories({replica.broker for replica in wanted}, min(self._plan.brokers)) if wanted else {}
        )
        for replica, path in sorted(wanted.items()):
            if path not in there.get(replica.broker, (path,)):
                raise MoveError(
                    f"broker {replica.broker} has no log directory {path}, where {replica.of} is to go: it has"
                    f" {', '.join(sorted(there[replica.broker]))}"
                )

    def _check_inflow(self, rate: int) -> None:
        leaders = {partition: state.leader for partition, state in self._seen.states.items()}
        needed = needed_rates(self._seen.moves, leaders, growth(self._admin, self._seen.receiving, INFLOW_SECONDS))
        (broker, setting), most = max(needed.items(), key=lambda item: item[1], default=((0, ""), 0.0))
        if needed and rate <= most:
            raise MoveError(
                f"a throttle of {show_rate(rate)} is not above the {show_rate(most)} that producers' records take of"
                f" {setting} on broker {broker}, so the move would never end: give more, or --force"
            )


def start(admin: MoveAdmin, plan: ReassignmentPlan, partitions: Iterable[Partition]) -> list[Partition]:
    """Start to move partitions as a plan says.

    MoveError names those that were refused; others have begun, unless it is a NothingBegunError. After a ControlError
    nobody knows whether they have begun, so the throttle stays; `verify` removes it when nothing moves.
    """
    wanted = {partition: plan.brokers[partition] for partition in partitions}
    refused = admin.try_to_reassign(wanted) if wanted else {}
    if not refused:
        return sorted(wanted)
    reasons = "; ".join(f"{partition}: {reason}" for partition, reason in sorted(refused.items())[:3])
    more = f" ({len(refused)} in all)" if len(refused) > 3 else ""
    sentence = f"the cluster refuses to move {reasons}{more}"
    if len(refused) == len(wanted):
        raise NothingBegunError(f"{sentence}; nothing has begun")
    raise MoveError(f"{sentence}; {len(wanted) - len(refused)} others have begun")


def _some(names: Iterable[object]) -> str:
    listed = [str(name) for name in names]
    more = len(listed) - 3
    return ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")

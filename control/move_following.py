# SPDX-License-Identifier: Apache-2.0
"""Follows a move to its end, beginning further partitions as earlier ones end; and ends or cancels it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from weir.control.errors import ControlError, MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_execution import start
from weir.control.move_journal import JournalFile
from weir.control.move_pacing import Pacer
from weir.control.move_stuck import StuckWatch
from weir.control.move_throttling import GRACE_SECONDS, POLL_SECONDS, MoveThrottling
from weir.control.plan_state import PlanState, moving_of, read_plan_state
from weir.planning.assignment import Brokers, Partition, Reassignment, Replica
from weir.planning.finish_by import Pace
from weir.planning.headroom import Allowance
from weir.planning.move_status import Progress, ProgressMeter, next_to_move
from weir.planning.move_throttle import LISTS, PutBack
from weir.planning.reassignment_json import ReassignmentPlan
from weir.planning.stuck import Stuck

AWAY_SECONDS = 600.0
"""How long a cluster may be away before following gives up. The move itself goes on without anybody who follows."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A move that is followed, as read just now. `away`: why the cluster gives no answer; then nothing else is set.

    `stuck` has the brokers that have got no nearer for a minute.
    """

    seen: PlanState | None = None
    progress: Progress | None = None
    away: str | None = None
    pace: Pace | Allowance | None = None
    stuck: tuple[Stuck, ...] = ()


@dataclass(frozen=True, slots=True)
class Following:
    """How to follow a move: `connect` opens a new connection. `clock` and `sleep` are in seconds.

    `at_once` is None where nothing is begun any more, else as in Orders. `pacer` keeps the rate. `watch` finds out who
    holds the move up.
    """

    connect: Callable[[], MoveAdmin]
    plan: ReassignmentPlan
    before: Mapping[Partition, Brokers]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    at_once: int | None = None
    pacer: Pacer | None = None
    watch: StuckWatch = field(default_factory=StuckWatch)

    def ticks(self) -> Iterator[Tick]:
        """Yield a Tick now and then, until nothing of the plan moves and nothing more is to begin.

        A cluster that gives no answer is asked again over a new connection; ControlError after AWAY_SECONDS.
        """
        meter = ProgressMeter()
        away_since: float | None = None
        admin: MoveAdmin | None = None
        try:
            while True:
                try:
                    if admin is None:
                        admin = self.connect()
                        admin.patience_seconds = POLL_SECONDS  # whoever looks on is to see that it is away
                    seen = read_plan_state(admin, self.plan)
                    tick = self._tick(admin, seen, meter)
                except ControlError as error:
                    now = self.clock()
                    away_since = now if away_since is None else away_since
                    if now - away_since >= AWAY_SECONDS:
                        raise
                    if admin is not None:
                        admin.close()
                        admin = None
                    yield Tick(away=error.reason)
                else:
                    away_since = None
                    yield tick
                    if seen.is_quiet and not (self.at_once is not None and self._is_more_to_begin(seen)):
                        return
                self.sleep(POLL_SECONDS)
        finally:
            if admin is not None:
                admin.close()

    def _is_more_to_begin(self, seen: PlanState) -> bool:
        return bool(seen.waiting) or any(seen.log_states[one] == "waiting" for one in seen.log_dirs_to_tell(()))

    def _tick(self, admin: MoveAdmin, seen: PlanState, meter: ProgressMeter) -> Tick:
        if self.at_once is not None:
            begun = start(admin, self.plan, next_to_move(seen.statuses, self.at_once))
            # Those that are not there yet are told again at the next reading.
            alive, left = set(admin.brokers()), seen.log_dirs_to_tell(begun)
            if wanted := {replica: path for replica, path in left.items() if replica.broker in alive}:
                admin.move_log_dirs(wanted)
        moving = moving_of(admin, seen, self.before)
        pace = self.pacer.step(admin, moving) if self.pacer is not None else None
        now = self.clock()
        stuck = self.watch.stuck(admin, now, moving)
        return Tick(seen, meter.measure(now, moving), pace=pace, stuck=stuck)


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found. `busy`: another command works on the plan.

    `put_back` is None where the throttle was left alone: it goes on, or is not to be touched. `earlier` are partitions
    that still move by other plans which were in the same file, under their throttle. `standing` are topics that have
    throttled replicas afterwards, although nothing moves in the whole cluster.
    """

    seen: PlanState
    busy: bool
    put_back: PutBack | None = None
    earlier: tuple[Partition, ...] = ()
    standing: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether all is where the plan says."""
        return self.seen.is_done


def verify(
    admin: MoveAdmin, plan: ReassignmentPlan, file: JournalFile, *, preserve_throttles: bool = False
) -> Verified:
    """Find out how far a move is, and put back what stood before it where it has ended."""
    seen = read_plan_state(admin, plan)
    with file.locked() as mine:
        waited = 0.0
        while mine and seen.is_quiet and seen.waiting and waited < GRACE_SECONDS:
            admin.sleep(POLL_SECONDS)
            waited += POLL_SECONDS
            seen = read_plan_state(admin, plan)
        if not mine or preserve_throttles or not seen.is_quiet:
            return Verified(seen, busy=not mine)
        put_back = MoveThrottling(admin, file).end(plan.brokers)
        earlier, more = _end_earlier(admin, file)
        return Verified(seen, False, _together(put_back, more), earlier, _throttled_for_nothing(admin))


def _throttled_for_nothing(admin: MoveAdmin) -> tuple[str, ...]:
    """Return the topics that have throttled replicas, as somebody else's plan has left them; none while any moves."""
    if admin.reassignments():
        return ()
    topics = {partition.topic for partition in admin.partitions()}
    lists = admin.own_throttles((), (), topics)[1]
    return tuple(sorted(topic for topic, own in lists.items() if any(own.get(setting) for setting in LISTS)))


def _end_earlier(admin: MoveAdmin, file: JournalFile) -> tuple[tuple[Partition, ...], list[PutBack]]:
    """Put back what other plans in the same file have set, once nothing of it moves: nobody may have the plan any more.

    Returns the partitions that still move, and what was put back.
    """
    still_moving: set[Partition] = set()
    done: list[PutBack] = []
    for other in file.earlier(admin.cluster_id()):
        with nullcontext(True) if other.lock_path == file.lock_path else other.locked() as mine:
            throttling = MoveThrottling(admin, other)
            under_way = throttling.claims.partitions & admin.reassignments().keys()
            still_moving |= under_way
            if mine and throttling.claims and not under_way:
                done.append(throttling.end({}))
    return tuple(sorted(still_moving)), done


def _together(own: PutBack, others: Sequence[PutBack]) -> PutBack:
    changes = [change for one in (own, *others) for change in one.changes]
    return PutBack(tuple(changes), tuple([left for one in (own, *others) for left in one.left]), own.by_plan)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What `cancel` did: the partitions and replicas whose move it ended, and those that move elsewhere and go on."""

    partitions: list[Partition]
    replicas: list[Replica]
    skipped: list[Partition]
    put_back: PutBack | None
    refused: Mapping[Partition, str]


def cancel(
    admin: MoveAdmin,
    plan: ReassignmentPlan,
    file: JournalFile,
    *,
    preserve_throttles: bool = False,
    timeout_seconds: float = 10.0,
) -> Cancelled:
    """End the moves of a plan: its partitions stay where they were. What moves elsewhere is no move of this plan."""
    with file.locked() as mine:
        if not mine:
            raise MoveError("another `weir move` is at work on this plan: end it first, then cancel")
        seen = read_plan_state(admin, plan)
        moving = seen.partitions("moving")
        refused = admin.try_to_reassign(dict.fromkeys(moving)) if moving else {}
        refused = {one: f"{why}{_way_out(admin, seen.under_way[one])}" for one, why in refused.items()}
        cancelled = [partition for partition in moving if partition not in refused]
        replicas = _stop_log_moves(admin, seen)
        begun = admin.clock()
        while (
            set(cancelled) & set((after := read_plan_state(admin, plan)).partitions("moving"))
            and admin.clock() - begun < timeout_seconds
        ):
            admin.sleep(POLL_SECONDS / 4)
        skipped = after.partitions("elsewhere")
        put_back = None
        if not preserve_throttles:
            still_moving = after.partitions("moving", "elsewhere")
            put_back = MoveThrottling(admin, file).end(plan.brokers, still_moving)
        return Cancelled(cancelled, replicas, skipped, put_back, refused)


def _way_out(admin: MoveAdmin, move: Reassignment) -> str:
    """Say what may be done where a move cannot be cancelled as nobody could take the partition back (KAFKA-14424)."""
    old = [broker for broker in move.replicas if broker not in move.adding_replicas]
    if set(old) & set(admin.brokers()):
        return ""
    return (
        f" (brokers {', '.join(map(str, old))}, which had it before, are down: start one of them, or let one of the new"
        " brokers lead it by kafka-leader-election --election-type unclean, which loses what it has not copied, and"
        " execute the plan again)"
    )


def _stop_log_moves(admin: MoveAdmin, seen: PlanState) -> list[Replica]:
    """Tell replicas to stay in the directory that they are in."""
    moving = seen.moving_logs
    if not moving:
        return []
    logs = admin.replica_logs(sorted({replica.broker for replica in moving}), {replica.of for replica in moving})
    stay = {replica: log.path for replica in moving for log in logs.get(replica, ()) if not log.is_future}
    admin.move_log_dirs(stay)
    return sorted(stay)

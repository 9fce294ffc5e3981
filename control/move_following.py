"""Follows a move to its end, beginning further partitions as earlier ones end; and ends or cancels it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from weir.control.errors import ControlError, MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_execution import start
from weir.control.move_journal import JournalFile
from weir.control.move_look import Look, copies_of, look
from weir.control.move_pacing import Pacer, moving_of
from weir.control.move_stuck import StuckWatch
from weir.control.move_throttling import GRACE_SECONDS, POLL_SECONDS, MoveThrottling
from weir.planning.assignment import Brokers, Partition, Replica
from weir.planning.finish_by import Pace
from weir.planning.headroom import Allowance
from weir.planning.move_status import Progress, ProgressMeter, next_to_move
from weir.planning.move_throttle import PutBack
from weir.planning.reassignment_json import ReassignmentPlan
from weir.planning.stuck import Stuck

AWAY_SECONDS = 600.0
"""How long a cluster may be away before following gives up. The move itself goes on without anybody who follows."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A look at a move that is followed. `away`: why the cluster gives no answer; then there is nothing else.

    `stuck` has the brokers that have got no nearer for a minute.
    """

    seen: Look | None = None
    progress: Progress | None = None
    away: str | None = None
    pace: Pace | Allowance | None = None
    stuck: tuple[Stuck, ...] = ()


@dataclass(frozen=True, slots=True)
class Follower:
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
        """Yield a look now and then, until nothing of the plan moves and nothing more is to begin.

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
                        admin.patience_seconds = POLL_SECONDS  # whoever looks on is to see at once that it is away
                    tick, seen = self._step(admin, meter)
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
                    if seen.is_quiet and not (self.at_once is not None and seen.waiting):
                        return
                self.sleep(POLL_SECONDS)
        finally:
            if admin is not None:
                admin.close()

    def _step(self, admin: MoveAdmin, meter: ProgressMeter) -> tuple[Tick, Look]:
        seen = look(admin, self.plan)
        if self.at_once is not None:
            start(admin, self.plan, next_to_move(seen.statuses, self.at_once))
        copies = copies_of(admin, self.plan.brokers, self.before, seen)
        pace = self.pacer.step(admin, seen, copies) if self.pacer is not None else None
        now = self.clock()
        stuck = self.watch.look(admin, now, moving_of(seen, copies))
        return Tick(seen, meter.look(now, copies), pace=pace, stuck=stuck), seen


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found. `put_back` is None where the throttle was left alone: it goes on, or somebody works on it.

    `by_plan`: nothing was written down, and the plan alone told what was set.
    """

    seen: Look
    is_done: bool
    busy: bool = False
    put_back: PutBack | None = None
    by_plan: bool = False


def verify(
    admin: MoveAdmin,
    plan: ReassignmentPlan,
    file: JournalFile,
    before: Mapping[Partition, Brokers],
    *,
    preserve_throttles: bool = False,
    sleep: Callable[[float], None],
) -> Verdict:
    """Look at a move, and put back what stood before it where it has ended. `before`: see copies_of."""
    seen = look(admin, plan)
    with file.locked() as mine:
        waited = 0.0
        while mine and seen.is_quiet and seen.waiting and waited < GRACE_SECONDS:
            sleep(POLL_SECONDS)
            waited += POLL_SECONDS
            seen = look(admin, plan)
        is_done = all(status.state in ("done", "gone") for status in seen.statuses.values()) and all(
            state == "done" or seen.statuses[replica.of].state == "gone" for replica, state in seen.log_states.items()
        )
        if not mine or preserve_throttles or not seen.is_quiet:
            return Verdict(seen, is_done, busy=not mine)
        put_back, by_plan = _put_back(admin, plan, file, before, (), sleep)
        return Verdict(seen, is_done, put_back=put_back, by_plan=by_plan)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What `cancel` did: the partitions and replicas whose move it ended, and those that move elsewhere and go on."""

    partitions: list[Partition]
    replicas: list[Replica]
    skipped: list[Partition]
    put_back: PutBack | None = None
    by_plan: bool = False
    refused: Mapping[Partition, str] = field(default_factory=dict)


def cancel(
    admin: MoveAdmin,
    plan: ReassignmentPlan,
    file: JournalFile,
    before: Mapping[Partition, Brokers],
    *,
    preserve_throttles: bool = False,
    timeout_seconds: float = 10.0,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Cancelled:
    """End the moves of a plan: its partitions stay where they were. What moves elsewhere is no move of this plan."""
    with file.locked() as mine:
        if not mine:
            raise MoveError("another `weir move` is at work on this plan: end it first, then cancel")
        seen = look(admin, plan)
        refused = admin.try_to_reassign(dict.fromkeys(seen.moving)) if seen.moving else {}
        cancelled = [partition for partition in seen.moving if partition not in refused]
        replicas = _stop_log_moves(admin, seen)
        begun = clock()
        while set(cancelled) & set((after := look(admin, plan)).moving) and clock() - begun < timeout_seconds:
            sleep(POLL_SECONDS / 4)
        skipped = [partition for partition, status in after.statuses.items() if status.state == "elsewhere"]
        if preserve_throttles:
            return Cancelled(cancelled, replicas, skipped, refused=refused)
        still = {*after.moving, *skipped}
        put_back, by_plan = _put_back(admin, plan, file, before, still, sleep)
        return Cancelled(cancelled, replicas, skipped, put_back, by_plan, refused)


def _stop_log_moves(admin: MoveAdmin, seen: Look) -> list[Replica]:
    """Tell replicas to stay in the directory that they are in."""
    moving = seen.moving_logs
    if not moving:
        return []
    logs = admin.replica_logs(sorted({replica.broker for replica in moving}), {replica.of for replica in moving})
    stay = {replica: log.path for replica in moving for log in logs.get(replica, ()) if not log.is_future}
    admin.move_log_dirs(stay)
    return sorted(stay)


def _put_back(
    admin: MoveAdmin,
    plan: ReassignmentPlan,
    file: JournalFile,
    before: Mapping[Partition, Brokers],
    still_moving: Collection[Partition],
    sleep: Callable[[float], None],
) -> tuple[PutBack, bool]:
    throttling = MoveThrottling(admin, file, sleep)
    journal = throttling.journal
    if journal is not None:
        return (PutBack((), ()) if journal.ended else throttling.end(journal.claims, still_moving)), False
    claims = throttling.claims_without_journal(plan.brokers, before)
    return (throttling.end(claims, still_moving) if claims else PutBack((), ())), bool(claims)

"""`weir move verify|cancel|list`: how far moves are, and their end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli import move_progress
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_inputs import connector, read_plan, read_rollback, told_errors
from weir.cli.move_pacing import Auto, FinishBy, written_pacing
from weir.cli.output import print_table

if TYPE_CHECKING:
    from weir.control.move_admin import MoveAdmin
    from weir.control.move_following import Verdict
    from weir.planning.move_throttle import ConfigChange, PutBack
    from weir.planning.reassignment_json import ReassignmentPlan

_WORDS = {
    "done": "done",
    "moving": "moving",
    "elsewhere": "moving elsewhere",
    "waiting": "not moving",
    "gone": "topic deleted",
    "missing": "no log",
}


def verify(
    plan_file: Path,
    bootstrap_server: str,
    command_config: Path | None,
    preserve_throttles: bool,
    watch: bool,
    wanted: FinishBy | Auto | None,
    sidecars: Sequence[str] | None,
    json_wanted: bool,
) -> int:
    """Show the state of each partition of a plan; put back what stood before its throttle where it has ended."""
    if wanted is not None and not watch:
        raise CommandError(
            "--finish-by and --auto need --watch: the rate is kept for as long as this stays.", WRONG_USAGE
        )
    plan = read_plan(plan_file)
    connect = connector(bootstrap_server, command_config)
    with told_errors():
        if watch:
            _watch(connect, plan, plan_file, wanted, sidecars, json_wanted)
        with connect() as admin:
            return finish(admin, plan, plan_file, preserve_throttles=preserve_throttles, json_wanted=json_wanted)


def _watch(
    connect: Callable[[], MoveAdmin],
    plan: ReassignmentPlan,
    plan_file: Path,
    wanted: FinishBy | Auto | None,
    sidecars: Sequence[str] | None,
    json_wanted: bool,
) -> None:
    """Follow a move until nothing of it moves. Keep its rate where that is wanted, or where it was kept before.

    What was kept before is left alone while another command has the plan's lock: that one keeps it.
    """
    from weir.control.errors import MoveError
    from weir.control.move_journal import JournalFile

    file = JournalFile(plan_file)
    with connect() as admin:
        journal = file.read(admin.cluster_id())
    rates = [int(claim.value) for claim in journal.claims.rates] if journal is not None else []
    is_given = wanted is not None
    if wanted is None and journal is not None and journal.pacing is not None:
        wanted = written_pacing(journal.pacing, sidecars)
    throttle = max(rates, default=None)
    if wanted is None:
        move_progress.follow(connect, plan, plan_file, throttle, None, sidecars, json_wanted)
        return
    with file.locked() as mine:
        if is_given and not mine:
            raise MoveError("another `weir move` is at work on this plan, and keeps its throttle")
        if mine and not is_given:
            print(f"note: the throttle is kept {wanted}, as it was when this move began.", file=sys.stderr)
        moment = wanted.moment if isinstance(wanted, FinishBy) else None
        pacer = wanted.pacer(file) if mine else None
        move_progress.follow(connect, plan, plan_file, throttle, None, sidecars, json_wanted, pacer, moment)


def finish(
    admin: MoveAdmin, plan: ReassignmentPlan, plan_file: Path, *, preserve_throttles: bool, json_wanted: bool
) -> int:
    """Verify a plan and print what was found. CommandError where it is not done, or a throttle had to stay."""
    from weir.control.move_following import verify as verify_plan
    from weir.control.move_journal import JournalFile

    verdict = verify_plan(
        admin,
        plan,
        JournalFile(plan_file),
        read_rollback(plan_file),
        preserve_throttles=preserve_throttles,
        sleep=time.sleep,
    )
    if json_wanted:
        print(json.dumps(_verdict_as_json(verdict)))
    else:
        rows = [
            (str(partition), _brokers(status.brokers), _brokers(status.target), _WORDS[status.state])
            for partition, status in verdict.seen.statuses.items()
        ]
        print_table(("partition", "replicas", "planned", "state"), rows)
        if verdict.seen.log_states:
            logs = [(str(replica), plan.log_dirs[replica], _WORDS[s]) for replica, s in verdict.seen.log_states.items()]
            print_table(("replica", "planned directory", "state"), logs)
        _print_put_back(verdict.put_back, verdict.by_plan)
    problems = [*_unfinished(verdict), *_left(verdict.put_back)]
    if problems:
        raise CommandError(f"{'; '.join(problems)}.")
    return 0


def cancel(
    plan_file: Path,
    bootstrap_server: str,
    command_config: Path | None,
    preserve_throttles: bool,
    timeout_ms: int,
    json_wanted: bool,
) -> int:
    """End the moves of a plan, and put back what stood before its throttle."""
    plan = read_plan(plan_file)
    connect = connector(bootstrap_server, command_config)
    from weir.control.move_following import cancel as cancel_plan
    from weir.control.move_journal import JournalFile

    with told_errors(), connect() as admin:
        done = cancel_plan(
            admin,
            plan,
            JournalFile(plan_file),
            read_rollback(plan_file),
            preserve_throttles=preserve_throttles,
            timeout_seconds=timeout_ms / 1000,
            clock=time.monotonic,
            sleep=time.sleep,
        )
    if json_wanted:
        print(
            json.dumps(
                {
                    "cancelled": [str(partition) for partition in done.partitions],
                    "cancelled_logs": [str(replica) for replica in done.replicas],
                    "skipped": [str(partition) for partition in done.skipped],
                    "throttle": _put_back_as_json(done.put_back),
                }
            )
        )
    else:
        names = [*map(str, done.partitions), *map(str, done.replicas)]
        print(f"Cancelled: {', '.join(names)}." if names else "Nothing of this plan is moving.")
        if done.skipped:
            listed = ", ".join(map(str, done.skipped))
            print(f"note: {listed} moves to other brokers than the plan's, and goes on under its throttle.")
        _print_put_back(done.put_back, done.by_plan)
    problems = [f"{partition}: {reason}" for partition, reason in done.refused.items()] + _left(done.put_back)
    if problems:
        raise CommandError(f"{'; '.join(problems)}.")
    return 0


def list_moves(bootstrap_server: str, command_config: Path | None, json_wanted: bool) -> int:
    """List all moves that are under way."""
    connect = connector(bootstrap_server, command_config)
    with told_errors(), connect() as admin:
        moves = sorted(admin.reassignments().items())
    if json_wanted:
        print(
            json.dumps(
                [
                    {
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "replicas": move.replicas,
                        "adding_replicas": move.adding_replicas,
                        "removing_replicas": move.removing_replicas,
                    }
                    for partition, move in moves
                ],
                indent=2,
            )
        )
    elif moves:
        rows = [
            (str(partition), *map(_brokers, (move.replicas, move.adding_replicas, move.removing_replicas)))
            for partition, move in moves
        ]
        print_table(("partition", "replicas", "adding", "removing"), rows)
    else:
        print("Nothing is moving.")
    return 0


def _unfinished(verdict: Verdict) -> list[str]:
    seen = verdict.seen
    problems = []
    moving = sum(status.state in ("moving", "elsewhere") for status in seen.statuses.values()) + len(seen.moving_logs)
    if moving:
        problems.append(f"{moving} of {len(seen.statuses) + len(seen.log_states)} still moving")
    if seen.waiting and not moving:
        problems.append(
            f"{len(seen.waiting)} of {len(seen.statuses)} partitions are not where the plan says, and nothing moves"
            " them: execute the plan again to go on"
        )
    if not problems and not verdict.is_done:
        problems.append("some logs are not in the directories that the plan names: execute it again to go on")
    if verdict.busy:
        problems.append("another `weir move` is at work on this plan, which removes its throttle")
    return problems


def _left(put_back: PutBack | None) -> list[str]:
    if put_back is None:
        return []
    problems = []
    for rate in put_back.left:
        claim = rate.claim
        if rate.standing is None:
            problems.append(
                f"broker {claim.broker} is down, and {claim.setting} stays {claim.value} there: verify again when it"
                " is up"
            )
        elif rate.needed_by is not None:
            problems.append(
                f"{claim.setting} of broker {claim.broker} stays {rate.standing}, as {rate.needed_by} of another move"
                " is throttled by it: verify again when that has ended"
            )
        else:
            problems.append(
                f"{claim.setting} of broker {claim.broker} is {rate.standing} and not the {claim.value} that this move"
                " has set, and other replicas are throttled there: it stays; verify again when that throttle is gone"
            )
    return problems


def _print_put_back(put_back: PutBack | None, by_plan: bool) -> None:
    if put_back is None or not put_back.changes:
        return
    if by_plan:
        print(
            "note: nothing was written down of this move, so what stands for the plan's partitions was removed.",
            file=sys.stderr,
        )
    print("Throttle removed:")
    print_table(("of", "setting", "now"), [(f"{c.kind} {c.name}", c.setting, _now(c)) for c in put_back.changes])


def _now(change: ConfigChange) -> str:
    match change.operation:
        case "set":
            return f"{change.value}, as before"
        case "subtract":
            return f"without {change.value}"
    return "not set, as before"


def _put_back_as_json(put_back: PutBack | None) -> dict[str, Any] | None:
    if put_back is None:
        return None
    return {
        "changes": [
            {"of": f"{c.kind} {c.name}", "setting": c.setting, "operation": c.operation, "value": c.value}
            for c in put_back.changes
        ],
        "left": [
            {"broker": rate.claim.broker, "setting": rate.claim.setting, "value": rate.standing}
            for rate in put_back.left
        ],
    }


def _verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "done": verdict.is_done,
        "partitions": [
            {**partition._asdict(), "state": status.state, "replicas": status.brokers, "planned": status.target}
            for partition, status in verdict.seen.statuses.items()
        ],
        "log_dirs": [{**replica._asdict(), "state": state} for replica, state in verdict.seen.log_states.items()],
        "throttle": _put_back_as_json(verdict.put_back),
    }


def _brokers(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))

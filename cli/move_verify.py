# SPDX-License-Identifier: Apache-2.0
"""`weir move verify|cancel|list`: how far moves are, and their end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weir.cli.cluster import ClusterOptions, as_command_errors
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_pacing import Kept, PacingOptions, written
from weir.cli.move_plan import Planned, PlanOptions, PreserveOption, TimeoutOption, WatchOption
from weir.cli.move_progress import Watched
from weir.cli.move_sidecars import Sidecars
from weir.cli.output import print_table
from weir.cli.sidecars import AdminOption, JsonOption
from weir.control.errors import MoveError

if TYPE_CHECKING:
    from weir.control.move_following import Verified
    from weir.planning.move_throttle import ConfigChange, LeftRate, PutBack

_WORDS = {
    "done": "done",
    "moving": "moving",
    "elsewhere": "moving elsewhere",
    "waiting": "not moving",
    "gone": "topic deleted",
    "missing": "no log",
}


def verify(
    *,
    plan: PlanOptions,
    preserve_throttles: PreserveOption = False,
    watch: WatchOption = False,
    pacing: PacingOptions,
    admin: AdminOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Show how far a plan is; when its moves have ended, put back what stood before its throttle.

    The exit status is 0 when all is done, else 1.
    """
    sidecars = Sidecars(admin)
    wanted = pacing.read(sidecars)
    if wanted is not None and not watch:
        raise CommandError(
            "--finish-by and --auto need --watch: the rate is kept for as long as this stays.", WRONG_USAGE
        )
    planned = plan.read()
    with as_command_errors():
        if watch:
            _watch(Watched(planned, sidecars, json_wanted), wanted)
        return finish(planned, preserve_throttles=preserve_throttles, json_wanted=json_wanted)


def _watch(watched: Watched, wanted: Kept | None) -> None:
    """Follow a move until nothing of it moves. Keep its rate where that is wanted, or where it was kept before.

    What was kept before is left alone while another command has the plan's lock: that one keeps it.
    """
    file = watched.planned.file
    with watched.planned.connect() as admin:
        journal = file.read(admin.cluster_id())
    throttle = max((int(claim.value) for claim in journal.claims.rates), default=None) if journal is not None else None
    kept = wanted or written(journal.pacing if journal is not None else None, watched.sidecars)
    if kept is None:
        watched.follow(throttle)
        return
    with file.locked() as mine:
        if not mine and wanted is not None:
            raise MoveError("another `weir move` is at work on this plan, and keeps its throttle")
        if mine and wanted is None:
            print(f"note: the throttle is kept {kept}, as it was when this move began.", file=sys.stderr)
        watched.follow(throttle, kept, kept.pacer(file) if mine else None)


def finish(planned: Planned, *, preserve_throttles: bool, json_wanted: bool) -> int:
    """Verify a plan and print what was found. CommandError where it is not done, or a throttle had to stay."""
    from weir.control.move_following import verify as verify_plan

    plan, file = planned.plan, planned.file
    with planned.connect() as admin:
        verdict = verify_plan(admin, plan, file, preserve_throttles=preserve_throttles)
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
        _print_put_back(verdict.put_back)
    if verdict.earlier:
        moving = ", ".join(map(str, verdict.earlier))
        print(
            f"note: an earlier plan in {planned.path} still moves {moving}, and its throttle stays: verify again when"
            " that has ended.",
            file=sys.stderr,
        )
    if verdict.standing:
        print(
            f"note: nothing moves, and {', '.join(verdict.standing)} still has throttled replicas that another plan or"
            " person has set: verify that plan, or see `weir throttle clear --stale`.",
            file=sys.stderr,
        )
    return _status_of(_unfinished(verdict), verdict.put_back)


def cancel(
    *,
    plan: PlanOptions,
    preserve_throttles: PreserveOption = False,
    timeout_ms: TimeoutOption = 10_000,
    json_wanted: JsonOption = False,
) -> int:
    """End the moves of a plan: its partitions stay where they were before."""
    planned = plan.read()
    from weir.control.move_following import cancel as cancel_plan

    with as_command_errors(), planned.connect() as admin:
        done = cancel_plan(
            admin,
            planned.plan,
            planned.file,
            preserve_throttles=preserve_throttles,
            timeout_seconds=timeout_ms / 1000,
        )
    partitions, replicas, skipped = (list(map(str, of)) for of in (done.partitions, done.replicas, done.skipped))
    if json_wanted:
        throttle = _put_back_as_json(done.put_back)
        cancelled = {"cancelled": partitions, "cancelled_logs": replicas, "skipped": skipped, "throttle": throttle}
        print(json.dumps(cancelled))
    else:
        names = ", ".join([*partitions, *replicas])
        nothing = "Nothing was cancelled." if done.refused else "Nothing of this plan is moving."
        print(f"Cancelled: {names}." if names else nothing)
        if skipped:
            listed = ", ".join(skipped)
            print(f"note: {listed} moves to other brokers than the plan's, and goes on under its throttle.")
        _print_put_back(done.put_back)
    return _status_of([f"{partition}: {reason}" for partition, reason in done.refused.items()], done.put_back)


def list_moves(*, cluster: ClusterOptions, json_wanted: JsonOption = False) -> int:
    """List all moves that are under way."""
    connect = cluster.connector()
    with as_command_errors(), connect() as admin:
        moves = sorted(admin.reassignments().items())
    if json_wanted:
        print(json.dumps([{**partition._asdict(), **asdict(move)} for partition, move in moves], indent=2))
    elif moves:
        rows = [
            (str(partition), *map(_brokers, (move.replicas, move.adding_replicas, move.removing_replicas)))
            for partition, move in moves
        ]
        print_table(("partition", "replicas", "adding", "removing"), rows)
    else:
        print("Nothing is moving.")
    return 0


def _status_of(problems: list[str], put_back: PutBack | None) -> int:
    """Return 0 where nothing is left to be done. Else CommandError says what, and which throttle had to stay."""
    problems = [*problems, *(_why(rate) for rate in put_back.left)] if put_back is not None else problems
    if problems:
        raise CommandError(f"{'; '.join(problems)}.")
    return 0


def _unfinished(verdict: Verified) -> list[str]:
    seen, problems = verdict.seen, []
    moving = len(seen.partitions("moving", "elsewhere")) + len(seen.moving_logs)
    if moving:
        problems.append(f"{moving} of {len(seen.statuses) + len(seen.log_states)} still moving")
    elif seen.waiting:
        problems.append(
            f"{len(seen.waiting)} of {len(seen.statuses)} partitions are not where the plan says, and nothing moves"
            " them: execute the plan again to go on"
        )
    elif not verdict.is_done:
        problems.append("some logs are not in the directories that the plan names: execute it again to go on")
    if verdict.busy:
        problems.append("another `weir move` is at work on this plan, which removes its throttle")
    return problems


def _why(left: LeftRate) -> str:
    """Say why a rate was not put back."""
    rate = f"{left.claim.setting} of broker {left.claim.broker}"
    if left.standing is None:
        return (
            f"broker {left.claim.broker} is down, and {left.claim.setting} stays {left.claim.value} there: verify again"
            " when it is up"
        )
    if left.needed_by is not None:
        return (
            f"{rate} stays {left.standing}, as {left.needed_by} of another move is throttled by it: verify again when"
            " that has ended"
        )
    return (
        f"{rate} is {left.standing} and not the {left.claim.value} that this move has set, and other replicas are"
        " throttled there: it stays; verify again when that throttle is gone"
    )


def _print_put_back(put_back: PutBack | None) -> None:
    if put_back is None or not put_back.changes:
        return
    if put_back.by_plan:
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


def _verdict_as_json(verdict: Verified) -> dict[str, Any]:
    return {
        "done": verdict.is_done,
        "partitions": [
            {**partition._asdict(), "state": status.state, "replicas": status.brokers, "planned": status.target}
            for partition, status in verdict.seen.statuses.items()
        ],
        "log_dirs": [{**replica._asdict(), "state": state} for replica, state in verdict.seen.log_states.items()],
        "throttle": _put_back_as_json(verdict.put_back),
        "earlier": [partition._asdict() for partition in verdict.earlier],
        "standing": verdict.standing,
    }


def _brokers(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))

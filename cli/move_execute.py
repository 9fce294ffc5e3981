# SPDX-License-Identifier: Apache-2.0
"""`weir move execute`: begins a plan, and with --watch or in batches stays until it has ended."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from weir.cli.cluster import as_command_errors
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_pacing import PacingOptions
from weir.cli.move_plan import RATE_EXAMPLES, PlanOptions, ThrottleOption, TimeoutOption, WatchOption
from weir.cli.move_progress import Watched
from weir.cli.move_sidecars import Sidecars
from weir.cli.move_verify import finish
from weir.cli.options import option, parsed
from weir.cli.rates import parse_rate
from weir.cli.sidecars import AdminOption, JsonOption
from weir.control.errors import MoveError
from weir.planning.reassignment_json import format_reassignment


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginOptions:
    """How a plan is begun, its throttle aside."""

    log_dirs_throttle: str | None = option(
        "--replica-alter-log-dirs-throttle",
        "RATE",
        f"Bytes/s of each broker's moves between log directories, {RATE_EXAMPLES}.",
    )
    additional: bool = option("--additional", None, "Begin although other partitions are being moved.", False)
    batch_size: int = option(
        "--reassignment-batch-size", "N", "Move N partitions at a time; the command then stays.", 0, min=0
    )
    timeout_ms: TimeoutOption = 10_000
    force: bool = option("--force", None, "Begin although replicas are lost, or the throttle is too low to end.", False)


def execute(
    *,
    plan: PlanOptions,
    throttle: ThrottleOption = None,
    pacing: PacingOptions,
    options: BeginOptions,
    watch: WatchOption = False,
    admin: AdminOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Begin the moves of a plan. It can be given again: what has moved already stays."""
    sidecars = Sidecars(admin)
    kept = pacing.read(sidecars)
    rate = parsed("--throttle", parse_rate, throttle)
    if rate is not None and kept is not None:
        raise CommandError(
            "--throttle sets a rate, --finish-by and --auto find one: give one of them, and --between for limits.",
            WRONG_USAGE,
        )
    disk_rate = parsed("--replica-alter-log-dirs-throttle", parse_rate, options.log_dirs_throttle)
    if 0 in (rate, disk_rate) and not options.force:
        zero = "--throttle" if rate == 0 else "--replica-alter-log-dirs-throttle"
        raise CommandError(
            f"{zero} 0 lets nothing through, so the move never ends: give a rate, or --force to raise it later.",
            WRONG_USAGE,
        )
    planned = plan.read()
    from weir.control.move_execution import Execution, Orders

    orders = Orders(
        throttle=rate,
        replica_alter_log_dirs_throttle=disk_rate,
        additional=options.additional,
        force=options.force,
        at_once=options.batch_size,
        timeout_seconds=options.timeout_ms / 1000,
    )
    stays = watch or bool(options.batch_size) or kept is not None
    with as_command_errors():
        with planned.file.locked() as mine:
            if not mine:
                raise MoveError("another `weir move` is at work on this plan")
            pacer = kept.pacer(planned.file) if kept is not None else None
            with planned.connect() as cluster:
                run = Execution(cluster, planned.plan, planned.file, orders)
                run.check()
                if pacer is not None:
                    run.choose_rates(pacer)
                rollback = format_reassignment(run.write_rollback())
                if not json_wanted:
                    print(f"The way back, also in {planned.file.rollback_path}:\n{rollback}\n")
                run.throttle()
                started = run.start()
                run.move_logs(started)
                begun = [str(partition) for partition in started]
                is_throttled = run.is_throttled
            if json_wanted:
                begin = {"rollback": json.loads(rollback), "begun": begun, "throttle": run.rate}
                print(json.dumps(begin), flush=True)
            else:
                print(_begun(len(begun), run.moving, len(planned.plan.brokers)), flush=True)
            if stays:
                try:
                    watched = Watched(planned, sidecars, json_wanted)
                    watched.follow(run.rate, kept, pacer, options.batch_size)
                except KeyboardInterrupt:
                    print(_how_to_go_on(planned.path, options.batch_size), file=sys.stderr)
                    raise
        if stays:
            return finish(planned, preserve_throttles=False, json_wanted=json_wanted)
    if is_throttled:
        print("note: the throttle stays until `weir move verify` finds that the move has ended.", file=sys.stderr)
    return 0


def _begun(begun: int, moving: int, planned: int) -> str:
    if not begun and moving:
        return f"{moving} of {planned} partition{'' if planned == 1 else 's'} moved already; no other begins."
    of = "" if begun == planned else f" of {planned}"
    return f"{begun}{of} partition{'' if f'{begun}{of}' == '1' else 's'} began to move."


def _how_to_go_on(plan_file: Path, batch_size: int) -> str:
    if batch_size:
        return (
            "\nnote: what moves goes on, and nothing more begins; `weir move execute` with this plan and its batch size"
            " goes on with the rest."
        )
    file = shlex.quote(str(plan_file))
    return f"\nnote: the move goes on; `weir move verify --watch --reassignment-json-file {file}` takes it up."

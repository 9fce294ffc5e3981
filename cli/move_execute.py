"""`weir move execute`: begins a plan, and with --watch or in batches stays until it has ended."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from weir.cli import move_progress
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_inputs import connector, read_plan, read_rollback, told_errors, write_rollback
from weir.cli.move_pacing import Auto, FinishBy
from weir.cli.move_verify import finish
from weir.cli.plan_inputs import parsed
from weir.cli.rates import parse_rate
from weir.planning.reassignment_json import format_reassignment


def execute(
    plan_file: Path,
    bootstrap_server: str,
    command_config: Path | None,
    throttle: str | None,
    wanted: FinishBy | Auto | None,
    log_dirs_throttle: str | None,
    additional: bool,
    batch_size: int,
    timeout_ms: int,
    force: bool,
    watch: bool,
    sidecars: Sequence[str] | None,
    json_wanted: bool,
) -> int:
    """Print the way back, set the throttle, begin the moves, and stay where that is wanted."""
    rate = parsed("--throttle", parse_rate, throttle)
    if rate is not None and wanted is not None:
        raise CommandError(
            "--throttle sets a rate, --finish-by and --auto find one: give one of them, and --between for limits.",
            WRONG_USAGE,
        )
    disk_rate = parsed("--replica-alter-log-dirs-throttle", parse_rate, log_dirs_throttle)
    plan = read_plan(plan_file)
    connect = connector(bootstrap_server, command_config)
    from weir.control.errors import MoveError
    from weir.control.move_execution import Execution, Orders
    from weir.control.move_journal import JournalFile
    from weir.control.move_pacing import DeadlinePacer, LinkPacer, Pacer

    orders = Orders(
        throttle=rate,
        replica_alter_log_dirs_throttle=disk_rate,
        additional=additional,
        force=force,
        at_once=batch_size,
        timeout_seconds=timeout_ms / 1000,
    )
    file = JournalFile(plan_file)
    with told_errors(), file.locked() as mine:
        if not mine:
            raise MoveError("another `weir move` is at work on this plan")
        with connect() as admin:
            execution = Execution(admin, plan, file, orders, clock=time.monotonic, sleep=time.sleep)
            execution.check()
            pacer: Pacer | None = None
            if isinstance(wanted, FinishBy):
                deadline = wanted.deadline()
                pace = execution.plan_pace(deadline)
                rate = pace.rate
                pacer = DeadlinePacer(file, deadline, clock=time.monotonic, sleep=time.sleep, pace=pace)
            elif isinstance(wanted, Auto):
                link = wanted.link()
                allowance = execution.plan_allowance(link)
                rate = max(allowance.rates.values(), default=None)
                pacer = LinkPacer(file, link, clock=time.monotonic, sleep=time.sleep, allowance=allowance)
            before = execution.before
            if execution.is_resumed:
                before = {**before, **read_rollback(plan_file)}
            rollback = write_rollback(plan_file, before)
            if not json_wanted:
                print(f"The way back, also in {rollback}:\n{format_reassignment(before)}\n")
            execution.throttle()
            begun = execution.start()
            execution.move_logs()
        stays = watch or bool(batch_size) or pacer is not None
        if json_wanted:
            names = [str(partition) for partition in begun]
            print(
                json.dumps({"rollback": json.loads(format_reassignment(before)), "begun": names, "throttle": rate}),
                flush=True,
            )
        else:
            print(_begun(len(begun), len(plan.brokers)), flush=True)
        if stays:
            try:
                moment = wanted.moment if isinstance(wanted, FinishBy) else None
                move_progress.follow(connect, plan, plan_file, rate, batch_size, sidecars, json_wanted, pacer, moment)
            except KeyboardInterrupt:
                print(_how_to_go_on(plan_file, batch_size), file=sys.stderr)
                raise
    if stays:
        with told_errors(), connect() as admin:
            return finish(admin, plan, plan_file, preserve_throttles=False, json_wanted=json_wanted)
    if rate is not None or disk_rate is not None:
        print("note: the throttle stays until `weir move verify` finds that the move has ended.", file=sys.stderr)
    return 0


def _begun(begun: int, planned: int) -> str:
    if begun == planned:
        return f"{begun} partition{'s' if begun != 1 else ''} began to move."
    return f"{begun} of {planned} partitions began to move."


def _how_to_go_on(plan_file: Path, batch_size: int) -> str:
    if batch_size:
        return (
            "\nnote: what moves goes on, and nothing more begins; `weir move execute` with this plan and its batch size"
            " goes on with the rest."
        )
    file = shlex.quote(str(plan_file))
    return f"\nnote: the move goes on; `weir move verify --watch --reassignment-json-file {file}` takes it up."

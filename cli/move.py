"""`weir move`: plans moves of partitions and carries them out, with kafka-reassign-partitions' files and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.move_inputs import BootstrapOption, CommandConfigOption, PlanOption, PreserveOption
from weir.cli.sidecars import AdminOption, JsonOption

app = typer.Typer(help="Move partitions between brokers under a throttle that is put back afterwards.")

_RATE_HELP = "as in 5000000, 500k, 5MB or 5MiB"
ThrottleOption = Annotated[
    str | None, typer.Option("--throttle", metavar="RATE", help=f"Bytes/s of each broker's moves, {_RATE_HELP}.")
]
FinishByOption = Annotated[
    str | None,
    typer.Option("--finish-by", metavar="TIME", help="Keep the lowest throttle that ends it by then, as in 06:00."),
]
AutoOption = Annotated[
    bool, typer.Option("--auto", help="Keep the throttle at what others leave free of each broker's link.")
]
LinkCapacityOption = Annotated[
    str | None,
    typer.Option("--link-capacity", metavar="RATE", help="With --auto: what a link carries each way, as in 100MB."),
]
BetweenOption = Annotated[
    str | None,
    typer.Option("--between", metavar="RATE,RATE", help="The lowest and highest throttle of both: 1MB,50MB."),
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Show progress until the move has ended.")]
TimeoutOption = Annotated[
    int,
    typer.Option("--timeout", metavar="MS", min=0, help="How long to try to begin moves between log directories."),
]


@app.command()
def generate(
    topics_to_move: Annotated[
        Path, typer.Option("--topics-to-move-json-file", metavar="FILE", help='{"topics": [{"topic": "orders"}]}')
    ],
    broker_list: Annotated[str, typer.Option("--broker-list", metavar="IDS", help="Where to move them, as in 1,2,3.")],
    bootstrap_server: BootstrapOption,
    command_config: CommandConfigOption = None,
    disable_rack_aware: Annotated[bool, typer.Option("--disable-rack-aware", help="Leave racks aside.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the proposed plan to a file too.")
    ] = None,
    throttle: ThrottleOption = None,
    bytes_in: Annotated[
        str | None,
        typer.Option("--in", metavar="RATE", help="The most bytes/s that come into a broker; else it is measured."),
    ] = None,
    json_wanted: JsonOption = False,
) -> int:
    """Propose a plan: balanced, rack-aware, and with as little to move as can be."""
    from weir.cli.move_generate import generate as run

    return run(
        topics_to_move, broker_list, bootstrap_server, command_config, disable_rack_aware, out, throttle, bytes_in,
        json_wanted,
    )  # fmt: skip


@app.command()
def execute(
    plan: PlanOption,
    bootstrap_server: BootstrapOption,
    command_config: CommandConfigOption = None,
    throttle: ThrottleOption = None,
    finish_by: FinishByOption = None,
    auto: AutoOption = False,
    link_capacity: LinkCapacityOption = None,
    between: BetweenOption = None,
    log_dirs_throttle: Annotated[
        str | None,
        typer.Option(
            "--replica-alter-log-dirs-throttle",
            metavar="RATE",
            help=f"Bytes/s of each broker's moves between log directories, {_RATE_HELP}.",
        ),
    ] = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Begin although other partitions are being moved.")
    ] = False,
    batch_size: Annotated[
        int,
        typer.Option(
            "--reassignment-batch-size", metavar="N", min=0, help="Move N partitions at a time; the command then stays."
        ),
    ] = 0,
    timeout: TimeoutOption = 10_000,
    force: Annotated[
        bool, typer.Option("--force", help="Begin although replicas are lost, or the throttle is too low to end.")
    ] = False,
    watch: WatchOption = False,
    admin: AdminOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Begin the moves of a plan. It can be given again: what has moved already stays."""
    from weir.cli.move_execute import execute as run
    from weir.cli.move_pacing import read_pacing

    return run(
        plan, bootstrap_server, command_config, throttle, read_pacing(finish_by, auto, link_capacity, between, admin),
        log_dirs_throttle, additional, batch_size, timeout, force, watch, admin, json_wanted,
    )  # fmt: skip


@app.command()
def verify(
    plan: PlanOption,
    bootstrap_server: BootstrapOption,
    command_config: CommandConfigOption = None,
    preserve_throttles: PreserveOption = False,
    watch: WatchOption = False,
    finish_by: FinishByOption = None,
    auto: AutoOption = False,
    link_capacity: LinkCapacityOption = None,
    between: BetweenOption = None,
    admin: AdminOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Show how far a plan is; when its moves have ended, put back what stood before its throttle.

    The exit status is 0 when all is done, else 1.
    """
    from weir.cli.move_pacing import read_pacing
    from weir.cli.move_verify import verify as run

    return run(
        plan, bootstrap_server, command_config, preserve_throttles, watch,
        read_pacing(finish_by, auto, link_capacity, between, admin), admin, json_wanted,
    )  # fmt: skip


@app.command()
def cancel(
    plan: PlanOption,
    bootstrap_server: BootstrapOption,
    command_config: CommandConfigOption = None,
    preserve_throttles: PreserveOption = False,
    timeout: TimeoutOption = 10_000,
    json_wanted: JsonOption = False,
) -> int:
    """End the moves of a plan: its partitions stay where they were before."""
    from weir.cli.move_verify import cancel as run

    return run(plan, bootstrap_server, command_config, preserve_throttles, timeout, json_wanted)


@app.command("list")
def list_moves(
    bootstrap_server: BootstrapOption, command_config: CommandConfigOption = None, json_wanted: JsonOption = False
) -> int:
    """List all moves that are under way."""
    from weir.cli.move_verify import list_moves as run

    return run(bootstrap_server, command_config, json_wanted)

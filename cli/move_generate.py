"""`weir move generate`: proposes a plan and says what it costs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.cluster import ClusterOptions, told_errors
from weir.cli.errors import CommandError
from weir.cli.move_plan import ThrottleOption, read_file
from weir.cli.output import print_table
from weir.cli.plan_inputs import parsed
from weir.cli.quantities import show_duration
from weir.cli.rates import parse_rate
from weir.cli.sidecars import JsonOption
from weir.control.errors import MoveError
from weir.planning.arithmetic import QuotaTooLow
from weir.planning.move_report import MoveReport
from weir.planning.move_report import report as report_on
from weir.planning.proposals import propose
from weir.planning.reassignment_json import format_reassignment, parse_brokers, parse_topics
from weir.planning.units import show_rate, show_size


def generate(
    *,
    topics_to_move: Annotated[
        Path, typer.Option("--topics-to-move-json-file", metavar="FILE", help='{"topics": [{"topic": "orders"}]}')
    ],
    broker_list: Annotated[str, typer.Option("--broker-list", metavar="IDS", help="Where to move them, as in 1,2,3.")],
    cluster: ClusterOptions,
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
    rate, given = parsed("--throttle", parse_rate, throttle), parsed("--in", parse_rate, bytes_in)
    wanted = parsed("--broker-list", parse_brokers, broker_list) or ()
    topics = read_file("--topics-to-move-json-file", topics_to_move, parse_topics)
    connect = cluster.connector()
    from weir.control.move_look import INFLOW_SECONDS, growth, leader_sizes

    with told_errors(), connect() as admin:
        racks = admin.racks()
        if missing := [str(broker) for broker in wanted if broker not in racks]:
            raise MoveError(f"there is no broker {', '.join(missing)}, or it is down")
        states = admin.partitions()
        if gone := sorted(set(topics) - {partition.topic for partition in states}):
            raise MoveError(f"there is no topic {', '.join(gone)}")
        moved = {partition: state for partition, state in sorted(states.items()) if partition.topic in topics}
        current = {partition: state.replicas for partition, state in moved.items()}
        sizes = leader_sizes(admin, moved)
        proposed = propose(current, {broker: None if disable_rack_aware else racks[broker] for broker in wanted}, sizes)
        leaders = {partition: state.leader for partition, state in moved.items()}
        brokers = {*wanted, *(broker for replicas in current.values() for broker in replicas)}
        found = report_on(current, proposed, leaders, sizes, brokers, len(states))
        inflow = float(given or 0)
        if rate is not None and given is None and found.total:
            grown = growth(admin, moved, INFLOW_SECONDS)
            inflow = max(sum(grown[p] for p in grown if broker in proposed[p]) for broker in wanted)
    seconds, never = _seconds(found, rate, inflow)
    today, then = format_reassignment(current), format_reassignment(proposed)
    if out is not None:
        changed = {partition: replicas for partition, replicas in proposed.items() if replicas != current[partition]}
        _write(out, format_reassignment(changed or proposed))
    if json_wanted:
        answer = {
            "current": json.loads(today),
            "proposed": json.loads(then),
            "brokers": [asdict(load) for load in found.loads],
            "partitions_to_move": found.moving,
            "partitions": found.partitions,
            "move_ratio": found.ratio,
            "bytes_to_move": found.total,
            "throttle": rate,
            "bytes_in": inflow if rate is not None else None,
            "move_seconds": seconds,
        }
        print(json.dumps(answer, indent=2))
    else:
        print(f"Today's assignment:\n{today}\n\nProposed assignment:\n{then}\n")
        _print(found, rate, seconds, inflow)
        if out is not None:
            print(f"The partitions that change are in {out}.")
    if never:
        raise CommandError(never)
    return 0


def _seconds(found: MoveReport, rate: int | None, inflow: float) -> tuple[float | None, str | None]:
    if rate is None:
        return None, None
    try:
        return found.seconds(rate, inflow), None
    except QuotaTooLow as error:
        return None, (
            f"under a throttle of {show_rate(rate)} the move would never end: what comes in takes"
            f" {show_rate(error.above)}."
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--out: {path} cannot be written: {error.strerror or error}.") from error


def _print(found: MoveReport, rate: int | None, seconds: float | None, inflow: float) -> None:
    columns = ("broker", "replicas", "then", "receives", "sends")
    rows = [
        (
            *map(str, (one.broker, one.replicas, one.replicas_then)),
            *map(show_size, (one.bytes_received, one.bytes_sent)),
        )
        for one in found.loads
    ]
    print_table(columns, rows, columns)
    print(
        f"{found.moving} of the cluster's {found.partitions} partitions move (MoveRatio {found.ratio:.4g}),"
        f" {show_size(found.total)} in all."
    )
    if rate is not None and seconds is not None:
        busiest = found.busiest
        who = f", for broker {busiest.broker} has most to do" if busiest is not None else ""
        print(f"Under {show_rate(rate)} it takes {show_duration(seconds)} beside {show_rate(inflow)} of bytes in{who}.")
    elif found.total:
        print("note: give --throttle to see how long it takes.", file=sys.stderr)

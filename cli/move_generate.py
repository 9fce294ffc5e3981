"""`weir move generate`: proposes a plan and says what it costs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from weir.cli.errors import CommandError
from weir.cli.move_inputs import connector, read_file, told_errors
from weir.cli.output import print_table
from weir.cli.plan_inputs import parsed
from weir.cli.quantities import show_duration
from weir.cli.rates import parse_rate
from weir.planning.arithmetic import QuotaTooLow
from weir.planning.assignment import Brokers, Partition
from weir.planning.move_report import MoveReport
from weir.planning.move_report import report as report_on
from weir.planning.proposals import propose
from weir.planning.reassignment_json import format_reassignment, parse_brokers, parse_topics
from weir.planning.units import show_rate, show_size

MEASURED_SECONDS = 3.0
"""How long is watched what producers write, where `--in` does not say it."""


def generate(
    topics_file: Path,
    broker_list: str,
    bootstrap_server: str,
    command_config: Path | None,
    disable_rack_aware: bool,
    out: Path | None,
    throttle: str | None,
    bytes_in: str | None,
    json_wanted: bool,
) -> int:
    """Print today's assignment, the proposed one, and what the way from one to the other costs."""
    rate, given = parsed("--throttle", parse_rate, throttle), parsed("--in", parse_rate, bytes_in)
    wanted = parsed("--broker-list", parse_brokers, broker_list) or ()
    topics = read_file("--topics-to-move-json-file", topics_file, parse_topics)
    connect = connector(bootstrap_server, command_config)
    from weir.control.errors import MoveError
    from weir.control.move_look import growth, leader_sizes

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
        inflow = float(given) if given is not None else 0.0
        if rate is not None and given is None and found.total:
            grown = growth(admin, moved, MEASURED_SECONDS, time.monotonic, time.sleep)
            inflow = max((_into(broker, proposed, grown) for broker in wanted), default=0.0)
    seconds, never = _seconds(found, rate, inflow)
    plan = {partition: replicas for partition, replicas in proposed.items() if replicas != current[partition]}
    text = format_reassignment(proposed)
    if out is not None:
        _write(out, format_reassignment(plan or proposed))
    if json_wanted:
        print(json.dumps(_as_json(format_reassignment(current), text, found, inflow, rate, seconds), indent=2))
    else:
        print(f"Today's assignment:\n{format_reassignment(current)}\n\nProposed assignment:\n{text}\n")
        _print(found, rate, seconds, inflow)
        if out is not None:
            print(f"The partitions that change are in {out}.")
    if never:
        raise CommandError(never)
    return 0


def _into(broker: int, proposed: Mapping[Partition, Brokers], grown: Mapping[Partition, float]) -> float:
    return sum(rate for partition, rate in grown.items() if broker in proposed[partition])


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
    print_table(
        ("broker", "replicas", "then", "receives", "sends"),
        (
            (
                str(load.broker),
                str(load.replicas_before),
                str(load.replicas_after),
                show_size(load.bytes_received),
                show_size(load.bytes_sent),
            )
            for load in found.loads
        ),
        ("broker", "replicas", "then", "receives", "sends"),
    )
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


def _as_json(
    current: str, proposed: str, found: MoveReport, inflow: float, rate: int | None, seconds: float | None
) -> dict[str, object]:
    return {
        "current": json.loads(current),
        "proposed": json.loads(proposed),
        "brokers": [
            {
                "broker": load.broker,
                "replicas": load.replicas_before,
                "replicas_then": load.replicas_after,
                "bytes_received": load.bytes_received,
                "bytes_sent": load.bytes_sent,
            }
            for load in found.loads
        ],
        "partitions_to_move": found.moving,
        "partitions": found.partitions,
        "move_ratio": found.ratio,
        "bytes_to_move": found.total,
        "throttle": rate,
        "bytes_in": inflow if rate is not None else None,
        "move_seconds": seconds,
    }

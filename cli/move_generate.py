# SPDX-License-Identifier: Apache-2.0
"""`weir move generate`: proposes a plan and says what it costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.cluster import ClusterOptions, as_command_errors
from weir.cli.errors import CommandError
from weir.cli.move_plan import ThrottleOption, read_file
from weir.cli.options import option, parsed
from weir.cli.output import print_table
from weir.cli.quantities import show_duration
from weir.cli.rates import parse_rate
from weir.cli.sidecars import JsonOption
from weir.control.errors import MoveError
from weir.planning.arithmetic import QuotaTooLow
from weir.planning.assignment import Brokers, Partition
from weir.planning.move_report import MoveReport
from weir.planning.move_report import report as report_on
from weir.planning.proposals import propose
from weir.planning.reassignment_json import format_reassignment, parse_brokers, parse_topics
from weir.planning.units import show_rate, show_size

if TYPE_CHECKING:
    from weir.control.move_admin import MoveAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What is to be moved where, and under what."""

    topics_to_move: Path = option("--topics-to-move-json-file", "FILE", '{"topics": [{"topic": "orders"}]}', MISSING)
    broker_list: str = option("--broker-list", "IDS", "Where to move them, as in 1,2,3.", MISSING)
    cluster: ClusterOptions
    disable_rack_aware: bool = option("--disable-rack-aware", None, "Leave racks aside.", False)
    out: Path | None = option("--out", "FILE", "Write the proposed plan to a file too.")
    throttle: ThrottleOption = None
    bytes_in: str | None = option("--in", "RATE", "The most bytes/s that come into a broker; else it is measured.")


def generate(*, options: GenerateOptions, json_wanted: JsonOption = False) -> int:
    """Propose a plan: balanced, rack-aware, and with as little to move as can be."""
    rate, given = parsed("--throttle", parse_rate, options.throttle), parsed("--in", parse_rate, options.bytes_in)
    wanted = parsed("--broker-list", parse_brokers, options.broker_list) or ()
    topics = read_file("--topics-to-move-json-file", options.topics_to_move, parse_topics)
    connect = options.cluster.connector()
    with as_command_errors(), connect() as admin:
        current, proposed, found, grown = _propose(
            admin, topics, wanted, rack_aware=not options.disable_rack_aware, watched=rate is not None and given is None
        )
    inflow = float(given or 0)
    if grown is not None:
        inflow = max(sum(grown[p] for p in grown if broker in proposed[p]) for broker in wanted)
    seconds = never = None
    try:
        seconds = found.seconds(rate, inflow) if rate is not None else None
    except QuotaTooLow as error:
        above = show_rate(error.above)
        never = f"under a throttle of {show_rate(rate)} the move would never end: what comes in takes {above}."
    today, then = format_reassignment(current), format_reassignment(proposed)
    if options.out is not None:
        changed = {partition: replicas for partition, replicas in proposed.items() if replicas != current[partition]}
        _write(options.out, format_reassignment(changed or proposed))
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
        if options.out is not None:
            print(f"The partitions that change are in {options.out}.")
    if never:
        raise CommandError(never)
    return 0


def _propose(
    admin: MoveAdmin, topics: Sequence[str], wanted: Sequence[int], *, rack_aware: bool, watched: bool
) -> tuple[dict[Partition, Brokers], dict[Partition, Brokers], MoveReport, dict[Partition, float] | None]:
    """Return where partitions are, where they would go, what that costs, and what producers write meanwhile (bytes/s).

    The last is None unless it is to be watched, and bytes move.
    """
    from weir.control.plan_state import INFLOW_SECONDS, growth, leader_sizes

    racks = admin.racks()
    if missing := [str(broker) for broker in wanted if broker not in racks]:
        raise MoveError(f"there is no broker {', '.join(missing)}, or it is down")
    states = admin.partitions()
    if gone := sorted(set(topics) - {partition.topic for partition in states}):
        raise MoveError(f"there is no topic {', '.join(gone)}")
    moved = {partition: state for partition, state in sorted(states.items()) if partition.topic in topics}
    current = {partition: state.replicas for partition, state in moved.items()}
    sizes = leader_sizes(admin, moved)
    proposed = propose(current, {broker: racks[broker] if rack_aware else None for broker in wanted}, sizes)
    leaders = {partition: state.leader for partition, state in moved.items()}
    brokers = {*wanted, *(broker for replicas in current.values() for broker in replicas)}
    found = report_on(current, proposed, leaders, sizes, brokers, len(states))
    if leaderless := [str(one) for one in moved if leaders[one] < 0 and set(proposed[one]) - set(current[one])]:
        listed = ", ".join(leaderless)
        print(f"note: nobody leads {listed}: what they hold is not known, and not counted below.", file=sys.stderr)
    return current, proposed, found, growth(admin, moved, INFLOW_SECONDS) if watched and found.total else None


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

"""`weir plan`: how long a move takes under a quota, or which quota moves it in time, by KIP-73's Q&A."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.cluster import CommandConfigOption
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.output import print_table
from weir.cli.plan_cluster import read_live
from weir.cli.plan_figures import Figures, Refusal, refusal
from weir.cli.plan_inputs import (
    accuracy_of,
    bytes_in_of,
    bytes_of,
    count_brokers,
    or_default,
    parsed,
    ratio_of,
    read_past,
    replication_of,
)
from weir.cli.quantities import parse_deadline, parse_duration, parse_network, parse_size, show_moment
from weir.cli.rates import parse_rate
from weir.cli.sidecars import AdminOption, JsonOption
from weir.planning.arithmetic import (
    Answer,
    ImpossibleMove,
    Move,
    fastest,
    quota_bounds,
    quota_within,
    response_max_bytes_bound,
    time_under,
    time_under_within,
)
from weir.planning.units import show_rate

MOST = 2**31 - 1  # the most of what is counted: Kafka counts it with 32 bits
REPLICATION = 3
RESPONSE_MAX_BYTES = 10 * 1024 * 1024
WINDOW_NUM = 11
WINDOW_SIZE_SECONDS = 1
LAST = "28d"
_KAFKAS = "Kafka's default"


@dataclass(frozen=True, slots=True)
class _Ask:
    """The quota (bytes/s), the time (seconds), or both, that an answer is asked for."""

    quota: int | None
    seconds: float | None


def _now() -> datetime:
    return datetime.now(UTC)


def plan(
    size: Annotated[
        str | None, typer.Option("--size", metavar="SIZE", help="Log size of each broker, as in 500GB or 2TB.")
    ] = None,
    brokers: Annotated[int | None, typer.Option("--brokers", min=1, max=MOST, help="Number of brokers.")] = None,
    ratio: Annotated[
        float | None, typer.Option("--move-ratio", help="Share of the partitions that is moved, as in 0.1.")
    ] = None,
    partitions_to_move: Annotated[
        int | None,
        typer.Option("--partitions-to-move", min=1, max=MOST, help="With --partitions, instead of --move-ratio."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, max=MOST, help="Number of all partitions.")
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker",
            metavar="ID",
            min=0,
            max=MOST,
            help="Move all data of this broker; a history is read for it alone.",
        ),
    ] = None,
    bytes_in: Annotated[
        str | None, typer.Option("--in", metavar="RATE", help="The most bytes/s that come into a broker, as in 20MB/s.")
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", metavar="RATE", help="A broker's network: 1Gb/s (bits), 125MB/s (bytes).")
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", min=1, max=MOST, help=f"Replication factor; {REPLICATION} if not given."),
    ] = None,
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="RATE", help="How long does it take under this quota?")
    ] = None,
    within: Annotated[
        str | None, typer.Option("--within", metavar="TIME", help="Which quota moves it within 8h, 90min, 1d 6h?")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TIME", help="Which quota moves it by 06:00, '2026-11-22 06:00'?")
    ] = None,
    response_max_bytes: Annotated[
        str | None, typer.Option("--response-max-bytes", metavar="SIZE", help="replica.fetch.response.max.bytes.")
    ] = None,
    window_num: Annotated[
        int | None, typer.Option("--window-num", min=1, max=MOST, help="replication.quota.window.num.")
    ] = None,
    window_size_seconds: Annotated[
        int | None,
        typer.Option("--window-size-seconds", min=1, max=MOST, help="replication.quota.window.size.seconds."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="PATH", help="Folder of the tables that the jobs wrote.")
    ] = None,
    last: Annotated[str, typer.Option("--last", metavar="TIME", help="How far back to look in the history.")] = LAST,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", help="Instead of --size: what came in during it, by the history."),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="POLICY", help="Whose past accuracy counts: strict or kip73.")
    ] = "strict",
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Read from this cluster what no option gives."),
    ] = None,
    command_config: CommandConfigOption = None,
    admin: AdminOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Work out how long a move takes under a quota, or which quota moves it in time; every figure with its source."""
    now = _now()
    figures = Figures()
    live = read_live(bootstrap_server, command_config, broker, admin)
    factor = replication_of(figures, replication, live, REPLICATION)
    past = read_past(figures, history, factor, last, policy, broker, retention)
    broker_count = count_brokers(figures, brokers, past, live)
    share = ratio_of(figures, ratio, partitions_to_move, partitions, broker, live)
    to_move = bytes_of(figures, size, past, live, broker_count, share, broker)
    in_rate = bytes_in_of(figures, bytes_in, past, live, history)
    network_rate = parsed("--network", parse_network, network)
    figures.add("network", network_rate, "bytes/s", f"--network {network}" if network else "give --network")
    delivered, worst_second = accuracy_of(figures, past, policy)
    move = Move(
        to_move=to_move,
        bytes_in=in_rate,
        network=network_rate,
        replication_factor=factor,
        delivered=delivered,
        worst_second=worst_second,
    )
    _add_bounds(figures, move, accuracy_known=past is not None)
    ask = _ask(figures, now, quota, within, by)
    refused: Refusal | None = None
    notes: list[str] = []
    try:
        answer = _answer(move, ask)
    except ImpossibleMove as error:
        refused = refusal(error, move, ask.quota, ask.seconds, now if by is not None else None)
    else:
        if answer is not None:
            _add_answer(figures, answer, ask, now, accuracy_known=past is not None)
            window = _quota_window(figures, window_num, window_size_seconds)
            notes = _add_response_limit(figures, move, answer.quota, broker_count, response_max_bytes, window)
        else:
            notes = ["give --quota, --within or --by to get an answer, or --network to get the fastest move"]
    _print(figures, refused, notes, json_wanted)
    if refused is not None:
        raise CommandError(f"{refused.why}; {refused.would_do}.")
    return 0


def _add_bounds(figures: Figures, move: Move, *, accuracy_known: bool) -> None:
    bounds = quota_bounds(move)
    above, below = "bytes in < quota", "quota < network - bytes in / replication factor"
    if accuracy_known:
        above = "bytes in < quota x delivered"
        below = "quota x worst second < network - bytes in / replication factor"
    figures.add("quota_above", bounds.above, "bytes/s", f"computed: {above} (KIP-73, Q&A 4)")
    source = f"{below}: give --network" if bounds.below is None else f"computed: {below} (KIP-73, Q&A 4)"
    figures.add("quota_below", bounds.below, "bytes/s", source)


def _ask(figures: Figures, now: datetime, quota: str | None, within: str | None, by: str | None) -> _Ask:
    rate = parsed("--quota", parse_rate, quota)
    if rate is not None:
        figures.add("quota", rate, "bytes/s", "--quota")
    if within is not None and by is not None:
        raise CommandError("give --within or --by, not both.", WRONG_USAGE)
    deadline = parsed("--by", lambda text: parse_deadline(text, now), by)
    if deadline is not None:
        seconds: float | None = (deadline - now).total_seconds()
        figures.add("deadline", show_moment(deadline), "time", f"--by {by}")
        figures.add("time_allowed", seconds, "seconds", f"computed: deadline - now, {now.astimezone():%H:%M:%S}")
    else:
        seconds = parsed("--within", parse_duration, within)
        if seconds is not None:
            figures.add("time_allowed", seconds, "seconds", "--within")
    return _Ask(rate, seconds)


def _answer(move: Move, ask: _Ask) -> Answer | None:
    if ask.quota is not None and ask.seconds is not None:
        return time_under_within(move, ask.quota, ask.seconds)
    if ask.quota is not None:
        return time_under(move, ask.quota)
    if ask.seconds is not None:
        return quota_within(move, ask.seconds)
    return fastest(move)


def _add_answer(figures: Figures, answer: Answer, ask: _Ask, now: datetime, *, accuracy_known: bool) -> None:
    quota = "quota x delivered" if accuracy_known else "quota"
    if ask.seconds is None:
        source = "computed: the largest below the upper bound"
    elif accuracy_known:
        source = "computed: (bytes to move / time allowed + bytes in) / delivered (KIP-73, Q&A 1)"
    else:
        source = "computed: bytes to move / time allowed + bytes in (KIP-73, Q&A 1)"
    if ask.quota is None:
        figures.add("quota", answer.quota, "bytes/s", source)
    formula = f"computed: bytes to move / ({quota} - bytes in) (KIP-73, Q&A 1)"
    figures.add("move_time", answer.seconds, "seconds", formula)
    try:
        done_at = show_moment(now + timedelta(seconds=answer.seconds))
    except OverflowError:
        done_at = "after the year 9999"
    figures.add("done_at", done_at, "time", "computed: now + move time")


def _quota_window(figures: Figures, num: int | None, size_seconds: int | None) -> int:
    """Return `replication.quota.window.num` x `.size.seconds`, in seconds."""
    samples, samples_source = or_default(num, WINDOW_NUM, "--window-num", _KAFKAS)
    size, size_source = or_default(size_seconds, WINDOW_SIZE_SECONDS, "--window-size-seconds", _KAFKAS)
    source = f"computed: {samples} ({samples_source}) x {size} s ({size_source})"
    figures.add("quota_window", samples * size, "seconds", source)
    return samples * size


def _add_response_limit(
    figures: Figures, move: Move, quota: int, brokers: int | None, size: str | None, window: int
) -> list[str]:
    """Add what `replica.fetch.response.max.bytes` must stay below; a note where it does not."""
    given = parsed("--response-max-bytes", parse_size, size)
    limit, source = or_default(given, RESPONSE_MAX_BYTES, "--response-max-bytes", _KAFKAS)
    figures.add("response_max_bytes", limit, "bytes", source)
    if brokers is None or move.network is None:
        bound = response_max_bytes_bound(quota, window)
        formula = "quota x window"
    else:
        bound = response_max_bytes_bound(quota, window, brokers, move.network)
        formula = "window x min(quota x brokers, network) / brokers"
    figures.add("response_max_bytes_below", bound, "bytes", f"computed: {formula} (KIP-73, Q&A 5)")
    if limit < bound:
        return []
    return [
        "replica.fetch.response.max.bytes is not below its bound: under Kafka's own throttle and the policy kip73 the"
        f" first fetches alone can exceed {show_rate(quota)} for a whole window"
    ]


def _print(figures: Figures, refused: Refusal | None, notes: list[str], json_wanted: bool) -> None:
    if not json_wanted:
        print_table(("figure", "value", "source"), figures.rows())
        for note in notes:
            print(f"note: {note}.", file=sys.stderr)
        return
    answer: dict[str, object] = {"possible": refused is None, "figures": figures.as_json(), "notes": notes}
    if refused is not None:
        answer |= {"why": refused.why, "would_do": refused.would_do, "would_do_values": refused.values}
    print(json.dumps(answer, indent=2))

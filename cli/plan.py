# SPDX-License-Identifier: Apache-2.0
"""`weir plan`: how long a move takes under a quota, or which quota moves it in time, by KIP-73's Q&A."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option, parsed
from weir.cli.output import print_table
from weir.cli.plan_cluster import LiveOptions, read_live
from weir.cli.plan_figures import Figures, Refusal, refusal
from weir.cli.plan_inputs import (
    MOST,
    AmountOptions,
    HistoryOptions,
    accuracy_of,
    bytes_in_of,
    bytes_of,
    count_brokers,
    or_default,
    ratio_of,
    read_past,
    replication_of,
)
from weir.cli.quantities import parse_deadline, parse_duration, parse_network, parse_size, show_deadline, show_moment
from weir.cli.rates import parse_rate
from weir.cli.sidecars import JsonOption
from weir.planning.arithmetic import (
    ImpossibleMove,
    Move,
    TimedQuota,
    fastest,
    quota_bounds,
    quota_within,
    response_max_bytes_bound,
    time_under,
    time_under_within,
)
from weir.planning.units import show_rate

REPLICATION = 3
RESPONSE_MAX_BYTES = 10 * 1024 * 1024
WINDOW_NUM = 11
WINDOW_SIZE_SECONDS = 1
_KAFKAS = "Kafka's default"


@dataclass(frozen=True, slots=True)
class _Ask:
    """The quota (bytes/s), the time (seconds), or both, that an answer is asked for."""

    quota: int | None
    seconds: float | None


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """What passes a broker, and how often it passes."""

    bytes_in: str | None = option("--in", "RATE", "The most bytes/s that come into a broker, as in 20MB/s.")
    network: str | None = option("--network", "RATE", "A broker's network: 1Gb/s (bits), 125MB/s (bytes).")
    replication: int | None = option(
        "--replication", None, f"Replication factor; {REPLICATION} if not given.", min=1, max=MOST
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """What is asked: a time, a quota, or both."""

    quota: str | None = option("--quota", "RATE", "How long does it take under this quota?")
    within: str | None = option("--within", "TIME", "Which quota moves it within 8h, 90min, 1d 6h?")
    by: str | None = option("--by", "TIME", "Which quota moves it by 06:00, '2026-11-22 06:00'?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Brokers' own settings, which bound what a first fetch may bring; without them Kafka's defaults."""

    response_max_bytes: str | None = option("--response-max-bytes", "SIZE", "replica.fetch.response.max.bytes.")
    window_num: int | None = option("--window-num", None, "replication.quota.window.num.", min=1, max=MOST)
    window_size_seconds: int | None = option(
        "--window-size-seconds", None, "replication.quota.window.size.seconds.", min=1, max=MOST
    )


def plan(
    *,
    amount: AmountOptions,
    traffic: TrafficOptions,
    asked: AskOptions,
    kafka: KafkaOptions,
    history: HistoryOptions,
    cluster: LiveOptions,
    json_wanted: JsonOption = False,
) -> int:
    """Work out how long a move takes under a quota, or which quota moves it in time; every figure with its source."""
    now = _now()
    figures = Figures()
    live = read_live(cluster, amount.broker)
    factor = replication_of(figures, traffic.replication, live, REPLICATION)
    past = read_past(figures, history, factor, amount.broker)
    brokers = count_brokers(figures, amount.brokers, past, live)
    ratio = ratio_of(figures, amount, live)
    to_move = bytes_of(figures, amount, past, live, brokers, ratio)
    in_rate = bytes_in_of(figures, traffic.bytes_in, past, live, history.path)
    network = parsed("--network", parse_network, traffic.network)
    figures.add("network", network, "bytes/s", f"--network {traffic.network}" if traffic.network else "give --network")
    delivered, worst_second = accuracy_of(figures, past, history.policy)
    move = Move(
        to_move=to_move,
        bytes_in=in_rate,
        network=network,
        replication_factor=factor,
        delivered=delivered,
        worst_second=worst_second,
    )
    _add_bounds(figures, move, accuracy_known=past is not None)
    ask = _ask(figures, now, asked)
    refused: Refusal | None = None
    notes: list[str] = []
    try:
        answer = _answer(move, ask)
    except ImpossibleMove as error:
        refused = refusal(error, move, ask.quota, ask.seconds, now if asked.by is not None else None)
    else:
        if answer is not None:
            _add_answer(figures, answer, ask, now, accuracy_known=past is not None)
            notes = _add_response_limit(figures, move, answer.quota, brokers, kafka)
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


def _ask(figures: Figures, now: datetime, asked: AskOptions) -> _Ask:
    rate = parsed("--quota", parse_rate, asked.quota)
    if rate is not None:
        figures.add("quota", rate, "bytes/s", "--quota")
    if asked.within is not None and asked.by is not None:
        raise CommandError("give --within or --by, not both.", WRONG_USAGE)
    deadline = parsed("--by", lambda text: parse_deadline(text, now), asked.by)
    if deadline is not None:
        seconds: float | None = (deadline - now).total_seconds()
        figures.add("deadline", show_deadline(deadline), "time", f"--by {asked.by}")
        figures.add("time_allowed", seconds, "seconds", f"computed: deadline - now, {now.astimezone():%H:%M:%S}")
    else:
        seconds = parsed("--within", parse_duration, asked.within)
        if seconds is not None:
            figures.add("time_allowed", seconds, "seconds", "--within")
    return _Ask(rate, seconds)


def _answer(move: Move, ask: _Ask) -> TimedQuota | None:
    if ask.quota is not None and ask.seconds is not None:
        return time_under_within(move, ask.quota, ask.seconds)
    if ask.quota is not None:
        return time_under(move, ask.quota)
    if ask.seconds is not None:
        return quota_within(move, ask.seconds)
    return fastest(move)


def _add_answer(figures: Figures, answer: TimedQuota, ask: _Ask, now: datetime, *, accuracy_known: bool) -> None:
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


def _add_response_limit(
    figures: Figures, move: Move, quota: int, brokers: int | None, kafka: KafkaOptions
) -> list[str]:
    """Add what `replica.fetch.response.max.bytes` must stay below; a note where it does not."""
    samples, samples_source = or_default(kafka.window_num, WINDOW_NUM, "--window-num", _KAFKAS)
    size, size_source = or_default(kafka.window_size_seconds, WINDOW_SIZE_SECONDS, "--window-size-seconds", _KAFKAS)
    window = samples * size
    source = f"computed: {samples} ({samples_source}) x {size} s ({size_source})"
    figures.add("quota_window", window, "seconds", source)
    given = parsed("--response-max-bytes", parse_size, kafka.response_max_bytes)
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

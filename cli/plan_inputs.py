# SPDX-License-Identifier: Apache-2.0
"""The inputs of `weir plan`: options, what the history says, and defaults, each noted as a figure with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option, parsed
from weir.cli.plan_figures import Figures
from weir.cli.quantities import parse_duration, parse_size, show_duration
from weir.cli.rates import parse_rate
from weir.cli.tables import tables_at
from weir.planning.arithmetic import DAY, bytes_to_move, move_ratio

if TYPE_CHECKING:
    from weir.cli.plan_cluster import Live
    from weir.pipeline.history import History

MOST = 2**31 - 1  # the most of what is counted: Kafka counts it with 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountOptions:
    """What is moved: a part of the whole cluster's partitions, or all of one broker's."""

    size: str | None = option("--size", "SIZE", "Log size of each broker, as in 500GB or 2TB.")
    brokers: int | None = option("--brokers", None, "Number of brokers.", min=1, max=MOST)
    ratio: float | None = option("--move-ratio", None, "Share of the partitions that is moved, as in 0.1.")
    partitions_to_move: int | None = option(
        "--partitions-to-move", None, "With --partitions, instead of --move-ratio.", min=1, max=MOST
    )
    partitions: int | None = option("--partitions", None, "Number of all partitions.", min=1, max=MOST)
    broker: int | None = option(
        "--broker", "ID", "Move all data of this broker; a history is read for it alone.", min=0, max=MOST
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """What past throttles and their brokers tell, by the tables of the jobs. Times are as people type them."""

    path: str | None = option("--history", "PATH", "Folder of the tables, here or on a file system of Hadoop's.")
    last: str = option("--last", "TIME", "How far back to look in the history.", "28d")
    retention: str | None = option("--retention", "TIME", "Instead of --size: what came in during it, by the history.")
    policy: str = option("--policy", "POLICY", "Whose past accuracy counts: strict or kip73.", "strict")


def read_past(figures: Figures, history: HistoryOptions, factor: int, broker: int | None) -> History | None:
    """Read the history, and note its figures; None where no option names one.

    CommandError for wrong options, and for tables that cannot be read.
    """
    path, policy = history.path, history.policy
    if policy not in ("strict", "kip73"):
        raise CommandError(f"--policy: {policy!r} is not a policy: give strict or kip73.", WRONG_USAGE)
    last_seconds = parsed("--last", parse_duration, history.last)
    retention_seconds = parsed("--retention", parse_duration, history.retention)
    if path is None:
        if history.retention is not None:
            raise CommandError("--retention needs --history: it says what came in during it.", WRONG_USAGE)
        return None
    from weir.pipeline.history import read_history

    with tables_at("--history", path) as folder:
        past = read_history(
            folder,
            replication_factor=factor,
            last_seconds=last_seconds or 0,
            policy=policy,
            broker=broker,
            retention_seconds=retention_seconds,
        )
    figures.add("history_from", past.since.isoformat(sep=" "), "time", f"{path}, --last {history.last}")
    figures.add("history_until", past.until.isoformat(sep=" "), "time", path)
    _add_open_moves(figures, past)
    return past


def _add_open_moves(figures: Figures, past: History) -> None:
    """Note what earlier moves still have to do; messages, as the tables do not tell bytes."""
    if not past.open_moves:
        return
    ends = [move.end for move in past.open_moves]
    last = max((end for end in ends if end is not None), default=None)
    source = "history: moves without an end (moves, behind_minutes); they share the quota"
    figures.add("open_moves", len(ends), "count", source)
    behind = sum(move.lag_messages for move in past.open_moves)
    figures.add(
        "open_moves_behind", behind, "count", "history: messages that they were behind at last (behind_minutes)"
    )
    source = "history: by the pace of their last 30 minutes, the last of them (behind_minutes)"
    figures.add("open_moves_end", last.isoformat(" ", "minutes") if last and None not in ends else None, "time", source)


def replication_of(figures: Figures, given: int | None, live: Live | None, default: int) -> int:
    """Return the replication factor: as given, of most of the cluster's partitions, or the default."""
    if given is None and live is not None:
        figures.add("replication_factor", live.replication_factor, "count", "cluster: that of most partitions")
        return live.replication_factor
    factor, source = or_default(given, default, "--replication")
    figures.add("replication_factor", factor, "count", source)
    return factor


def count_brokers(figures: Figures, given: int | None, past: History | None, live: Live | None) -> int | None:
    """Return the number of brokers that was given, or that the cluster or the history has; None where none tells."""
    if given is not None:
        figures.add("brokers", given, "count", "--brokers")
        return given
    if live is not None:
        figures.add("brokers", live.brokers, "count", "cluster: brokers that are up")
        return live.brokers
    if past is not None:
        figures.add("brokers", past.brokers, "count", "history: broker ids in broker_rates")
        return past.brokers
    return None


def ratio_of(figures: Figures, amount: AmountOptions, live: Live | None) -> float | None:
    """Return which part (0 to 1) of all partitions is moved, None where no option gives one.

    CommandError for options that do not go together.
    """
    given, moved, partitions = amount.ratio, amount.partitions_to_move, amount.partitions
    if amount.broker is not None and (given, moved, partitions) != (None, None, None):
        raise CommandError(
            "give --broker, which moves all data of that broker, or a share of the whole cluster's (--move-ratio,"
            " --partitions-to-move with --partitions), not both.",
            WRONG_USAGE,
        )
    of_all = f"--partitions {partitions}"
    if moved is not None and partitions is None and live is not None:
        partitions, of_all = live.partitions, f"{live.partitions} in the cluster"
    if (moved is None) != (partitions is None):
        raise CommandError("--partitions-to-move and --partitions go together.", WRONG_USAGE)
    if moved is not None and partitions is not None:
        if given is not None:
            raise CommandError("give --move-ratio or the numbers of partitions, not both.", WRONG_USAGE)
        ratio = move_ratio(moved, partitions)
        source = f"computed: --partitions-to-move {moved} / {of_all} (KIP-73, Script)"
    elif given is not None:
        ratio, source = given, "--move-ratio"
    else:
        return None
    if not 0 < ratio <= 1:
        raise CommandError(f"a move ratio of {ratio:g} is not more than 0 and at most 1.", WRONG_USAGE)
    figures.add("move_ratio", ratio, "ratio", source)
    return ratio


def bytes_of(
    figures: Figures,
    amount: AmountOptions,
    past: History | None,
    live: Live | None,
    brokers: int | None,
    ratio: float | None,
) -> float:
    """Return the bytes to move: by the KIP's formula, or all of one broker's log."""
    log_size: float | None = parsed("--size", parse_size, amount.size)
    source = "--size"
    if log_size is None and past is not None:
        log_size, source = past.log_size, "history: mean bytes in of a broker during --retention (broker_rates)"
    if log_size is None and live is not None:
        of = ", the mean of all brokers" if amount.broker is None else ""
        log_size, source = live.log_size, f"cluster: log sizes (DescribeLogDirs){of}"
    if log_size is None:
        raise CommandError(
            "--size is missing: give it, --bootstrap-server, or --history with --retention.", WRONG_USAGE
        )
    if log_size <= 0:
        raise CommandError("there is nothing to move: the log size is 0.", WRONG_USAGE)
    figures.add("log_size_per_broker", log_size, "bytes", source)
    if ratio is None and amount.broker is not None:
        figures.add("bytes_to_move", log_size, "bytes", f"computed: the whole log of --broker {amount.broker}")
        return log_size
    if ratio is None:
        missing = "--move-ratio is missing: give it, --partitions-to-move with --partitions, or --broker"
        raise CommandError(f"{missing}.", WRONG_USAGE)
    if brokers is None:
        raise CommandError("--brokers is missing: give it, or --history.", WRONG_USAGE)
    to_move = bytes_to_move(ratio, log_size, brokers)
    formula = "computed: move ratio x log size per broker x brokers (KIP-73, Q&A 1)"
    figures.add("bytes_to_move", to_move, "bytes", formula)
    return to_move


def bytes_in_of(
    figures: Figures, given: str | None, past: History | None, live: Live | None, path: str | None
) -> float:
    """Return the most bytes/s that come into a broker: as given, of the busiest window in the history, or now.

    CommandError where nothing tells.
    """
    rate = parsed("--in", parse_rate, given)
    if rate is not None:
        figures.add("bytes_in", rate, "bytes/s", "--in")
        return rate
    if past is None and live is not None:
        source = f"cluster: broker {live.busiest}, by the growth of its logs just now (DescribeLogDirs)"
        if live.is_by_sidecar:
            source = f"sidecar of broker {live.busiest}: replication just now, throttled replicas aside (/v1/status)"
        figures.add("bytes_in", live.bytes_in, "bytes/s", source)
        return live.bytes_in
    if past is None:
        raise CommandError(
            "--in is missing: give the most bytes/s that come into a broker, --bootstrap-server or --history.",
            WRONG_USAGE,
        )
    if past.busiest is None:
        raise CommandError(
            f"--history: in {path} all replication is of throttled replicas, which says nothing of bytes in: give --in."
        )
    busiest = past.busiest
    at = f"{busiest.start:%Y-%m-%d %H:%M} UTC"
    figures.add(
        "throttled_share",
        past.throttled_share,
        "ratio",
        "history: bytes of throttled replicas / all bytes (broker_rates); not counted as bytes in",
    )
    name = f"busiest_{busiest.window}"
    figures.add(name, busiest.rate, "bytes/s", f"history: broker {busiest.broker_id} at {at} (broker_rates)")
    if (night := past.busiest_by_night) is not None:
        source = f"history: 22 to 6 UTC, broker {night.broker_id} (broker_rates); give it as --in for a move by night"
        figures.add("busiest_by_night", night.rate, "bytes/s", source)
    grown = 1.0
    if past.growth is None:
        figures.add("growth", None, "ratio", "history: no broker with two whole days in a row (broker_rates)")
    else:
        period = "week on week" if past.growth.period == 7 * DAY else "day on day"
        figures.add(
            "growth",
            past.growth.ratio,
            "ratio",
            f"history: mean bytes in, {period}, of brokers with both (broker_rates)",
        )
        grown = max(1.0, past.growth.ratio)
    source = f"computed: busiest {busiest.window} x growth where it is above 1, for max(BytesInPerSec)"
    figures.add("bytes_in", busiest.rate * grown, "bytes/s", source)
    return busiest.rate * grown


def accuracy_of(figures: Figures, past: History | None, policy: str) -> tuple[float, float]:
    """Return a throttle's mean rate / quota and its worst second / quota, from the history; 1 each without one."""
    if past is None:
        return 1.0, 1.0
    if past.accuracy is None:
        delivered = worst_second = 1.0
        of_mean = of_worst = f"default: the history has no throttle of policy {policy} that left anything out"
    else:
        seen = past.accuracy
        delivered, worst_second = seen.mean, max(1.0, seen.worst_second)
        count = f"{seen.throttles} {policy} throttle{'s' if seen.throttles > 1 else ''}"
        source = f"{count} in {show_duration(seen.seconds)} (throttle_accuracy)"
        of_mean = f"history: mean / quota while partitions were left out, {source}"
        of_worst = f"history: worst second / quota, at least 1, {source}"
    figures.add("delivered", delivered, "ratio", of_mean)
    figures.add("worst_second", worst_second, "ratio", of_worst)
    return delivered, worst_second


def or_default(given: int | None, default: int, option: str, whose: str = "default") -> tuple[int, str]:
    """Return the given value or the default, and the source of it."""
    return (default, whose) if given is None else (given, option)

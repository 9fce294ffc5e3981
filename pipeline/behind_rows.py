# SPDX-License-Identifier: Apache-2.0
"""The rows of replicas that spans are made of: few of all rows, as most replicas are in sync most of the time.

A stretch is SAMPLES samples of one process, an hour as a rule. Of one in which a replica was in sync one row is taken,
the first one: a span that goes on from the stretch before ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weir.pipeline.behind import LINE, OUT_OF_SYNC_SECONDS, REPLICA, ROW, with_lag, with_replica
from weir.pipeline.engine import Column, DataFrame, F
from weir.pipeline.lines import Lines, by_partition

SAMPLES: Final = 360

_STRETCH: Final = ("line", "stretch")
"""A number that stands for LINE, and that of the stretch."""

_FOUND: Final = ("is_wanted", "until", "since", "sequence", "bytes", "bytes_throttled", "lag_messages")

_FIGURES: Final = ("bytes_throttled", "bytes_unthrottled", "lag_messages")


def _by_stretch(lines: Lines) -> DataFrame:
    """Return a row for each replica and stretch, with the columns _STRETCH, `partition` and these.

    - `is_wanted`: whether a span may lie in this stretch, or go on beyond one of its ends. So it is where the leader
      changed, as two lines of one sample may then tell of the replica.
    - `until` and `since`: where they are not null, only a part of its rows is wanted: those up to the sequence `until`,
      and those behind the sequence `since`.
    - `sequence` and, as ROW has them, the figures of the first row in sync. Null where there is none.
    - `lag_ms` and `most_throttled`: the most of each.
    """
    lag = F.col("lag_ms")
    in_sync = F.when(lag <= 0, F.col("sequence"))
    is_open = F.when((lag > 0) | (lag.isNull() & (_size() > 0)), F.col("sequence"))
    rows = by_partition(_placed(lines).select(*_STRETCH, "peer", "sequence", "columns"), *_FIGURES, "lag_ms")
    found = rows.groupBy(*_STRETCH, "partition").agg(
        F.min(in_sync).alias("first"),
        F.max(in_sync).alias("last"),
        F.min(is_open).alias("first_open"),
        F.max(is_open).alias("last_open"),
        F.max("lag_ms").alias("lag_ms"),
        F.max("bytes_throttled").alias("most_throttled"),
        F.min_by(_size(), in_sync).alias("bytes"),
        *(F.min_by(name, in_sync).alias(name) for name in ("bytes_throttled", "lag_messages")),
        (F.min("peer") != F.max("peer")).alias("is_led_anew"),
    )
    was_open = F.col("first_open").isNotNull()
    is_late = F.coalesce(F.col("lag_ms") > OUT_OF_SYNC_SECONDS * 1000, F.lit(False))
    has_span = is_late | (was_open & (F.col("most_throttled") > 0))
    goes_on = (F.col("first_open") < F.col("first")) | (F.col("last_open") > F.col("last"))
    return found.select(
        *_STRETCH,
        "partition",
        (has_span | F.coalesce(goes_on, was_open) | F.col("is_led_anew")).alias("is_wanted"),
        F.when(~has_span, F.col("first")).alias("until"),
        F.when(~has_span, F.col("last")).alias("since"),
        F.col("first").alias("sequence"),
        "bytes",
        "bytes_throttled",
        "lag_messages",
        "lag_ms",
        "most_throttled",
    )


def rows_that_count(lines: Lines, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return all rows that make the spans of a day, with the columns ROW: of the replicas that have one that counts.

    `keep` has Spark compute a frame once.
    """
    of_day = F.max("lag_ms").alias("most_ms"), F.max("most_throttled").alias("most")
    all_found = F.collect_list(F.struct("stretch", *_FOUND)).alias("stretches")
    may_count = (F.col("most_ms") > 0) & ((F.col("most") > 0) | (F.col("most_ms") > OUT_OF_SYNC_SECONDS * 1000))
    replicas = _by_stretch(lines).groupBy("line", "partition").agg(*of_day, all_found).where(may_count)
    stretches = keep(replicas.select("line", "partition", F.inline("stretches")))
    # once Spark knows how few there are, it sends these to all tasks and does not shuffle the lines
    stretches.count()
    wanted = keep(_rows_of_wanted(lines, stretches))
    names = wanted.select(*REPLICA).distinct().withColumn("line", _line())
    in_sync = stretches.where(~F.col("is_wanted") & F.col("sequence").isNotNull())
    closing = in_sync.join(F.broadcast(names), ["line", "partition"])
    return wanted.union(closing.withColumn("lag_seconds", F.lit(0.0)).select(*ROW))


def _rows_of_wanted(lines: Lines, stretches: DataFrame) -> DataFrame:
    """Return the wanted rows of the replicas' wanted `stretches`, with the columns ROW.

    What is not known, neither the bytes nor the lag, has no row.
    """
    wanted = (
        stretches.where("is_wanted")
        .groupBy(*_STRETCH)
        .agg(
            F.collect_list("partition").alias("partitions_wanted"),
            F.collect_list(F.struct("until", "since")).alias("parts"),
        )
    )
    # Joined to whole lines, of which there are few. Their other partitions are left out while lines become rows.
    found = with_lag(_placed(lines).join(wanted, [*_STRETCH]), *_FIGURES)
    place = F.expr("coalesce(array_position(partitions_wanted, partition), 0) - 1").cast("int")
    until, since = (F.get("parts", place).getField(name) for name in ("until", "since"))
    is_wanted = until.isNull() | (F.col("sequence") <= until) | (F.col("sequence") > since)
    return found.where((place >= 0) & is_wanted & (F.col("lag_seconds").isNotNull() | (_size() > 0))).select(
        *(_size().alias(name) if name == "bytes" else F.col(name) for name in ROW)
    )


def _placed(lines: Lines) -> DataFrame:
    return (
        with_replica(lines.partitions)
        .withColumn("line", _line())
        .withColumn("stretch", F.expr(f"sequence div {SAMPLES}"))
    )


def _line() -> Column:
    # Rows are grouped by a number twice as fast as by the names of topics.
    return F.xxhash64(*LINE)


def _size() -> Column:
    return F.col("bytes_throttled") + F.col("bytes_unthrottled")

"""What an hour keeps of replicas, so that spans across its edges are found when it is joined to other hours.

Most replicas are in sync for the whole hour. Of each of these one row is kept, the first one: a span that goes on from
the hour before ends there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from weir.pipeline.behind import LINE, OUT_OF_SYNC_SECONDS, REPLICA, ROW, may_count, with_lag, with_replica
from weir.pipeline.hours import hour_of
from weir.pipeline.read import Lines, by_partition

_HOUR: Final = ("line", "hour")
"""A number that stands for LINE, and the start of an hour."""

_FIGURES: Final = ("bytes_throttled", "bytes_unthrottled", "lag_messages")


def replicas_of_hours(lines: Lines) -> DataFrame:
    """Return a row for each replica and hour, with the columns _HOUR, `partition` and these.

    - `is_wanted`: whether a span may lie in this hour, or go on beyond one of its ends. So it is where the leader
      changed, as two lines of one sample may then tell of the replica.
    - `until` and `since`: where they are not null, only a part of its rows is wanted: those up to the sequence `until`,
      and those behind the sequence `since`.
    - `sequence` and, as ROW has them, the figures of the first row in sync. Null where there is none.
    """
    lag = F.col("lag_ms")
    in_sync = F.when(lag <= 0, F.col("sequence"))
    is_open = F.when((lag > 0) | (lag.isNull() & (_size() > 0)), F.col("sequence"))
    rows = by_partition(_placed(lines).select(*_HOUR, "peer", "sequence", "columns"), *_FIGURES, "lag_ms")
    found = rows.groupBy(*_HOUR, "partition").agg(
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
        *_HOUR,
        "partition",
        (has_span | F.coalesce(goes_on, was_open) | F.col("is_led_anew")).alias("is_wanted"),
        F.when(~has_span, F.col("first")).alias("until"),
        F.when(~has_span, F.col("last")).alias("since"),
        F.col("first").alias("sequence"),
        "bytes",
        "bytes_throttled",
        "lag_messages",
    )


def rows_of_wanted(lines: Lines, replicas: DataFrame) -> DataFrame:
    """Return the wanted rows of the wanted replicas, with the columns ROW; `replicas` is as `replicas_of_hours` has it.

    What is not known, neither the bytes nor the lag, has no row.
    """
    of_one = F.struct("partition", "until", "since")
    wanted = replicas.where("is_wanted").groupBy(*_HOUR).agg(F.collect_list(of_one).alias("wanted"))
    # Joined to whole lines, of which there are few. Their other partitions are left out while lines become rows.
    found = with_lag(_placed(lines).join(wanted, [*_HOUR]), *_FIGURES)
    place = F.expr("int(array_position(wanted.partition, partition)) - 1")
    until, since = (F.get(f"wanted.{name}", place) for name in ("until", "since"))
    is_wanted = until.isNull() | (F.col("sequence") <= until) | (F.col("sequence") > since)
    return found.where((place >= 0) & is_wanted & (F.col("lag_seconds").isNotNull() | (_size() > 0))).select(
        *(_size().alias(name) if name == "bytes" else F.col(name) for name in ROW)
    )


def rows_in_sync(replicas: DataFrame) -> DataFrame:
    """Return, of each replica that is not wanted, its first row in sync; `ended` is the start of the hour."""
    others = replicas.where(~F.col("is_wanted") & F.col("sequence").isNotNull())
    return others.withColumnRenamed("hour", "ended").drop("is_wanted", "until", "since")


def rows_of_day(wanted: DataFrame, in_sync: DataFrame) -> DataFrame:
    """Return all rows that make the spans of a day: of the replicas that have one that counts.

    `wanted` and `in_sync` are the rows of all hours, as `rows_of_wanted` and `rows_in_sync` return them.
    """
    counted = F.broadcast(_that_may_count(wanted, in_sync).withColumn("line", _line()))
    rows = wanted.join(counted, [*REPLICA], "left_semi")
    closing = in_sync.join(counted, ["line", "partition"])
    return rows.union(closing.withColumn("lag_seconds", F.lit(0.0)).select(*ROW))


def _that_may_count(wanted: DataFrame, in_sync: DataFrame) -> DataFrame:
    """Return the replicas that were long behind, or behind and throttled, not always in one and the same sample."""
    throttled = F.col("bytes_throttled") > 0
    lag, most = F.max("lag_seconds").alias("lag_seconds"), F.max("bytes_throttled").alias("bytes_throttled")
    behind = wanted.where((F.col("lag_seconds") > 0) | throttled).groupBy(*REPLICA).agg(lag, most)
    throttled_in_sync = in_sync.where(throttled).select("line", "partition")
    others = behind.where((F.col("lag_seconds") > 0) & ~may_count()).withColumn("line", _line())
    ended_throttled = others.join(throttled_in_sync, ["line", "partition"], "left_semi")
    return behind.where(may_count()).select(*REPLICA).union(ended_throttled.select(*REPLICA))


def _placed(lines: Lines) -> DataFrame:
    return with_replica(lines.partitions).withColumn("line", _line()).withColumn("hour", hour_of(F.col("ended")))


def _line() -> Column:
    # Rows are grouped by a number twice as fast as by the names of topics.
    return F.xxhash64(*LINE)


def _size() -> Column:
    return F.col("bytes_throttled") + F.col("bytes_unthrottled")

"""The spans in which a replica was behind, from which the tables of moves and of replica lag are made."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.read import SAMPLE_KEY, Lines, by_partition

OUT_OF_SYNC_SECONDS: Final = 30.0
"""Kafka's default of `replica.lag.time.max.ms`. A replica behind for longer is out of sync; one that gets nothing is
stuck."""

_REPLICA: Final = ("side", "broker_id", "start_id", "topic", "partition", "peer")
SPAN: Final = (*_REPLICA, "span")


def replicas_behind(lines: Lines) -> DataFrame:
    """Return the replicas that may have a span.

    Most are never behind for long, and their lines are not looked at again.
    """
    behind = F.col("lag_seconds") > 0
    counts = behind & ((F.col("bytes_throttled") > 0) | (F.col("lag_seconds") > OUT_OF_SYNC_SECONDS))
    any_behind = lines.partitions.where(F.array_max("columns.lag_ms") > 0)
    return _with_lag(any_behind, "bytes_throttled").where(counts).select(*_REPLICA).distinct()


def behind_spans(lines: Lines, replicas: DataFrame) -> DataFrame:
    """Return a row for each span: from a replica's first sample behind to the first sample in which it has caught up.

    - Only `replicas` count, as `replicas_behind` gives them. Only spans with throttled bytes count, or with more than
      OUT_OF_SYNC_SECONDS of lag.
    - A span belongs to one start of one sidecar, and ends with the day.
    - `start` is when the replica was last caught up, which may be before the span's first sample.
    - `end` is null where no sample shows the replica caught up.
    - A stall is a time without bytes within the span. Samples without a line count as such.
    """
    in_order = Window.partitionBy(*SPAN).orderBy("sequence")
    rows = _rows(lines, replicas)
    # A replica that is away has no lines, and the first line afterwards tells since when it lags. Bytes before the
    # sidecar's first sample are unknown, so stalls begin there at the earliest.
    since = F.greatest("first_begin", F.col("end_seconds") - F.col("lag_seconds"))
    moved = F.when(F.col("bytes") > 0, F.col("end_seconds"))
    moved_before = F.last(moved, ignorenulls=True).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    began = F.first(since).over(in_order)
    reached = F.when(F.col("bytes") > 0, F.col("begin_seconds")).otherwise(F.col("end_seconds"))
    stalls = rows.withColumn("stall", reached - F.coalesce(moved_before, began)).withColumn("began", began)
    since_micros = F.col("ended_micros") - F.round(F.col("lag_seconds") * 1e6).cast("long")
    is_stuck = (F.col("stall") > OUT_OF_SYNC_SECONDS) & F.col("stall_over")
    return (
        stalls.withColumn("stall_over", (F.col("bytes") > 0) | F.lead("sequence").over(in_order).isNull())
        .groupBy(*SPAN)
        .agg(
            F.min_by(since_micros, "sequence").alias("start"),
            F.max(F.when(~F.col("behind"), F.col("ended_micros"))).alias("end"),
            F.sum("bytes").alias("bytes"),
            F.sum("bytes_throttled").alias("bytes_throttled"),
            (F.max("end_seconds") - F.min("began")).alias("seconds"),
            F.max_by("rate", F.when(F.col("rate").isNotNull(), F.col("sequence"))).alias("quota"),
            F.greatest(F.max("stall"), F.lit(0.0)).alias("longest_stall"),
            F.count(F.when(is_stuck, 1)).alias("stuck_spans"),
            F.sum(F.when(is_stuck, F.col("stall")).otherwise(0.0)).alias("stuck_seconds"),
            F.max("lag_messages").alias("max_lag_messages"),
            F.max("lag_seconds").alias("max_lag_seconds"),
        )
        .where((F.col("bytes_throttled") > 0) | (F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS))
        .withColumn("replica", F.when(F.col("side") == "leader", F.col("peer")).otherwise(F.col("broker_id")))
        .withColumns({name: F.timestamp_micros(name) for name in ("start", "end")})
    )


def _with_lag(partitions: DataFrame, *names: str) -> DataFrame:
    rows = by_partition(partitions.drop("lag_seconds"), *names, "lag_ms")
    return rows.withColumn("lag_seconds", F.col("lag_ms") / 1000)


def _rows(lines: Lines, replicas: DataFrame) -> DataFrame:
    """Return the lines of replicas that are behind or have just caught up, with `span`, `bytes` and `rate`.

    `first_begin` is the begin of the first sample of the sidecar's start.
    """
    figures = ("bytes_throttled", "bytes_unthrottled", "lag_messages")
    known = (
        _with_lag(lines.partitions, *figures)
        .where(F.col("lag_seconds").isNotNull())
        .select(
            *_REPLICA,
            "sequence",
            "begin_seconds",
            "end_seconds",
            "ended_micros",
            "lag_seconds",
            "lag_messages",
            "bytes_throttled",
            (F.col("bytes_throttled") + F.col("bytes_unthrottled")).alias("bytes"),
            (F.col("lag_seconds") > 0).alias("behind"),
        )
    )
    in_order = Window.partitionBy(*_REPLICA).orderBy("sequence")
    was_behind = F.coalesce(F.lag("behind").over(in_order), F.lit(False))
    spans = (
        known.join(replicas, [*_REPLICA], "left_semi")
        .withColumn("was_behind", was_behind)
        .withColumn("begins", F.when(F.col("behind") & ~F.col("was_behind"), 1).otherwise(0))
        .withColumn("span", F.sum("begins").over(in_order))
        .where(F.col("behind") | F.col("was_behind"))
    )
    listed = F.col("quota") == F.concat("side", F.lit(".replication.throttled.rate"))
    in_force = lines.quotas.where(listed & F.col("mode").isNull())
    quotas = in_force.groupBy(*SAMPLE_KEY, "side").agg(F.max_by("rate", "in_force_from_seconds").alias("rate"))
    process = ["broker_id", "start_id"]
    begins = lines.ends.groupBy(*process).agg(F.min("begin_seconds").alias("first_begin"))
    return spans.join(quotas, [*SAMPLE_KEY, "side"], "left").join(F.broadcast(begins), process)

# SPDX-License-Identifier: Apache-2.0
"""The spans in which a replica was behind, from which the tables of moves and of replica lag are made."""

from __future__ import annotations

from typing import Final

from weir.pipeline.engine import Column, DataFrame, F, Window
from weir.pipeline.lines import SAMPLE_KEY, by_partition
from weir.pipeline.rates import as_table
from weir.pipeline.tables import BEHIND_MINUTES, MOVES, REPLICA_LAG, WINDOW_SECONDS

OUT_OF_SYNC_SECONDS: Final = 30.0
"""Kafka's default of `replica.lag.time.max.ms`. A replica behind for longer is out of sync; one that gets nothing is
stuck."""

LINE: Final = ("side", "broker_id", "start_id", "topic", "replica")
"""What the lines of a replica have in common. A follower stays the same replica where its leader changes."""
REPLICA: Final = (*LINE, "partition")
ROW: Final = (*REPLICA, "sequence", "lag_seconds", "lag_messages", "bytes_throttled", "bytes")
"""What is told of a replica in a sample."""

SPAN: Final = (*REPLICA, "span")
_MINUTE: Final = WINDOW_SECONDS["minute"]
_PROCESS: Final = ("broker_id", "start_id")


def behind_by_minute(rows: DataFrame, ends: DataFrame, rates: DataFrame) -> DataFrame:
    """Return a row for each minute of each span, with what `behind_spans` needs of it.

    - `rows` have the columns ROW; `ends` has a row for each whole sample; `rates` is as `rates_in_force` gives it.
    - A stall is a time without bytes within the span. Samples without a line count as such; samples that are missing do
      not, as nothing is known of them. It is told in the minute in which it ended.
    """
    in_order = Window.partitionBy(*SPAN).orderBy("sequence")
    placed = _in_spans(rows, ends).join(rates, [*SAMPLE_KEY, "side"], "left")
    moved = F.when(F.col("bytes") > 0, F.col("sampled_until"))
    moved_before = F.last(moved, ignorenulls=True).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    began = F.first("since").over(in_order)
    reached = F.when(F.col("bytes") > 0, F.col("sampled_from")).otherwise(F.col("sampled_until"))
    is_over = (F.col("bytes") > 0) | F.lead("sequence").over(in_order).isNull()
    stalls = (
        placed.withColumn("reached", reached)
        .withColumn("stall", F.when(is_over, F.col("reached") - F.coalesce(moved_before, began)))
        .withColumn("began", began)
    )
    since_micros = F.col("ended_micros") - _lag_micros()
    told_first = F.when(F.col("lag_seconds").isNotNull(), F.col("sequence"))
    stall_end = F.col("ended_micros") - (F.col("sampled_until") - F.col("reached"))
    is_stuck = F.col("stall") > OUT_OF_SYNC_SECONDS * 1e6
    second = F.floor((F.col("ended_micros") - 1) / 1_000_000)
    return stalls.groupBy(*SPAN, (second - second % _MINUTE).alias("minute")).agg(
        F.min("sequence").alias("sequence"),
        F.min_by(since_micros, told_first).alias("start"),
        F.max(F.when(~F.col("behind"), F.col("ended_micros"))).alias("end"),
        F.sum("bytes").alias("bytes"),
        F.sum("bytes_throttled").alias("bytes_throttled"),
        F.max("sampled_until").alias("sampled_until"),
        F.min("began").alias("began"),
        F.min_by(F.col("clock") - _lag_micros(), told_first).alias("first"),
        F.max(F.when(~F.col("behind"), F.col("clock"))).alias("last"),
        F.max_by("rate", F.when(F.col("rate").isNotNull(), F.col("sequence"))).alias("rate"),
        F.max("stall").alias("longest_stall"),
        # of equal ones the last
        F.max(F.when(F.col("stall") > 0, F.struct("stall", stall_end.alias("end")))).getField("end").alias("stall_end"),
        F.count(F.when(is_stuck, 1)).alias("stuck_spans"),
        F.sum(F.when(is_stuck, F.col("stall")).otherwise(0)).alias("stuck"),
        F.max("lag_messages").alias("max_lag_messages"),
        F.max("lag_seconds").alias("max_lag_seconds"),
    )


def behind_spans(by_minute: DataFrame) -> DataFrame:
    """Return a row for each span: from a replica's first sample behind to the first sample in which it has caught up.

    - `by_minute` is as `behind_by_minute` gives it. Only spans with throttled bytes count, or with more than
      OUT_OF_SYNC_SECONDS of lag.
    - A span belongs to one start of one sidecar, and ends with the day.
    - `start` is when the replica was last caught up, which may be before the span's first sample.
    - `end` is null where no sample shows the replica caught up. `seconds_to_in_sync` are those of the monotonic clock.
    - A sample that has bytes and does not know the lag leaves the replica behind if it was. So it is where the next
      sample that knows the lag tells of it since before.
    """
    told_first = F.when(F.col("start").isNotNull(), F.col("sequence"))
    return (
        by_minute.groupBy(*SPAN)
        .agg(
            F.min_by("start", told_first).alias("start"),
            F.max("end").alias("end"),
            F.sum("bytes").alias("bytes"),
            F.sum("bytes_throttled").alias("bytes_throttled"),
            ((F.max("sampled_until") - F.min("began")) / 1e6).alias("seconds"),
            ((F.max("last") - F.min_by("first", told_first)) / 1e6).alias("seconds_to_in_sync"),
            F.max_by("rate", F.when(F.col("rate").isNotNull(), F.col("sequence"))).alias("quota"),
            (F.greatest(F.max("longest_stall"), F.lit(0)) / 1e6).alias("longest_stall_seconds"),
            F.sum("stuck_spans").alias("stuck_spans"),
            (F.sum("stuck") / 1e6).alias("stuck_seconds"),
            F.max("max_lag_messages").alias("max_lag_messages"),
            F.max("max_lag_seconds").alias("max_lag_seconds"),
        )
        .where((F.col("bytes_throttled") > 0) | (F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS))
        .withColumns({name: F.timestamp_micros(name) for name in ("start", "end")})
    )


def moves(spans: DataFrame) -> DataFrame:
    """Return the table `moves`: a row for each of the `spans`."""
    mean = F.col("bytes") / F.col("seconds")
    return as_table(
        spans.withColumn("mean_bytes_per_second", mean).withColumnRenamed("quota", "quota_bytes_per_second"), MOVES
    )


def replica_lag(spans: DataFrame) -> DataFrame:
    """Return the table `replica_lag`: a row for each of the `spans` in which the replica was out of sync."""
    return as_table(spans.where(F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS), REPLICA_LAG)


def behind_minutes(by_minute: DataFrame, spans: DataFrame) -> DataFrame:
    """Return the table `behind_minutes`: the minutes of the `spans`."""
    return as_table(
        by_minute.drop("start")
        .join(spans.select(*SPAN, "start"), [*SPAN])
        .withColumn("window_start", F.timestamp_seconds("minute"))
        .withColumn("stall_end", F.timestamp_micros("stall_end"))
        .withColumn("stuck_seconds", F.col("stuck") / 1e6)
        .withColumn("longest_stall_seconds", F.greatest(F.col("longest_stall"), F.lit(0)) / 1e6),
        BEHIND_MINUTES,
    )


def with_replica(partitions: DataFrame) -> DataFrame:
    """Return the lines with `replica`, the id of the broker that they tell of."""
    return partitions.withColumn(
        "replica", F.when(F.col("side") == "leader", F.col("peer")).otherwise(F.col("broker_id"))
    )


def with_lag(partitions: DataFrame, *names: str) -> DataFrame:
    """Return a row for each partition, with `replica`, the figures `names` and `lag_seconds`."""
    rows = by_partition(with_replica(partitions).drop("lag_seconds"), *names, "lag_ms")
    return rows.withColumn("lag_seconds", F.col("lag_ms") / 1000)


def rates_in_force(quotas: DataFrame) -> DataFrame:
    """Return the `rate` of the broker's own quota that was in force last, by sample and side.

    `quotas` is as `quotas_in_force` gives it.
    """
    listed = quotas.where(F.col("quota") == F.concat("side", F.lit(".replication.throttled.rate")))
    return listed.groupBy(*SAMPLE_KEY, "side").agg(F.max_by("rate", "in_force_from_seconds").alias("rate"))


def _in_spans(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """Return the rows of replicas that are behind or have just caught up, with `span`.

    `sampled_from` and `sampled_until` are the sample's begin and end on a clock that begins with the process's first
    sample of the day, and stands still while samples are missing; `clock` is its end on the monotonic one. In a span's
    first row `since` is when it began, on the former. All are in microseconds.
    """
    in_order = Window.partitionBy(*REPLICA).orderBy("sequence")
    # a follower whose leader changed within a sample has two lines in it
    one = rows.repartition(*REPLICA).groupBy(*REPLICA, "sequence")
    rows = one.agg(
        *(F.max(name).alias(name) for name in ("lag_seconds", "lag_messages")),
        *(F.sum(name).alias(name) for name in ("bytes_throttled", "bytes")),
    )
    clocks = _clocks(ends)
    timed = rows.join(clocks, [*SAMPLE_KEY])
    # Samples that do not know the lag belong to the span where the next one that does tells of it since before.
    backwards = Window.partitionBy(*REPLICA).orderBy(F.desc("sequence"))
    since = F.last(F.col("clock") - _lag_micros(), ignorenulls=True).over(backwards)
    was_told_behind = F.last(F.col("lag_seconds") > 0, ignorenulls=True).over(in_order)
    found_behind = F.col("lag_seconds").isNull() & (F.col("since") < F.col("clock"))
    spans = (
        timed.withColumn("since", since)
        .withColumn("behind", F.coalesce(was_told_behind, F.lit(False)) | F.coalesce(found_behind, F.lit(False)))
        .withColumn("was_behind", F.coalesce(F.lag("behind").over(in_order), F.lit(False)))
        .withColumn("begins", F.when(F.col("behind") & ~F.col("was_behind"), 1).otherwise(0))
        .withColumn("span", F.sum("begins").over(in_order))
        .where(F.col("behind") | F.col("was_behind"))
    )
    missing = F.struct(
        F.col("clock_before").alias("since"), (F.col("clock_from") - F.col("clock_before")).alias("micros")
    )
    gaps = clocks.where("is_gap").groupBy(*_PROCESS).agg(F.collect_list(missing).alias("gaps"))
    # A replica that is away has no lines, and the first line afterwards tells since when it lags. Bytes before the
    # sidecar's first sample are unknown, so stalls begin there at the earliest.
    zero = F.lit(0).cast("long")
    of_gaps = F.transform(
        "gaps",
        lambda gap: F.least(F.greatest(F.col("since") - gap.getField("since"), zero), gap.getField("micros")),
    )
    missed = F.aggregate(of_gaps, zero, lambda one, other: one + other)
    sampled = F.greatest(F.lit(0), F.col("since") - F.col("clock_first")) - F.coalesce(missed, F.lit(0))
    return (
        spans.join(F.broadcast(gaps), [*_PROCESS], "left")
        .withColumn("since", F.when(F.col("begins") == 1, sampled))
        .drop("gaps")
    )


def _clocks(ends: DataFrame) -> DataFrame:
    """Return the clocks of each sample; `is_gap` where samples are missing between it and the one before."""
    process = Window.partitionBy(*_PROCESS).orderBy("sequence")
    clock = F.round(F.col("end_seconds") * 1e6).cast("long")
    sampled = F.sum("micros").over(process)
    clocks = ends.select(*SAMPLE_KEY, "ended_micros", "micros", clock.alias("clock")).withColumn(
        "clock_from", F.col("clock") - F.col("micros")
    )
    return clocks.select(
        *SAMPLE_KEY,
        "ended_micros",
        "clock",
        "clock_from",
        F.lag("clock").over(process).alias("clock_before"),
        F.first("clock_from").over(process).alias("clock_first"),
        (F.lag("sequence").over(process) < F.col("sequence") - 1).alias("is_gap"),
        (sampled - F.col("micros")).alias("sampled_from"),
        sampled.alias("sampled_until"),
    )


def _lag_micros() -> Column:
    return F.round(F.col("lag_seconds") * 1e6).cast("long")

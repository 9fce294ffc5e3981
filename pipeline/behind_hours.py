"""What an hour keeps of replicas, so that spans across its edges are found when it is joined to other hours."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.behind import LINE, OUT_OF_SYNC_SECONDS, known, with_lag
from pipeline.hours import hour_of
from pipeline.read import Lines

_SIZES: Final = ("bytes_throttled", "bytes_unthrottled")
_REPLICA: Final = ("place", "partition")


def replicas_of_hours(lines: Lines) -> DataFrame:
    """Return a row for each replica and hour: its `first` and `last` sample in sync, and whether it `counts`.

    It counts where it may have a span in that hour alone.
    """
    throttled = F.max("bytes_throttled") > 0
    rows = with_lag(_placed(lines).select("place", "sequence", "columns", F.lit(0).alias("lag_seconds")), *_SIZES)
    in_sync = F.when(F.col("lag_seconds") <= 0, F.col("sequence"))
    return rows.groupBy(*_REPLICA).agg(
        F.min(in_sync).alias("first"),
        F.max(in_sync).alias("last"),
        F.coalesce((F.max("lag_seconds") > OUT_OF_SYNC_SECONDS) | (throttled & F.max(_is_open())), F.lit(False)).alias(
            "counts"
        ),
    )


def rows_to_join(lines: Lines, replicas: DataFrame) -> DataFrame:
    """Return, of some hours' lines, rows that tell as much of spans beside those of other hours.

    - `replicas` is as `replicas_of_hours` gives it.
    - Of one that counts in an hour: all rows.
    - Of others: the first row in sync, and what is not in sync before it and after the last one. A span from another
      hour ends there, or one begins that counts in the next.
    """
    # Joined to whole lines, or by numbers alone: to sort all rows would take as long as the rates of partitions.
    lines_by_place = _placed(lines)
    counting = replicas.where("counts").groupBy("place").agg(F.collect_set("partition").alias("wanted"))
    others = replicas.where(~F.col("counts"))
    lags = F.col("columns.lag_ms")
    has_open = (F.array_max(lags) > 0) | F.array_contains(lags, F.lit(-1).cast("long")).isNull()
    open_rows = with_lag(
        lines_by_place.where(has_open).select("place", "sequence", "columns", F.lit(0).alias("lag_seconds")), *_SIZES
    ).where(_is_open())
    at_edges = open_rows.join(others, [*_REPLICA]).where(
        F.col("first").isNull() | (F.col("sequence") < F.col("first")) | (F.col("sequence") > F.col("last"))
    )
    edges = at_edges.select("place", "sequence", "partition").union(
        others.where(F.col("first").isNotNull()).select("place", F.col("first").alias("sequence"), "partition")
    )
    by_line = edges.groupBy("place", "sequence").agg(F.collect_set("partition").alias("wanted"))
    return known(lines_by_place.join(counting, ["place"]), lines).union(
        known(lines_by_place.join(by_line, ["place", "sequence"]), lines)
    )


def _placed(lines: Lines) -> DataFrame:
    return lines.partitions.withColumn("place", F.xxhash64(*LINE, hour_of(F.col("ended"))))


def _is_open() -> Column:
    """Whether a row does not tell of a replica in sync."""
    size = F.col("bytes_throttled") + F.col("bytes_unthrottled")
    return (F.col("lag_seconds") > 0) | (F.col("lag_seconds").isNull() & (size > 0))

"""Moves: a pure function from the spans in which replicas were behind to the table `moves`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.rates import as_table
from pipeline.tables import MOVES


def moves(spans: DataFrame) -> DataFrame:
    """Return a row for each of `behind_spans`."""
    return as_table(
        spans.withColumn("mean_bytes_per_second", F.col("bytes") / F.col("seconds"))
        .withColumnRenamed("quota", "quota_bytes_per_second")
        .withColumnRenamed("longest_stall", "longest_stall_seconds"),
        MOVES,
    )

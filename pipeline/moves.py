"""Moves: a pure function from exported lines to the table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.behind import behind_spans
from pipeline.rates import as_table
from pipeline.tables import MOVES


def moves(lines: DataFrame) -> DataFrame:
    """Return a row for each span in which a replica was behind; see `behind_spans`."""
    return as_table(
        behind_spans(lines)
        .withColumn("mean_bytes_per_second", F.col("bytes") / F.col("seconds"))
        .withColumnRenamed("quota", "quota_bytes_per_second")
        .withColumnRenamed("longest_stall", "longest_stall_seconds"),
        MOVES,
    )

"""Moves: a pure function from the spans in which replicas were behind to the table `moves`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.pipeline.rates import as_table
from weir.pipeline.tables import MOVES


def moves(spans: DataFrame) -> DataFrame:
    """Return a row for each of `behind_spans`."""
    mean = F.col("bytes") / F.col("seconds")
    return as_table(
        spans.withColumn("mean_bytes_per_second", mean).withColumnRenamed("quota", "quota_bytes_per_second"), MOVES
    )

"""Replica lag: a pure function from the spans in which replicas were behind to the table `replica_lag`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.behind import OUT_OF_SYNC_SECONDS
from pipeline.rates import as_table
from pipeline.tables import REPLICA_LAG


def replica_lag(spans: DataFrame) -> DataFrame:
    """Return a row for each of `behind_spans` in which the replica was out of sync."""
    seconds = (F.unix_micros("end") - F.unix_micros("start")) / 1e6
    out_of_sync = spans.where(F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS)
    return as_table(out_of_sync.withColumn("seconds_to_in_sync", seconds), REPLICA_LAG)
